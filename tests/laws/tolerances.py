"""How far rounding may take an exact method from the oracle.

Whitened, the posterior mean is the least-squares solution of A x ≈ (v, 0) with A = [W; P], P the
identity on penalised coordinates. All that an answer rests on is A and v, known to a relative
error δ of each column: for columns scaled to norm 1, with smallest singular value σ,

    ‖A Δx‖ ≤ δ √d (‖v‖ + ‖v‖/σ + ‖r‖/σ) ≤ 3 √d δ ‖v‖ / σ                               (Björck)

where ‖A Δx‖ is the error in posterior standard deviations. δ is 8 ε for whitened rows (a root of
the precision, a root of the weight, three products and the sums that make v) in the working dtype,
ε = 1e-7 or 2e-16. Gram matrices, the oracle's own among them, add (N + d) ε₆₄ / σ² in float64.
QR in the working dtype adds 2 (N + d) ε to δ (Higham, 2002, theorem 19.4).

The dual side is compared in units of the prior, which are never smaller. It factorises
V = I + WWᵀ = LLᵀ: with ‖L⁻¹ΔV L⁻ᵀ‖ ≤ η, x = WᵀL⁻ᵀL⁻¹v changes by η‖v‖, and it is not the smallest
singular value that matters but the largest: QR gives η = 2δκ, and float64 products
(N + d) ε₆₄κ², with κ² = 1 + ‖W‖².
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

EPSILON64 = np.finfo(np.float64).eps


class Tolerance(NamedTuple):
    """Bounds in whitened coordinates."""

    relative: float
    """of a matrix such as the whitened covariance, and of γ per parameter"""
    mean: float
    """in posterior (primal) or prior (dual) standard deviations"""
    square: float
    """of a sum of squares"""
    log_evidence: float


def working_epsilon():
    return float(np.finfo(np.dtype(jnp.result_type(float))).eps)


def tolerance(parts, truth, *, dual, traced):
    """Bounds for one problem and one way to solve it."""
    count, size = parts.design.shape
    epsilon = working_epsilon()
    whitened = parts.root @ parts.design @ parts.units
    delta = (8 + 2 * (count + size) * traced) * epsilon
    relative = (
        3
        * np.sqrt(size)
        * amplified(delta, count + size, whitened, parts, dual=dual, traced=traced)
    )
    relative *= np.linalg.cond(parts.units / np.linalg.norm(parts.units, axis=0))
    mean = relative * parts.magnitude
    size_of_terms = abs(parts.log_noise) + np.abs(np.log(np.diag(truth.precision))).sum()
    size_of_terms += abs(truth.log_evidence)
    square = mean * (2 * parts.magnitude + mean)
    # A log determinant of d factors is known to 2dδ/σ; sums of terms, to ε of each.
    evidence = square + 2 * size * relative + (4 + count * traced) * epsilon * size_of_terms
    return Tolerance(relative, mean, square, evidence)


def amplified(delta, size, whitened, parts, *, dual, traced):
    """δ/σ + (N + d) ε₆₄/σ², and on the dual side 2δκ + (N + d) ε₆₄κ²."""
    penalty = parts.units.T @ parts.prior @ parts.units
    stacked = np.concatenate([whitened, penalty])
    normalised = stacked / np.linalg.norm(stacked, axis=0)
    smallest = np.linalg.svd(normalised, compute_uv=False)[-1]
    error = delta / smallest + size * EPSILON64 / smallest**2
    condition = np.sqrt(1 + np.linalg.norm(whitened, 2) ** 2)
    return error + dual * (2 * delta * condition * traced + size * EPSILON64 * condition**2)
