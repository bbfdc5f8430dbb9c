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


def inverse_from_cholesky(lower: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """(LLᵀ)⁻¹."""
    inverse, _ = lapack.dpotri(lower, lower=True)  # pyright: ignore[reportAttributeAccessIssue]
    return symmetric(inverse.T)


def inverse_triangle(lower: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """L⁻¹."""
    return scipy.linalg.solve_triangular(lower, np.eye(len(lower)), lower=True)
