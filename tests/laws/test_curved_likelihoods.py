"""Categorical, Bernoulli and Poisson: values, gradients and curvature factors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linmodels as lm
from laws.tolerances import working_epsilon

N, M = 5, 3
LIKELIHOODS = {
    "categorical": lm.Categorical(),
    "bernoulli": lm.Bernoulli(),
    "poisson": lm.Poisson(),
}
parametrised = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)


def targets_of(likelihood, generator):
    """Hard or soft targets."""
    if isinstance(likelihood, lm.Poisson):
        return generator.poisson(3.0, (N, M)) * generator.choice([1.0, 0.7])
    if isinstance(likelihood, lm.Bernoulli):
        return generator.choice([0.0, 1.0, 0.3], (N, M))
    if generator.integers(2):
        return generator.integers(0, M, N)
    return generator.dirichlet(np.ones(M), N)


@eqx.filter_jit
def everything(likelihood, outputs, elsewhere, targets, u, v):
    """What the laws compare: automatic derivatives, and products with R."""
    total = lambda f: likelihood.log_prob(f, targets).sum()
    forward = likelihood.root_product(outputs, v)
    score = likelihood.score(outputs, targets)
    residual = likelihood.pearson_residual(elsewhere, score)
    return {
        "gradient": (jax.grad(total)(outputs), score),
        "pearson": (likelihood.root_transpose_product(elsewhere, residual), score),
        "curvature": (
            -jax.jvp(jax.grad(total), (outputs,), (v,))[1],
            likelihood.root_transpose_product(outputs, forward),
        ),
        "value": (likelihood.log_prob(outputs, targets), residual),
        "adjoint": (
            jnp.vdot(u, forward),
            jnp.vdot(likelihood.root_transpose_product(outputs, u), v),
        ),
    }


@parametrised
@given(seed=st.integers(0, 2**32 - 1))
def test_derivatives(likelihood, seed):
    """Sums of M products, or of N M for the inner product, each known to a few ε of its size."""
    generator = np.random.default_rng(seed)
    normal = lambda: jnp.asarray(generator.standard_normal((N, M)) * 2, float)
    outputs, elsewhere, u, v = normal(), normal(), normal(), normal()
    targets = likelihood.as_targets(targets_of(likelihood, generator), outputs)
    largest = float(jnp.exp(jnp.maximum(outputs, elsewhere).max()))
    size = (1 + largest) * (1 + float(targets.max())) * 100
    values = everything(likelihood, outputs, elsewhere, targets, u, v)
    values.pop("value")
    for name, (got, wanted) in values.items():
        bound = 16 * M * working_epsilon() * size
        np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=name)


@parametrised
def test_extreme_logits(likelihood):
    """At ±1e4 nothing overflows, gradients are right and residuals can be squared and summed."""
    outputs = jnp.asarray([[1e4, -1e4, 0], [-1e4, 1e4, 1e4], [-1e4] * 3, [1e4] * 3, [0] * 3], float)
    labels = np.eye(M)[[0, 0, 1, 2, 1]]
    targets = likelihood.as_targets(labels, outputs)
    values = everything(likelihood, outputs, outputs, targets, outputs, outputs)
    for name in ("gradient", "pearson"):
        got, wanted = (np.asarray(x, np.float64) for x in values[name])
        np.testing.assert_allclose(got, wanted, rtol=64 * working_epsilon(), err_msg=name)
    log_prob, residual = map(np.asarray, values["value"])
    assert np.isfinite(np.sum(residual**2))
    assert np.isfinite(log_prob).all()
    if not isinstance(likelihood, lm.Poisson):
        assert log_prob.max() <= 0
        wrong = {"Categorical": (1,), "Bernoulli": (1, 1)}[type(likelihood).__name__]
        assert abs(log_prob[wrong] / (-2e4 if len(wrong) == 1 else -1e4) - 1) < 1e-3


def test_values():
    """Against the definitions, in NumPy's float64."""
    generator = np.random.default_rng(0)
    f = generator.standard_normal((N, M))
    log_softmax = f - np.log(np.exp(f).sum(1, keepdims=True))
    labels = generator.integers(0, M, N)
    coins, counts = generator.integers(0, 2, (N, M)), generator.poisson(2.0, (N, M))
    log_factorial = np.vectorize(lambda y: np.log(np.arange(1, y + 1)).sum())
    cases = [
        (lm.Categorical(), labels, log_softmax[np.arange(N), labels]),
        (lm.Bernoulli(), coins, -np.log1p(np.exp(np.where(coins == 1, -f, f)))),
        (lm.Poisson(), counts, counts * f - np.exp(f) - log_factorial(counts)),
    ]
    for likelihood, targets, expected in cases:
        outputs = jnp.asarray(f, float)
        held = likelihood.as_targets(targets, outputs)
        got = everything(likelihood, *[outputs] * 2, held, *[outputs] * 2)["value"][0]
        np.testing.assert_allclose(got, expected, atol=64 * working_epsilon())


def test_bernoulli_is_a_difference_of_two_logits():
    """Categorical on (0, f) is Bernoulli on f; its curvature at f = 0 is ¼."""
    outputs = np.array([0.0, 2.0, -3.0])

    @jax.jit
    def both(f, labels):
        pairs = jnp.stack([jnp.zeros(3), f], axis=1)
        two = lm.Categorical().as_targets(labels, pairs)
        one = lm.Bernoulli().as_targets(labels, f)
        return [
            (lm.Categorical().log_prob(pairs, two), lm.Bernoulli().log_prob(f, one)),
            (lm.Categorical().score(pairs, two)[:, 1], lm.Bernoulli().score(f, one)),
            (lm.Bernoulli().root_product(f, f + 1)[0] ** 2, 0.25),
        ]

    for got, wanted in both(jnp.asarray(outputs, float), np.array([1, 0, 1])):
        np.testing.assert_allclose(got, wanted, atol=8 * working_epsilon())


OUTPUTS = jax.ShapeDtypeStruct((4, 3), jnp.float32)
WRONG = {
    "class": (lm.Categorical(), np.array([0, 1, 3, 0]), "observation 2 has the class 3"),
    "negative class": (lm.Categorical(), np.array([0, -1, 0, 0]), "observation 1 has the class -1"),
    "float classes": (lm.Categorical(), np.zeros(4), "must be integers"),
    "sum": (lm.Categorical(), np.eye(4, 3), "observation 3 sum to 0"),
    "negative": (lm.Categorical(), np.eye(4, 3) - 0.5, "between 0 and 1"),
    "shape": (lm.Categorical(), np.zeros((3, 4)), "class numbers"),
    "bernoulli": (lm.Bernoulli(), np.full((4, 3), 2.0), "between 0 and 1"),
    "counts": (lm.Poisson(), np.full((4, 3), -1), "at least 0"),
    "infinite counts": (lm.Poisson(), np.full((4, 3), np.inf), "finite"),
    "integers where rows are meant": (lm.Poisson(), np.zeros(4, int), "shape"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_wrong_targets(case):
    likelihood, targets, message = case
    with pytest.raises(ValueError, match=message):
        likelihood.as_targets(targets, OUTPUTS)


def test_wrong_targets_under_jit_become_nan():
    for likelihood, targets, _ in (WRONG[k] for k in ("class", "sum", "bernoulli", "counts")):
        held = jax.jit(lambda y, like=likelihood: like.as_targets(y, OUTPUTS))(targets)
        assert np.isnan(np.asarray(held)).any()


def test_bools_are_targets():
    outputs = jax.ShapeDtypeStruct((3, 3), jnp.float32)
    for likelihood in (lm.Bernoulli(), lm.Categorical()):
        held = likelihood.as_targets(np.eye(3, dtype=bool), outputs)
        np.testing.assert_array_equal(held, np.eye(3))


def test_one_class_is_refused():
    for shape in ((4, 1), (4,)):
        outputs = jax.ShapeDtypeStruct(shape, jnp.float32)
        with pytest.raises(ValueError, match="Bernoulli"):
            lm.Categorical().as_targets(np.zeros(4, int), outputs)


def test_soft_labels_of_half_precision_sum_to_one():
    rows = np.array([[0.2, 0.3, 0.5], [1, 0, 0], [0.1, 0.1, 0.8], [1 / 3] * 3])
    rows = rows.astype(np.float16)
    held = lm.Categorical().as_targets(rows, OUTPUTS)
    np.testing.assert_allclose(held.sum(1), 1, atol=4 * np.finfo(np.float32).eps)
