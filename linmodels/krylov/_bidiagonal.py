"""Block Golub-Kahan bidiagonalisation: one Krylov space that serves every function of WWᵀ."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._blocks import gram, orthonormalised, times, unit_scales
from linmodels.krylov._preconditioners import Eigenpairs, Product

COUPLED = 1.0
"""What may be left between a vector that is known and the rest: no more than the prior's 1."""
NEGLIGIBLE = 100
"""Directions below this many spacings of the largest singular value are rounding."""
LOOKS = 1.2
"""Ratio of the numbers of passes between looks at the Ritz values."""


class Quadrature(NamedTuple):
    """gᵀf(WWᵀ)g ≈ Σ_i weights_i f(values_i)."""

    values: Float[np.ndarray, " s"]
    weights: Float[np.ndarray, "k s"]


class RitzPairs(NamedTuple):
    """Approximate eigenpairs of WWᵀ, or of WᵀW where its side is the shorter one."""

    values: Float[np.ndarray, " s"]
    """falling"""
    residuals: Float[np.ndarray, " s"]
    """‖Mv − λv‖"""
    coordinates: Float[np.ndarray, "s q"]
    """of every vector in the basis"""
    basis: list[Array]
    """blocks of orthonormal rows, (q, n) together"""
    of_start: bool
    """whether they are of WWᵀ, the side of the start vectors"""

    def known(self, ratio: float, count: int) -> Eigenpairs | None:
        """Up to `count` eigenpairs of ρM that are known well enough to precondition I + ρM.

        P^{-½} leaves ρ‖Mv − λv‖/√(1 + ρλ) between v and the rest.
        """
        left = ratio * self.residuals / np.sqrt(1 + ratio * self.values)
        chosen = np.flatnonzero((left <= COUPLED) & (ratio * self.values >= 1))[:count]
        if len(chosen) < 2:
            return None
        ends = np.cumsum([len(block) for block in self.basis])
        parts = np.split(self.coordinates[chosen], ends[:-1], axis=1)
        dtype = self.basis[0].dtype
        vectors = jnp.zeros((len(chosen), self.basis[0].shape[1]), dtype)
        for part, block in zip(parts, self.basis, strict=True):
            vectors = _plus(vectors, jnp.asarray(part, dtype), block)
        return Eigenpairs(vectors, ratio * self.values[chosen])


class Ritz(NamedTuple):
    """Ritz values of WWᵀ, and the measure that every start vector puts on them.

    gᵀf(WWᵀ)g ≈ Σ_i weights_i f(values_i) for each start vector g: Gauss-Radau quadrature with
    nodes at 0, where whatever Wᵀ annihilates belongs (none where the space is exhausted).
    """

    values: Float[np.ndarray, " s"]
    weights: Float[np.ndarray, "k s"]
    passes: int
    exhausted: bool
    """whether the space is invariant, so that the quadrature is exact"""
    gauss: Quadrature
    """without nodes at 0: for functions such as log(1 + λ), λ/(1 + λ) it errs to the other side, by
    nearly as much"""
    pairs: RitzPairs | None = None
    """once it has ended"""


class _Blocks(NamedTuple):
    """B, of blocks A_iᵀ on the diagonal and B_i below, in bases that start from C₀ᵀU₁."""

    start: Float[np.ndarray, "q k"]
    diagonal: list[Float[np.ndarray, "q q"]]
    below: list[Float[np.ndarray, "q q"]]


def bidiagonalise(
    forward: Product,
    backward: Product,
    start: Float[Array, "k N"],
    settled: Callable[[Ritz], bool],
    *,
    max_passes: int = 200,
) -> Ritz:
    """Ritz values of WWᵀ in the block Krylov space of `start`, as squares of singular values.

    With blocks of rows, U_i W = A_iᵀV_i + B_{i−1}V_{i−1} and V_i Wᵀ = A_iU_i + B_iᵀU_{i+1} (Golub &
    Kahan 1965; Golub, Luk & Overton 1981). Singular values come out to ε σ_max, so that values far
    below ε λ_max are known, as they are not from products with WWᵀ. The shorter of the two bases is
    kept and orthogonalised against twice (memory: passes · k · min(N, d)), which makes up for the
    other (Barlow 2013); directions that are rounding become zero vectors, and an empty block ends
    the space.

    Args:
        forward: W times every vector of a block.
        backward: Wᵀ times every vector of a block; one of each is one pass.
        start: g_1 … g_k.
        settled: whether the quadrature will do; asked at passes that grow by a fifth.
        max_passes: passes before stopping all the same.
    """
    scale = unit_scales(start)
    u, coordinates = _started(start, scale.astype(start.dtype))
    blocks = _Blocks(np.asarray(coordinates, np.float64) * scale, [], [])
    pulled = backward(u)
    keeps_u = u.shape[1] < pulled.shape[1]
    kept: list[Array] = []
    largest, next_look = 0.0, 2
    while True:
        largest = max(largest, float(_largest(pulled)))
        floor = jnp.asarray(NEGLIGIBLE * jnp.finfo(u.dtype).eps * largest, u.dtype)
        v, diagonal = _directions(pulled, [] if keeps_u else kept, floor)
        kept.append(u if keeps_u else v)
        blocks.diagonal.append(np.asarray(diagonal, np.float64))
        left = _less(forward(v), diagonal, u)
        u, below = _directions(left, kept if keeps_u else [], floor)
        blocks.below.append(np.asarray(below, np.float64))
        passes, exhausted = len(blocks.diagonal), not blocks.below[-1].any()
        if exhausted or passes >= min(next_look, max_passes):
            ritz, parts = _looked_at(blocks, exhausted=exhausted)
            if exhausted or settled(ritz) or passes >= max_passes:
                return ritz._replace(pairs=_pairs(blocks, parts, kept, of_start=keeps_u))
            next_look = int(np.ceil(LOOKS * passes))
        pulled = _less(backward(u), below, v)


@eqx.filter_jit
def _started(start: Array, scale: Any) -> tuple[Array, Array]:
    return orthonormalised(start / scale[:, None])


@eqx.filter_jit
def _largest(block: Array) -> Array:
    """The largest singular value."""
    return jnp.sqrt(jnp.linalg.eigvalsh(gram(block, block))[-1])


@eqx.filter_jit
def _less(block: Array, coordinates: Array, basis: Array) -> Array:
    return block - times(coordinates, basis)


def _directions(block: Array, kept: list[Array], floor: Array) -> tuple[Array, Array]:
    """Basis and coordinates of what a block has beyond those kept."""
    for _ in range(2):
        for earlier in kept:
            block = _without(block, earlier)
    return _new_directions(block, floor)


@eqx.filter_jit
def _without(block: Array, earlier: Array) -> Array:
    return block - times(gram(block, earlier), earlier)


@eqx.filter_jit
def _new_directions(block: Array, floor: Array) -> tuple[Array, Array]:
    """An orthonormal basis of a block, and coordinates; singular values below floor become 0."""
    basis, coordinates = orthonormalised(block)
    left, sizes, right = jnp.linalg.svd(coordinates, full_matrices=False)
    kept = sizes > floor
    basis = jnp.where(kept[:, None], times(left.T, basis), 0)
    return basis, jnp.where(kept[:, None], sizes[:, None] * right, 0)


@eqx.filter_jit
def _plus(block: Array, coordinates: Array, basis: Array) -> Array:
    return block + times(coordinates, basis)


def _looked_at(blocks: _Blocks, *, exhausted: bool) -> tuple[Ritz, Any]:
    """Both quadratures, and the singular vectors and values of B without its last block."""
    parts = np.linalg.svd(_matrix(blocks, last=False))
    gauss = _quadrature(blocks, *parts[:2])
    whole = parts if exhausted else np.linalg.svd(_matrix(blocks, last=True))
    radau = _quadrature(blocks, *whole[:2])
    return Ritz(*radau, len(blocks.diagonal), exhausted, gauss), parts


def _pairs(blocks: _Blocks, parts: Any, kept: list[Array], *, of_start: bool) -> RitzPairs:
    """From the singular vectors p, q of B without its last block below the diagonal, B_m.

    W(Vᵀq) = σUᵀp + U_{m+1}ᵀB_m q_m: what leaves the space of U is σ times the last term, and what
    leaves that of V is Wᵀ of it, the next A_{m+1} being about as large as A_m.
    """
    left, singular, right = parts
    tail, count = blocks.below[-1], len(singular)
    residuals = np.linalg.norm(right[:count, -tail.shape[1] :] @ tail.T, axis=1)
    if of_start:
        residuals *= singular
    else:
        residuals *= np.hypot(np.linalg.norm(tail, 2), np.linalg.norm(blocks.diagonal[-1], 2))
    coordinates = (left.T if of_start else right)[:count]
    return RitzPairs(singular**2, residuals, coordinates, kept[: len(blocks.diagonal)], of_start)


def _quadrature(
    blocks: _Blocks, vectors: Float[np.ndarray, "r r"], singular: Float[np.ndarray, " s"]
) -> Quadrature:
    """From the left singular vectors and the singular values of B."""
    values = np.zeros(len(vectors))
    values[: len(singular)] = singular**2
    return Quadrature(values, (blocks.start.T @ vectors[: len(blocks.start)]) ** 2)


def _matrix(blocks: _Blocks, *, last: bool) -> Float[np.ndarray, "r c"]:
    """B in float64; with its last block below the diagonal it has more rows than columns."""
    tail = blocks.below[-1][blocks.below[-1].any(axis=1) & last]
    sizes = [diagonal.shape[1] for diagonal in blocks.diagonal] + [len(tail)]
    rows = np.cumsum([0, *sizes])
    columns = np.cumsum([0] + [diagonal.shape[0] for diagonal in blocks.diagonal])
    matrix = np.zeros((rows[-1], columns[-1]))
    for i, (diagonal, below) in enumerate(
        zip(blocks.diagonal, [*blocks.below[:-1], tail], strict=True)
    ):
        column = slice(columns[i], columns[i + 1])
        matrix[rows[i] : rows[i + 1], column] = diagonal.T
        matrix[rows[i + 1] : rows[i + 2], column] = below
    return matrix
