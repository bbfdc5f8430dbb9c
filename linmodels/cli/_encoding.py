"""How a table's columns become columns of a design matrix: learned once, stored as JSON."""

from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Int

from linmodels._columns import ColumnScaling, standardise
from linmodels.cli._errors import InputError
from linmodels.cli._values import (
    CALENDAR,
    calendar_level,
    calendar_numbers,
    labels,
    numbers,
    zone_of,
    zone_words,
)

VERSION = 1
CODED = ("categorical", "hour", "weekday", "month")
"""Kinds that become one indicator column a level; the others, numeric and time, stay numbers."""


class EncodedColumn(eqx.Module):
    """One column of the table, or one calendar part of it, as columns of the design.

    Attributes:
        name: of the column in the table.
        kind: 'numeric', 'time', or one of `CODED`.
        levels: what the indicator columns stand for; empty for numbers.
        centre: subtracted from the design's columns, one a level (their frequencies) or one.
        scale: they are divided by it. The indicators of one column share it, so that its levels are
            exchangeable: they get the same prior, and the whole column that of one number column.
        fill: what stands for a missing value, or None where they are refused.
        zone: of its timestamps, as `zone_of` has it; None where it has none, or is not known.
    """

    name: str
    kind: str
    levels: tuple[str, ...]
    centre: tuple[float, ...]
    scale: float
    fill: str | float | None
    zone: str | None = None

    @property
    def label(self) -> str:
        """What reports call it: 'distance', 'date.hour'."""
        return f"{self.name}.{self.kind}" if self.kind in CALENDAR else self.name

    def names(self) -> list[str]:
        """What reports call its design columns: 'distance', 'origin=LAX'."""
        return [f"{self.label}={level}" for level in self.levels] or [self.label]


def predicted_names(target: str) -> list[str]:
    """Columns that predictions add to a table."""
    return [f"{target}_{suffix}" for suffix in ("mean", "lower", "upper")]


class Encoding(eqx.Module):
    """Target and columns of a fitted table.

    Attributes:
        target: its name.
        target_centre: training mean of the target.
        target_scale: its training standard deviation: the fit's targets are (y − centre)/scale.
        columns: number columns first; this is the order of the design's columns, an intercept last.
    """

    target: str
    target_centre: float
    target_scale: float
    columns: tuple[EncodedColumn, ...]

    def sources(self) -> list[str]:
        """The table's columns that are needed, without the target."""
        return list(dict.fromkeys(column.name for column in self.columns))

    def split(self) -> tuple[list[EncodedColumn], list[EncodedColumn]]:
        """Number columns and coded columns."""
        coded = [column for column in self.columns if column.kind in CODED]
        return [column for column in self.columns if column.kind not in CODED], coded

    def names(self) -> list[str]:
        """Names of the design's columns, without the intercept."""
        return [name for column in self.columns for name in column.names()]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; floats keep every bit."""
        columns = [dict(vars(column)) for column in self.columns]
        return {**vars(self), "columns": columns}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Encoding":
        """The inverse of `to_json`.

        Raises:
            LookupError, TypeError, ValueError: the values are not an encoding's.
        """
        columns = tuple(
            EncodedColumn(
                **{**column, "levels": tuple(column["levels"]), "centre": tuple(column["centre"])}
            )
            for column in values["columns"]
        )
        return cls(**{**values, "columns": columns})


class Indicators(eqx.Module):
    """The coded part of the design, for use inside jit: e indicator columns of c codes."""

    source: Int[Array, " e"]
    level: Int[Array, " e"]
    centre: Float[Array, " e"]
    inverse_scale: Float[Array, " e"]

    @classmethod
    def of(cls, encoding: Encoding) -> "Indicators":
        """The indicators of an encoding's coded columns."""
        coded = encoding.split()[1]
        sizes = [len(column.levels) for column in coded]
        level = np.concatenate([np.arange(size) for size in sizes] or [np.zeros(0, int)])
        return cls(
            source=jnp.asarray(np.repeat(np.arange(len(coded)), sizes), jnp.int32),
            level=jnp.asarray(level, jnp.int32),
            centre=jnp.asarray([value for column in coded for value in column.centre], float),
            inverse_scale=jnp.asarray(
                np.repeat([1 / column.scale for column in coded], sizes), float
            ),
        )


def design_operator(
    numeric: Float[Array, "rows p"], codes: Int[Array, "rows c"], indicators: Indicators
) -> lx.AbstractLinearOperator:
    """The design: standardised numbers, scaled indicators, and a column of ones last."""
    indicator = codes[:, indicators.source] == indicators.level
    coded = (indicator - indicators.centre) * indicators.inverse_scale
    intercept = jnp.ones((len(numeric), 1), numeric.dtype)
    return lx.MatrixLinearOperator(
        jnp.concatenate([numeric, coded.astype(numeric.dtype), intercept], axis=1)
    )


class RowEncoder:
    """Turns record batches into the arrays of `design_operator`."""

    def __init__(self, encoding: Encoding) -> None:
        import pyarrow as pa

        self._numeric, self._coded = encoding.split()
        self._levels = [pa.array(column.levels, pa.string()) for column in self._coded]
        columns = self._numeric
        self._scaling = ColumnScaling(
            centre=np.array([column.centre[0] for column in columns], dtype=np.float64),
            scale=np.array([column.scale for column in columns], dtype=np.float64),
        )

    def encode(self, batch: Any, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Standardised numbers, shape (rows, p), and codes, shape (rows, c).

        Args:
            batch: a record batch that holds the encoding's source columns.
            row: number of its first row in the table, from 0, for messages.

        Raises:
            InputError: a value is missing, of the wrong kind, or an unknown category.
        """
        values = np.empty((len(batch), len(self._numeric)))
        for number, column in enumerate(self._numeric):
            values[:, number] = _filled_numbers(batch.column(column.name), column, row)
        codes = np.empty((len(batch), len(self._coded)), dtype=np.int32)
        for number, (column, levels) in enumerate(zip(self._coded, self._levels, strict=True)):
            codes[:, number] = _codes(batch.column(column.name), column, levels, row)
        return standardise(values, self._scaling).astype(float_dtype()), codes


def float_dtype() -> np.dtype:
    """float32, or float64 where JAX's 64-bit mode is on."""
    return np.dtype(jnp.zeros(()).dtype)


def _filled_numbers(array: Any, column: EncodedColumn, row: int) -> np.ndarray:
    if column.kind == "time":
        values = _calendar(array, column, row)
    else:
        values = numbers(array, column.name, row)
    missing = np.isnan(values)
    if missing.any():
        _refuse_missing(column, row + int(np.argmax(missing)))
        return np.where(missing, cast(float, column.fill), values)
    return values


def _codes(array: Any, column: EncodedColumn, levels: Any, row: int) -> np.ndarray:
    from pyarrow import compute

    if column.kind == "categorical":
        spelt = labels(array, column.name)
    else:
        spelt = _calendar_labels(array, column, row)
    if spelt.null_count:
        _refuse_missing(
            column, row + int(np.argmax(spelt.is_null().to_numpy(zero_copy_only=False)))
        )
        spelt = spelt.fill_null(column.fill)
    found = compute.call_function("index_in", [spelt], compute.SetLookupOptions(value_set=levels))
    if found.null_count:
        where = int(np.argmax(found.is_null().to_numpy(zero_copy_only=False)))
        raise InputError(
            f"Column {column.name!r}: the {_kind_word(column)} {spelt[where].as_py()!r} in row "
            f"{row + where + 1} was not in the table that the model was fitted to, which had "
            f"{_some(column.levels)}."
        )
    return found.to_numpy()


def _calendar_labels(array: Any, column: EncodedColumn, row: int) -> Any:
    import pyarrow as pa

    values = _calendar(array, column, row)
    size = {"hour": 24, "weekday": 7, "month": 12}[column.kind]
    spelling = pa.array([calendar_level(column.kind, number) for number in range(size)])
    missing = np.isnan(values)
    index = pa.array(np.where(missing, 0, values).astype(np.int32), mask=missing)
    return spelling.take(index)


def _calendar(array: Any, column: EncodedColumn, row: int) -> np.ndarray:
    values = calendar_numbers(array, column.kind, column.name, row)
    zone = zone_of(array)
    if column.zone is not None and zone != column.zone:
        raise InputError(
            f"Column {column.name!r} has timestamps {zone_words(zone)}, the model was fitted to "
            f"timestamps {zone_words(column.zone)}, whose hours are others: convert them."
        )
    return values


def _refuse_missing(column: EncodedColumn, row: int) -> None:
    if column.fill is None:
        raise InputError(
            f"Column {column.name!r} is missing in row {row + 1}, and the model was fitted without "
            f"--impute: fill the value in, or fit again with --impute or --drop {column.name}."
        )


def _kind_word(column: EncodedColumn) -> str:
    return "category" if column.kind == "categorical" else column.kind


def _some(levels: tuple[str, ...]) -> str:
    shown = ", ".join(repr(level) for level in levels[:5])
    return shown if len(levels) <= 5 else f"{shown} and {len(levels) - 5} more"
