"""Writing record batches to CSV, Parquet or NPZ; the file appears complete or not at all."""

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from linmodels.cli._errors import InputError

Write = Callable[[Any], None]


@contextlib.contextmanager
def open_writer(path: Path, kind: str) -> Iterator[Write]:
    """A function that appends record batches of one schema to the table `path`.

    Args:
        path: the file; one that exists is replaced at the end.
        kind: 'csv', 'parquet' or 'npz'.

    Raises:
        InputError: the file cannot be written.
    """
    open_kind = {"csv": _csv, "parquet": _parquet, "npz": _npz}[kind]
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; give the name of a file.")
    try:
        handle, name = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent
        )
        os.close(handle)
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror}") from error
    temporary = Path(name)
    try:
        with open_kind(temporary) as write:
            yield write
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _csv(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    from pyarrow import csv

    with contextlib.ExitStack() as stack:
        compression = "gzip" if path.suffix == ".gz" else None
        file = stack.enter_context(pa.output_stream(path, compression=compression))
        writer: Any = None

        def write(batch: Any) -> None:
            nonlocal writer
            try:
                if writer is None:
                    options = csv.WriteOptions(quoting_style="needed")
                    writer = csv.CSVWriter(file, batch.schema, write_options=options)
                    stack.enter_context(writer)
                writer.write(batch)
            except pa.ArrowInvalid as error:
                reason = str(error).splitlines()[0]
                raise InputError(
                    f"A CSV cannot hold the table ({reason}): write Parquet."
                ) from error

        yield write


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        writer: Any = None

        def write(batch: Any) -> None:
            nonlocal writer
            if writer is None:
                writer = stack.enter_context(parquet.ParquetWriter(path, batch.schema))
            writer.write_batch(batch)

        yield write


@contextlib.contextmanager
def _npz(path: Path) -> Iterator[Write]:
    import pyarrow as pa

    batches: list[Any] = []
    yield batches.append
    table = pa.Table.from_batches(batches)
    # Not np.savez, whose arguments are the names: a column may be called `file`.
    with zipfile.ZipFile(path, "w") as archive:
        for name in table.column_names:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, _plain(table.column(name)), allow_pickle=False)


def _plain(column: Any) -> np.ndarray:
    """A column as an array that needs no pickle; text as a fixed-width string array."""
    array = column.to_numpy()
    if array.dtype != object:
        return array
    if isinstance(column[0].as_py(), bool):
        return array.astype(bool)
    return np.array(["" if value is None else str(value) for value in column.to_pylist()])


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
