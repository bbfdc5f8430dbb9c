"""Block Lanczos: one Krylov space that serves every function of an operator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._blocks import gram, orthonormalised, times, unit_scales
from linmodels.krylov._block_cg import Product

NEGLIGIBLE = 100
"""Directions below this many spacings of the largest eigenvalue are rounding."""
LOOKS = 1.2
"""Ratio of the numbers of passes between looks at the Ritz values."""


class Ritz(NamedTuple):
    """Ritz values of M, and the measure that every start vector puts on them.

    gᵀf(M)g ≈ Σ_i weights_i f(values_i) for each start vector g: Gauss quadrature.
    """

    values: Float[np.ndarray, " s"]
    weights: Float[np.ndarray, "k s"]
    passes: int
    exhausted: bool
    """whether the space is invariant, so that the quadrature is exact"""


class _Basis(NamedTuple):
    start: Float[np.ndarray, "q k"]
    blocks: list[Float[Array, "q d"]]
    diagonal: list[Float[np.ndarray, "q q"]]
    below: list[Float[np.ndarray, "q q"]]


def block_lanczos(
    product: Product,
    start: Float[Array, "k d"],
    settled: Callable[[Ritz], bool],
    *,
    max_passes: int = 200,
) -> Ritz:
    """Ritz values of a symmetric positive semi-definite M in the block Krylov space of `start`.

    Blocks are orthogonalised twice against all before (memory: passes · k · d), so that no
    eigenvalue is found twice; directions that are rounding become zero vectors, and an empty block
    ends the space (Golub & Underwood 1977).

    Args:
        product: M times every vector of a block; one call is one pass.
        start: g_1 … g_k.
        settled: whether the quadrature will do; asked at passes that grow by a fifth.
        max_passes: products before stopping all the same.
    """
    scale = unit_scales(start)
    block, coordinates = _started(start, scale.astype(start.dtype))
    basis = _Basis(np.asarray(coordinates, np.float64) * scale, [block], [], [])
    epsilon = float(jnp.finfo(start.dtype).eps)
    largest, next_look = 0.0, 2
    while True:
        diagonal, left = _expanded(basis.blocks[-1], product(basis.blocks[-1]))
        basis.diagonal.append(np.asarray(diagonal, np.float64))
        for _ in range(2):
            for earlier in basis.blocks:
                left = _without(left, earlier)
        largest = max(largest, np.linalg.norm(basis.diagonal[-1], 2))
        floor = NEGLIGIBLE * epsilon * largest
        block, below = _directions(left, jnp.asarray(floor, left.dtype))
        below, passes = np.asarray(below, np.float64), len(basis.diagonal)
        ended = passes >= max_passes or not below.any()
        if ended or passes >= next_look:
            ritz = Ritz(*_ritz(basis), passes, not below.any())
            if ended or settled(ritz):
                return ritz
            next_look = int(np.ceil(LOOKS * passes))
        basis.blocks.append(block)
        basis.below.append(below)


@eqx.filter_jit
def _started(start: Array, scale: Any) -> tuple[Array, Array]:
    return orthonormalised(start / scale[:, None])


@eqx.filter_jit
def _expanded(block: Array, applied: Array) -> tuple[Array, Array]:
    """QᵀMQ, and MQ without it."""
    diagonal = gram(block, applied)
    diagonal = (diagonal + diagonal.T) / 2
    return diagonal, applied - times(diagonal, block)


@eqx.filter_jit
def _without(block: Array, earlier: Array) -> Array:
    return block - times(gram(block, earlier), earlier)


@eqx.filter_jit
def _directions(block: Array, floor: Array) -> tuple[Array, Array]:
    """An orthonormal basis of a block, and coordinates; singular values below floor become 0."""
    basis, coordinates = orthonormalised(block)
    left, sizes, right = jnp.linalg.svd(coordinates, full_matrices=False)
    kept = sizes > floor
    basis = jnp.where(kept[:, None], times(left.T, basis), 0)
    return basis, jnp.where(kept[:, None], sizes[:, None] * right, 0)


def _ritz(basis: _Basis) -> tuple[np.ndarray, np.ndarray]:
    size, count = len(basis.start), len(basis.diagonal)
    matrix = np.zeros((count * size, count * size))
    block = lambda i: slice(i * size, (i + 1) * size)
    for i, diagonal in enumerate(basis.diagonal):
        matrix[block(i), block(i)] = diagonal
    for i, below in enumerate(basis.below[: count - 1]):
        matrix[block(i + 1), block(i)] = below
        matrix[block(i), block(i + 1)] = below.T
    values, vectors = np.linalg.eigh(matrix)
    return np.maximum(values, 0), (basis.start.T @ vectors[:size]) ** 2
