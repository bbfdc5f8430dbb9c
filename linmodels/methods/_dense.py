"""Dense float64 products and factorisations on the host that NumPy does not have."""

import numpy as np
import scipy.linalg
from jaxtyping import Float
from scipy.linalg import blas, lapack


def add_gram(
    total: Float[np.ndarray, "d d"], factor: Float[np.ndarray, "d N"]
) -> Float[np.ndarray, "d d"]:
    """total + factor·factorᵀ in the upper triangle, at half the cost of a product.

    Args:
        total: in Fortran order; overwritten.
        factor: in Fortran order, or it is copied.
    """
    return blas.dsyrk(1.0, factor, beta=1.0, c=total, overwrite_c=True)  # pyright: ignore[reportAttributeAccessIssue]


def symmetric(upper: Float[np.ndarray, "... d d"]) -> Float[np.ndarray, "... d d"]:
    """The symmetric matrix with this upper triangle."""
    return np.triu(upper) + np.swapaxes(np.triu(upper, 1), -1, -2)


def cholesky_above(
    matrix: Float[np.ndarray, "d d"], smallest: float
) -> tuple[Float[np.ndarray, "d d"], Float[np.ndarray, "d q"]]:
    """L with LLᵀ = matrix, whose eigenvalues are known to be at least `smallest` > 0.

    Where rounding of the large eigenvalues would swamp `smallest`, those that are no more than
    rounding become `smallest`.

    Returns:
        L, and the eigenvectors of such eigenvalues (as a rule none, q = 0).
    """
    rounding = len(matrix) * np.finfo(float).eps * np.diag(matrix).max(initial=0.0)
    try:
        lower = scipy.linalg.cholesky(matrix, lower=True)
        if rounding <= 1e-3 * np.diag(lower).min(initial=np.inf) ** 2:
            return lower, np.zeros((len(matrix), 0))
    except scipy.linalg.LinAlgError:
        pass
    values, vectors = np.linalg.eigh(matrix)
    lost = values <= smallest + len(matrix) * np.finfo(float).eps * values[-1]
    roots = np.sqrt(np.where(lost, smallest, values))
    upper = np.linalg.qr(roots[:, None] * vectors.T, mode="r")
    return (np.sign(np.diag(upper))[:, None] * upper).T, vectors[:, lost]


def inverse_from_cholesky(lower: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """(LLᵀ)⁻¹."""
    inverse, _ = lapack.dpotri(lower, lower=True)  # pyright: ignore[reportAttributeAccessIssue]
    return symmetric(inverse.T)


def inverse_triangle(lower: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """L⁻¹."""
    return scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True)
