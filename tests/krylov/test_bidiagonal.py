"""Block bidiagonalisation: spaces that end, and quadrature of every function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from linmodels.krylov import bidiagonalise

NEVER = lambda ritz: False


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def of(matrix, start, settled=NEVER, **rest):
    """Ritz values of WWᵀ, W dense."""
    matrix = jnp.asarray(matrix, start.dtype)
    times = lambda a, b: jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
    forward, backward = lambda v: times(v, matrix.T), lambda u: times(u, matrix)
    return bidiagonalise(forward, backward, start, settled, **rest)


def diagonal(values, start, settled=NEVER, **rest):
    """The same for W = diag(√values)."""
    scale = jnp.sqrt(jnp.asarray(values, start.dtype))
    product = lambda x: x * scale
    return bidiagonalise(product, product, start, settled, **rest)


@pytest.mark.parametrize("kind", ["signs", "dense"])
def test_an_exhausted_space_ends(kind):
    """M = 2I: one pass is all, and gᵀ log(M) g = ‖g‖² log 2, of mean 34.6574 for 50 dimensions."""
    start = normal(4, 50)
    start = jnp.sign(start) if kind == "signs" else start
    ritz = diagonal(np.full(50, 2.0), start, max_passes=60)
    assert ritz.exhausted
    assert ritz.passes == 1
    squares = np.sum(np.asarray(start, np.float64) ** 2, axis=1)
    np.testing.assert_allclose(ritz.weights @ np.log(ritz.values), squares * np.log(2), rtol=1e-5)
    if kind == "signs":
        np.testing.assert_allclose(ritz.weights @ np.log(ritz.values), 34.6574, rtol=1e-5)


def test_a_rank_one_curvature_beyond_its_rank():
    """Eight rows (1, 1, 1), curvature 2XᵀX, prior 0.1: variance 1/48.1 along (1, 1, 1)/√3."""
    start = jnp.ones((1, 3)) / jnp.sqrt(3.0)
    ritz = of(np.sqrt(2) * np.ones((3, 8)), start, max_passes=3)
    variance = ritz.weights @ (1 / (ritz.values + 0.1))
    np.testing.assert_allclose(variance, 1 / 48.1, rtol=1e-5)
    assert (variance > 0).all()


def test_the_zero_operator():
    start = normal(3, 7)
    ritz = diagonal(np.zeros(7), start)
    assert ritz.exhausted
    assert (ritz.values == 0).all()
    assert (ritz.weights @ np.log1p(ritz.values) == 0).all()


def test_zero_and_dependent_starts():
    start = jnp.array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    ritz = diagonal([4.0, 3.0, 2.0, 1.0], start)
    found = ritz.weights @ ritz.values
    np.testing.assert_allclose(found, [4.0, 4.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 40), (40, 3), (9, 9)], ids=["wide", "tall", "square"])
def test_more_vectors_than_either_side(shape):
    """Five starts in blocks that shrink: exact, as the space is everything there is."""
    rng = np.random.default_rng(0)
    matrix, start = rng.standard_normal(shape), rng.standard_normal((5, shape[0]))
    ritz = of(matrix, jnp.asarray(start, jnp.float32))
    values, vectors = np.linalg.eigh(matrix @ matrix.T)
    truth = (start @ vectors) ** 2 @ np.log1p(values)
    assert ritz.exhausted
    np.testing.assert_allclose(ritz.weights @ np.log1p(ritz.values), truth, rtol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 100.0])
@pytest.mark.parametrize("power", [1, 2])
def test_every_shift_from_one_space(alpha, power):
    """Eigenvalues 1e5/i and 1e5/i²: 20 passes give log det and γ at any α to 0.5 %."""
    values = 1e5 / np.arange(1.0, 2_001.0) ** power
    draws = np.random.default_rng(0).standard_normal((8, len(values)))
    ritz = diagonal(values, jnp.asarray(draws, jnp.float32), max_passes=20)
    for function in (lambda x: np.log1p(x / alpha), lambda x: x / (x + alpha)):
        truth = draws**2 @ function(values)
        np.testing.assert_allclose(ritz.weights @ function(ritz.values), truth, rtol=5e-3)


@pytest.mark.parametrize("shape", [(120, 300), (300, 120)], ids=["wide", "tall"])
def test_eigenvalues_far_below_the_spacing_of_the_largest(shape):
    """Nine decades of λ in float32: rank and log det at signal 1e8 to 1 %.

    The Gram matrix in float32 has nothing but rounding below 1e-7 of the largest.
    """
    rng = np.random.default_rng(0)
    values = np.zeros(120)
    values[:30] = np.logspace(0, -9, 30)
    left, right = (np.linalg.qr(rng.standard_normal((n, 120)))[0] for n in shape)
    matrix = (left * np.sqrt(values)) @ right.T
    start = rng.standard_normal((6, shape[0]))
    ritz = of(matrix, jnp.asarray(start, jnp.float32), max_passes=20)
    for function in (lambda x: np.log1p(1e8 * x), lambda x: 1e8 * x / (1 + 1e8 * x)):
        truth = (start @ left) ** 2 @ function(values)
        np.testing.assert_allclose(ritz.weights @ function(ritz.values), truth, rtol=1e-2)


def test_stops_when_told():
    looks = []
    start = normal(2, 100)
    diagonal(np.arange(1.0, 101.0), start, lambda r: looks.append(r.passes), max_passes=10)
    assert looks == [2, 3, 4, 5, 6, 8, 10]


@pytest.mark.parametrize("shape", [(60, 200), (200, 60)], ids=["wide", "tall"])
def test_pairs_of_the_shorter_side(shape):
    """Residuals are as said, up to rounding, or below twice that where they are estimated."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 60)))[0] for n in shape)
    matrix = (left * np.logspace(2, -1, 60)) @ right.T
    pairs = of(matrix, normal(4, shape[0]), max_passes=8).pairs
    assert pairs.of_start == (shape[0] < shape[1])
    short = matrix @ matrix.T if pairs.of_start else matrix.T @ matrix
    vectors = pairs.coordinates @ np.concatenate(pairs.basis).astype(np.float64)
    residuals = np.linalg.norm(vectors @ short - pairs.values[:, None] * vectors, axis=1)
    rounding = 1e2 * np.finfo("f").eps * pairs.values[0]
    assert (residuals <= (1 if pairs.of_start else 2) * pairs.residuals + rounding).all()
    assert (np.diff(pairs.values) <= 0).all()


@pytest.mark.parametrize("shape", [(60, 200), (200, 60)], ids=["wide", "tall"])
def test_what_is_known_flattens_the_spectrum(shape):
    """P^{-½}(I + ρM)P^{-½}: its largest eigenvalue is about that of the first that is not known.

    Between a vector that is known and the rest at most 1 is left, for each of them.
    """
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((n, 60)))[0] for n in shape)
    values, ratio = np.logspace(4, -2, 60), 10.0
    matrix = (left * np.sqrt(values)) @ right.T
    pairs = of(matrix, normal(4, shape[0]), max_passes=8).pairs
    found = pairs.known(ratio, 15)
    assert len(found.basis) == 15
    basis = np.asarray(found.basis, np.float64)
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-5)
    short = matrix @ matrix.T if pairs.of_start else matrix.T @ matrix
    hessian = np.eye(len(short)) + ratio * short
    inverse = np.asarray(found.root().divide(jnp.eye(len(short))), np.float64)
    largest = np.linalg.eigvalsh(inverse @ hessian @ inverse)[-1]
    first = 1 + ratio * values[len(basis) - 1]
    assert largest <= first + 2 * len(basis) ** 0.5
    assert largest <= 0.1 * np.linalg.eigvalsh(hessian)[-1]


def test_too_little_is_known():
    pairs = diagonal(np.full(50, 2.0), normal(4, 50), max_passes=3).pairs
    assert pairs.known(1e-3, 10) is None
    assert pairs.known(1.0, 1) is None
