"""Second moments of whitened rows, summed in float64 over blocks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from linmodels._whitening import WhitenedRows


def rows_at_once(columns: int) -> int:
    """Rows converted to float64 together: below 32 MB, as larger pieces are new memory each time.

    Few enough for their noise draws, and enough for the product to outweigh adding it up.
    """
    return min(max(4_000_000 // columns, 2_048), 8_192)


class Shift(NamedTuple):
    """An exact change of variables that centres columns and targets on the flat columns.

    Φ_p θ_p + Φ_f θ_f = (Φ_p − Φ_f T) θ_p + Φ_f (θ_f + T θ_p), and likewise y − Φ_f τ. Any T and τ
    are exact; least squares ones keep the moments well conditioned for columns far from zero.
    """

    flat: Bool[np.ndarray, " d"]
    columns: Float[np.ndarray, "f p"]
    """T"""
    targets: Float[np.ndarray, " f"]
    """τ"""

    @property
    def every_column(self) -> Float[np.ndarray, "f d"]:
        """T with zeros for the flat columns themselves."""
        result = np.zeros((len(self.columns), len(self.flat)))
        result[:, ~self.flat] = self.columns
        return result

    def apply(self, design: np.ndarray, targets: np.ndarray) -> None:
        """Shifts a float64 block in place."""
        if self.flat.any():
            basis = design[:, self.flat]
            design -= basis @ self.every_column  # indexing the others would copy them, twice
            targets -= basis @ self.targets

    def restore(self, parameters: np.ndarray, *, centred: bool) -> np.ndarray:
        """Parameters (d', …) of the original columns; `centred` for means, not deviations."""
        if not self.flat.any():
            return parameters
        result = parameters.copy()
        result[self.flat] -= self.columns @ parameters[~self.flat]
        if centred:
            result[self.flat] += self.targets
        return result


def least_squares_shift(
    design: np.ndarray, targets: np.ndarray, flat: Bool[np.ndarray, " d"]
) -> Shift:
    """The shift that projects the flat columns out of these rows.

    Args:
        design: (N, d') whitened rows.
        targets: (N,) whitened targets.
        flat: (d',) which columns are flat.
    """
    if not flat.any():
        return Shift(flat, np.zeros((0, design.shape[1])), np.zeros(0))
    basis = design[:, flat].astype(np.float64)
    inverse = np.linalg.pinv(basis)
    return Shift(flat, inverse @ design[:, ~flat], inverse @ targets)


class Moments(NamedTuple):
    """Sums over rows, one for each noise precision β_c, at β = 1."""

    gram: Float[np.ndarray, "C d d"]
    """ΦᵀB₀Φ"""
    cross: Float[np.ndarray, "C d"]
    """ΦᵀB₀y"""
    square: Float[np.ndarray, " C"]
    """yᵀB₀y"""
    noise_cross: Float[np.ndarray, "C d k"]
    """ΦᵀR₀ᵀu"""
    rank: Float[np.ndarray, " C"]
    log_determinant: float
    """Σ w log det B₀"""
    raw_square: Float[np.ndarray, " C"]
    """yᵀB₀y before the shift"""
    shift: Shift

    @property
    def total_gram(self) -> Float[np.ndarray, "d d"]:
        """ΦᵀB₀Φ over all noise precisions."""
        return self.gram[0] if len(self.gram) == 1 else self.gram.sum(0)


def accumulate(
    blocks: Iterable[WhitenedRows],
    flat: Bool[np.ndarray, " d"],
    on_non_finite: Callable[[int], None],
) -> Moments:
    """Sums the moments of all blocks.

    Args:
        blocks: whitened rows.
        flat: (d',) which columns are flat; the first rows decide the shift.
        on_non_finite: called with a block's index where NaN or infinities appear; raises.

    Returns:
        Moments of the shifted rows.
    """
    sums, log_determinant = None, 0.0
    for index, block in enumerate(blocks):
        block = jax.tree.map(np.asarray, block)
        if sums is None:
            first = slice(0, rows_at_once(block.design.shape[1]))
            design, targets = block.design[first], block.targets[first]
            if not (np.isfinite(design).all() and np.isfinite(targets).all()):
                on_non_finite(index)
            sums = _nothing_of(block, least_squares_shift(design, targets, flat))
        _add_block(sums, block)
        log_determinant += float(block.log_determinant)
        if not (np.isfinite(sums.cross).all() and np.isfinite(sums.square).all()):
            on_non_finite(index)
    assert sums is not None
    return sums._replace(log_determinant=log_determinant)


def _nothing_of(block: WhitenedRows, shift: Shift) -> Moments:
    count, size, draws = len(block.rank), block.design.shape[1], block.noise.shape[1]
    return Moments(
        gram=np.zeros((count, size, size)),
        cross=np.zeros((count, size)),
        square=np.zeros(count),
        noise_cross=np.zeros((count, size, draws)),
        rank=np.zeros(count),
        log_determinant=0.0,
        raw_square=np.zeros(count),
        shift=shift,
    )


def _add_block(sums: Moments, block: WhitenedRows) -> None:
    """Adds a block's moments in place."""
    sums.rank[:] += block.rank
    count, step = len(sums.rank), rows_at_once(block.design.shape[1])
    for start in range(0, len(block.design), step):
        rows = slice(start, start + step)
        for c in range(count):
            mine = rows if count == 1 else start + np.flatnonzero(block.output[rows] == c)
            _add_rows(sums, c, block.design[mine], block.targets[mine], block.noise[mine])


def _add_rows(sums: Moments, c: int, design, targets, noise) -> None:
    """Adds rows of noise precision c in place."""
    x, right = _float64(design, sums.shift), np.empty((len(design), 1 + noise.shape[1]))
    right[:, 0], right[:, 1:] = targets, noise
    y = right[:, 0]
    sums.raw_square[c] += y @ y
    sums.shift.apply(x, y)
    sums.square[c] += y @ y
    sums.gram[c] += x.T @ x  # NumPy sees the symmetry and does half the work
    products = x.T @ right
    sums.cross[c] += products[:, 0]
    sums.noise_cross[c] += products[:, 1:]


def _float64(rows: np.ndarray, shift: Shift) -> np.ndarray:
    """Rows in float64; a copy where the shift will change them."""
    return np.array(rows, dtype=np.float64, order="C", copy=True if shift.flat.any() else None)
