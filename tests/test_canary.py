"""Watches for jax releases that miscompile a product followed by a reduction.

On CPU, jax 0.10.2 silently returns wrong values (off by order one) from a jitted product with a
broadcast operand that is then reduced, once it has more than 2**15 elements: products of a softmax
curvature factor with a block of vectors, for one. The packaging metadata excludes that release; if
this file fails, the installed release has the fault as well and must be excluded too.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

# As users compile, also where the suite saves the time.
jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
    },
)
SHAPES = [(4096, 10), (1000, 100), (8, 5000, 3)]
NUM_VECTORS = 4


def factor(probabilities, vector):
    """The softmax curvature's factor: √p (v - pᵀv)."""
    inner = (probabilities * vector).sum(axis=-1, keepdims=True)
    return probabilities**0.5 * (vector - inner)


def factor_transposed(probabilities, vector):
    """Its transpose: √p v - p (√pᵀv)."""
    roots = probabilities**0.5
    return roots * vector - probabilities * (roots * vector).sum(axis=-1, keepdims=True)


def squared_norms(probabilities, vector):
    return ((probabilities * vector) ** 2).sum(axis=-1)


def logits_and_vectors(shape):
    rng = np.random.default_rng(0)
    return rng.standard_normal(shape), rng.standard_normal((NUM_VECTORS, *shape))


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("function", [factor, factor_transposed, squared_norms])
def test_products_with_a_block_of_vectors(function, shape):
    logits, vectors = logits_and_vectors(shape)
    probabilities = softmax(logits)
    expected = np.stack([function(probabilities, vector) for vector in vectors])

    block = jit(jax.vmap(function, in_axes=(None, 0)))
    actual = block(jnp.asarray(probabilities, "float32"), jnp.asarray(vectors, "float32"))
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_softmax_and_its_factor_in_one_function(shape):
    logits, vectors = logits_and_vectors(shape)
    expected = np.stack([factor(softmax(logits), vector) for vector in vectors])

    @jit
    def block(logits, vectors):
        return jax.vmap(factor, in_axes=(None, 0))(jax.nn.softmax(logits), vectors)

    actual = block(jnp.asarray(logits, "float32"), jnp.asarray(vectors, "float32"))
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)


def test_squared_norms_of_matrix_vector_products():
    rows = np.random.default_rng(0).standard_normal((2**15 + 1, 3))
    matrix = np.array([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 0.0, 1.0]])

    @jit
    def norms(matrix, rows):
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)

    actual = norms(jnp.asarray(matrix, "float32"), jnp.asarray(rows, "float32"))
    np.testing.assert_allclose(actual, ((rows @ matrix.T) ** 2).sum(axis=1), rtol=1e-3, atol=1e-4)
