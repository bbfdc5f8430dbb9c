import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given

from linmodels.operators import BlockDiagonal, ColumnBlocks, RowBlocks, from_matrix

SMALL = st.integers(-8, 8).map(float)


def matrices(*shapes):
    return st.tuples(*(hnp.arrays(np.float32, shape, elements=SMALL) for shape in shapes))


def operators(arrays):
    return [lx.MatrixLinearOperator(jnp.asarray(array)) for array in arrays]


# Small integers: every product is exact.
@given(matrices((2, 3), (3, 3), (1, 3)), hnp.arrays(np.float32, 3, elements=SMALL))
def test_row_blocks_stack(arrays, vector):
    operator = RowBlocks(operators(arrays))
    stacked = np.concatenate(arrays)
    np.testing.assert_array_equal(operator.as_matrix(), stacked)
    np.testing.assert_array_equal(operator.T.as_matrix(), stacked.T)
    np.testing.assert_array_equal(operator.mv(jnp.asarray(vector)), stacked @ vector)


@given(matrices((3, 2), (3, 3), (3, 1)), hnp.arrays(np.float32, 6, elements=SMALL))
def test_column_blocks_lie_side_by_side(arrays, vector):
    operator = ColumnBlocks(operators(arrays))
    beside = np.concatenate(arrays, axis=1)
    np.testing.assert_array_equal(operator.as_matrix(), beside)
    np.testing.assert_array_equal(operator.T.as_matrix(), beside.T)
    np.testing.assert_array_equal(operator.mv(jnp.asarray(vector)), beside @ vector)


@given(matrices((2, 3), (3, 3), (1, 3)), hnp.arrays(np.float32, (3, 3), elements=SMALL))
def test_block_diagonal(arrays, vectors):
    operator = BlockDiagonal(operators(arrays))
    np.testing.assert_array_equal(operator.as_matrix(), scipy.linalg.block_diag(*arrays))
    products = operator.mv(tuple(jnp.asarray(vectors)))
    for array, vector, product in zip(arrays, vectors, products, strict=True):
        np.testing.assert_array_equal(product, array @ vector)


def test_row_blocks_of_pytrees_keep_leaves_together():
    out = [{"a": (n, 2), "b": (n,)} for n in (1, 2)]
    structures = [
        {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in block.items()}
        for block in out
    ]
    blocks = [
        from_matrix(jnp.arange(3.0 * n * 4).reshape(3 * n, 4), None, structure)
        for n, structure in zip((1, 2), structures, strict=True)
    ]
    operator = RowBlocks(blocks)
    assert operator.out_structure() == {
        "a": jax.ShapeDtypeStruct((3, 2), "float32"),
        "b": jax.ShapeDtypeStruct((3,), "float32"),
    }
    vector = jnp.array([1.0, 0.0, 2.0, -1.0])
    product = operator.mv(vector)
    np.testing.assert_array_equal(
        product["b"], jnp.concatenate([block.mv(vector)["b"] for block in blocks])
    )
    ravelled = jnp.concatenate([product["a"].reshape(-1), product["b"]])
    np.testing.assert_array_equal(operator.as_matrix() @ vector, ravelled)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("kind", [BlockDiagonal, RowBlocks, ColumnBlocks])
def test_bad_blocks_are_named(kind):
    good = lx.MatrixLinearOperator(jnp.ones((2, 2)))
    with pytest.raises(ValueError, match=f"{kind.__name__} needs at least one block"):
        kind([])
    with pytest.raises(ValueError, match="block 1 must be a lineax operator, got ArrayImpl"):
        kind([good, jnp.ones((2, 2))])
    with pytest.raises(ValueError, match="float16 and float32"):
        kind([good, lx.MatrixLinearOperator(jnp.ones((2, 2), "float16"))])
    with pytest.raises(ValueError, match="real floating dtype, got complex64"):
        kind([lx.MatrixLinearOperator(jnp.ones((2, 2), "complex64"))])


def test_structures_that_do_not_agree_are_named():
    tall, wide = (lx.MatrixLinearOperator(jnp.ones(shape)) for shape in [(3, 2), (2, 3)])
    with pytest.raises(ValueError, match=r"input .* block 0 .*\(2,\).* block 1 .*\(3,\)"):
        RowBlocks([tall, wide])
    with pytest.raises(ValueError, match=r"output .* block 0 .*\(3,\).* block 1 .*\(2,\)"):
        ColumnBlocks([tall, wide])
    image = from_matrix(jnp.ones((4, 2)), None, jax.ShapeDtypeStruct((2, 2), "float32"))
    with pytest.raises(ValueError, match=r"agree beyond the leading axis, but .*\(2, 2\)"):
        RowBlocks([tall, image])
    scalar = from_matrix(jnp.ones((1, 2)), None, jax.ShapeDtypeStruct((), "float32"))
    with pytest.raises(ValueError, match="output of block 1 has a scalar leaf"):
        RowBlocks([tall, scalar])
    with pytest.raises(ValueError, match="input of block 0 has a scalar leaf"):
        ColumnBlocks([scalar.T])
