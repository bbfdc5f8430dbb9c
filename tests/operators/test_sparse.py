import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from jax.experimental.sparse import BCOO

from linmodels.operators import Sparse, check_operator_laws

ROWS, COLUMNS, ENTRIES = 3, 4, 9
SMALL = st.integers(-8, 8).map(float)


def indices():
    # Nine entries in twelve places: most cases hold duplicates. Beyond the shape is padding.
    row, column = st.integers(0, ROWS + 1), st.integers(0, COLUMNS + 1)
    return st.lists(st.tuples(row, column), min_size=ENTRIES, max_size=ENTRIES)


def dense(values, places):
    matrix = np.zeros((ROWS, COLUMNS))
    for value, (row, column) in zip(values, places, strict=True):
        if row < ROWS and column < COLUMNS:
            matrix[row, column] += value
    return matrix


@given(
    st.sampled_from(["float32", "float64"]),
    hnp.arrays(np.float64, ENTRIES, elements=SMALL),
    indices(),
    hnp.arrays(np.float64, (2, COLUMNS), elements=SMALL),
)
def test_products_add_duplicates_and_skip_padding(dtype, values, places, vectors):
    matrix = dense(values, places)
    with jax.enable_x64(dtype == "float64"):
        entries = jnp.asarray(values, dtype), jnp.asarray(places)
        operator = Sparse(BCOO(entries, shape=(ROWS, COLUMNS)))
        # Small integers: every product is exact.
        np.testing.assert_array_equal(operator.as_matrix(), matrix)
        products = jax.vmap(operator.mv)(jnp.asarray(vectors, dtype))
        assert products.dtype == dtype
        np.testing.assert_array_equal(products, vectors @ matrix.T)
        back = jax.vmap(operator.T.mv)(products)
        np.testing.assert_array_equal(back, vectors @ matrix.T @ matrix)


@pytest.mark.parametrize("place", [(0, COLUMNS), (ROWS, 0), (ROWS, COLUMNS)])
def test_padding_is_harmless_even_when_it_is_nan(place):
    entries = jnp.array([2.0, jnp.nan]), jnp.array([(1, 1), place])
    operator = Sparse(BCOO(entries, shape=(ROWS, COLUMNS)))
    np.testing.assert_array_equal(operator.mv(jnp.ones(COLUMNS)), [0, 2, 0])
    np.testing.assert_array_equal(operator.T.mv(jnp.ones(ROWS)), [0, 2, 0, 0])
    assert not jnp.isnan(operator.as_matrix()).any()


@pytest.mark.parametrize("entries", [0, 2])
def test_a_matrix_of_zeros(entries):
    stored = jnp.zeros(entries), jnp.zeros((entries, 2), int)
    operator = Sparse(BCOO(stored, shape=(ROWS, COLUMNS)))
    check_operator_laws(operator, key=jax.random.key(0))
    assert not operator.as_matrix().any()


def test_gradient_with_respect_to_the_entries():
    places = jnp.array([(0, 0), (0, 0), (ROWS, 1)])

    def loss(values):
        return Sparse(BCOO((values, places), shape=(ROWS, COLUMNS))).mv(jnp.full(COLUMNS, 3.0))[0]

    np.testing.assert_array_equal(jax.grad(loss)(jnp.ones(3)), [3, 3, 0])


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named_with_its_value():
    with pytest.raises(ValueError, match="got ArrayImpl"):
        Sparse(jnp.eye(2))
    place = jnp.zeros((1, 1), int)
    batched = BCOO((jnp.ones((2, 3)), jnp.zeros((2, 3, 2), int)), shape=(2, 2, 2))
    with pytest.raises(ValueError, match=r"shape \(2, 2, 2\) with n_batch=1, n_sparse=2"):
        Sparse(batched)
    with pytest.raises(ValueError, match="n_sparse=1, n_dense=1"):
        Sparse(BCOO((jnp.ones((1, 2)), place), shape=(2, 2)))
    for dtype in ("int32", "complex64"):
        entries = jnp.ones(3, dtype), jnp.zeros((3, 2), int)
        with pytest.raises(ValueError, match=f"real floating dtype, got {dtype}"):
            Sparse(BCOO(entries, shape=(2, 2)))
