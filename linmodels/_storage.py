"""Saves and loads modules: one file, no pickle, nothing of it is ever executed.

Layout: the magic line, the format's version and the header's length (little-endian, 8 bytes each),
the header, the arrays' raw bytes in order, and the SHA-256 of all that precedes. The header is
JSON: the tree of objects by class and field names, and every array's dtype and shape.
"""

import hashlib
import importlib.metadata
import json
import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import equinox as eqx
import numpy as np

from linmodels._encoding import class_named, decode, dtype_name, encode

_MAGIC = b"linmodels file\r\n"
_FORMAT = 1
_PREFIX = struct.Struct(f"<{len(_MAGIC)}sQQ")
_DIGEST_SIZE = hashlib.sha256().digest_size
_Module = TypeVar("_Module", bound=eqx.Module)


def save(module: eqx.Module, path: str | os.PathLike[str]) -> None:
    """Writes a module to one file, which appears complete or not at all.

    Arrays keep every bit and their dtype, whether they are NumPy's or JAX's.

    Args:
        module: any object of this library or operator of lineax. Its fields may hold arrays,
            Python scalars, strings, enumerations, structures, tuples, lists, dicts, frozensets,
            and further such modules.
        path: the file; one that exists is replaced.

    Raises:
        ValueError: something in it cannot be saved: a function, a random key, an object of any
            other class. The message names the field.
    """
    if not isinstance(module, eqx.Module):
        raise ValueError(f"save() takes an object of linmodels, not {type(module).__name__}.")
    arrays: list[np.ndarray] = []
    root = encode(module, type(module).__name__, arrays)
    header = {
        "linmodels": _library_version(),
        "root": root,
        "arrays": [{"dtype": dtype_name(x.dtype), "shape": x.shape} for x in arrays],
    }
    _write_atomically(Path(os.path.realpath(path)), _chunks(header, arrays))


def load(path: str | os.PathLike[str], cls: type[_Module]) -> _Module:
    """Reads back what `save` wrote.

    Arrays that were JAX's are again, unless 64-bit types are off and the array has one: it then
    stays a NumPy array, to lose no bit.

    Args:
        path: the file.
        cls: the class that is expected in it, or a base class.

    Raises:
        ValueError: the file is damaged, is not one of linmodels, comes from a newer version, holds
            an object of another class, or one of a class that is not known here.
    """
    with Path(path).open("rb") as file:
        try:
            header = _read_header(file)
            _require_class(header["root"], cls)
            arrays = [_read_array(file, entry) for entry in header["arrays"]]
            return decode(header["root"], arrays)
        except ValueError as error:
            raise ValueError(f"Cannot load {os.fspath(path)!r}: {error}") from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            message = f"Cannot load {os.fspath(path)!r}: its header is malformed ({error!r})."
            raise ValueError(message) from error


# Writing.


def _library_version() -> str:
    try:
        return importlib.metadata.version("linmodels")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _chunks(header: dict[str, Any], arrays: list[np.ndarray]) -> Iterator[bytes | memoryview]:
    text = json.dumps(header, separators=(",", ":")).encode()
    yield _PREFIX.pack(_MAGIC, _FORMAT, len(text))
    yield text
    for array in arrays:
        yield _bytes_of(np.asarray(array, order="C"))


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _write_atomically(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    digest = hashlib.sha256()
    try:
        with temporary.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Makes the new name survive a power cut, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Reading.


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """The header of a file whose checksum is right; leaves the file at the first array."""
    prefix = file.read(_PREFIX.size)
    if not prefix.startswith(_MAGIC):
        raise ValueError("it is not a file of linmodels.")
    size = file.seek(0, os.SEEK_END) - _DIGEST_SIZE
    if size < _PREFIX.size or not _is_intact(file, size):
        raise ValueError("it is damaged (its checksum does not match): save it again.")
    file.seek(_PREFIX.size)
    _, version, length = _PREFIX.unpack(prefix)
    if version > _FORMAT:
        raise ValueError(
            f"it has format {version} of a newer linmodels, this one reads formats up to "
            f"{_FORMAT}: upgrade linmodels."
        )
    header = json.loads(file.read(length))
    expected = sum(map(_num_bytes, header["arrays"]))
    if expected != size - file.tell():
        raise ValueError(f"its arrays take {size - file.tell()} bytes instead of {expected}.")
    return header


def _is_intact(file: BinaryIO, size: int) -> bool:
    digest = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(size, 2**20))):
        digest.update(chunk)
        size -= len(chunk)
    return digest.digest() == file.read()


def _num_bytes(entry: dict[str, Any]) -> int:
    num_bytes = np.dtype(entry["dtype"]).itemsize
    for length in entry["shape"]:
        if length < 0:
            raise ValueError(f"an array has the shape {entry['shape']}.")
        num_bytes *= length
    return num_bytes


def _read_array(file: BinaryIO, entry: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(entry["dtype"])
    if dtype.hasobject:
        raise ValueError(f"an array has the dtype {dtype}.")
    array = np.empty(entry["shape"], dtype)
    file.readinto(_bytes_of(array))  # type: ignore[attr-defined]
    return array


def _require_class(root: dict[str, Any], cls: type) -> None:
    found = class_named(root["class"], eqx.Module)
    if not issubclass(found, cls):
        raise ValueError(
            f"it holds an object of {found.__name__}, not of {cls.__name__}: load it as "
            f"{found.__name__}."
        )
