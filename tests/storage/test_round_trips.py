"""Saving and loading: every bit comes back."""

from typing import Any, NamedTuple

import equinox as eqx
import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import lineax as lx
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linmodels as lm
from linmodels._storage import load, save
from storage.boxes import Box, Colour


class Codes(eqx.Enumeration):
    fine = ""
    broken = "It is broken."


class Pair(NamedTuple):
    first: Any
    second: Any


def identical(left, right) -> bool:
    """Equal to the bit, and of the same types."""
    if type(left) is not type(right):
        return False
    if isinstance(left, jax.Array | np.ndarray | np.generic):
        left, right = np.asarray(left), np.asarray(right)
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, eqx.Module):
        left, right = vars(left), vars(right)
    if isinstance(left, dict):
        return list(left) == list(right) and identical([*left.values()], [*right.values()])
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(identical, left, right))
    return left is right or left == right or (left != left and right != right)


def round_trip(content, path, note=None):
    save(Box(content, note), path)
    return load(path, Box)


# What can be saved.

floats = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.int8, np.bool_, "<U3"])
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
arrays = floats.flatmap(lambda dtype: hnp.arrays(dtype, shapes))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = [st.text(max_size=3), st.integers(), st.tuples(st.booleans(), st.integers())]


def nodes(children):
    return st.one_of(
        st.lists(children, max_size=3),
        st.lists(children, max_size=3).map(tuple),
        st.sampled_from(keys).flatmap(lambda key: st.dictionaries(key, children, max_size=3)),
        st.builds(Box, children, scalars),
        st.builds(Pair, children, children),
    )


@given(content=st.recursive(scalars | arrays, nodes, max_leaves=8))
def test_any_tree_comes_back_bit_equal(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "tree.lm"
    assert identical(round_trip(content, path).content, content)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "bool", "complex64"])
def test_jax_arrays_come_back_as_jax_arrays(dtype, path):
    array = jnp.asarray([[1, 0, 3], [0, 5, 6]], dtype)
    assert identical(round_trip(array, path).content, array)


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, np.nan, -0.0, 5e-324, np.inf]),
        np.arange(12.0).reshape(3, 4)[:, ::2].T,
        np.asarray(3.5, ">f8"),
        np.array([1, 2], ml_dtypes.bfloat16),
        np.float64(0.1),
        np.array(["2020-01-01"], "datetime64[D]"),
    ],
    ids=["special values", "strided", "big-endian", "bfloat16", "scalar", "dates"],
)
def test_numpy_arrays_come_back_as_they_were(array, path):
    loaded = round_trip(array, path).content
    assert identical(loaded, array)


def test_double_precision_survives_where_it_is_off(path):
    values = np.random.default_rng(0).standard_normal(5)
    with jax.enable_x64(True):
        save(Box(jnp.asarray(values)), path)
    with jax.enable_x64(False):
        loaded = load(path, Box).content
        assert isinstance(loaded, np.ndarray)
        np.testing.assert_array_equal(loaded, values, strict=True)
    with jax.enable_x64(True):
        assert isinstance(load(path, Box).content, jax.Array)


def test_weakly_typed_scalars_stay_weak(path):
    assert round_trip(jnp.asarray(2.0), path).content.weak_type
    assert not round_trip(jnp.asarray(2.0, "float32"), path).content.weak_type


def test_a_memory_map_is_saved_as_its_content(tmp_path, path):
    np.save(tmp_path / "x.npy", np.arange(5.0))
    loaded = round_trip(np.load(tmp_path / "x.npy", mmap_mode="r"), path).content
    np.testing.assert_array_equal(loaded, np.arange(5.0), strict=True)


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Pair(1, (2.0, [])),
        frozenset({lx.symmetric_tag, lx.positive_semidefinite_tag}),
        frozenset({1, "one", (1, None)}),
        np.dtype("float64"),
        jax.ShapeDtypeStruct((2, 3), jnp.float32),
        jax.tree.structure({"a": (1, None), "b": [2, Box(3, 4)]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_constants_come_back_equal(value, path):
    assert identical(round_trip(None, path, note=value).note, value)


def test_result_codes_come_back(path):
    loaded = round_trip([Codes.broken, lx.RESULTS.successful], path).content
    assert bool(loaded[0] == Codes.broken)
    assert bool(loaded[1] == lx.RESULTS.successful)


def operators():
    matrix = lx.MatrixLinearOperator(jnp.asarray([[2.0, 1.0], [1.0, 3.0]]), lx.symmetric_tag)
    diagonal = lx.DiagonalLinearOperator(jnp.asarray([1.0, 2.0]))
    return {
        "matrix": matrix,
        "diagonal": diagonal,
        "composed": matrix @ diagonal,
        "sum": 2.0 * matrix + diagonal,
        "tagged": lx.TaggedLinearOperator(matrix, lx.positive_semidefinite_tag),
        "identity": lx.IdentityLinearOperator(jax.ShapeDtypeStruct((2,), jnp.float32)),
        "tridiagonal": lx.TridiagonalLinearOperator(jnp.ones(2), jnp.ones(1), jnp.ones(1)),
    }


@pytest.mark.parametrize("name", operators())
def test_operators_come_back(name, path):
    operator = operators()[name]
    save(operator, path)
    loaded = load(path, lx.AbstractLinearOperator)
    assert jax.tree.structure(loaded) == jax.tree.structure(operator)
    assert identical(jax.tree.leaves(loaded), jax.tree.leaves(operator))
    assert lx.is_symmetric(loaded) == lx.is_symmetric(operator)
    vector = jnp.asarray([1.0, -1.0], jnp.float32)
    np.testing.assert_array_equal(loaded.mv(vector), operator.mv(vector), strict=True)


def test_saving_replaces_and_leaves_nothing_else(path):
    save(Box(1), path)
    assert round_trip(2, path).content == 2
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_failed_save_leaves_the_old_file(path, monkeypatch):
    save(Box("old"), path)
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save(Box("new"), path)
    assert load(path, Box).content == "old"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_saving_through_a_link_keeps_the_link(path):
    link = path.with_name("link.lm")
    link.symlink_to(path.name)
    save(Box(1), link)
    assert link.is_symlink()
    assert load(path, Box).content == 1


# The library's own objects.


def test_a_fit_comes_back_whole(path):
    design = lx.MatrixLinearOperator(jnp.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 3.0]]))
    data = lm.Observations(design, jnp.asarray([1.0, 2.5, 4.0]), lm.Gaussian())
    fit = lm.maximise_evidence(data, num_samples=3, key=jax.random.key(0))
    save(fit, path)
    loaded = load(path, lm.Fit)
    assert jax.tree.structure(loaded) == jax.tree.structure(fit)
    assert identical(jax.tree.leaves(loaded), jax.tree.leaves(fit))
    assert bool(loaded.result == lm.RESULTS.successful)
    expected, actual = fit.posterior.predict(design), loaded.posterior.predict(design)
    for before, after in zip(expected.interval(0.9), actual.interval(0.9), strict=True):
        np.testing.assert_array_equal(before, after, strict=True)


def test_flags_come_back(path):
    flag = lm.Flag(lm.FlagKind.PRIOR_PRECISION_INFINITE, 2)
    assert identical(round_trip(None, path, note=(flag,)).note, (flag,))
