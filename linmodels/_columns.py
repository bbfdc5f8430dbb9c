"""Centring and scaling of columns, computed in one stable pass over blocks of rows.

An isotropic prior on coefficients makes sense only when their columns share a scale. The pair
`standardise` / `unstandardise` goes there and back: with z = (x − c)/s,

    y = a + Σ_j b_j z_j = (a − Σ_j b_j c_j/s_j) + Σ_j (b_j/s_j) x_j,

a linear map of the coefficients, so it takes means, posterior deviations and (as a matrix) whole
covariances. Everything here is NumPy in float64: a float32 mean of a million rows is not one.
"""

from collections.abc import Iterable
from functools import reduce

import equinox as eqx
import numpy as np
from jaxtyping import ArrayLike, Float, Shaped

__all__ = [
    "ColumnMoments",
    "ColumnScaling",
    "block_moments",
    "merge_moments",
    "standardise",
    "unstandardise",
    "unstandardising_matrix",
]


class ColumnMoments(eqx.Module):
    """Weighted count, mean, centred squares, least and greatest value of each of d columns."""

    count: Float[np.ndarray, " d"]
    mean: Float[np.ndarray, " d"]
    squares: Float[np.ndarray, " d"]
    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]

    def variance(self) -> Float[np.ndarray, " d"]:
        """Population variance Σ w (x − mean)² / Σ w; exactly 0 for constant and unseen columns."""
        return np.where(
            self.high > self.low,
            self.squares / np.maximum(self.count, np.finfo(np.float64).tiny),
            0.0,
        )


class ColumnScaling(eqx.Module):
    """Centre and scale of each of d columns.

    Attributes:
        centre: the means, shape (d,).
        scale: the positive standard deviations, shape (d,); 1 for a constant column, whose
            centre is its value exactly, so that it standardises to exact zeros.
    """

    centre: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]

    @classmethod
    def from_blocks(
        cls,
        blocks: Iterable[Shaped[ArrayLike, "_ d"]],
        weights: Iterable[Shaped[ArrayLike, " _"]] | None = None,
    ) -> "ColumnScaling":
        """Centre and scale of columns seen block by block, never more than one block in memory.

        Args:
            blocks: row blocks of shape (rows, d), of any lengths.
            weights: for each block the weights of its rows, shape (rows,); a row of weight 0 is not
                looked at.

        Raises:
            ValueError: no row has positive weight, a value is not finite, a weight is negative,
                or the number of columns changes.

        >>> import numpy as np
        >>> ColumnScaling.from_blocks([np.array([[1.0, 5.0]]), np.array([[3.0, 5.0]])]).scale
        array([1., 1.])
        """
        pairs = (
            ((block, None) for block in blocks)
            if weights is None
            else zip(blocks, weights, strict=True)
        )
        parts = (
            _numbered_moments(number, block, weight) for number, (block, weight) in enumerate(pairs)
        )
        first = next(parts, None)
        if first is None:
            raise ValueError("No blocks of rows: a centre and a scale need at least one row.")
        return cls.from_moments(reduce(merge_moments, parts, first))

    @classmethod
    def from_moments(cls, moments: ColumnMoments) -> "ColumnScaling":
        """Centre and scale from `ColumnMoments`; see `from_blocks`."""
        if not np.all(moments.count > 0):
            column = int(np.argmin(moments.count > 0))
            raise ValueError(
                f"Column {column} has no row of positive weight: its centre needs at least one."
            )
        deviation = np.sqrt(moments.variance())
        constant = moments.high == moments.low
        # Squares of values beyond 1e±150 leave float64: half the range is then the scale.
        lost = ~constant & ((deviation == 0) | ~np.isfinite(deviation))
        deviation = np.where(lost, moments.high / 2 - moments.low / 2, deviation)
        centre = np.where(constant, moments.low, moments.mean)
        return cls(centre=centre, scale=np.where(constant, 1.0, deviation))


def block_moments(
    block: Shaped[ArrayLike, "rows d"], weights: Shaped[ArrayLike, "rows ..."] | None = None
) -> ColumnMoments:
    """Moments of one block of rows.

    Args:
        block: shape (rows, d); numbers of any real dtype.
        weights: shape (rows,) or (rows, d), not negative; entries of weight 0 may hold
            anything, also NaN.

    Raises:
        ValueError: a value of positive weight is not finite, or a weight is negative.
    """
    values = np.asarray(block, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(
            f"A block of rows has two axes (rows, columns); this one has shape {values.shape}."
        )
    weight = _entry_weights(values, weights)
    seen = weight > 0
    _refuse_non_finite(values, seen)
    values = np.where(seen, values, 0.0)
    count = weight.sum(axis=0)
    with np.errstate(over="ignore", under="ignore"):
        mean = (weight * values).sum(axis=0) / np.where(count > 0, count, 1.0)
        deviation = values - mean
        squares = (weight * deviation * deviation).sum(axis=0)
    low = np.min(values, axis=0, where=seen, initial=np.inf)
    high = np.max(values, axis=0, where=seen, initial=-np.inf)
    return ColumnMoments(count, mean, squares, low, high)


def merge_moments(first: ColumnMoments, second: ColumnMoments) -> ColumnMoments:
    """Moments of the rows of both: the pairwise update of Chan, Golub and LeVeque (1979).

    Raises:
        ValueError: the two have different numbers of columns.
    """
    if first.count.shape != second.count.shape:
        raise ValueError(
            f"Blocks have {first.count.size} and {second.count.size} columns: give all the same."
        )
    count = first.count + second.count
    share = second.count / np.where(count > 0, count, 1.0)
    with np.errstate(over="ignore", under="ignore"):
        step = second.mean - first.mean
        squares = first.squares + second.squares + step * step * first.count * share
        mean = first.mean + step * share
    low, high = np.minimum(first.low, second.low), np.maximum(first.high, second.high)
    return ColumnMoments(count, mean, squares, low, high)


def standardise(
    columns: Shaped[ArrayLike, "*rows d"], scaling: ColumnScaling
) -> Float[np.ndarray, "*rows d"]:
    """Centred and scaled columns, z = (x − centre)/scale, in float64.

    Cast afterwards: a float32 x has lost the digits that the centring leaves.

    Args:
        columns: shape (..., d), in the data's own units.
        scaling: of the same d columns.

    Raises:
        ValueError: the number of columns is not that of the scaling.
    """
    values = np.asarray(columns, dtype=np.float64)
    _check_width(values, scaling)
    return (values - scaling.centre) / scaling.scale


def unstandardise(
    coefficients: Shaped[ArrayLike, "*samples d"],
    intercept: Shaped[ArrayLike, "*samples"],
    scaling: ColumnScaling,
) -> tuple[Float[np.ndarray, "*samples d"], Float[np.ndarray, "*samples"]]:
    """Coefficients on standardised columns, and their intercept, in the data's own units.

    b_j/s_j and a − Σ_j b_j c_j/s_j. The map is linear: it takes posterior deviations and means
    alike.

    Args:
        coefficients: shape (..., d), on standardised columns.
        intercept: shape (...).
        scaling: of the same d columns.

    Raises:
        ValueError: the number of coefficients is not that of the scaling's columns.

    >>> import numpy as np
    >>> unstandardise(np.array([3.0]), 1.0, ColumnScaling(np.array([10.0]), np.array([2.0])))
    (array([1.5]), array(-14.))
    """
    values = np.asarray(coefficients, dtype=np.float64)
    _check_width(values, scaling)
    raw = values / scaling.scale
    return raw, np.asarray(np.asarray(intercept, dtype=np.float64) - raw @ scaling.centre)


def unstandardising_matrix(scaling: ColumnScaling) -> Float[np.ndarray, "size size"]:
    """The map of `unstandardise` as a matrix, for `Posterior.contrast`.

    It acts on (coefficients, intercept). Its first d rows give the coefficients in the data's own
    units, its last row their intercept.
    """
    inverse = 1.0 / scaling.scale
    matrix = np.diag(np.append(inverse, 1.0))
    matrix[-1, :-1] = -scaling.centre * inverse
    return matrix


def _numbered_moments(number: int, block: ArrayLike, weights: ArrayLike | None) -> ColumnMoments:
    try:
        return block_moments(block, weights)
    except ValueError as error:
        raise ValueError(f"Block {number}: {error}") from None


def _entry_weights(values: np.ndarray, weights: ArrayLike | None) -> np.ndarray:
    if weights is None:
        return np.ones_like(values)
    given = np.asarray(weights, dtype=np.float64)
    if given.shape not in (values.shape[:1], values.shape):
        raise ValueError(
            f"Weights have shape {given.shape}; rows of shape {values.shape} need one weight a row."
        )
    if not np.all(given >= 0):
        raise ValueError(f"A weight is {given[~(given >= 0)][0]}; weights are not negative.")
    return np.broadcast_to(given[:, None] if given.ndim == 1 else given, values.shape)


def _refuse_non_finite(values: np.ndarray, seen: np.ndarray) -> None:
    wrong = seen & ~np.isfinite(values)
    if wrong.any():
        row, column = (int(index[0]) for index in np.nonzero(wrong))
        raise ValueError(
            f"Row {row}, column {column} is {values[row, column]}; values must be finite."
        )


def _check_width(values: np.ndarray, scaling: ColumnScaling) -> None:
    if values.ndim == 0 or values.shape[-1] != scaling.centre.size:
        raise ValueError(
            f"Shape {values.shape} does not end in the scaling's {scaling.centre.size} columns."
        )
