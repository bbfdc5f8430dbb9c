"""Second moments of whitened rows, summed in float64 over blocks."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from linmodels._whitening import WhitenedRows

ROWS_AT_ONCE = 8_192
"""Rows converted to float64 together: 32 MB at 500 columns, and enough to fill the cores."""


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
    total, shift = None, None
    for index, block in enumerate(blocks):
        design, targets = np.asarray(block.design), np.asarray(block.targets)
        if shift is None:
            first = slice(0, ROWS_AT_ONCE)
            if not (np.isfinite(design[first]).all() and np.isfinite(targets[first]).all()):
                on_non_finite(index)
            shift = least_squares_shift(design[first], targets[first], flat)
        part = _block_moments(block, design, targets, shift)
        if not (np.isfinite(part.cross).all() and np.isfinite(part.square).all()):
            on_non_finite(index)
        total = part if total is None else _add(total, part)
    assert total is not None
    return total


def _add(a: Moments, b: Moments) -> Moments:
    np.add(a.gram, b.gram, out=a.gram)
    sums = {
        name: getattr(a, name) + getattr(b, name)
        for name in ("cross", "square", "noise_cross", "rank", "log_determinant", "raw_square")
    }
    return a._replace(**sums)


def _block_moments(
    block: WhitenedRows, design: np.ndarray, targets: np.ndarray, shift: Shift
) -> Moments:
    count, size = len(block.rank), design.shape[1]
    noise, output = np.asarray(block.noise), np.asarray(block.output)
    gram = np.zeros((count, size, size))
    cross, square = np.zeros((count, size)), np.zeros(count)
    noise_cross, raw = np.zeros((count, size, noise.shape[1])), np.zeros(count)
    for start in range(0, len(design), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        for c in range(count):
            mine = rows if count == 1 else start + np.flatnonzero(output[rows] == c)
            x, y = _float64(design[mine], shift), targets[mine].astype(np.float64)
            raw[c] += y @ y
            shift.apply(x, y)
            gram[c] += x.T @ x  # NumPy sees the symmetry and does half the work
            cross[c] += x.T @ y
            square[c] += y @ y
            noise_cross[c] += x.T @ noise[mine].astype(np.float64)
    return Moments(
        gram,
        cross,
        square,
        noise_cross,
        np.asarray(block.rank, np.float64),
        float(block.log_determinant),
        raw,
        shift,
    )


def _float64(rows: np.ndarray, shift: Shift) -> np.ndarray:
    """Rows in float64; a copy where the shift will change them."""
    return np.array(rows, dtype=np.float64, order="C", copy=True if shift.flat.any() else None)
