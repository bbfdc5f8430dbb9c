"""The first pass over a table: its categories, moments and missing values."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import numpy as np

from linmodels._columns import ColumnMoments, ColumnScaling, block_moments, merge_moments
from linmodels.cli._encoding import CODED, EncodedColumn, Encoding, predicted_names
from linmodels.cli._errors import InputError
from linmodels.cli._progress import track_rows
from linmodels.cli._tables import Table
from linmodels.cli._values import (
    CALENDAR,
    MIXED_TIMES,
    calendar_level,
    calendar_numbers,
    first_text,
    has_offset,
    is_number,
    kind_of,
    labels,
    numbers,
    rounding,
    zone_of,
)

MOST_COLUMNS = 4_000
"""The widest design that is fitted exactly."""

SCALES = (1e-150, 1e150)
"""Standard deviations of columns whose squares and ratios are numbers in float64."""

FEW_NUMBERS = 10
"""Different numbers, or times, in a column of text from which they are taken to have gone wrong."""

_KEPT_VALUES = 100_000


class Choices(eqx.Module):
    """What the person at the terminal said about the table's columns.

    Attributes:
        target: the column to predict.
        drop: columns to leave out.
        categorical: columns whose values are categories although they are numbers.
        calendar: the parts of timestamps to use, from `CALENDAR`.
        impute: whether missing values are filled in.
    """

    target: str
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ("hour", "weekday")
    impute: bool = False


class NumberSurvey:
    """Moments of one number column, and a systematic sample of its values for their median."""

    def __init__(self) -> None:
        self.moments: ColumnMoments | None = None
        self.missing = 0
        self.zone: str | None = None
        self.rounding = 0.0
        self._kept: list[np.ndarray] = []
        self._stride = 1
        self._offset = 0

    def add(self, values: np.ndarray, training: np.ndarray) -> None:
        """Takes in a batch of values, NaN where missing; only training rows are looked at."""
        missing = np.isnan(values)
        self.missing += int((missing & training).sum())
        seen = training & ~missing
        moments = block_moments(values[:, None], seen.astype(float))
        self.moments = moments if self.moments is None else merge_moments(self.moments, moments)
        self._keep(values[seen])

    def _keep(self, values: np.ndarray) -> None:
        self._kept.append(values[self._offset :: self._stride].copy())
        self._offset = (self._offset - len(values)) % self._stride
        if sum(map(len, self._kept)) > _KEPT_VALUES:
            self._kept = [np.concatenate(self._kept)[::2]]
            self._stride *= 2

    def encoded(self, name: str, kind: str, impute: bool) -> EncodedColumn:
        """The column as it is encoded; see `EncodedColumn`.

        Raises:
            InputError: it has no value in any training row, a spread outside `SCALES`, or one that
                float64 loses.
        """
        if self.moments is None or not self.moments.count[0]:
            raise InputError(
                f"Column {name!r} has no value in any training row: leave it out with "
                f"--drop {name}."
            )
        fill = float(np.median(np.concatenate(self._kept))) if impute else None
        moments = self.moments
        if fill is not None and self.missing:
            filled = block_moments(np.array([[fill]]), np.array([float(self.missing)]))
            moments = merge_moments(moments, filled)
        scaling = ColumnScaling.from_moments(moments)
        _refuse_scale(name, float(scaling.scale[0]))
        largest = float(np.maximum(-moments.low, moments.high)[0])
        _refuse_rounding(name, largest, float(scaling.scale[0]), self.rounding)
        return EncodedColumn(
            name, kind, (), (float(scaling.centre[0]),), float(scaling.scale[0]), fill, self.zone
        )


def _refuse_scale(name: str, scale: float) -> None:
    if not SCALES[0] <= scale <= SCALES[1]:
        raise InputError(
            f"Column {name!r} has a standard deviation of {scale:.3g}, where at least "
            f"{SCALES[0]:g} and at most {SCALES[1]:g} can be computed with: rescale it in the "
            "table, to other units."
        )


def _refuse_constant(target: str, moments: ColumnMoments | None) -> None:
    """Refuses a target without spread, whose noise has no size; a single row is another matter."""
    assert moments is not None
    if moments.count[0] > 1 and moments.low[0] == moments.high[0]:
        raise InputError(
            f"--target {target}: it is {moments.low[0]:g} in every training row: there is nothing "
            "to predict. Name another column."
        )


def _refuse_rounding(name: str, largest: float, scale: float, error: float) -> None:
    """Refuses exact numbers so large that float64 loses more than a thousandth of their spread."""
    if error > 1e-3 * scale:
        raise InputError(
            f"Column {name!r} holds numbers of size {largest:.6g}, beyond 2**53, which are "
            f"rounded by up to {error:g}: too much for how little they differ. Subtract a base "
            f"from them in the table, or leave the column out with --drop {name}."
        )


def _refuse_strays(name: str, levels: list[str]) -> None:
    """Refuses text that is numbers but for a few values, such as '?' for a missing one."""
    strays = [level for level in levels if not is_number(level)]
    count = len(levels) - len(strays)
    if strays and count >= FEW_NUMBERS and count > len(strays):
        shown = ", ".join(map(repr, strays[:3])) + (", …" if len(strays) > 3 else "")
        raise InputError(
            f"Column {name!r} holds {count:,} different numbers, and {shown}, so that every number "
            f"would be a category. Correct the table (an empty cell is a missing value), give "
            f"--categorical {name} if that is what they are, or leave it out with --drop {name}."
        )


def _refuse_mixed_times(name: str, levels: list[str]) -> None:
    """Refuses text that is timestamps, some with an offset and some without."""
    zoned = [has_offset(level) for level in levels]
    if len(levels) >= FEW_NUMBERS and None not in zoned and any(zoned) and not all(zoned):
        raise InputError(
            f"{MIXED_TIMES.format(name=repr(name))}; as text every one would be a category. Give "
            f"--categorical {name} if that is what they are, or leave it out with --drop {name}."
        )


class LevelSurvey:
    """Counts of the levels of one coded column: all rows name levels, training rows count."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.missing = 0
        self.zone: str | None = None

    def add(self, spelt: Any, training: np.ndarray) -> None:
        """Takes in a batch of values, an Arrow array of strings or numbers with nulls."""
        import pyarrow as pa

        for level in spelt.unique().to_pylist():
            self.counts.setdefault(level, 0)
        counted = spelt.filter(pa.array(training)).value_counts()
        pairs = zip(
            counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True
        )
        self.counts.update(dict(pairs))
        self.missing += self.counts.pop(None, 0)

    def encoded(self, name: str, kind: str, impute: bool) -> EncodedColumn:
        """The column as it is encoded; see `EncodedColumn`.

        Raises:
            InputError: it has no value in any training row.
        """
        if not sum(self.counts.values()):
            raise InputError(
                f"Column {name!r} has no value in any training row: leave it out with "
                f"--drop {name}."
            )
        keys = sorted(self.counts)
        levels = [key if kind == "categorical" else calendar_level(kind, int(key)) for key in keys]
        counts = np.array([self.counts[key] for key in keys], dtype=float)
        common = int(np.argmax(counts))
        counts[common] += self.missing
        share = counts / counts.sum()
        variance = float((share * (1 - share)).sum())
        scale = variance**0.5 if variance > 0 else 1.0
        return EncodedColumn(
            name,
            kind,
            tuple(levels),
            tuple(share.tolist()),
            scale,
            levels[common] if impute else None,
            self.zone,
        )


class Survey(eqx.Module):
    """What the first pass found.

    Attributes:
        encoding: how the table is encoded.
        training_rows: rows that the fit sees.
        held_out_rows: rows kept back for testing.
        unlabelled_rows: rows left out because their target is missing.
    """

    encoding: Encoding
    training_rows: int
    held_out_rows: int
    unlabelled_rows: int


def survey_table(table: Table, choices: Choices, training: Any) -> Survey:
    """Reads the table once and decides how it is encoded.

    Args:
        table: any table.
        choices: what to do with its columns.
        training: `training(start, rows)` gives the mask of training rows.

    Raises:
        InputError: a named column does not exist, a column cannot be used, a value is missing
            and not to be imputed, the target is constant, or the design would be wider than
            `MOST_COLUMNS`.
    """
    kinds = _column_kinds(table, choices)
    target = NumberSurvey()
    surveys: dict[tuple[str, str], Any] = {
        (name, part): LevelSurvey() if part in CODED else NumberSurvey()
        for name, kind in kinds.items()
        for part in (choices.calendar if kind == "timestamp" else (kind,))
    }
    counts = Counter[str]()
    for row, batch in _numbered(table, [choices.target, *kinds]):
        outcome = _outcome(batch, choices, row)
        mask, labelled = training(row, len(batch)), ~np.isnan(outcome)
        target.add(outcome, mask)
        target.rounding = max(target.rounding, rounding(batch.column(choices.target), outcome))
        counts.update(training=int((mask & labelled).sum()), held=int((~mask & labelled).sum()))
        counts.update(unlabelled=int((~labelled).sum()))
        for (name, part), survey in surveys.items():
            _survey_column(batch.column(name), name, part, survey, mask & labelled, row, choices)
    encoding = _encoding(choices, target, surveys)
    return Survey(encoding, counts["training"], counts["held"], counts["unlabelled"])


def _numbered(table: Table, columns: list[str]) -> Iterator[tuple[int, Any]]:
    row = 0
    for batch in track_rows(table.batches(columns), f"surveying {table.path.name}", table.num_rows):
        yield row, batch
        row += len(batch)


def _column_kinds(table: Table, choices: Choices) -> dict[str, str]:
    """The kind of each column that is not the target and not dropped."""
    for flag, names in (
        ("--target", (choices.target,)),
        ("--drop", choices.drop),
        ("--categorical", choices.categorical),
    ):
        unknown = next((name for name in names if name not in table.types), None)
        if unknown is not None:
            raise InputError(
                f"{flag} {unknown}: {table.path} has no such column; "
                f"it has {', '.join(table.types)}."
            )
    used = [name for name in table.types if name not in (choices.target, *choices.drop)]
    if not used:
        raise InputError(f"{table.path}: no column is left to predict {choices.target!r} from.")
    taken = next((name for name in predicted_names(choices.target) if name in used), None)
    if taken is not None:
        raise InputError(
            f"Column {taken!r} has the name that predictions of {choices.target!r} will have: "
            f"rename it in the table, or leave it out with --drop {taken}."
        )
    return {
        name: "categorical" if name in choices.categorical else kind_of(name, table.types[name])
        for name in used
    }


def _outcome(batch: Any, choices: Choices, row: int) -> np.ndarray:
    column = batch.column(choices.target)
    if kind_of(choices.target, column.type) != "numeric":
        where, example = first_text(column)
        raise InputError(
            f"--target {choices.target}: its values are not numbers (row {row + where + 1} is "
            f"{example!r})."
        )
    values = numbers(column, choices.target, row)
    missing = np.isnan(values)
    if missing.any() and not choices.impute:
        raise InputError(
            f"The target {choices.target!r} is missing in row {row + int(np.argmax(missing)) + 1}: "
            "leave such rows out of the table, or give --impute, which leaves them out of the fit."
        )
    return values


def _survey_column(
    column: Any, name: str, part: str, survey: Any, training: np.ndarray, row: int, choices: Choices
) -> None:
    if part == "categorical":
        values = labels(column, name)
        missing = values.is_null().to_numpy(zero_copy_only=False)
    else:
        if part == "numeric":
            read = numbers(column, name, row)
            survey.rounding = max(survey.rounding, rounding(column, read))
        else:
            read, survey.zone = calendar_numbers(column, part, name, row), zone_of(column)
        missing = np.isnan(read)
        values = _nullable(read, missing) if part in CODED else read
    if missing.any() and not choices.impute:
        raise InputError(
            f"Column {name!r} is missing in row {row + int(np.argmax(missing)) + 1}: fill it in, "
            f"leave the column out with --drop {name}, or give --impute."
        )
    survey.add(values, training)
    if part in CODED and len(survey.counts) > MOST_COLUMNS:
        raise InputError(
            f"Column {name!r} has more than {MOST_COLUMNS:,} categories by row "
            f"{row + len(column):,}: leave it out with --drop {name}."
        )


def _nullable(values: np.ndarray, missing: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.array(np.where(missing, 0, values).astype(np.int32), mask=missing)


def _encoding(
    choices: Choices, target: NumberSurvey, surveys: dict[tuple[str, str], Any]
) -> Encoding:
    for (name, part), survey in surveys.items():
        if part == "categorical" and name not in choices.categorical:
            levels = sorted(survey.counts)
            _refuse_strays(name, levels)
            _refuse_mixed_times(name, levels)
    outcome = target.encoded(choices.target, "numeric", impute=False)
    _refuse_constant(choices.target, target.moments)
    columns = [
        survey.encoded(name, part, choices.impute)
        for (name, part), survey in surveys.items()
        if part != "hour" or set(survey.counts) != {0}  # dates without a time of day
    ]
    columns.sort(key=lambda column: column.kind in CODED)
    width = sum(len(column.names()) for column in columns)
    if width > MOST_COLUMNS:
        widest = sorted(columns, key=lambda column: -len(column.levels))[:3]
        shown = ", ".join(f"{column.label} ({len(column.levels):,})" for column in widest)
        raise InputError(
            f"The table would become {width:,} columns; at most {MOST_COLUMNS:,} are fitted "
            f"exactly. The widest are {shown}: leave some out with --drop."
        )
    return Encoding(choices.target, outcome.centre[0], outcome.scale, tuple(columns))


__all__ = ["CALENDAR", "Choices", "Survey", "survey_table"]
