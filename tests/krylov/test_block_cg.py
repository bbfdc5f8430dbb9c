"""Faults that conjugate gradients have had elsewhere; and what a block is for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linmodels as lm
from linmodels.krylov import AbstractStoppingRule, RelativeResidual, block_cg, quadratic_forms

SMALL = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)


def by(matrix):
    matrix = jnp.asarray(matrix)
    return lambda x: jnp.matmul(x, matrix, precision=jax.lax.Precision.HIGHEST)


def solve(matrix, rhs, tolerance=1e-5, **rest):
    return block_cg(by(matrix), jnp.asarray(rhs), RelativeResidual(tolerance), **rest)


def test_twice_the_identity_is_regular():
    rhs = np.random.default_rng(0).standard_normal((1, 100_000)).astype(np.float32)
    solution = block_cg(lambda x: 2 * x, jnp.asarray(rhs), RelativeResidual(1e-5))
    assert solution.result == lm.RESULTS.successful
    assert np.linalg.norm(solution.value - rhs / 2) <= 1e-5 * np.linalg.norm(rhs / 2)


@pytest.mark.parametrize("scale", [1, 1e-9, 1e-20])
def test_any_units(scale):
    """Squares underflow where scale² is below 1e-38."""
    scale = np.float32(scale)
    solution = solve(SMALL * scale, np.array([[1.0, -2.0]], np.float32) * scale)
    assert solution.result == lm.RESULTS.successful
    np.testing.assert_allclose(solution.value, [[1.0, -1.0]], rtol=1e-5)


def test_nan_is_no_success():
    solution = solve(SMALL, np.array([[1.0, np.nan], [1.0, 0.0]], np.float32))
    assert solution.result == lm.RESULTS.non_finite
    assert solution.columns.tolist() == [True, False]
    assert np.isnan(solution.value[0]).all()


def test_every_right_hand_side_reaches_the_tolerance():
    diagonal = np.logspace(0, 3, 100)
    rhs = np.random.default_rng(0).standard_normal((2, 100))
    rhs *= [[1.0], [1e-6]] / np.linalg.norm(rhs, axis=1, keepdims=True)
    solution = solve(np.diag(diagonal).astype(np.float32), rhs.astype(np.float32))
    left = rhs.astype(np.float32) - np.asarray(solution.value, np.float64) * diagonal
    assert solution.result == lm.RESULTS.successful
    assert (np.linalg.norm(left, axis=1) <= 1.1e-5 * np.linalg.norm(rhs, axis=1)).all()


def test_zero_right_hand_sides():
    """Exactly 0 without a step, and no harm to the others."""
    rhs = np.array([[0.0, 0.0], [1.0, -2.0]], np.float32)
    solution = solve(SMALL, rhs)
    assert (solution.value[0] == 0).all()
    np.testing.assert_allclose(solution.value[1], [1.0, -1.0], rtol=1e-5)
    nothing = solve(SMALL, 0 * rhs)
    assert (nothing.value == 0).all()
    assert nothing.progress.passes == 0
    assert nothing.result == lm.RESULTS.successful


@pytest.mark.slow
def test_stagnation_is_said():
    """κ = 1e5 in float32, one right-hand side: ‖r‖ stops near 1e-3 ‖b‖, four digits above ε."""
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    matrix = (rotation * np.logspace(-5, 0, 300)) @ rotation.T
    rhs = rng.standard_normal((1, 300)).astype(np.float32)
    solution = solve(matrix.astype(np.float32), rhs, 1e-6, max_passes=10_000)
    left = rhs - np.asarray(solution.value, np.float64) @ matrix.astype(np.float32)
    true = np.linalg.norm(left) / np.linalg.norm(rhs)
    assert solution.result == lm.RESULTS.stagnated
    assert true <= 3e-3
    reported = np.sqrt(solution.progress.residual / solution.progress.right_hand_side)
    # A product of 300 terms and ‖A‖ = 1 is known to √300 ε ‖x‖.
    rounding = np.sqrt(300) * np.finfo(np.float32).eps * np.linalg.norm(solution.value)
    assert abs(reported[0] - true) <= rounding / np.linalg.norm(rhs)


def test_negative_curvature_is_said():
    solution = solve(np.array([[1.0, 2.0], [2.0, 1.0]], np.float32), np.float32([[1.0, 0.3]]))
    assert solution.result == lm.RESULTS.negative_curvature


@pytest.mark.parametrize("tolerance", [0.0, 1.0, 2.0, -1.0, float("nan")])
def test_tolerances_outside_0_to_1_are_refused(tolerance):
    with pytest.raises(ValueError, match="between 0 and 1"):
        RelativeResidual(tolerance)


def test_misuse(unchecked):
    with pytest.raises(ValueError, match="max_passes must be at least 1, got 0"):
        solve(SMALL, np.ones((1, 2), np.float32), max_passes=0)
    with pytest.raises(ValueError, match=r"start has shape \(1, 2\)"):
        solve(SMALL, np.ones((2, 2), np.float32), start=jnp.ones((1, 2)))


def test_too_few_passes_are_said_and_the_iterate_is_kept():
    diagonal = np.logspace(0, 3, 100).astype(np.float32)
    seen = []
    solution = solve(
        np.diag(diagonal), np.ones((1, 100), np.float32), max_passes=5, callback=seen.append
    )
    assert solution.result == lm.RESULTS.max_passes_reached
    assert [progress.passes for progress in seen] == [1, 2, 3, 4, 5]
    error = np.asarray(solution.value, np.float64) - 1 / diagonal
    assert np.sum(diagonal * error**2) < np.sum(1 / diagonal)


def test_patience_depends_on_the_largest_eigenvalue():
    """Of P^{-½}HP^{-½}, which one pass over a block shows from below."""
    diagonal, seen = np.logspace(0, 3, 100).astype(np.float32), []
    rhs = np.random.default_rng(0).standard_normal((8, 100)) * diagonal**0.5
    patience = lambda largest: seen.append(largest) or 3.0
    solution = solve(np.diag(diagonal), rhs.astype(np.float32), patience=patience)
    assert solution.result == lm.RESULTS.max_passes_reached
    assert solution.progress.passes == 3 + 1  # and the true residual's
    assert len(seen) == 1
    assert 500 <= seen[0] <= 1001


def test_dependent_right_hand_sides():
    """Twins, a multiple, and more of them than dimensions."""
    rhs = np.array([[1.0, -2.0], [1.0, -2.0], [1e3, -2e3], [0.0, 1.0]], np.float32)
    solution = solve(SMALL, rhs)
    assert solution.result == lm.RESULTS.successful
    np.testing.assert_allclose(solution.value, np.linalg.solve(SMALL, rhs.T).T, rtol=1e-4)


def test_a_start_that_is_the_solution_takes_no_step():
    rhs = np.array([[1.0, -2.0]], np.float32)
    solution = solve(SMALL, rhs, start=jnp.array([[1.0, -1.0]]))
    assert solution.progress.passes == 1
    assert (solution.value == jnp.array([[1.0, -1.0]])).all()


class DataSpace(AbstractStoppingRule):
    """Σ‖e‖²_H ≤ tolerance Σ‖Wx‖² for H = 1 + WᵀW."""

    tolerance: float

    def measure(self, iterate, residual, rhs):
        return jnp.sum(iterate * (rhs - residual), 1) - jnp.sum(iterate**2, 1)

    def met(self, progress):
        error = np.minimum(progress.error, progress.residual).sum()
        return bool(error <= self.tolerance * progress.measure.sum())


@pytest.mark.parametrize("k", [16, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("power", [1, 2])
def test_float32_reaches_1e_6_in_data_space(power, k):
    """Eigenvalues 1e5/i and 1e5/i², of which ε² κ² = 4e-5 would be left for a plain solver."""
    values = 1e5 / np.arange(1.0, 2_001.0) ** power
    z, u = np.random.default_rng(0).standard_normal((2, k, len(values)))
    rhs = (z + np.sqrt(values) * u).astype(np.float32)
    diagonal = jnp.asarray(1 + values, jnp.float32)
    solution = block_cg(lambda x: x * diagonal, jnp.asarray(rhs), DataSpace(1e-6))
    truth = rhs / (1 + values)
    error = np.asarray(solution.value, np.float64) - truth
    assert solution.result == lm.RESULTS.successful
    assert (values * error**2).sum() <= 1e-6 * (values * truth**2).sum()


def test_quadrature_is_exact_once_the_space_is_exhausted():
    """rᵀ log(H) r by eigenvectors, as all of a 6-dimensional space is seen in 3 blocks of 2."""
    rng = np.random.default_rng(1)
    root = rng.standard_normal((6, 6))
    matrix = np.eye(6) + root @ root.T
    rhs = rng.standard_normal((2, 6))
    with jax.enable_x64(True):
        solution = solve(matrix, rhs, 1e-10)
        found = quadratic_forms(solution.recurrence, np.log)
    values, vectors = np.linalg.eigh(matrix)
    np.testing.assert_allclose(found, (rhs @ vectors) ** 2 @ np.log(values), rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_rounding_that_drives_the_recursion_away(seed):
    """I + WWᵀ with κ = 1e8 in float32 and side 50, all of which three steps of 17 vectors search:
    what is kept is no worse than what was there before, and no passes lead to infinity."""
    rng = np.random.default_rng(seed)
    w = np.logspace(0, 3, 50)[:, None] * rng.standard_normal((50, 8))
    w, rhs = (jnp.asarray(a, jnp.float32) for a in (w, w @ rng.standard_normal((8, 17))))
    rhs = rhs.T + rng.standard_normal((17, 50)).astype(np.float32)
    solution = block_cg(lambda x: x + (x @ w) @ w.T, rhs, RelativeResidual(1e-6))
    assert solution.result != lm.RESULTS.successful
    assert solution.progress.passes < 200
    assert solution.progress.residual.sum() <= solution.progress.right_hand_side.sum()
