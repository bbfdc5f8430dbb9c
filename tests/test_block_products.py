"""Products of blocks of vectors, whatever the operator, and orthonormal bases of blocks."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from linmodels._blocks import orthonormalised, products, transpose_products
from linmodels.operators import from_matrix

rng = np.random.default_rng(0)
N, D = 64, 4
MATRIX = jnp.asarray(rng.standard_normal((N, D)), jnp.float32)
VECTOR = jax.ShapeDtypeStruct((D,), jnp.float32)
OPERATORS = {
    "matrix": lx.MatrixLinearOperator(MATRIX),
    "function": lx.FunctionLinearOperator(lambda x: MATRIX @ x, VECTOR),
    "scaled": 0.5 * lx.MatrixLinearOperator(2 * MATRIX),
    "pytree": from_matrix(MATRIX, VECTOR, jax.ShapeDtypeStruct((8, 8), jnp.float32)),
}


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("name", OPERATORS)
def test_products(name, k):
    """Errors of a product of d terms are below d ε of the product of magnitudes."""
    block = jnp.asarray(rng.standard_normal((k, D)), jnp.float32)
    rows = jnp.asarray(rng.standard_normal((k, N)), jnp.float32)
    operator, exact = OPERATORS[name], np.asarray(MATRIX, np.float64)
    epsilon = float(jnp.finfo(jnp.float32).eps)
    outputs = operator.out_structure().shape
    forward = products(operator, block).reshape(k, N)
    backward = transpose_products(operator, rows.reshape(k, *outputs))
    for found, given, matrix in ((forward, block, exact), (backward, rows, exact.T)):
        vectors = np.asarray(given, np.float64)
        bound = 2 * matrix.shape[1] * epsilon * (np.abs(vectors) @ np.abs(matrix).T)
        assert (np.abs(np.asarray(found) - vectors @ matrix.T) <= bound).all()


@hypothesis.given(
    shape=st.sampled_from([(1, 40), (4, 3), (4, 4), (8, 40), (8, 2_000), (30, 2_000)]),
    decades=st.sampled_from([0, 2, 3, 4, 8, 30]),
    magnitude=st.sampled_from([1e-12, 1.0, 1e12]),
    dependent=st.sampled_from(["none", "zero", "repeated", "nearly", "all zero"]),
    seed=st.integers(0, 2**16),
)
def test_orthonormal_bases(shape, decades, magnitude, dependent, seed):
    """Of blocks of any condition, also dependent or graded: QQᵀ = I, and CᵀQ is the block.

    QQᵀ to the bound of CholeskyQR2, 6 (dk + k(k + 1)) ε; the block to 10 √k ε of its size, as
    substitution and reflections leave far less.
    """
    (k, d), draws = shape, np.random.default_rng(seed)
    mixed = draws.standard_normal((k, k)) * np.logspace(0, -decades, k)  # nearly dependent
    block = mixed @ draws.standard_normal((k, d)) * magnitude
    if dependent in ("zero", "repeated"):
        block[-1] = 0 if dependent == "zero" else block[0]
    if dependent == "nearly":
        block[:1] = block[-1] + 1e-3 * block[:1]
    block = jnp.asarray(block * (dependent != "all zero"), jnp.result_type(float))
    basis, coordinates = (np.asarray(part, np.float64) for part in orthonormalised(block))
    epsilon = float(jnp.finfo(block.dtype).eps)
    bound = 6 * (d * k + k * (k + 1)) * epsilon
    size = max(float(jnp.linalg.norm(block / magnitude)), 1e-30) * magnitude
    assert np.abs(basis @ basis.T - np.eye(min(k, d))).max() <= bound
    assert np.abs(coordinates.T @ basis - np.asarray(block)).max() <= 10 * k**0.5 * epsilon * size
