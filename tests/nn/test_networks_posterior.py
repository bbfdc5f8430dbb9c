"""Posteriors of linearised networks against dense arithmetic and values known by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import linmodels as lm
from linmodels_nn import laplace, linearise
from nn.networks import CASES, made, mlp, normal

KEY = jax.random.key(2)
EXACT = lm.Exact()


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0], np.float64)


def rows_of(deviations):
    return np.asarray(jax.vmap(lambda z: ravel_pytree(z)[0])(deviations), np.float64)


def in_64_bit(tree):
    return jax.tree.map(lambda leaf: leaf.astype("float64") if eqx.is_array(leaf) else leaf, tree)


def dense_mlp(network, x):
    """Outputs and Jacobian of a one-layer tanh network, by hand."""
    (a, c), (b, e) = (
        (np.asarray(w, np.float64) for w in (n.weight, n.bias)) for n in network.layers
    )
    hidden = np.tanh(x @ a.T + c)
    slope, eye = b[None] * (1 - hidden**2)[:, None], np.eye(len(b))
    gradients = (
        np.einsum("noh,ni->nohi", slope, x),
        slope,
        np.einsum("op,nh->noph", eye, hidden),
        np.tile(eye, (len(x), 1, 1)),
    )
    size = len(x) * len(b)
    jacobian = np.concatenate([g.reshape(size, g.size // size) for g in gradients], axis=1)
    return (hidden @ b.T + e).ravel(), jacobian


def test_batches_equal_one_batch_and_both_dense_arithmetic():
    """10 examples as 4 + 4 + 2, deviations too; H = αI + b JᵀJ, and the mean needs the offset."""
    alpha, precision = 0.5, 4.0
    random = np.random.default_rng(3)
    x, y = random.standard_normal((10, 3)), random.standard_normal((10, 2))
    with jax.enable_x64(True):
        network = in_64_bit(mlp())
        linearised, prior = linearise(network), lm.GaussianPrior(alpha)
        arguments = {"method": EXACT, "num_samples": 3, "key": KEY}
        noise = lm.Gaussian(precision)
        rows = lm.RowSlices(x, y, batch_size=4)
        whole = lm.infer(linearised.observations(x, y, noise), prior, **arguments)
        split = lm.infer(lm.Batched(rows, linearised.observe(noise)), prior, **arguments)
        outputs, jacobian = dense_mlp(network, x)
        weights = flat(linearised.parameters)
        assert len(weights) == len(jacobian.T) == 26
        hessian = alpha * np.eye(26) + precision * jacobian.T @ jacobian
        left = y.ravel() - outputs + jacobian @ weights
        mean = np.linalg.solve(hessian, precision * jacobian.T @ left)
        assert split.num_observations == 10
        for fit in (whole, split):
            np.testing.assert_allclose(flat(fit.posterior.mean), mean, rtol=1e-10)
        draws = rows_of(whole.posterior.deviations)
        gap = np.abs(rows_of(split.posterior.deviations) - draws).max()
        assert gap <= 1e-12 * np.abs(draws).max()
        new_x = random.standard_normal((4, 3))
        f, new = dense_mlp(network, new_x)
        prediction = linearised.predict(whole.posterior, new_x)
        np.testing.assert_allclose(flat(prediction.mean), f, rtol=1e-12)
        variance = np.einsum("nd,nd->n", new, np.linalg.solve(hessian, new.T).T)
        np.testing.assert_allclose(flat(prediction.std()) ** 2, variance, rtol=1e-9)
        linear = whole.posterior.predict(linearised.jacobian(new_x), linearised.offset(new_x))
        np.testing.assert_allclose(flat(linear.mean), f + new @ (mean - weights), rtol=1e-9)


@pytest.mark.slow
def test_matrix_free_methods_see_the_network_alike():
    """Means to the solver's tolerance, 1e-8 in ε²: ‖e‖²_H ≤ 1e-8 γ; deviations likewise."""
    linearised, x, _ = CASES["convolutions and statistics"]()
    data = linearised.observations(x, np.array([0, 1, 2, 1, 0]), lm.Categorical())
    prior = lm.GaussianPrior(3.0)
    arguments = {"num_samples": 4, "key": KEY}
    exact = lm.infer(data, prior, method=lm.Exact("primal"), **arguments)
    size = len(flat(linearised.parameters))
    factor = np.asarray(exact.posterior.covariance_factor.as_matrix(), np.float64)
    to_unit = np.linalg.inv(factor)  # ‖C⁻¹e‖ = ‖e‖_H
    solved = lm.infer(data, prior, method=lm.BlockCG("primal", tolerance=1e-8), **arguments)
    error = np.linalg.norm(to_unit @ (flat(solved.posterior.mean) - flat(exact.posterior.mean)))
    # The mode itself is found to ε² = 1e-6 by either.
    assert factor.shape == (size, size)
    assert error**2 <= 4e-6 * float(exact.effective_dimension)
    difference = rows_of(solved.posterior.deviations) - rows_of(exact.posterior.deviations)
    gap = np.sum((difference @ to_unit.T) ** 2, axis=1).mean()
    assert gap <= 1e-5 * float(exact.effective_dimension)


@pytest.mark.parametrize("method", [EXACT, pytest.param(lm.BlockCG(), marks=pytest.mark.slow)])
def test_joint_samples_of_one_parameter(method):
    """f = w x at x = ±1: the correlation of the two outputs is −1."""
    linearised = linearise(lambda w, x: w[0] * x[0], jnp.array([0.7]))
    x = np.array([[1.0], [-1.0]], "f")
    data = linearised.observations(x, np.array([0.5, -0.3], "f"), lm.Gaussian(1.0))
    fit = lm.infer(data, lm.GaussianPrior(1.0), method=method, num_samples=16, key=KEY)
    first, second = np.asarray(linearised.predict(fit.posterior, x).samples()).T
    assert np.corrcoef(first, second)[0, 1] < -1 + 1e-5


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_a_parameter_that_is_one_number(side):
    """θ with a leaf of shape (): what a leaf of shape (1,) gives, bit by bit."""
    x = np.random.default_rng(4).standard_normal((5, 3)).astype("f")
    weights, y = jnp.array([0.3, -0.2, 0.5]), np.sin(x[:, 0])
    scaled = lambda p, x: jnp.sum(p["s"]) * jnp.tanh(x @ p["w"])
    found = []
    for scale in (jnp.array(1.0), jnp.array([1.0])):
        linearised = linearise(scaled, {"s": scale, "w": weights})
        data, method = linearised.observations(x, y, lm.Gaussian(4.0)), lm.Exact(side)
        fitted = laplace(linearised, (x, y), method=method, num_samples=3, key=KEY)
        fit = lm.infer(data, lm.GaussianPrior(2.0), method=method, num_samples=3, key=KEY)
        evidence = lm.log_evidence(data, lm.GaussianPrior(2.0), method=method)
        assert fit.posterior.mean["s"].shape == scale.shape
        assert fit.posterior.deviations["s"].shape == (3, *scale.shape)
        assert fit.posterior.summary().std["s"].shape == scale.shape
        found.append([fitted.sample(x), *map(flat, (fit.posterior, evidence))])
    jax.tree.map(np.testing.assert_array_equal, *found)


def largest_value(jaxpr):
    """Entries of the largest array in a program, those within its parts included."""
    sizes = [np.prod(v.aval.shape) for e in jaxpr.eqns for v in e.outvars]
    for equation in jaxpr.eqns:
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                sizes.append(largest_value(inner))
    return max(sizes, default=0)


def test_many_outputs_and_few_parameters():
    """1e5 outputs, 10 parameters, 8 deviations: nothing of outputs × parameters is formed."""
    outputs, count, k = 100_000, 10, 8

    def polynomial(w, x):
        value = jnp.zeros_like(x)
        for i in range(count):  # Horner's
            value = value * x + w[i]
        return value

    linearised = linearise(polynomial, jnp.asarray(normal(count)))
    x = np.linspace(-1, 1, outputs, dtype="f")
    weights = jnp.asarray(normal(k, count))
    posterior = lm.Posterior(jnp.zeros(count), weights, None, lm.Gaussian(1.0))
    std = lambda posterior, x: linearised.predict(posterior, x).std(noise=True)
    program = eqx.filter_make_jaxpr(std)(posterior, jnp.asarray(x))[0].jaxpr
    assert k * outputs <= largest_value(program) < count * outputs
    powers = x.astype(np.float64)[:, None] ** np.arange(count)[::-1]
    dense = np.sqrt(1 + np.mean((np.asarray(weights, np.float64) @ powers.T) ** 2, axis=0))
    np.testing.assert_allclose(std(posterior, x), dense, rtol=1e-4)


def scaled(posterior, s):
    return eqx.tree_at(
        lambda p: p.deviations, posterior, jax.tree.map(lambda z: s * z, posterior.deviations)
    )


def test_predictions_in_pieces():
    """7 examples as 3 + 3 + 1 and 11 deviations as 8 + 3 equal all at once, exact variances too."""
    linearised, size = linearise(mlp()), 26
    leaves, tree = jax.tree.flatten(linearised.parameters)
    drawn = jax.tree.unflatten(tree, [jnp.asarray(normal(11, *leaf.shape)) for leaf in leaves])
    factor = lx.MatrixLinearOperator(jnp.asarray(normal(size, size)))
    for posterior in (
        lm.Posterior(linearised.parameters, drawn, None, lm.Gaussian(1.0)),
        lm.Posterior(
            linearised.parameters, jax.tree.map(lambda z: z[:0], drawn), factor, lm.Gaussian(1.0)
        ),
    ):
        whole, pieces = (
            linearised.predict(posterior, normal(7, 3), batch_size=size) for size in (7, 3)
        )
        assert pieces.mean.shape == (7, 2)
        assert pieces.deviations.shape == (posterior.num_samples, 7, 2)
        np.testing.assert_allclose(pieces.mean, whole.mean, rtol=1e-6)
        np.testing.assert_allclose(pieces.deviations, whole.deviations, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(pieces.std(), whole.std(), rtol=1e-5)
        slopes = jax.grad(
            lambda s, p=posterior: linearised.predict(
                scaled(p, s), normal(7, 3), batch_size=3
            ).deviations.sum()
        )(1.0)  # all at once under transformations
        np.testing.assert_allclose(slopes, pieces.deviations.sum(), rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        linearised.predict(posterior, normal(7, 3), batch_size=0)


def test_memory_of_predictions_does_not_grow_with_deviations():
    """An image of 1e5 pixels by a convolution of 8 channels: 8 deviations at a time."""
    convolution, outputs, k = made(eqx.nn.Conv2d, 1, 8, 3, padding="SAME"), 316 * 317, 32
    mean = eqx.nn.Lambda(lambda h: jnp.tanh(h).mean(0))
    linearised = linearise(eqx.nn.Sequential([convolution, mean]))
    drawn = jax.tree.map(lambda w: jnp.ones((k, *w.shape)), linearised.parameters)
    posterior = lm.Posterior(linearised.parameters, drawn, None, lm.Gaussian(1.0))
    predict = lambda posterior, x: linearised.predict(posterior, x).deviations
    program = eqx.filter_make_jaxpr(predict)(posterior, jnp.ones((1, 1, 316, 317)))[0].jaxpr
    assert k * outputs <= largest_value(program) <= 8 * 8 * outputs


@pytest.mark.parametrize(
    "name",
    ["(2, 2)", *(pytest.param(n, marks=pytest.mark.slow) for n in ("images", "dicts in and out"))],
)
def test_outputs_of_any_shape_equal_the_flattened_network(name):
    linearised, x, _ = CASES[name]()
    one = lambda w, x: ravel_pytree(linearised.function(w, x))[0]
    flattened = linearise(one, linearised.parameters)
    shapes = linearised.jacobian(x).out_structure()
    y = jax.tree.map(lambda leaf: normal(*leaf.shape), shapes)
    flat_y = np.concatenate([leaf.reshape(5, leaf.size // 5) for leaf in jax.tree.leaves(y)], 1)
    results = []
    for model, targets in ((linearised, y), (flattened, flat_y)):
        data = model.observations(x, targets, lm.Gaussian(3.0))
        fit = lm.infer(data, lm.GaussianPrior(1.0), method=EXACT, num_samples=0)
        results.append((flat(fit.posterior.mean), model.predict(fit.posterior, x).std()))
    (mean, std), (flat_mean, flat_std) = results
    np.testing.assert_allclose(mean, flat_mean, atol=1e-5 * np.abs(mean).max())
    shape = lambda tree: jax.tree.map(lambda leaf: leaf.shape, tree)
    assert shape(std) == shape(shapes)
    std = np.concatenate([leaf.reshape(5, leaf.size // 5) for leaf in jax.tree.leaves(std)], 1)
    np.testing.assert_allclose(std, flat_std, rtol=1e-4)


class Normalised(eqx.Module):
    """A layer whose scale its normalisation takes away."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    last: eqx.nn.Linear

    def __init__(self, key):
        self.first = eqx.nn.Linear(3, 4, use_bias=False, key=key)
        self.norm = eqx.nn.BatchNorm(4, axis_name="batch", mode="ema", inference=True)
        self.last = eqx.nn.Linear(4, 1, key=key)

    def __call__(self, x, state):
        x, state = self.norm(self.first(x), state)
        return self.last(jnp.tanh(x)), state


@pytest.mark.slow
def test_the_scale_of_normalised_weights_does_not_matter_under_the_g_prior():
    """Appendix E of the paper: W and s W with statistics to match are one network."""
    network, state = made(eqx.nn.make_with_state(Normalised))
    x, y, scale = normal(6, 3), normal(6, 1), 8.0  # a power of two, which rounds nothing
    mean, variance = np.asarray(normal(4)), np.abs(normal(4)) + 1
    eps = network.norm.eps
    index = network.norm.ema_state_index

    def std(s, prior):
        scaled = eqx.tree_at(lambda net: net.first.weight, network, s * network.first.weight)
        moved = (jnp.asarray(s * mean), jnp.asarray(s**2 * (variance + eps) - eps))
        held = jax.tree.map(lambda leaf: leaf, state).set(index, moved)
        linearised = linearise(scaled, state=held)
        data = linearised.observations(x, y, lm.Gaussian(4.0))
        fit = lm.infer(data, prior, method=EXACT, num_samples=0)
        return np.asarray(linearised.predict(fit.posterior, normal(7, 3)).std())

    g_prior, isotropic = lm.GaussianPrior.g_prior(2.0), lm.GaussianPrior(2.0)
    np.testing.assert_allclose(std(scale, g_prior), std(1.0, g_prior), rtol=1e-4)
    assert np.abs(std(scale, isotropic) / std(1.0, isotropic) - 1).max() > 0.1
