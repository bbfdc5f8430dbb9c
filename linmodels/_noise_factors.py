"""Factors R of a noise precision operator B = RᵀR, their rank and determinant."""

from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array

from linmodels._arrays import DENSE_LIMIT, is_traced, require_finite, require_floats


def require_factor(factor: Any) -> None:
    """Refuses what cannot be a factor R.

    Raises:
        ValueError: no operator, not of floats, or more rows than columns.
    """
    if not isinstance(factor, lx.AbstractLinearOperator):
        raise ValueError(f"factor must be a lineax operator, got {type(factor).__name__}.")
    if factor.out_size() > factor.in_size():
        raise ValueError(
            f"The noise factor R has {factor.out_size()} rows for {factor.in_size()} columns: give "
            "one of at most as many rows with the same RᵀR (that of its QR factorisation)."
        )
    require_floats((factor.in_structure(), factor.out_structure()), "A noise factor")


def psd_factor(precision: lx.AbstractLinearOperator) -> lx.AbstractLinearOperator:
    """R with RᵀR = B of a diagonal or dense precision operator: Cholesky's, if it is regular.

    Raises:
        ValueError: not of floats, square, symmetric, positive semi-definite and finite; too large.
    """
    structures = precision.in_structure(), precision.out_structure()
    require_floats(structures, "A noise precision operator")
    size, dtype = precision.in_size(), jnp.result_type(float)
    if lx.is_diagonal(precision):
        diagonal = jnp.asarray(lx.diagonal(precision), dtype)
        require_finite(diagonal, "noise_precision", minimum=0.0)
        if is_traced(diagonal) or np.all(np.asarray(diagonal) > 0):
            return lx.DiagonalLinearOperator(jnp.sqrt(diagonal))
    if size > DENSE_LIMIT:
        raise ValueError(
            f"The noise precision operator has side {size} > {DENSE_LIMIT}: give "
            "`factor=R` with RᵀR = B, or an array of precisions."
        )
    matrix = precision.as_matrix()
    if is_traced(matrix):
        raise ValueError("A noise precision operator under jit needs its `factor=` given.")
    root = _matrix_root(np.asarray(matrix, np.float64), size * _epsilon(precision))
    tags = lx.upper_triangular_tag if len(root) == size else ()
    return lx.MatrixLinearOperator(jnp.asarray(root, dtype), tags)


def _matrix_root(matrix: np.ndarray, tolerance: float) -> np.ndarray:
    """R with RᵀR = B: upper triangular where B is regular, else with one row a dimension.

    The correlation matrix decides the rank, so that units do not.
    """
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"The noise precision operator is not square: {matrix.shape}.")
    require_finite(matrix, "noise_precision")
    gap = np.abs(matrix - matrix.T)
    if gap.max(initial=0.0) > tolerance * np.abs(matrix).max(initial=0.0):
        i, j = np.unravel_index(gap.argmax(), gap.shape)
        raise ValueError(
            f"The noise precision operator is not symmetric: entry ({i}, {j}) is {matrix[i, j]:g}, "
            f"entry ({j}, {i}) is {matrix[j, i]:g}."
        )
    diagonal = np.diag(matrix)
    scale = np.sqrt(np.where(diagonal > 0, diagonal, np.abs(matrix).max(initial=0.0) or 1.0))
    correlation = (matrix + matrix.T) / (2 * scale * scale[:, None])
    values, vectors = np.linalg.eigh(correlation)
    if values[0] < -tolerance * values[-1] or values[-1] <= 0:
        raise ValueError(
            "The noise precision operator is not positive semi-definite: its correlation matrix "
            f"has the eigenvalue {values[0]:g}."
        )
    kept = values > tolerance * values[-1]
    if kept.all():
        return np.linalg.cholesky(correlation).T * scale
    return np.sqrt(values[kept])[:, None] * vectors[:, kept].T * scale


def _epsilon(operator: lx.AbstractLinearOperator) -> float:
    dtype = jax.tree.leaves(operator.in_structure())[0].dtype
    return float(jnp.finfo(dtype).eps)


def rank_and_log_determinant(factor: lx.AbstractLinearOperator) -> tuple[Any, Array]:
    """Rank and pseudo log det of RᵀR.

    Raises:
        ValueError: R is large and not triangular.
    """
    if lx.is_lower_triangular(factor) or lx.is_upper_triangular(factor):
        diagonal = lx.diagonal(factor)
        if is_traced(diagonal) or np.all(np.asarray(diagonal) != 0):
            return factor.in_size(), 2 * jnp.sum(jnp.log(jnp.abs(diagonal)))
    if min(factor.in_size(), factor.out_size()) > DENSE_LIMIT:
        raise ValueError(
            f"The noise factor has side {factor.in_size()} > {DENSE_LIMIT} and is not triangular "
            "and regular, so log det B is unknown: give such a factor or an array of precisions."
        )
    values = jnp.linalg.svd(jnp.asarray(factor.as_matrix()), compute_uv=False)
    kept = values > values[0] * max(factor.in_size(), factor.out_size()) * _epsilon(factor)
    rank = jnp.sum(kept)
    log_determinant = 2 * jnp.sum(jnp.where(kept, jnp.log(jnp.where(kept, values, 1)), 0))
    return rank if is_traced(rank) else int(rank), log_determinant
