"""Tables on disk as Arrow record batches of one size: one interface to Parquet, CSV and NPZ."""

import abc
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from linmodels.cli._errors import InputError

BATCH_ROWS = 16_384
KINDS = ".csv, .csv.gz, .parquet or .npz"


class Table(abc.ABC):
    """Named, typed columns on disk, read in batches.

    Attributes:
        path: where it is.
        types: the Arrow type of what each column holds, by name, in the table's order.
        num_rows: how many rows it has.
    """

    path: Path
    types: dict[str, Any]
    num_rows: int

    @abc.abstractmethod
    def batches(
        self, columns: Sequence[str], start: int = 0, size: int = BATCH_ROWS
    ) -> Iterator[Any]:
        """Record batches of these columns from row `start` on, `size` rows each but the last."""


def table_kind(path: Path) -> str:
    """'csv', 'parquet' or 'npz', by the name's suffix.

    Raises:
        InputError: the suffix is none of these.
    """
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return "csv"
    kind = {".parquet": "parquet", ".npz": "npz"}.get(Path(name).suffix)
    if kind is None:
        raise InputError(f"{path}: the name of a table ends in {KINDS}.")
    return kind


def open_table(path: Path, is_text: Callable[[str], bool] = lambda name: False) -> Table:
    """Opens a table and finds its columns' types.

    Args:
        path: a file whose name ends in `KINDS`.
        is_text: whether a CSV column is to be kept as it is spelt ("007"), by its name.

    Raises:
        InputError: there is no such file, it is not what its name says, or it has no rows.
    """
    kind = table_kind(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file.")
    table = _open(path, kind, is_text)
    if table.num_rows == 0:
        raise InputError(f"{path}: the table has no rows.")
    return table


def _open(path: Path, kind: str, is_text: Callable[[str], bool]) -> Table:
    import pyarrow as pa

    from linmodels.cli._csv import CsvTable

    try:
        if kind == "csv":
            return CsvTable(path, is_text)
        return ParquetTable(path) if kind == "parquet" else NpzTable(path)
    except (pa.ArrowException, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: cannot be read as {kind}: {first_line(error)}") from error


class ParquetTable(Table):
    """A Parquet file, streamed: no more than a few row batches are in memory at a time."""

    def __init__(self, path: Path) -> None:
        from pyarrow import parquet

        self.path = path
        with parquet.ParquetFile(path) as file:
            schema, groups = file.schema_arrow, file.metadata
            sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
        refuse_repeated(path, schema.names)
        self.types = dict(zip(schema.names, schema.types, strict=True))
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self.num_rows = int(sum(sizes))

    def batches(
        self, columns: Sequence[str], start: int = 0, size: int = BATCH_ROWS
    ) -> Iterator[Any]:
        """See `Table`; begins at the row group that holds row `start`."""
        from pyarrow import parquet

        first = int(np.searchsorted(self._ends, start, side="right"))
        skipped = int(self._ends[first - 1]) if first else 0
        groups = list(range(first, len(self._ends)))
        with parquet.ParquetFile(self.path, pre_buffer=False) as file:
            stream = file.iter_batches(size, row_groups=groups, columns=list(columns))
            yield from fixed_size(stream, size, start - skipped)


class NpzTable(Table):
    """Arrays of an NPZ file: 1-D arrays are columns, a 2-D array `x` gives x0, x1 and so on."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        columns: dict[str, Any] = {}
        for name, array in _npz_columns(path):
            if name in columns:
                raise InputError(f"{path}: two columns are called {name!r}: rename an array.")
            columns[name] = array
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"{path}: the arrays have different lengths: {lengths}.")
        self.path = path
        self._table = pa.table(columns)
        self.types = dict(zip(self._table.schema.names, self._table.schema.types, strict=True))
        self.num_rows = self._table.num_rows

    def batches(
        self, columns: Sequence[str], start: int = 0, size: int = BATCH_ROWS
    ) -> Iterator[Any]:
        """See `Table`."""
        yield from self._table.select(list(columns)).slice(start).to_batches(size)


def fixed_size(stream: Iterable[Any], size: int, skip: int = 0) -> Iterator[Any]:
    """Cuts record batches into batches of `size` rows, leaving out the first `skip` rows."""
    import pyarrow as pa

    waiting: list[Any] = []
    rows = 0
    for batch in stream:
        dropped = min(skip, len(batch))
        skip -= dropped
        waiting.append(batch.slice(dropped))
        rows += len(batch) - dropped
        while rows >= size:
            table = pa.Table.from_batches(waiting)
            yield _one_batch(table.slice(0, size))
            waiting = table.slice(size).to_batches()
            rows -= size
    if rows:
        yield _one_batch(pa.Table.from_batches(waiting))


def _one_batch(table: Any) -> Any:
    return table.combine_chunks().to_batches()[0]


def _npz_columns(path: Path) -> Iterator[tuple[str, Any]]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path}: cannot be read as npz: no archive as numpy.savez writes it.")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                yield from _array_columns(path, name, arrays[name])
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: cannot be read as npz: {first_line(error)}") from error


def _array_columns(path: Path, name: str, array: np.ndarray) -> Iterator[tuple[str, Any]]:
    if array.dtype.kind not in "biufUM":
        raise InputError(
            f"{path}: array {name!r} has dtype {array.dtype}; "
            "columns hold numbers, strings, bools or dates."
        )
    if array.ndim == 1:
        yield name, _arrow(array)
    elif array.ndim == 2:
        for number in range(array.shape[1]):
            yield f"{name}{number}", _arrow(array[:, number])
    else:
        raise InputError(
            f"{path}: array {name!r} has shape {array.shape}; columns are 1-D or 2-D arrays."
        )


def _arrow(column: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.array(
        column.astype(object) if column.dtype.kind == "U" else np.ascontiguousarray(column)
    )


def refuse_repeated(path: Path, names: Sequence[str]) -> None:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"{path}: two columns are called {repeated!r}: rename one.")


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
