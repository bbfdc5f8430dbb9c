"""Products with the Jacobian against the dense one of JAX, over kinds of networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from linmodels.operators import check_operator_laws
from linmodels_nn import Jacobian, linearise
from nn.networks import CASES, mlp, normal


def without_slow(*slow):
    """All kinds, with those that compile for long left to `make slow`."""
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in CASES]


def flat(tree):
    return np.asarray(ravel_pytree(tree)[0], np.float64)


def same_structure(tree, expected):
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert shapes(tree) == shapes(expected)


def bound(matrix):
    """Of the difference between products with unit vectors, as in `check_operator_laws`."""
    return 16 * np.finfo(np.float32).eps * sum(matrix.shape) ** 0.5 * np.linalg.norm(matrix)


@pytest.mark.parametrize("name", without_slow(*CASES.keys() - {"MLP", "function"}))
def test_outputs_offset_and_products_are_those_of_the_dense_jacobian(name):
    linearised, inputs, direct = CASES[name]()
    weights, unravel = ravel_pytree(linearised.parameters)
    ravelled = lambda w: ravel_pytree(direct(unravel(w)))[0]
    expected = jax.eval_shape(direct, linearised.parameters)
    theta = unravel(jnp.asarray(normal(len(weights))))
    cotangent = jax.tree.map(lambda leaf: jnp.asarray(normal(*leaf.shape)), expected)

    @eqx.filter_jit  # in one piece: each alone would compile for a second
    def results(linearised, inputs, theta, cotangent):
        operator = linearised.jacobian(inputs)
        products = operator.mv(theta), operator.T.mv(cotangent), operator.as_matrix()
        own = linearised.outputs(inputs), linearised.offset(inputs)
        return *products, *own, jax.jacfwd(ravelled)(weights), ravelled(weights)

    forward, backward, matrix, outputs, offset, dense, f = results(
        linearised, inputs, theta, cotangent
    )
    operator = linearised.jacobian(inputs)
    same_structure(operator.in_structure(), theta)
    same_structure(backward, theta)
    for tree in (operator.out_structure(), forward, outputs, offset):
        same_structure(tree, expected)
    allowed = bound(dense)
    dense, f, v, u, w = (flat(x) for x in (dense, f, theta, cotangent, weights))
    dense = dense.reshape(len(f), len(w))
    assert np.linalg.norm(flat(forward) - dense @ v) <= allowed * np.linalg.norm(v)
    assert np.linalg.norm(flat(backward) - u @ dense) <= allowed * np.linalg.norm(u)
    assert np.linalg.norm(matrix - dense) <= allowed
    scale = np.finfo(np.float32).eps * 16 * np.linalg.norm(f) + allowed * np.linalg.norm(w)
    assert np.linalg.norm(flat(outputs) - f) <= scale
    assert np.linalg.norm(flat(offset) - (f - dense @ w)) <= scale


@pytest.mark.parametrize(
    "name",
    ["MLP", "function", pytest.param("convolutions and statistics", marks=pytest.mark.slow)],
)
def test_it_obeys_the_laws(name):
    linearised, inputs, _ = CASES[name]()
    check_operator_laws(linearised.jacobian(inputs), key=jax.random.key(0))


@given(st.integers(0, 2**31 - 1))
def test_rows_are_gradients_at_any_weights_and_inputs(seed):
    random = np.random.default_rng(seed)
    network, x = CASES["MLP"]().linearised, random.standard_normal((5, 3)).astype("float32")
    scale = float(random.uniform(0.1, 3))
    weights = jax.tree.map(lambda w: jnp.asarray(scale * w), network.parameters)
    operator = Jacobian(network.function, weights, x)
    a, b = weights.layers
    hidden = np.tanh(x.astype(np.float64) @ np.asarray(a.weight, np.float64).T + a.bias)
    slope = np.asarray(b.weight, np.float64)[None] * (1 - hidden**2)[:, None]
    eye = np.eye(2)
    rows = np.concatenate(
        [
            np.einsum("noh,ni->nohi", slope, x).reshape(10, 12),
            slope.reshape(10, 4),
            np.einsum("op,nh->noph", eye, hidden).reshape(10, 8),
            np.tile(eye, (5, 1)),
        ],
        axis=1,
    )
    difference = np.linalg.norm(operator.as_matrix() - rows)
    # tanh and what it is taken of are known to some ε of their own sizes.
    assert difference <= bound(rows) * (1 + np.abs(x).max() * scale)


def test_lineax_functions_keep_the_matrix():
    operator = CASES["last layer"]().linearised.jacobian(normal(5, 3))
    matrix = operator.as_matrix()
    for transform in (lx.linearise, lx.materialise, lx.conj):
        np.testing.assert_array_equal(transform(operator).as_matrix(), matrix)
    np.testing.assert_array_equal(lx.diagonal(operator), np.diagonal(matrix))
    normal_operator = lx.TaggedLinearOperator(
        operator.T @ operator + lx.IdentityLinearOperator(operator.in_structure()),
        lx.positive_semidefinite_tag,
    )
    target = jax.tree.map(jnp.ones_like, operator.parameters)
    solved = lx.linear_solve(normal_operator, target, lx.CG(rtol=1e-6, atol=1e-6)).value
    hessian = np.eye(matrix.shape[1]) + matrix.T @ matrix
    np.testing.assert_allclose(hessian @ flat(solved), flat(target), atol=1e-4)


def test_products_with_vectors_share_the_trace():
    """A design made anew outside jit, of the same function and shapes, compiles nothing."""
    calls = []

    class Counted(eqx.Module):
        network: eqx.nn.MLP

        def __call__(self, x):
            calls.append(x)
            return self.network(x)

    linearised = linearise(Counted(mlp()))
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((5, 3)).astype("float32")
        operator = linearised.jacobian(x)
        if seed == 1:
            traced = len(calls)
        jax.block_until_ready(operator.T.mv(operator.mv(linearised.parameters)))
    assert len(calls) - traced == 1  # the shapes of the third design's outputs
