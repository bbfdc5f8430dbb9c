import equinox as eqx
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given

from linmodels.operators import Kronecker, from_matrix, multi_output

SMALL = st.integers(-8, 8).map(float)


@given(
    hnp.arrays(np.float32, (3, 2), elements=SMALL),
    hnp.arrays(np.float32, (2, 4), elements=SMALL),
    hnp.arrays(np.float32, (2, 4), elements=SMALL),
)
def test_products_are_those_of_the_kronecker_matrix(left, right, vector):
    # Small integers: every product is exact.
    a, b = lx.MatrixLinearOperator(jnp.asarray(left)), lx.MatrixLinearOperator(jnp.asarray(right))
    operator = Kronecker(a, b)
    matrix = jnp.kron(left, right)
    np.testing.assert_array_equal(operator.as_matrix(), matrix)
    product = operator.mv(jnp.asarray(vector))
    assert product.shape == (3, 2)
    np.testing.assert_array_equal(product.reshape(-1), matrix @ vector.reshape(-1))
    back = operator.T.mv(product)
    np.testing.assert_array_equal(back.reshape(-1), matrix.T @ product.reshape(-1))


def test_products_never_form_the_kronecker_matrix():
    operator = Kronecker(*[lx.MatrixLinearOperator(jnp.ones((64, 64)))] * 2)
    product = eqx.filter_jit(lambda operator, vector: operator.mv(vector))
    memory = product.lower(operator, jnp.ones((64, 64))).compile().compiled.memory_analysis()
    assert memory.temp_size_in_bytes < 64**4


def test_multi_output_applies_the_design_to_each_output(dtype):
    random = np.random.default_rng(0)
    design, coefficients = (jnp.asarray(random.standard_normal(s), dtype) for s in [(5, 3), (3, 2)])
    operator = multi_output(lx.MatrixLinearOperator(design), 2)
    product = operator.mv(coefficients)
    assert product.dtype == dtype
    np.testing.assert_allclose(product, design @ coefficients, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named_with_its_value():
    good = lx.MatrixLinearOperator(jnp.ones((2, 3)))
    image = from_matrix(jnp.ones((2, 4)), jax.ShapeDtypeStruct((2, 2), jnp.float32))
    with pytest.raises(ValueError, match=r"`right` must act .*shape=\(2, 2\)"):
        Kronecker(good, image)
    with pytest.raises(ValueError, match=r"`left` must act .* 1-D arrays"):
        multi_output(image.T, 2)
    with pytest.raises(ValueError, match="block 1 must be a lineax operator, got ArrayImpl"):
        Kronecker(good, jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="float16 and float32"):
        Kronecker(good, lx.MatrixLinearOperator(jnp.ones((2, 3), "float16")))
    with pytest.raises(ValueError, match="real floating dtype, got complex64"):
        Kronecker(*[lx.MatrixLinearOperator(jnp.ones((2, 3), "complex64"))] * 2)
    with pytest.raises(ValueError, match="`num_outputs` must be at least 1, got 0"):
        multi_output(good, 0)
