"""Laplace's approximation by every method, against dense Newton steps in float64."""

import warnings
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linmodels as lm
from laws import newton
from laws.tolerances import working_epsilon
from linmodels.operators import from_matrix

N, M, D = 9, 3, 4
KEY = jax.random.key(1)
LIKELIHOODS = {
    "categorical": lm.Categorical(),
    "bernoulli": lm.Bernoulli(),
    "poisson": lm.Poisson(),
}


class Arrays(NamedTuple):
    design: np.ndarray
    """(N, M, D)"""
    targets: np.ndarray
    offset: np.ndarray
    weights: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    """F, (D,)"""
    alpha: float


def random_arrays(kind, seed, *, flat=False):
    generator = np.random.default_rng(seed)
    design = generator.standard_normal((N, M, D))
    if flat:
        design[..., 0] = 1.0 if kind != "categorical" else np.arange(M)
    targets = {
        "categorical": lambda: np.eye(M)[
            np.concatenate([np.arange(M), generator.integers(0, M, N - M)])
        ],
        "bernoulli": lambda: np.arange(N * M).reshape(N, M) % 2,
        "poisson": lambda: generator.poisson(2.0, (N, M)) + (np.arange(N) == 0)[:, None],
    }[kind]()
    weights = generator.choice([0.5, 1.0, 2.0], N)
    weights[-2] = 0.0
    arrays = Arrays(
        design,
        targets,
        0.3 * generator.standard_normal((N, M)),
        weights,
        0.3 * generator.standard_normal(D),
        generator.uniform(0.5, 2.0, D),
        float(generator.uniform(0.3, 3.0)),
    )
    dtype = np.dtype(jnp.result_type(float))
    return Arrays(*(np.asarray(a, dtype) for a in arrays[:-1]), arrays.alpha)


def observe(likelihood, design, targets, offset, weights):
    shape = jax.ShapeDtypeStruct(targets.shape, targets.dtype)
    operator = from_matrix(design.reshape(-1, D), out_structure=shape)
    return lm.Observations(operator, targets, likelihood, offset, weights)


def observations(kind, arrays):
    return observe(LIKELIHOODS[kind], *arrays[:4])


def batched(kind, arrays, size):
    rows = lm.RowSlices(*arrays[:4], batch_size=size)
    return lm.Batched(rows, OBSERVERS[kind])


OBSERVERS = {
    kind: lambda *arrays, like=likelihood: observe(like, *arrays)
    for kind, likelihood in LIKELIHOODS.items()
}


def prior_of(arrays, *, flat=False):
    root = lx.DiagonalLinearOperator(jnp.asarray(arrays.root))
    mask = np.arange(D) == 0 if flat else None
    return lm.GaussianPrior(arrays.alpha, root, mean=jnp.asarray(arrays.mean), flat=mask)


def oracle(kind, arrays, *, flat=False, curvature_at=None):
    held = Arrays(*(np.asarray(a, np.float64) for a in arrays))
    precision = np.diag(held.alpha / held.root**2)
    if flat:
        precision[0] = 0.0
    return newton.laplace(
        kind,
        held.design,
        held.targets,
        precision,
        offset=held.offset,
        weights=held.weights,
        mean=held.mean,
        curvature_at=curvature_at,
    )


def require_mode(fit, truth, bound):
    """The mean in posterior standard deviations."""
    root = np.linalg.cholesky(truth.precision)
    gap = (np.asarray(fit.posterior.mean, np.float64) - truth.mean) @ root
    assert np.linalg.norm(gap) <= bound


def require_exact(fit, truth):
    """Rows are known to 8 ε, and a gradient of N M of them of size below 10 to 80 N M ε.

    Divided by H ≥ 0.07 (here, α/F² ≥ 0.3/4) that moves the mode; the log determinant, whose
    derivative along a standard deviation is below d, and γ follow. The mode itself is found to
    √(2·1e-10 γ) standard deviations at the step before the last, and squared after it.
    """
    bound = 80 * N * M * working_epsilon() / 0.07 + 1e-8
    require_mode(fit, truth, bound)
    assert abs(float(fit.log_evidence) - truth.log_evidence) <= D * bound
    dimension = np.trace(np.linalg.solve(truth.precision, truth.information))
    num_flat = 0 if fit.prior.flat is None else int(fit.prior.flat.sum())
    assert abs(float(fit.effective_dimension) - (dimension - num_flat)) <= D * bound
    covariance = np.linalg.inv(truth.precision)
    rows = np.asarray(fit.posterior.covariance_factor.as_matrix(), np.float64)
    scale = np.sqrt(np.diag(covariance))
    gap = (rows @ rows.T - covariance) / np.outer(scale, scale)
    assert np.abs(gap).max() <= D * bound


@pytest.mark.parametrize(
    "kind",
    ["categorical", *(pytest.param(k, marks=pytest.mark.slow) for k in ("bernoulli", "poisson"))],
)
def test_exact(kind):
    """Both sides, with and without a flat column; offsets, weights, a prior mean and a factor."""
    for seed, flat in enumerate((False, True, kind == "poisson")):
        arrays = random_arrays(kind, seed, flat=flat)
        truth = oracle(kind, arrays, flat=flat)
        for side in ("primal", "dual"):
            data, prior = observations(kind, arrays), prior_of(arrays, flat=flat)
            fit = lm.infer(data, prior, method=lm.Exact(side), num_samples=0)
            require_exact(fit, truth)


@pytest.mark.slow
@given(kind=st.sampled_from(list(LIKELIHOODS)), seed=st.integers(0, 2**32 - 1), flat=st.booleans())
def test_exact_on_random_problems(kind, seed, flat):
    arrays = random_arrays(kind, seed, flat=flat)
    fit = lm.infer(observations(kind, arrays), prior_of(arrays, flat=flat), num_samples=0)
    require_exact(fit, oracle(kind, arrays, flat=flat))


def test_batches_say_what_one_batch_says(caplog):
    """And nothing compiles from one step to the next: the second problem takes other steps."""
    for seed in (0, 3):
        arrays = random_arrays("categorical", seed)
        data, prior = batched("categorical", arrays, 4), prior_of(arrays)
        caplog.clear()
        with jax.log_compiles(), warnings.catch_warnings():
            fit = lm.infer(data, prior, num_samples=0)
        require_exact(fit, oracle("categorical", arrays))
    assert not [r for r in caplog.records if r.message.startswith("Compiling")]


@pytest.mark.slow
def test_weights_are_repeated_rows():
    arrays = random_arrays("poisson", 1)
    counts = np.arange(N) % 3
    weighted = arrays._replace(weights=counts.astype(arrays.design.dtype))
    repeated = [np.repeat(a, counts, axis=0) for a in arrays[:3]]
    repeated = arrays._replace(
        design=repeated[0],
        targets=repeated[1],
        offset=repeated[2],
        weights=np.ones(counts.sum(), arrays.design.dtype),
    )
    truth = oracle("poisson", repeated)
    for given_arrays in (weighted, repeated):
        data = observations("poisson", given_arrays)
        require_exact(lm.infer(data, prior_of(arrays), num_samples=0), truth)


def require_products(fit, exact, truth, num_samples):
    """The mean to the tolerance of its solves, √(2 ε² γ); the evidence to 5 standard errors.

    The solver is asked for a mean square of γ̂/(8k) a deviation, γ̂ from k samples.
    """
    dimension = np.trace(np.linalg.solve(truth.precision, truth.information))
    require_mode(fit, truth, 2 * np.sqrt(2e-6 * dimension))
    gap = abs(float(fit.log_evidence) - truth.log_evidence)
    assert gap <= 5 * float(fit.log_evidence_error)
    root = np.linalg.cholesky(truth.precision)
    left = np.asarray(fit.posterior.deviations - exact.posterior.deviations, np.float64) @ root
    assert np.mean(np.sum(left**2, 1)) <= 2 * dimension / (8 * num_samples)


@pytest.mark.slow
def test_products_alone():
    """Block-CG and Matheron's rule at a given strength, and block-CG where it is learned.

    One sample, as for the steps to the mode, so that nothing compiles twice; its γ is known to
    √(2 γ), γ being 3, and so log α to √(2/3).
    """
    arrays = strong("categorical", 0)
    data, prior = observations("categorical", arrays), prior_of(arrays)
    arguments = {"num_samples": 1, "key": KEY}
    exact = lm.infer(data, prior, method=lm.Exact("dual"), **arguments)
    truth = oracle("categorical", arrays)
    for method in (lm.BlockCG("dual"), lm.Matheron()):
        fit = lm.infer(data, prior, method=method, **arguments)
        require_products(fit, exact, truth, 1)
    learned = lm.maximise_evidence(data, prior, num_samples=0)
    method = lm.BlockCG("dual")
    fit = lm.maximise_evidence(data, prior, method=method, **arguments)
    ratio = float(fit.prior.alpha) / float(learned.prior.alpha)
    assert abs(np.log(ratio)) <= 5 * np.sqrt(2 / 3)


def test_curvature_held_elsewhere():
    """The mode stays, covariance and evidence take the other curvature."""
    arrays = random_arrays("categorical", 2)
    point = np.linspace(-1, 1, D)
    data = observations("categorical", arrays)
    held = jnp.asarray(point, arrays.design.dtype)
    fit = lm.infer(data, prior_of(arrays), num_samples=0, curvature_at=held)
    require_exact(fit, oracle("categorical", arrays, curvature_at=np.asarray(held, np.float64)))


def separable(flat):
    """Ones for positive x, with an intercept column."""
    x = np.linspace(-2, 2, N)
    columns = np.stack([np.ones(N), x, x**2, x**3], 1) / np.array([1, 2, 4, 8])
    design = np.repeat(columns[:, None, :], M, 1)
    targets = np.repeat((x > 0.1).astype(float)[:, None], M, 1)
    dtype = np.dtype(jnp.result_type(float))
    arrays = [design, targets, np.zeros((N, M)), np.ones(N), np.zeros(D), np.ones(D)]
    arrays = Arrays(*(np.asarray(a, dtype) for a in arrays), 1e-6)
    return observations("bernoulli", arrays), prior_of(arrays, flat=flat), arrays


@pytest.mark.slow
def test_separable_data_with_a_proper_prior_have_a_mode():
    data, prior, arrays = separable(flat=False)
    fit = lm.infer(data, prior, num_samples=0)
    # Logits near ±20: (1 − p) p, and so H, fall to 1e-6, and the mode is known accordingly.
    require_mode(fit, oracle("bernoulli", arrays), 1e-2)


def test_targets_that_a_flat_column_separates_are_flagged():
    """All targets 0: the column's mode is at −∞."""
    kind = "poisson"
    arrays = random_arrays(kind, 0, flat=True)
    targets = np.zeros_like(arrays.targets)
    data, prior = observations(kind, arrays._replace(targets=targets)), prior_of(arrays, flat=True)
    fit = lm.infer(data, prior, num_samples=0, throw=False)
    assert fit.result == lm.RESULTS.mode_not_found
    assert np.isfinite(np.asarray(fit.posterior.mean)).all()
    assert abs(float(fit.posterior.mean[0])) < 100
    with pytest.raises(lm.FitError, match="flat column"):
        lm.infer(data, prior, num_samples=0)


def test_under_jit_it_says_that_it_is_a_loop():
    arrays = random_arrays("bernoulli", 0)
    fit = eqx.filter_jit(
        lambda a: lm.infer(observations("bernoulli", a), prior_of(arrays), num_samples=0)
    )
    with pytest.raises(ValueError, match="Bernoulli is a Python loop"):
        fit(jax.tree.map(jnp.asarray, arrays))


def require_fixed_point(kind, fit, arrays, tolerance):
    """α‖F⁻¹(θ̄ − μ)‖² = γ."""
    learned = arrays._replace(alpha=float(fit.prior.alpha))
    truth = oracle(kind, learned)
    require_mode(fit, truth, 1e-2)
    dimension = np.trace(np.linalg.solve(truth.precision, truth.information))
    norm = learned.alpha * np.sum(((truth.mean - arrays.mean) / arrays.root) ** 2)
    np.testing.assert_allclose(norm, dimension, rtol=tolerance)
    np.testing.assert_allclose(fit.log_evidence, truth.log_evidence, rtol=1e-4)


def strong(kind, seed):
    """Targets that depend on the columns, so that there is something to learn."""
    arrays = random_arrays(kind, seed)
    outputs = np.einsum("nmd,d->nm", arrays.design, np.array([1.5, -1.0, 0.5, 1.0]))
    targets = {
        "categorical": lambda: np.eye(M)[outputs.argmax(1)],
        "bernoulli": lambda: outputs > 0.3 * np.sin(np.arange(N * M).reshape(N, M) * 5),
        "poisson": lambda: np.round(np.exp(np.clip(outputs, -2, 3))),
    }[kind]()
    return arrays._replace(targets=targets.astype(arrays.design.dtype))


@pytest.mark.parametrize(
    "m_step",
    [lm.m_steps.mackay, lm.m_steps.evidence_bound, lm.m_steps.em_elbo],
    ids=lambda step: step.__name__,
)
def test_learning(m_step):
    """MacKay's fixed point, to the last update."""
    arrays = strong("poisson", 0)
    data, prior = observations("poisson", arrays), prior_of(arrays)
    fit = lm.maximise_evidence(data, prior, num_samples=0, tolerance=1e-2, m_step=m_step)
    require_fixed_point("poisson", fit, arrays, 2e-2)


@pytest.mark.slow
def test_learning_with_the_curvature_held():
    """The fixed point is then a maximum of the evidence."""
    arrays = strong("categorical", 0)
    data, prior = observations("categorical", arrays), prior_of(arrays)
    states = []
    fit = lm.maximise_evidence(data, prior, num_samples=0, callback=states.append)
    assert fit.flags == ()
    require_fixed_point("categorical", fit, arrays, 1e-3)
    for state in (states[0], states[-1]):
        again = lm.maximise_evidence(data, prior, num_samples=0, state=state)
        assert again.prior.alpha == fit.prior.alpha
        assert (again.posterior.mean == fit.posterior.mean).all()
    held = np.zeros(D, arrays.design.dtype)
    fit = lm.maximise_evidence(data, prior, num_samples=0, curvature_at=jnp.asarray(held))
    evidence = lambda factor: (
        oracle(
            "categorical", arrays._replace(alpha=float(fit.prior.alpha) * factor), curvature_at=held
        ).log_evidence
    )
    assert evidence(1.0) > max(evidence(0.9), evidence(1.1))


@pytest.mark.slow
def test_groups_are_learned():
    """γ_l = α_l‖x̄_l‖² for either group."""
    arrays = strong("bernoulli", 1)
    labels = np.arange(D) % 2
    prior = lm.GaussianPrior(groups=labels)
    fit = lm.maximise_evidence(observations("bernoulli", arrays), prior, num_samples=0)
    alpha = np.asarray(fit.prior.alpha, np.float64)
    held = arrays._replace(mean=np.zeros(D), root=alpha[labels] ** -0.5, alpha=1.0)
    truth = oracle("bernoulli", held)
    require_mode(fit, truth, 1e-2)
    dimensions = np.diag(np.linalg.solve(truth.precision, truth.information))
    for group, strength in enumerate(alpha):
        mine = labels == group
        norm = strength * np.sum(truth.mean[mine] ** 2)
        np.testing.assert_allclose(norm, dimensions[mine].sum(), rtol=1e-3)


def test_nothing_to_learn():
    """Counts of 1 at rates of 1: no coefficient raises the likelihood, so α has no maximum."""
    arrays = random_arrays("poisson", 0)
    zeros = np.zeros_like(arrays.offset)
    arrays = arrays._replace(targets=zeros + 1, offset=zeros, mean=np.zeros_like(arrays.mean))
    data, prior = observations("poisson", arrays), prior_of(arrays)
    fit = lm.maximise_evidence(data, prior, num_samples=0)
    assert [flag.kind for flag in fit.flags] == [lm.FlagKind.PRIOR_PRECISION_INFINITE]
    assert float(fit.effective_dimension) < 1e-6
