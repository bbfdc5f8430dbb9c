"""What cannot be saved is named, and every bad file as what it is."""

import collections
import hashlib
import json
import struct

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from linmodels._storage import load, save
from storage.boxes import Box


class Dictionary(dict):
    pass


@jax.tree_util.register_pytree_node_class
class CustomNode:
    def tree_flatten(self):
        return (), None

    @classmethod
    def tree_unflatten(cls, _, __):
        return cls()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": [CustomNode()]}, r"Box\.content\['a'\]\[0\].*CustomNode"),
        (Dictionary(a=1), r"Box\.content.*Dictionary"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (jnp.tanh, r"Box\.content"),
        (len, "builtin_function"),
        (1j, "complex"),
        (np.array([None, "x"]), r"Box\.content is no plain array.*object"),
        (np.zeros(2, "f4,i4"), "no plain array"),
        (np.ma.masked_array([1.0]), "MaskedArray"),
        (jax.random.key(0), r"Box\.content is a random key"),
        (eqx.nn.Lambda(jnp.tanh), r"equinox\.nn.*Lambda"),
        (collections.namedtuple("Local", "a")(1), "Local"),  # noqa: PYI024
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_saved_is_named(content, message, path):
    with pytest.raises(ValueError, match=message):
        save(Box(content), path)
    assert not path.exists()


def test_a_class_inside_a_function_is_refused(path):
    class Local(eqx.Module):
        x: int

    with pytest.raises(ValueError, match="Local"):
        save(Local(1), path)


def test_only_modules_are_saved(path):
    with pytest.raises(ValueError, match="not dict"):
        save.__wrapped__({"a": 1}, path)


def test_saving_under_jit_is_refused(path):
    with pytest.raises(ValueError, match=r"Box\.content is traced"):
        jax.jit(lambda x: save(Box(x), path))(1.0)


def refused(path, message, cls=Box):
    with pytest.raises(ValueError, match=message) as caught:
        load(path, cls)
    assert str(path) in str(caught.value)


def test_every_truncation_is_refused(path):
    save(Box(np.arange(3.0), "x"), path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        refused(path, "damaged" if length >= 16 else "not a file of linmodels")


def test_every_flipped_byte_is_refused(path):
    save(Box(np.arange(3.0), "x"), path)
    content = path.read_bytes()
    for index in range(len(content)):
        damaged = bytearray(content)
        damaged[index] ^= 1
        path.write_bytes(damaged)
        refused(path, "damaged" if index >= 16 else "not a file of linmodels")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 an archive", b"linmodels"], ids=repr)
def test_foreign_files_are_refused(content, path):
    path.write_bytes(content)
    refused(path, "not a file of linmodels")


def test_a_missing_file_is_missing(path):
    with pytest.raises(FileNotFoundError, match=r"box\.lm"):
        load(path, Box)


def test_another_class_is_refused(path):
    save(Box(1), path)
    refused(
        path, "holds an object of Box, not of AbstractLinearOperator", lx.AbstractLinearOperator
    )


def rewrite(path, change, version=1):
    """Changes the header of a saved file and makes the checksum right again."""
    content = path.read_bytes()[:-32]
    magic, _, length = struct.unpack("<16sQQ", content[:32])
    header = json.loads(content[32 : 32 + length])
    change(header)
    text = json.dumps(header).encode()
    content = struct.pack("<16sQQ", magic, version, len(text)) + text + content[32 + length :]
    path.write_bytes(content + hashlib.sha256(content).digest())


def test_a_newer_format_is_refused(path):
    save(Box(1), path)
    rewrite(path, lambda _: None, version=2)
    refused(path, "format 2 of a newer linmodels.*upgrade")


def set_class(name):
    return lambda header: header["root"].update({"class": name})


def set_content(node):
    return lambda header: header["root"]["fields"].update(content=node)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_class("linmodels:NoSuchClass"), "needs the class 'linmodels:NoSuchClass'"),
        (set_class("subprocess:Popen"), "needs the class 'subprocess:Popen'"),
        (set_class("linmodels.__main__:X"), "needs the class"),
        (set_class("lineax:jax.Array"), "needs the class"),
        (set_class("lineax:linear_solve"), "needs the class"),
        (set_class("storage.boxes:Colour"), "no class that can be loaded"),
        (lambda header: header["root"]["fields"].pop("note"), r"fields \['content'\], but"),
        (set_content({"kind": "pickle"}), "does not know"),
        (set_content({"kind": "tag", "name": "no_tag"}), "does not know"),
        (set_content({"kind": "numpy", "index": 5}), "malformed"),
        (set_content({}), "malformed"),
        (set_content({"kind": "dict", "items": [[[], 1]]}), "malformed"),
        (lambda header: header["arrays"][0].update(shape=[4]), "24 bytes instead of 32"),
        (lambda header: header["arrays"][0].update(shape=[-3]), r"shape \[-3\]"),
        (lambda header: header["arrays"][0].update(dtype="|O"), "dtype object"),
        (lambda header: header["arrays"][0].update(dtype="no type"), "malformed"),
        (lambda header: header.pop("root"), "malformed"),
    ],
)
def test_headers_that_make_no_sense_are_refused(change, message, path):
    save(Box(np.arange(3.0)), path)
    rewrite(path, change)
    refused(path, message)


def test_a_class_that_cannot_be_built_is_refused(path):
    save(Box(1), path)
    abstract = {"kind": "object", "class": "lineax:AbstractLinearOperator", "fields": {}}
    rewrite(path, set_content(abstract))
    refused(path, "AbstractLinearOperator")
