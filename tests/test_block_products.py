"""Products of blocks of vectors, whatever the operator."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from linmodels._blocks import products, transpose_products
from linmodels.operators import from_matrix

rng = np.random.default_rng(0)
N, D, K = 9, 4, 3
MATRIX = jnp.asarray(rng.standard_normal((N, D)), jnp.float32)
BLOCK = jnp.asarray(rng.standard_normal((K, D)), jnp.float32)
ROWS = jnp.asarray(rng.standard_normal((K, N)), jnp.float32)
VECTOR = jax.ShapeDtypeStruct((D,), jnp.float32)
OPERATORS = {
    "matrix": lx.MatrixLinearOperator(MATRIX),
    "function": lx.FunctionLinearOperator(lambda x: MATRIX @ x, VECTOR),
    "scaled": 0.5 * lx.MatrixLinearOperator(2 * MATRIX),
    "pytree": from_matrix(MATRIX, VECTOR, jax.ShapeDtypeStruct((3, 3), jnp.float32)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_products(name):
    """Errors of a product of d terms are below d ε of the product of magnitudes."""
    operator, exact = OPERATORS[name], np.asarray(MATRIX, np.float64)
    epsilon = float(jnp.finfo(jnp.float32).eps)
    outputs = operator.out_structure().shape
    forward = products(operator, BLOCK).reshape(K, N)
    backward = transpose_products(operator, ROWS.reshape(K, *outputs))
    for found, block, matrix in ((forward, BLOCK, exact), (backward, ROWS, exact.T)):
        block = np.asarray(block, np.float64)
        bound = 2 * matrix.shape[1] * epsilon * (np.abs(block) @ np.abs(matrix).T)
        assert (np.abs(np.asarray(found) - block @ matrix.T) <= bound).all()
