"""Block Lanczos: spaces that end, and quadrature of every function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linmodels.krylov import block_lanczos

NEVER = lambda ritz: False


@pytest.mark.parametrize("kind", ["signs", "dense"])
def test_an_exhausted_space_ends(kind):
    """M = 2I: one pass is all, and gᵀ log(M) g = ‖g‖² log 2, of mean 34.6574 for 50 dimensions."""
    draw = jax.random.rademacher if kind == "signs" else jax.random.normal
    start = draw(jax.random.key(0), (4, 50), jnp.float32)
    ritz = block_lanczos(lambda x: 2 * x, start, NEVER, max_passes=60)
    assert ritz.exhausted
    assert ritz.passes == 1
    squares = np.sum(np.asarray(start, np.float64) ** 2, axis=1)
    np.testing.assert_allclose(ritz.weights @ np.log(ritz.values), squares * np.log(2), rtol=1e-5)
    if kind == "signs":
        np.testing.assert_allclose(ritz.weights @ np.log(ritz.values), 34.6574, rtol=1e-5)


def test_a_rank_one_curvature_beyond_its_rank():
    """Eight rows (1, 1, 1), curvature 2XᵀX, prior 0.1: variance 1/48.1 along (1, 1, 1)/√3."""
    rows = jnp.ones((8, 3))
    start = jnp.ones((1, 3)) / jnp.sqrt(3.0)
    ritz = block_lanczos(lambda x: 2 * x @ (rows.T @ rows), start, NEVER, max_passes=3)
    variance = ritz.weights @ (1 / (ritz.values + 0.1))
    np.testing.assert_allclose(variance, 1 / 48.1, rtol=1e-5)
    assert (variance > 0).all()


def test_the_zero_operator():
    start = jax.random.normal(jax.random.key(0), (3, 7))
    ritz = block_lanczos(lambda x: 0 * x, start, NEVER)
    assert ritz.exhausted
    assert (ritz.values == 0).all()
    assert (ritz.weights @ np.log1p(ritz.values) == 0).all()


def test_zero_and_dependent_starts():
    start = jnp.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    values = jnp.array([4.0, 3.0, 2.0, 1.0])
    ritz = block_lanczos(lambda x: x * values, start, NEVER)
    found = ritz.weights @ ritz.values
    np.testing.assert_allclose(found, [4.0, 4.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 100.0])
@pytest.mark.parametrize("power", [1, 2])
def test_every_shift_from_one_space(alpha, power):
    """Eigenvalues 1e5/i and 1e5/i²: 20 passes give log det and γ at any α to 0.5 %."""
    values = 1e5 / np.arange(1.0, 2_001.0) ** power
    draws = np.random.default_rng(0).standard_normal((8, len(values)))
    start = jnp.asarray(np.sqrt(values) * draws, jnp.float32)
    scale = jnp.asarray(values, jnp.float32)
    ritz = block_lanczos(lambda x: x * scale, start, NEVER, max_passes=20)
    found = np.maximum(ritz.values, 1e-9)  # f(λ)/λ has a limit at 0
    measure = ritz.weights / found
    for function in (lambda x: np.log1p(x / alpha), lambda x: x / (x + alpha)):
        truth = draws**2 @ function(values)
        np.testing.assert_allclose(measure @ function(found), truth, rtol=5e-3)


def test_stops_when_told():
    values = jnp.arange(1.0, 101.0)
    looks = []
    start = jax.random.normal(jax.random.key(0), (2, 100))
    block_lanczos(lambda x: x * values, start, lambda r: looks.append(r.passes), max_passes=10)
    assert looks == [2, 3, 4, 5, 6, 8]
