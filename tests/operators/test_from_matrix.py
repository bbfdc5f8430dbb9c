import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from jax.flatten_util import ravel_pytree

from linmodels.operators import from_matrix

SMALL = st.integers(-8, 8).map(float)
PAIR = {"b": jax.ShapeDtypeStruct((2, 2), "float32"), "a": jax.ShapeDtypeStruct((), "float32")}
STRUCTURES = [None, jax.ShapeDtypeStruct((5,), "float32"), PAIR]


@given(
    hnp.arrays(np.float32, (5, 5), elements=SMALL),
    hnp.arrays(np.float32, 5, elements=SMALL),
    st.sampled_from(STRUCTURES),
    st.sampled_from(STRUCTURES),
)
def test_it_is_the_inverse_of_as_matrix(matrix, flat, columns, rows):
    # Small integers: every product is exact.
    operator = from_matrix(jnp.asarray(matrix), columns, rows)
    np.testing.assert_array_equal(operator.as_matrix(), matrix)
    np.testing.assert_array_equal(operator.T.as_matrix(), matrix.T)
    _, unravel = ravel_pytree(
        jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), operator.in_structure())
    )
    product = operator.mv(unravel(jnp.asarray(flat)))
    assert jax.tree.structure(product) == jax.tree.structure(operator.out_structure())
    np.testing.assert_array_equal(ravel_pytree(product)[0], matrix @ flat)


def test_a_plain_matrix_is_a_plain_operator_and_keeps_its_dtype(dtype):
    operator = from_matrix(np.ones((2, 3), dtype))
    assert isinstance(operator, lx.MatrixLinearOperator)
    assert operator.as_matrix().dtype == dtype


def test_under_jit_and_vmap():
    matrices = np.random.default_rng(0).standard_normal((3, 5, 5)).astype("float32")
    vector = {"a": jnp.ones(()), "b": jnp.ones((2, 2))}
    products = jax.jit(jax.vmap(lambda m: from_matrix(m, PAIR).mv(vector)))(matrices)
    np.testing.assert_allclose(products, matrices.sum(2), atol=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named_with_its_value():
    with pytest.raises(ValueError, match=r"`matrix` must be two-dim.* shape \(3,\)"):
        from_matrix(jnp.ones(3))
    with pytest.raises(ValueError, match="dtype int32"):
        from_matrix(jnp.ones((2, 2), "int32"))
    with pytest.raises(ValueError, match=r"`in_structure` holds 5 .* matrix has 4 columns"):
        from_matrix(jnp.ones((5, 4)), PAIR)
    with pytest.raises(ValueError, match=r"`out_structure` holds 5 .* matrix has 4 rows"):
        from_matrix(jnp.ones((4, 5)), None, PAIR)
    with pytest.raises(ValueError, match=r"`in_structure` holds 0 scalars in 0 leaves"):
        from_matrix(jnp.ones((2, 0)), {})
    with pytest.raises(ValueError, match="leaf of dtype float16 but the matrix is float32"):
        from_matrix(jnp.ones((2, 2)), jax.ShapeDtypeStruct((2,), "float16"))
