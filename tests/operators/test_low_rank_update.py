import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from linmodels.operators import LowRankUpdate

DTYPES = st.sampled_from(["float32", "float64"])
SIZE, RANK = 5, 2


def factors(low=-4, high=4):
    return hnp.arrays(np.float64, (SIZE, RANK), elements=st.floats(low, high, width=16))


def diagonals():
    return hnp.arrays(np.float64, SIZE, elements=st.floats(0.125, 8, width=16))


def build(dtype, diagonal, left, right=None):
    arrays = (diagonal, left) if right is None else (diagonal, left, right)
    return LowRankUpdate(*(jnp.asarray(array, dtype) for array in arrays))


def reference(diagonal, left, right=None):
    return np.diag(diagonal) + left @ (left if right is None else right).T


@given(DTYPES, diagonals(), factors())
def test_symmetric_inverse_and_determinant_are_those_of_the_dense_matrix(dtype, diagonal, left):
    dense = reference(diagonal, left)
    with jax.enable_x64(dtype == "float64"):
        operator = build(dtype, diagonal, left)
        inverse = operator.inverse()
        assert inverse.as_matrix().dtype == dtype
        # Condition number of at most (8 + 160)/0.125, hence some digits fewer than eps.
        tolerance = 2e3 * SIZE * float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(
            inverse.as_matrix(), np.linalg.inv(dense), atol=tolerance * 8, rtol=0
        )
        np.testing.assert_allclose(
            operator.log_abs_determinant(),
            np.linalg.slogdet(dense)[1],
            atol=tolerance,
        )


@given(DTYPES, diagonals(), factors(), factors(), st.booleans())
def test_general_inverse_is_right_or_nan(dtype, diagonal, left, right, flip):
    diagonal = np.where(np.arange(SIZE) % 2, -diagonal, diagonal) if flip else diagonal
    dense = reference(diagonal, left, right)
    with jax.enable_x64(dtype == "float64"):
        operator = build(dtype, diagonal, left, right)
        inverse = np.asarray(operator.inverse().as_matrix(), np.float64)
        log_determinant = float(operator.log_abs_determinant())
        eps = float(jnp.finfo(dtype).eps)
    assert np.isnan(inverse).any() == np.isnan(log_determinant)
    if np.isnan(log_determinant):
        assert np.linalg.cond(dense) > 1e-4 / eps
        return
    # The spread of the core bounds the error; 200 covers the sizes of the factors.
    core = np.eye(RANK) + right.T @ (left / diagonal[:, None])
    sizes = np.eye(RANK) + np.abs(right).T @ np.abs(left / diagonal[:, None])
    amplification = np.abs(np.linalg.inv(core)) @ sizes
    relative = 200 * eps * np.max(np.sum(amplification, 1))
    scale = 8 * (1 + np.max(np.abs(left / diagonal[:, None] @ np.linalg.inv(core) @ right.T)) * 8)
    np.testing.assert_allclose(inverse, np.linalg.inv(dense), atol=relative * scale, rtol=0)
    np.testing.assert_allclose(log_determinant, np.linalg.slogdet(dense)[1], atol=relative)


def test_covariance_factor_with_a_different_right_factor(dtype):
    left, right = 0.3 * np.random.default_rng(0).standard_normal((2, SIZE, RANK))
    operator = build(dtype, np.ones(SIZE), -left, right)
    dense = reference(np.ones(SIZE), -left, right)
    tolerance = 20 * jnp.finfo(dtype).eps
    np.testing.assert_allclose(operator.as_matrix(), dense, atol=tolerance)
    np.testing.assert_allclose(operator.T.as_matrix(), dense.T, atol=tolerance)
    twice = operator.inverse().inverse()
    np.testing.assert_allclose(twice.as_matrix(), dense, atol=5 * tolerance)


def test_rank_zero_and_rank_beyond_the_size():
    empty = LowRankUpdate(jnp.array([2.0, 4.0]), jnp.zeros((2, 0)))
    np.testing.assert_allclose(empty.inverse().as_matrix(), np.diag([0.5, 0.25]))
    np.testing.assert_allclose(empty.log_abs_determinant(), np.log(8), rtol=1e-6)
    left = np.random.default_rng(0).standard_normal((2, 5))
    wide = build("float32", np.ones(2), left)
    expected = np.linalg.inv(reference(np.ones(2), left))
    np.testing.assert_allclose(wide.inverse().as_matrix(), expected, atol=1e-5)


@pytest.mark.parametrize("scales", [(1e6, 1.0), (1.0, 1e9), (1e-6, 1e6), (1e12, 1e-12)])
@pytest.mark.parametrize("right_scales", [None, (1.0, 1.0)])
def test_badly_scaled_columns_are_no_trouble(scales, right_scales):
    left = np.array([[1.0, 1.0], [1.0, -2.0], [0.5, 0.25]])
    right = None if right_scales is None else left * np.array(right_scales)
    left = left * np.array(scales)
    operator = build("float32", np.ones(3), left, right)
    core = np.eye(2) + (left if right is None else right).T @ left
    logarithm = np.linalg.slogdet(core)[1]
    np.testing.assert_allclose(operator.log_abs_determinant(), logarithm, rtol=1e-6, atol=1e-6)
    expected = np.eye(3) - left @ np.linalg.inv(core) @ (left if right is None else right).T
    np.testing.assert_allclose(operator.inverse().as_matrix(), expected, atol=1e-5)


@pytest.mark.parametrize("size", [3, 300])
def test_singular_to_rounding_is_nan_not_noise(size, dtype):
    directions = np.random.default_rng(size).standard_normal((20, size, 1))
    directions = jnp.asarray(directions / np.linalg.norm(directions, axis=1)[:, None], dtype)

    @jax.jit
    @jax.vmap
    def compute(direction):
        operator = LowRankUpdate(jnp.ones(size, dtype), direction, -direction)
        return operator.log_abs_determinant(), operator.inverse().left

    for result in compute(directions):
        assert jnp.isnan(result).all()


def test_zero_in_the_diagonal_is_not_silent():
    operator = LowRankUpdate(jnp.array([0.0, 1.0]), jnp.ones((2, 1)))
    assert not jnp.isfinite(operator.inverse().mv(jnp.ones(2))).any()
    assert jnp.isnan(operator.log_abs_determinant())


def test_gradient_of_the_determinant_is_the_inverse():
    diagonal, left = jnp.array([1.0, 2.0, 3.0]), jnp.array([[1.0], [0.5], [-1.0]])
    gradient = jax.jit(jax.grad(lambda d: LowRankUpdate(d, left).log_abs_determinant()))(diagonal)
    inverse = LowRankUpdate(diagonal, left).inverse().as_matrix()
    np.testing.assert_allclose(gradient, jnp.diagonal(inverse), rtol=1e-5)


@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_named_with_its_shape():
    ones = jnp.ones
    with pytest.raises(ValueError, match=r"`diagonal` must have shape \(d,\), got \(2, 2\)"):
        LowRankUpdate(ones((2, 2)), ones((2, 1)))
    with pytest.raises(ValueError, match=r"`left` .* d = 2, .* got \(3, 1\)"):
        LowRankUpdate(ones(2), ones((3, 1)))
    with pytest.raises(ValueError, match=r"`left` .* got \(2,\)"):
        LowRankUpdate(ones(2), ones(2))
    with pytest.raises(ValueError, match=r"`right` .* \(2, 1\), got \(2, 3\)"):
        LowRankUpdate(ones(2), ones((2, 1)), ones((2, 3)))
    with pytest.raises(ValueError, match="float32, float16"):
        LowRankUpdate(ones(2), ones((2, 1), "float16"))
    for dtype in ("int32", "complex64"):
        with pytest.raises(ValueError, match=f"real floating dtype, got {dtype}, {dtype}"):
            LowRankUpdate(ones(2, dtype), ones((2, 1), dtype))
