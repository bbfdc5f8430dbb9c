"""What products with a Jacobian cost, by XLA's own count of operations and memory."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from linmodels._arrays import parameter_structure
from linmodels._batches import batches
from linmodels._expansion import expanded
from linmodels._products import Factor, unit_design
from linmodels_nn import linearise
from nn.networks import made, normal


class Deep(eqx.Module):
    """Convolutions of one width, and classes from their mean."""

    layers: list
    last: eqx.nn.Linear

    def __init__(self, depth, width, key):
        self.layers = [eqx.nn.Conv2d(width, width, 3, padding=1, key=key) for _ in range(depth)]
        self.last = eqx.nn.Linear(width, 10, key=key)

    def __call__(self, x):
        for layer in self.layers:
            x = jax.nn.relu(layer(x))
        return self.last(x.mean((1, 2)))


def curvature(jacobian, block):
    """JᵀBJ v of every vector, with the curvature B of a categorical likelihood."""
    outputs = jax.vmap(jacobian.function, (None, 0))(jacobian.parameters, jacobian.inputs)
    p = jax.nn.softmax(outputs)
    products = jax.vmap(jacobian.mv)(block)
    weighted = p * (products - jnp.sum(p * products, axis=-1, keepdims=True))
    return jax.vmap(jacobian.T.mv)(weighted)


def counted(function, *arguments):
    """Operations, and bytes of temporary arrays."""
    compiled = eqx.filter_jit(function).lower(*arguments).compile().compiled
    return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes


def cost(network, x, count):
    """Of a curvature product with `count` vectors."""
    linearised = linearise(network)
    block = jax.tree.map(lambda w: jnp.ones((count, *w.shape)), linearised.parameters)
    return counted(curvature, linearised.jacobian(x), block)


NETWORKS = pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: made(Deep, 4, 8), normal(16, 8, 8, 8)),
        (lambda: made(eqx.nn.MLP, 32, 10, 32, 4), normal(64, 32)),
    ],
    ids=["convolutions", "MLP"],
)


@pytest.mark.slow  # compiles for long
@NETWORKS
def test_a_curvature_product_costs_four_passes_a_vector(build, x):
    """1 + 4k passes (less in the first layer), the one shared by all vectors."""
    network = build()
    forward, _ = counted(lambda linearised, x: linearised.outputs(x), linearise(network), x)
    few, many = (cost(network, x, count)[0] for count in (8, 16))
    assert few <= 4.2 * 8 * forward
    assert many <= 4.2 * 16 * forward
    assert few - (many - few) <= 1.5 * forward


@pytest.mark.slow  # compiles for long
@NETWORKS
def test_a_pass_over_batches_of_classes_costs_no_more(build, x):
    """Where B is taken is kept: a method's own product, W and Wᵀ, takes no pass beside them."""
    linearised = linearise(build())
    rows = lm.RowSlices(x, np.arange(len(x)) % 10, batch_size=len(x))
    data = lm.Batched(rows, linearised.observe(lm.Categorical()))
    batch = next(batches(expanded(data, linearised.parameters)))
    factor = Factor(None, parameter_structure(linearised.jacobian(x).in_structure()))
    design, block = unit_design(factor, np.ones(1), "float32"), jnp.ones((8, factor.size))
    forward, _ = counted(lambda linearised, x: linearised.outputs(x), linearised, x)
    operations, _ = counted(products, batch, design, block)
    assert operations <= 4.2 * 8 * forward


def products(batch, design, block):
    data = batch.observations()
    return design.transpose_product(data, design.product(data, block))


def test_exact_error_bars_take_a_gradient_an_output():
    """Rows of the Jacobian are made example by example, not by passes over all examples."""
    network, x = made(eqx.nn.MLP, 3, 2, 4, 1), normal(12, 3)
    linearised, rows, parameters = linearise(network), 24, 26
    factor = lx.IdentityLinearOperator(jax.ShapeDtypeStruct((parameters,), jnp.float32))
    none = jax.tree.map(lambda w: jnp.zeros((0, *w.shape)), linearised.parameters)
    posterior = lm.Posterior(linearised.parameters, none, factor, lm.Gaussian(1.0))
    std = lambda linearised, posterior, x: linearised.predict(posterior, x).std()
    rows_alone, _ = counted(lambda design: design.as_matrix(), linearised.jacobian(x))
    operations, _ = counted(std, linearised, posterior, x)
    forward, _ = counted(lambda linearised, x: linearised.outputs(x), linearised, x)
    squares = 2 * rows * parameters
    assert rows_alone <= 10 * forward
    assert operations <= rows_alone + squares + 10 * forward


@pytest.mark.slow  # compiles for long
def test_memory_is_one_pass_and_a_few_layers_a_vector():
    """More depth adds some copies of one pass's activations, far from those of k passes."""
    depths, count, x = (2, 8), 32, normal(16, 8, 16, 16)
    layer = 4 * x.size
    shallow, deep = (cost(made(Deep, depth, 8), x, count)[1] for depth in depths)
    assert shallow <= 6 * count * layer
    assert deep - shallow <= count / 4 * (depths[1] - depths[0]) * layer
