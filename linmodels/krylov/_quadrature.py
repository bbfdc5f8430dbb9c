"""Gauss quadrature from the recurrence of block conjugate gradients."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from linmodels.krylov._recursion import Recurrence

MAX_SIDE = 3_000
"""Largest tridiagonal matrix to decompose: beyond, its leading part serves."""


def quadratic_forms(
    recurrence: Recurrence, function: Callable[[np.ndarray], np.ndarray]
) -> Float[np.ndarray, "k ..."]:
    """rᵀ f(H) r of every start vector r, from eᵀ f(T) e with the block tridiagonal T.

    Args:
        recurrence: of a solve of H.
        function: f, on arrays of eigenvalues (s,); (s, m) for m functions at once.
    """
    values, vectors = np.linalg.eigh(tridiagonal(recurrence))
    weights = recurrence.start.T @ vectors[: len(recurrence.start)]
    return (weights**2) @ function(values)


def with_node_at_one(recurrence: Recurrence) -> Recurrence:
    """Of an operator H ≥ 1, changed so that T has the eigenvalue 1: Gauss-Radau quadrature.

    T − 1 is singular once its last block is the Schur complement's share of the others.
    """
    matrix, size = tridiagonal(recurrence), len(recurrence.start)
    before = matrix[:-size, :-size] - np.eye(len(matrix) - size)
    coupling = matrix[-size:, :-size]
    last = np.eye(size) + coupling @ np.linalg.lstsq(before, coupling.T)[0]
    changed = recurrence.diagonal[-1] + last - matrix[-size:, -size:]
    return recurrence._replace(diagonal=[*recurrence.diagonal[:-1], changed])


def tridiagonal(recurrence: Recurrence) -> Float[np.ndarray, "s s"]:
    """T = L D Lᵀ, dense: T_ii = D_i + ρ_i D_{i−1} ρ_iᵀ, T_{i+1,i} = −ρ_{i+1} D_i."""
    size = len(recurrence.start)
    count = max(min(len(recurrence.diagonal), MAX_SIDE // size), 1)
    result = np.zeros((count * size, count * size))
    block = lambda i: slice(i * size, (i + 1) * size)
    for i, diagonal in enumerate(recurrence.diagonal[:count]):
        result[block(i), block(i)] += diagonal
        if i + 1 < count:
            below = -recurrence.below[i] @ diagonal
            result[block(i + 1), block(i)] = below
            result[block(i), block(i + 1)] = below.T
            result[block(i + 1), block(i + 1)] -= below @ recurrence.below[i].T
    return result
