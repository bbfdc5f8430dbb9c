"""Modules as plain data: a tree for JSON, and the arrays in it.

Classes appear by name, and only those of this library and of lineax are ever looked up. Nothing
that is read can run: objects are rebuilt from their fields without calling their constructors.
"""

import dataclasses
import enum
import importlib
import inspect
import json
import operator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.core import Tracer
from jax.tree_util import PyTreeDef

_PACKAGES = ("linmodels", "linmodels_nn", "lineax")
_TAGS = {name: tag for name, tag in vars(lx).items() if name.endswith("_tag")}
_EnumerationItem = type(lx.RESULTS.successful)


def encode(value: Any, where: str, arrays: list[np.ndarray]) -> Any:
    """The value as JSON; its arrays are appended to `arrays`, `where` is for messages."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _encode_array(value, where, arrays)
    if type(value) in (list, tuple, dict, frozenset):
        return _encode_container(value, where, arrays)
    if isinstance(value, np.dtype):
        return {"kind": "dtype", "name": dtype_name(value)}
    if isinstance(value, jax.ShapeDtypeStruct):
        dtype, shape = dtype_name(np.dtype(value.dtype)), list(value.shape)
        return {"kind": "array_type", "shape": shape, "dtype": dtype, "weak": value.weak_type}
    if isinstance(value, PyTreeDef):
        tree = jax.tree.unflatten(value, range(value.num_leaves))
        return {"kind": "structure", "tree": encode(tree, where, arrays)}
    for name, tag in _TAGS.items():
        if value is tag:
            return {"kind": "tag", "name": name}
    return _encode_object(value, where, arrays)


def _encode_array(value: Any, where: str, arrays: list[np.ndarray]) -> dict[str, Any]:
    if isinstance(value, Tracer):
        raise ValueError(f"{where} is traced: save() works outside jit, grad and vmap only.")
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        raise ValueError(f"{where} is a random key: save jax.random.key_data of it instead.")
    if isinstance(value, np.ma.MaskedArray) or value.dtype.hasobject or value.dtype.fields:
        raise ValueError(f"{where} is no plain array: {type(value).__name__} of {value.dtype}.")
    node = {"kind": "numpy", "index": len(arrays)}
    if isinstance(value, jax.Array):
        node["kind"] = "weak" if value.weak_type and value.ndim == 0 else "jax"
    elif isinstance(value, np.generic):
        node["kind"] = "scalar"
    arrays.append(np.asarray(value))
    return node


def _encode_container(value: Any, where: str, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, dict):
        items = [
            [encode(key, f"a key of {where}", arrays), encode(x, f"{where}[{key!r}]", arrays)]
            for key, x in value.items()
        ]
        return {"kind": "dict", "items": items}
    items = [encode(x, f"{where}[{i}]", arrays) for i, x in enumerate(value)]
    if isinstance(value, list):
        return items
    if isinstance(value, frozenset):
        return {"kind": "frozenset", "items": sorted(items, key=json.dumps)}
    return {"kind": "tuple", "items": items}


def _encode_object(value: Any, where: str, arrays: list[np.ndarray]) -> dict[str, Any]:
    if isinstance(value, _EnumerationItem):
        return _encode_enumeration(value, where)
    cls = type(value)
    if isinstance(value, enum.Enum):
        return {"kind": "enum", "class": _class_name(cls, where), "member": value.name}
    if isinstance(value, eqx.Module):
        names = [field.name for field in dataclasses.fields(value)]
    elif _is_named_tuple(cls):
        names = cls._fields
    else:
        raise ValueError(f"{where} is {value!r}: objects of {cls.__name__} cannot be saved.")
    name = _class_name(cls, where)
    fields = {f: encode(getattr(value, f), f"{where}.{f}", arrays) for f in names}
    return {"kind": "object", "class": name, "fields": fields}


def _encode_enumeration(item: Any, where: str) -> dict[str, Any]:
    cls = item._enumeration
    if np.ndim(item._value) != 0:
        raise ValueError(f"{where} holds several members of {cls.__name__}; save them apart.")
    for name, member in cls._name_to_item.items():
        if int(member._value) == int(item._value):
            kind = "jax member" if isinstance(item._value, jax.Array) else "member"
            return {"kind": kind, "class": _class_name(cls, where), "member": name}
    raise ValueError(f"{where} is no member of {cls.__name__}.")


def _class_name(cls: type, where: str) -> str:
    """`module:qualified name`, by the public module where the class is reachable there."""
    package = cls.__module__.partition(".")[0]
    if package in _PACKAGES:
        for module in (package, cls.__module__):
            if _attribute(module, cls.__qualname__) is cls:
                return f"{module}:{cls.__qualname__}"
    raise ValueError(
        f"{where} is of the class {cls.__module__}.{cls.__qualname__}: only classes of "
        f"{', '.join(_PACKAGES)} can be saved."
    )


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def dtype_name(dtype: np.dtype) -> str:
    """What `numpy.dtype` turns into the same dtype again."""
    # Extension types such as bfloat16 are void to NumPy and known by their names only.
    return dtype.name if dtype.kind == "V" else dtype.str


def decode(node: Any, arrays: list[np.ndarray]) -> Any:
    """Inverts `encode`."""
    if isinstance(node, list):
        return [decode(item, arrays) for item in node]
    if not isinstance(node, dict):
        return node
    match node["kind"]:
        case "numpy" | "scalar" | "jax" | "weak" as library:
            return _decode_array(arrays[node["index"]], library)
        case "tuple":
            return tuple(decode(node["items"], arrays))
        case "frozenset":
            return frozenset(decode(node["items"], arrays))
        case "dict":
            return dict(decode(node["items"], arrays))
        case "structure":
            return jax.tree.structure(decode(node["tree"], arrays))
        case "object":
            return _decode_object(node, arrays)
        case _:
            return _decode_name(node)


def _decode_array(array: np.ndarray, library: str) -> Any:
    if library == "scalar":
        return array[()]
    if library == "numpy" or jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        return array
    return jnp.asarray(array.item() if library == "weak" else array)


def _decode_name(node: dict[str, Any]) -> Any:
    match node["kind"]:
        case "dtype":
            return np.dtype(node["name"])
        case "array_type":
            shape, dtype = tuple(node["shape"]), np.dtype(node["dtype"])
            return jax.ShapeDtypeStruct(shape, dtype, weak_type=node["weak"])
        case "tag" if node["name"] in _TAGS:
            return _TAGS[node["name"]]
        case "enum":
            return class_named(node["class"], enum.Enum)[node["member"]]
        case "member" | "jax member":
            item = getattr(class_named(node["class"], eqx.Enumeration), node["member"])
            return item if node["kind"] == "member" else jax.tree.map(jnp.asarray, item)
    raise ValueError(f"it holds {node}, which this version of linmodels does not know.")


def _decode_object(node: dict[str, Any], arrays: list[np.ndarray]) -> Any:
    cls = class_named(node["class"], (eqx.Module, tuple))
    values = {name: decode(value, arrays) for name, value in node["fields"].items()}
    if issubclass(cls, eqx.Module):
        names = [field.name for field in dataclasses.fields(cls)]
    else:
        names = cls._fields
    if sorted(values) != sorted(names) or inspect.isabstract(cls):
        raise ValueError(
            f"it holds {cls.__name__} with the fields {sorted(values)}, but in this version of "
            f"linmodels it has {sorted(names)}."
        )
    if _is_named_tuple(cls):
        return cls(**values)
    module = object.__new__(cls)
    for name, value in values.items():
        object.__setattr__(module, name, value)
    return module


def class_named(name: str, bases: type | tuple[type, ...]) -> Any:
    """The class of that name, if it is one that `save` could have written."""
    module, _, qualified_name = name.partition(":")
    cls = _attribute(module, qualified_name) if module.split(".")[0] in _PACKAGES else None
    if not isinstance(cls, type) or cls.__module__.split(".")[0] not in _PACKAGES:
        raise ValueError(f"it needs the class {name!r}, which this version does not have.")
    if not issubclass(cls, bases):
        raise ValueError(f"it needs {name!r}, which is no class that can be loaded.")
    return cls


def _attribute(module: str, qualified_name: str) -> Any:
    if "__" in module:
        return None
    try:
        return operator.attrgetter(qualified_name)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return None
