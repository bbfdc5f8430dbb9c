"""Pytrees of arrays as flat vectors, and checks that name the culprit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

DENSE_LIMIT = 4_000
"""Largest side that is factorised densely where the factor itself was not given."""


def is_traced(*trees: Any) -> bool:
    """True where any leaf is being traced by jit, vmap or grad."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def ravel(tree: PyTree) -> Array:
    """The leaves of `tree`, in JAX's order, as one vector."""
    return ravel_pytree(tree)[0]


def size_of(tree: PyTree) -> int:
    """Numbers in a tree of arrays or shapes."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))


def unravel(vector: Float[Array, " size"], structure: PyTree) -> PyTree:
    """The inverse of `ravel` for a tree of the given structure (arrays or shapes)."""
    leaves, treedef = jax.tree.flatten(structure)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    pieces = jnp.split(vector, np.cumsum(sizes)[:-1].tolist())
    shaped = [
        p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(pieces, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, shaped)


def ravel_mask(mask: PyTree, structure: PyTree, name: str, dtype: type) -> np.ndarray:
    """A per-parameter label (bool or int), given per leaf or per entry, as a NumPy vector.

    Raises:
        ValueError: `mask` is traced, or does not fit the parameters' structure.
    """
    if is_traced(mask):
        raise ValueError(f"{name} must be known before tracing: close over the prior under jit.")
    require_structure(mask, structure, name, "the parameters")
    labels, leaves = jax.tree.leaves(mask), jax.tree.leaves(structure)
    for label in map(np.asarray, labels):
        if label.dtype.kind not in ("b" if dtype is bool else "biu"):
            wanted = "bools" if dtype is bool else "integers"
            raise ValueError(f"{name} must be {wanted}, got {_short(label)} ({label.dtype}).")
    try:
        full = [
            np.broadcast_to(np.asarray(m), x.shape) for m, x in zip(labels, leaves, strict=True)
        ]
    except ValueError as error:
        raise ValueError(f"{name} does not broadcast to the parameters' shapes: {error}") from None
    return np.concatenate([x.ravel() for x in full]).astype(dtype)


def require_structure(tree: PyTree, structure: PyTree, name: str, owner: str) -> None:
    """Refuses a tree of another structure than `structure`, which is that of `owner`.

    Raises:
        ValueError: naming both.
    """
    found, wanted = jax.tree.structure(tree), jax.tree.structure(structure)
    if found != wanted:
        hint = " (give an array, not a list)" if isinstance(tree, list) else ""
        raise ValueError(
            f"{name} must have the structure of {owner}, {_short(wanted)}; it has {_short(found)}"
            f"{hint}."
        )


def shaped_like(
    tree: PyTree,
    structure: PyTree,
    name: str,
    owner: str = "the design's outputs",
    kinds: str = "iuf",
) -> PyTree[Array]:
    """A tree of finite real arrays with the structure, shapes and dtypes of another.

    Args:
        tree: as it was given.
        structure: of the other, arrays or shapes.
        name: of the tree, for messages.
        owner: of the structure, for messages.
        kinds: as for `real_array`.

    Raises:
        ValueError: it has others (nothing is broadcast), or is not finite.
    """
    require_structure(tree, structure, name, owner)
    held = jax.dtypes.canonicalize_dtype
    tree = jax.tree.map(
        lambda t, s: real_array(t, name, held(s.dtype), kinds=kinds), tree, structure
    )
    shapes = [leaf.shape for leaf in jax.tree.leaves(tree)]
    wanted = [tuple(leaf.shape) for leaf in jax.tree.leaves(structure)]
    if shapes != wanted:
        raise ValueError(f"{name} has shape {shapes}, {owner} {wanted}.")
    require_finite(tree, name)
    return tree


def real_array(
    value: Any, name: str, dtype: Any, *, kinds: str = "iuf", positive: bool = False
) -> Array:
    """One array of real numbers in the given float dtype; nothing is lost without a word.

    Args:
        value: numbers in any form that NumPy understands, or a traced array.
        name: of the value, for messages.
        dtype: to hold it in.
        kinds: dtype kinds accepted, as in `numpy.dtype.kind`.
        positive: whether a number that is not 0 must not become 0 (or a denormal, which is
            taken for 0) in `dtype`.

    Raises:
        ValueError: text, objects or complex numbers; numbers that `dtype` cannot hold.
    """
    array = value if is_traced(value) else np.asarray(value)
    if array.dtype.kind not in kinds and not jnp.issubdtype(array.dtype, np.floating):
        raise ValueError(f"{name} must be real numbers, got {_short(array)} ({array.dtype}).")
    if not is_traced(value):
        with np.errstate(over="ignore", under="ignore"):
            held = array.astype(dtype)
        lost = np.isfinite(array) & ~np.isfinite(held)
        if positive:
            lost |= (array > 0) & (held < jnp.finfo(dtype).tiny)
        if lost.any():
            raise ValueError(
                f"{name} is {array[lost].flat[0]} where {np.dtype(dtype)} cannot hold it: change "
                "units, or enable x64."
            )
    return jnp.asarray(array, dtype)


def require_floats(structure: PyTree, name: str) -> None:
    """Refuses what is not of float32 or float64.

    Raises:
        ValueError: with the dtype.
    """
    for leaf in jax.tree.leaves(structure):
        if leaf.dtype not in (np.float32, np.float64):
            raise ValueError(
                f"{name} must be of real floats, got dtype {leaf.dtype}: cast it to float32 or "
                "float64; 16 bits hold neither sums over rows nor small variances."
            )


def require_integer(value: Any, name: str, minimum: int) -> None:
    """Refuses what is no integer of at least `minimum`; True and False are none.

    Raises:
        ValueError: with what it is.
    """
    integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integer or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}.")


def require_single_key(key: Any) -> None:
    """Refuses what is no single random key, typed or raw.

    Raises:
        ValueError: with what it is.
    """
    shape, dtype = getattr(key, "shape", None), getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not (typed and shape == ()) and not (dtype == np.uint32 and len(shape or ()) == 1):
        what = f"shape {shape}" if typed else _short(key)
        raise ValueError(f"key must be one key, such as jax.random.key(0); got {what}.")


def _short(thing: Any) -> str:
    text = " ".join(str(thing).split())
    return text if len(text) <= 80 else text[:77] + "..."


def describe(tree: PyTree) -> str:
    """Shapes of a tree's leaves, for error messages."""
    return str(jax.tree.map(lambda x: f"{np.dtype(x.dtype).name}{list(x.shape)}", tree))


def require_finite(tree: PyTree, name: str, minimum: float | None = None) -> None:
    """Refuses NaN, infinities and values below `minimum`; silent on traced values.

    Raises:
        ValueError: naming `name`, the leaf, the position and the value.
    """
    if tree is None or is_traced(tree):
        return
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        bad = ~np.isfinite(array)
        if minimum is not None:
            bad |= array < minimum
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            limit = "finite" if minimum is None else f"finite and at least {minimum:g}"
            label = name + jax.tree_util.keystr(path)
            raise ValueError(f"{label} must be {limit}; entry {where} is {array[where]}.")


def one_observation(outputs: PyTree) -> PyTree:
    """Structure of a single observation's outputs: without the leading axis."""
    return jax.tree.map(lambda f: jax.ShapeDtypeStruct(f.shape[1:], f.dtype), outputs)


def parameter_structure(structure: PyTree) -> PyTree:
    """Shapes with the dtypes JAX will hold them in (float32 while x64 is off)."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), structure
    )
