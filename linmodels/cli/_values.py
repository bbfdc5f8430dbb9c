"""Columns of a record batch as numbers and as labels; errors name column, row and value."""

from typing import Any

import numpy as np

from linmodels.cli._errors import InputError

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CALENDAR = ("hour", "weekday", "month", "time")
"""What of a timestamp becomes columns; `time`, in days since 1970, is a number, not a label."""

OFFSETS = "offsets"
"""The zone of timestamps that are text, each with an offset of its own."""

MIXED_TIMES = "Column {name} mixes timestamps with an offset and without: give each one, or none"

_MICROSECONDS_A_DAY = 86_400e6
_OFFSET = r"(Z|[+-]\d\d(:?\d\d)?)$"


def kind_of(name: str, arrow_type: Any) -> str:
    """'numeric', 'categorical' or 'timestamp'.

    Raises:
        InputError: a column of this type cannot be used.
    """
    from pyarrow import types

    if (
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
    ):
        return "numeric"
    value_type = arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type
    if types.is_boolean(value_type) or _is_text(value_type):
        return "categorical"
    if types.is_timestamp(arrow_type) or types.is_date(arrow_type):
        return "timestamp"
    raise InputError(
        f"Column {name!r} holds {arrow_type}: numbers, text, booleans, dates and timestamps can be "
        f"used. Leave it out with --drop {name}."
    )


def numbers(column: Any, name: str, row: int) -> np.ndarray:
    """A column as float64, NaN where missing.

    Args:
        column: an Arrow array.
        name: of the column, for messages.
        row: number of the array's first row in the table, from 0.

    Raises:
        InputError: a value is infinite or not a number.
    """
    import pyarrow as pa

    if _is_text(column.type):
        found = _not_a(column, name, row, "number", pa.float64())
        raise InputError(found or f"Column {name!r} holds text, not numbers.")
    if not _is_number(column.type):
        raise InputError(f"Column {name!r} holds {column.type}, not numbers.")
    values = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    infinite = np.isinf(values)
    if infinite.any():
        where = int(np.argmax(infinite))
        raise InputError(
            f"Column {name!r} is {values[where]} in row {row + where + 1}; numbers must be finite."
        )
    return values


def rounding(column: Any, values: np.ndarray) -> float:
    """By how much float64 may have rounded a column of exact numbers, at most; else 0.

    Args:
        column: an Arrow array.
        values: the same as `numbers` gives them.
    """
    from pyarrow import types

    exact = types.is_integer(column.type) or types.is_decimal(column.type)
    largest = float(np.nanmax(np.abs(values), initial=0.0))
    return float(np.spacing(largest)) / 2 if exact and largest > 2**53 else 0.0


def labels(column: Any, name: str) -> Any:
    """A column as an Arrow array of strings, null where missing or not a number.

    Raises:
        InputError: the column's values have no spelling.
    """
    import pyarrow as pa
    from pyarrow import compute, types

    if types.is_floating(column.type):
        missing = compute.call_function("is_nan", [column])
        column = compute.call_function("if_else", [missing, pa.scalar(None, column.type), column])
    try:
        return column.cast(pa.string(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"Column {name!r} holds {column.type}, which cannot be a category."
        ) from error


def first_text(column: Any) -> tuple[int, Any]:
    """Where the first value is that is no number, and the value; the first of all if none is."""
    import pyarrow as pa

    found = _first_not(column, pa.float64()) if _is_text(column.type) else None
    return found or (0, column[0].as_py())


def is_number(text: str) -> bool:
    """Whether it spells a number."""
    import pyarrow as pa

    return _reads_as(text, pa.float64())


def has_offset(text: str) -> bool | None:
    """Whether a timestamp has an offset; None for other text."""
    import pyarrow as pa

    if _reads_as(text, pa.timestamp("us")):
        return False
    return True if _reads_as(text, pa.timestamp("us", tz="UTC")) else None


def calendar_numbers(column: Any, part: str, name: str, row: int) -> np.ndarray:
    """One `CALENDAR` part of a column of timestamps as float64, NaN where missing.

    Hours 0–23 of the timestamp's own zone (or offset, where it is text with one), weekdays
    0 (Monday) – 6, months 0–11, days since 1970.

    Raises:
        InputError: the column does not hold timestamps.
    """
    from pyarrow import compute

    if part == "time":
        moments = _timestamps(column, name, row)
        days = moments.cast("int64").cast("float64", safe=False).to_numpy(zero_copy_only=False)
        return days / _MICROSECONDS_A_DAY
    function = "day_of_week" if part == "weekday" else part
    clock = _wall_clock(column, name, row)
    values = compute.call_function(function, [clock]).cast("float64")
    values = values.to_numpy(zero_copy_only=False)
    return values - 1 if part == "month" else values


def calendar_level(part: str, number: int) -> str:
    """The spelling of one value of a calendar part: '17', 'Mon', 'Jan'."""
    if part == "hour":
        return str(number)
    return (WEEKDAYS if part == "weekday" else MONTHS)[number]


def zone_of(column: Any) -> str:
    """The zone of a column of timestamps: its name, `OFFSETS`, or '' where there is none."""
    if _is_text(column.type):
        return OFFSETS
    return getattr(column.type, "tz", None) or ""


def zone_words(zone: str) -> str:
    """How messages speak of a zone."""
    return {"": "without a zone", OFFSETS: "with offsets of their own"}.get(zone, f"in {zone}")


def _wall_clock(column: Any, name: str, row: int) -> Any:
    """Timestamps whose parts are those that a clock showed where each was taken."""
    import pyarrow as pa
    from pyarrow import compute

    moments = _timestamps(column, name, row)
    if not _is_text(column.type):
        return moments
    options = compute.ReplaceSubstringOptions(_OFFSET, "")
    bare = compute.call_function("replace_substring_regex", [_trimmed(column)], options)
    return bare.cast(pa.timestamp("us"))


def _trimmed(column: Any) -> Any:
    from pyarrow import compute

    return compute.call_function("utf8_trim_whitespace", [column])


def _timestamps(column: Any, name: str, row: int) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    if types.is_date(column.type):
        return column.cast(pa.timestamp("us"), safe=False)
    if not _is_text(column.type):
        raise InputError(f"Column {name!r} holds {column.type}, not timestamps.")
    zoned = pa.timestamp("us", tz="UTC")
    try:
        return _trimmed(column).cast(zoned)
    except pa.ArrowInvalid as error:
        found = _not_a(column, name, row, "timestamp", pa.timestamp("us"), zoned)
        raise InputError(found or MIXED_TIMES.format(name=repr(name)) + ".") from error


def _not_a(column: Any, name: str, row: int, what: str, *arrow_types: Any) -> str | None:
    """Says which value of a column of text is the first that has none of the types, if one is."""
    found = _first_not(column, *arrow_types)
    if found is None:
        return None
    return f"Column {name!r} is {found[1]!r} in row {row + found[0] + 1}, which is not a {what}."


def _first_not(column: Any, *arrow_types: Any) -> tuple[int, str] | None:
    """Where the first value is that has none of the types, and the value."""
    for number, value in enumerate(column.to_pylist()):
        if not any(_reads_as(value, arrow_type) for arrow_type in arrow_types):
            return number, value
    return None


def _reads_as(value: str | None, arrow_type: Any) -> bool:
    import pyarrow as pa

    try:
        pa.scalar(value and value.strip(), pa.string()).cast(arrow_type)
    except pa.ArrowInvalid:
        return False
    return True


def _is_text(arrow_type: Any) -> bool:
    from pyarrow import types

    return types.is_string(arrow_type) or types.is_large_string(arrow_type)


def _is_number(arrow_type: Any) -> bool:
    from pyarrow import types

    return (
        types.is_integer(arrow_type)
        or types.is_floating(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_boolean(arrow_type)
        or types.is_null(arrow_type)
    )
