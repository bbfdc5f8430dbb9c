"""Draws of a padded block are those of the block itself, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linmodels._draws import normal_draws, row_draws

KEY = jax.random.key(3)


# The last one is too large to be padded.
@pytest.mark.parametrize("shape", [(3,), (9, 8), (0, 4), (2, 33_000)])
def test_normal_draws(shape):
    expected = jax.random.normal(KEY, shape, jnp.float32)
    np.testing.assert_array_equal(normal_draws(KEY, shape), expected)


@pytest.mark.parametrize(("first", "rows", "size"), [(4, 9, 8), (0, 1100, 65)])
def test_row_draws(first, rows, size):
    """Keyed by leaf and row: every draw from a key of its own, and the same where traced."""
    got = np.asarray(row_draws(KEY, 1, first, rows, size))
    assert got.shape == (rows, size)
    for row in (0, rows - 1):
        key = jax.random.fold_in(jax.random.fold_in(KEY, 1), first + row)
        np.testing.assert_array_equal(got[row], jax.random.normal(key, (size,), jnp.float32))
    traced = jax.jit(lambda first: row_draws(KEY, 1, first, rows, size))(first)
    np.testing.assert_array_equal(got, traced)
