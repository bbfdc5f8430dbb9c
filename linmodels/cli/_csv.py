"""CSV in chunks. Types are inferred from all rows, not from the first ones."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from linmodels.cli._errors import InputError
from linmodels.cli._progress import track_rows
from linmodels.cli._tables import BATCH_ROWS, Table, fixed_size, refuse_repeated

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL")


class CsvTable(Table):
    """A CSV file (.gz too), comma-separated with a header, in UTF-8.

    A first pass finds for each column the narrowest type that all its values have: integer (of up
    to 38 digits), real, boolean, timestamp, else text. `MISSING` spells a missing value. Timestamps
    with an offset are text in the batches: Arrow has one zone a column, and would lose the hour as
    it was written.
    """

    def __init__(self, path: Path, is_text: Callable[[str], bool]) -> None:
        import pyarrow as pa

        self.path = path
        self._names = self._header()
        refuse_repeated(path, self._names)
        possible = {n: [pa.string()] if is_text(n) else _candidates() for n in self._names}
        self.num_rows = 0
        for batch in track_rows(self._strings(self._names), f"reading {path.name}", None):
            self.num_rows += len(batch)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                possible[name] = _still_possible(possible[name], column)
        self.types = {name: kinds[0] for name, kinds in possible.items()}

    def batches(
        self, columns: Sequence[str], start: int = 0, size: int = BATCH_ROWS
    ) -> Iterator[Any]:
        """See `Table`; rows before `start` are read and dropped."""
        import pyarrow as pa

        zoned = pa.timestamp("us", tz="UTC")
        types = {n: pa.string() if self.types[n] == zoned else self.types[n] for n in columns}
        schema = pa.schema(types.items())
        for batch in fixed_size(self._strings(columns), size, start):
            arrays = [_cast(batch.column(name), types[name]) for name in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _header(self) -> list[str]:
        from pyarrow import csv

        with csv.open_csv(self.path) as reader:
            try:
                return reader.schema.names
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{self.path}: the header is not in UTF-8 ({error.reason}): save the table "
                    "in UTF-8."
                ) from error

    def _strings(self, columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa
        from pyarrow import csv

        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(self._names, pa.string()),
            include_columns=list(columns),
            null_values=list(MISSING),
            strings_can_be_null=True,
        )
        try:
            with csv.open_csv(self.path, convert_options=convert) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            raise InputError(f"{self.path}: {str(error).splitlines()[0]}") from error


def _candidates() -> list[Any]:
    import pyarrow as pa

    return [
        pa.int64(),
        pa.uint64(),
        pa.decimal128(38),
        pa.float64(),
        pa.bool_(),
        pa.timestamp("us"),
        pa.timestamp("us", tz="UTC"),
        pa.string(),
    ]


def _still_possible(types: list[Any], column: Any) -> list[Any]:
    """Drops from the front the types that some value does not have; text is always possible."""
    import pyarrow as pa

    while True:
        try:
            _cast(column, types[0])
        except pa.ArrowInvalid:
            types = types[1:]
        else:
            return types


def _cast(column: Any, kind: Any) -> Any:
    import pyarrow as pa
    from pyarrow import compute

    if kind == pa.string():
        return column
    trimmed = compute.call_function("utf8_trim_whitespace", [column])
    if pa.types.is_decimal(kind):  # 1.0 and 1e3 are reals
        whole = compute.MatchSubstringOptions(r"^[+-]?\d+$")
        matches = compute.call_function("match_substring_regex", [trimmed], whole)
        if False in matches.unique().to_pylist():
            raise pa.ArrowInvalid("not an integer")
    return trimmed.cast(kind)
