"""Flax's networks, Linen and NNX, as functions of their parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import linmodels as lm
from linmodels_nn import linearise
from nn.networks import normal

linen = pytest.importorskip("flax.linen", reason="Flax is of the test group of dependencies")
nnx = pytest.importorskip("flax.nnx")

pytestmark = pytest.mark.slow

N = 5


class Linen(linen.Module):
    """With statistics, in inference mode."""

    @linen.compact
    def __call__(self, x):
        x = linen.BatchNorm(use_running_average=True)(linen.Dense(4)(x))
        return linen.Dense(2)(jnp.tanh(x))


class Module(nnx.Module):
    """With statistics, drops and the generator that they draw from."""

    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(jnp.tanh(self.norm(self.first(x)))))


def linen_network():
    module = Linen()
    variables = module.init(jax.random.key(0), jnp.ones((1, 3)))
    chosen = {"params": True, "batch_stats": False}
    linearised = linearise(module.apply, variables, filter_spec=chosen)
    kernels = variables["params"]
    return linearised, module.apply(variables, normal(N, 3)), ravel_pytree(kernels)[0]


def nnx_network():
    module = Module(nnx.Rngs(0))
    module.eval()
    graph, weights, rest = nnx.split(module, nnx.Param, ...)
    function = lambda w, x: nnx.merge(graph, *w)(x)
    linearised = linearise(function, (weights, rest), filter_spec=(True, False))
    return linearised, module(normal(N, 3)), ravel_pytree(weights)[0]


@pytest.mark.parametrize("build", [linen_network, nnx_network])
def test_a_network_of_flax_is_a_linear_model(build):
    linearised, outputs, weights = build()
    x, y = normal(N, 3), normal(N, 2)
    theta, unravel = ravel_pytree(linearised.parameters)
    assert (theta == weights).all()  # the statistics are no parameters
    np.testing.assert_allclose(linearised.outputs(x), outputs, rtol=1e-5)
    matrix = linearised.jacobian(x).as_matrix()
    # Central differences: rounding of 1e-4, third derivatives times 1e-6.
    moved = jax.jit(lambda w, step: linearised.function(unravel(w + step), x))
    for i in (0, 7, len(weights) - 1):
        step = jnp.zeros(len(weights)).at[i].set(1e-3)
        change = (moved(theta, step) - moved(theta, -step)).ravel() / 2e-3
        np.testing.assert_allclose(matrix[:, i], change, atol=1e-3)
    data = linearised.observations(x, y, lm.Gaussian(4.0))
    fit = lm.infer(data, lm.GaussianPrior(1.0), num_samples=3, key=jax.random.key(0))
    assert jax.tree.structure(fit.posterior.mean) == jax.tree.structure(linearised.parameters)
    dense = np.asarray(matrix, np.float64)
    covariance = np.linalg.inv(np.eye(len(weights)) + 4 * dense.T @ dense)
    std = np.sqrt(np.einsum("nd,de,ne->n", dense, covariance, dense))
    np.testing.assert_allclose(linearised.predict(fit.posterior, x).std().ravel(), std, rtol=1e-4)
