"""Dense float64 factorisations on the host that NumPy does not have.

Products are NumPy's throughout: SciPy brings a BLAS of its own, whose waiting threads take the
cores from NumPy's when the two take turns.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float


def scale_rows(
    factors: Float[np.ndarray, " r"], values: Float[np.ndarray, "r ..."]
) -> Float[np.ndarray, "r ..."]:
    """Rows of a vector or matrix times their factors."""
    return (factors * values.T).T


class Factor(NamedTuple):
    """H = LLᵀ, and the directions N in which H is known only by a lower bound (as a rule none).

    Right-hand sides become (I − N Mᵀ) b, solutions (I − M Nᵀ) x; MᵀN = I.
    """

    lower: Float[np.ndarray, "d d"]
    left: Float[np.ndarray, "d q"]
    """N"""
    right: Float[np.ndarray, "d q"]
    """M"""

    def solve(self, cofactors: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """H⁻¹b, with nothing of b or of the answer along the lost directions."""
        seen = cofactors - self.left @ (self.right.T @ cofactors)
        solution = scipy.linalg.cho_solve((self.lower, True), seen)
        return solution - self.right @ (self.left.T @ solution)


def cholesky_above(matrix: Float[np.ndarray, "d d"], smallest: float) -> Factor:
    """L with LLᵀ = matrix, whose eigenvalues are known to be at least `smallest` > 0.

    Where rounding of the large eigenvalues would swamp `smallest`, those that are no more than
    rounding become `smallest`. Eigenvalues are those of the matrix scaled to a unit diagonal, so
    that a column's units do not matter.
    """
    scale, rounding = np.sqrt(np.diag(matrix)), len(matrix) * np.finfo(float).eps
    scaled = matrix / scale / scale[:, None]
    try:
        lower = scale[:, None] * np.linalg.cholesky(scaled)
        if rounding <= 1e-3 * np.min(np.diag(lower) / scale, initial=1.0) ** 2:
            return Factor(lower, *np.zeros((2, len(matrix), 0)))
    except np.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(scaled)
    floor = smallest * np.sum((vectors / scale[:, None]) ** 2, 0)
    lost = values <= floor + rounding * values[-1]
    kept, null = vectors[:, ~lost], vectors[:, lost]
    bound = np.linalg.qr(np.sqrt(smallest) * null / scale[:, None], mode="r")
    rows = np.concatenate([np.sqrt(values[~lost])[:, None] * kept.T, bound @ null.T])
    upper = np.linalg.qr(rows * scale, mode="r")
    lower = (np.sign(np.diag(upper))[:, None] * upper).T
    return Factor(lower, scale[:, None] * null, null / scale[:, None])


def inverse_from_cholesky(lower: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """(LLᵀ)⁻¹."""
    inverse = inverse_triangle(lower)
    return inverse.T @ inverse


def inverse_triangle(lower: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """L⁻¹."""
    (invert,) = scipy.linalg.get_lapack_funcs(("trtri",), (lower,))
    return invert(lower.T, lower=0)[0].T  # L in C order is Lᵀ in LAPACK's
