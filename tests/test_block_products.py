"""Products of blocks of vectors, whatever the operator."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from linmodels._blocks import products, transpose_products
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
