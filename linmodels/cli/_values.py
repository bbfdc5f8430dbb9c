"""Columns of a record batch as numbers and as labels; errors name column, row and value."""

from typing import Any

import numpy as np

from linmodels.cli._errors import InputError

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
CALENDAR = ("hour", "weekday", "month", "time")
"""What of a timestamp becomes columns; `time`, in days since 1970, is a number, not a label."""

_MICROSECONDS_A_DAY = 86_400e6


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
        raise InputError(_not_a(column, name, row, "number", pa.float64()))
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


def labels(column: Any, name: str) -> Any:
    """A column as an Arrow array of strings, null where missing.

    Raises:
        InputError: the column's values have no spelling.
    """
    import pyarrow as pa

    try:
        return column.cast(pa.string(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(
            f"Column {name!r} holds {column.type}, which cannot be a category."
        ) from error


def calendar_numbers(column: Any, part: str, name: str, row: int) -> np.ndarray:
    """One `CALENDAR` part of a column of timestamps as float64, NaN where missing.

    Hours 0–23 of the timestamp's own zone, weekdays 0 (Monday) – 6, months 0–11, days since 1970.

    Raises:
        InputError: the column does not hold timestamps.
    """
    from pyarrow import compute

    moments = _timestamps(column, name, row)
    if part == "time":
        days = moments.cast("int64").cast("float64", safe=False).to_numpy(zero_copy_only=False)
        return days / _MICROSECONDS_A_DAY
    function = "day_of_week" if part == "weekday" else part
    values = compute.call_function(function, [moments]).cast("float64")
    values = values.to_numpy(zero_copy_only=False)
    return values - 1 if part == "month" else values


def calendar_level(part: str, number: int) -> str:
    """The spelling of one value of a calendar part: '17', 'Mon', 'Jan'."""
    if part == "hour":
        return str(number)
    return (WEEKDAYS if part == "weekday" else MONTHS)[number]


def _timestamps(column: Any, name: str, row: int) -> Any:
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
    if types.is_date(column.type):
        return column.cast(pa.timestamp("us"), safe=False)
    if _is_text(column.type):
        raise InputError(_not_a(column, name, row, "timestamp", pa.timestamp("us")))
    raise InputError(f"Column {name!r} holds {column.type}, not timestamps.")


def _not_a(column: Any, name: str, row: int, what: str, arrow_type: Any) -> str:
    """Says which value of a column of text is the first that is not a number or a timestamp."""
    import pyarrow as pa

    for number, value in enumerate(column.to_pylist()):
        try:
            pa.scalar(value, column.type).cast(arrow_type)
        except pa.ArrowInvalid:
            return f"Column {name!r} is {value!r} in row {row + number + 1}, which is not a {what}."
    return f"Column {name!r} holds text, not a {what}."


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
