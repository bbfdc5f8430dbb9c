"""Pytrees of arrays as flat vectors, and checks that name the culprit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

DENSE_LIMIT = 4_000
"""Largest side that is factorised densely where the factor itself was not given."""


def is_traced(*trees: Any) -> bool:
    """True where any leaf is being traced by jit, vmap or grad."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(trees))


def ravel(tree: PyTree) -> Array:
    """The leaves of `tree`, in JAX's order, as one vector."""
    return ravel_pytree(tree)[0]


def unravel(vector: Float[Array, " size"], structure: PyTree) -> PyTree:
    """The inverse of `ravel` for a tree of the given structure (arrays or shapes)."""
    leaves, treedef = jax.tree.flatten(structure)
    sizes = [int(np.prod(leaf.shape)) for leaf in leaves]
    pieces = jnp.split(vector, np.cumsum(sizes)[:-1].tolist())
    shaped = [p.reshape(leaf.shape).astype(leaf.dtype) for p, leaf in zip(pieces, leaves)]
    return jax.tree.unflatten(treedef, shaped)


def ravel_mask(mask: PyTree, structure: PyTree, name: str, dtype: type) -> np.ndarray:
    """A per-parameter label (bool or int), given per leaf or per entry, as a NumPy vector.

    Raises:
        ValueError: `mask` is traced, or does not fit the parameters' structure.
    """
    if is_traced(mask):
        raise ValueError(f"{name} must be known before tracing: close over the prior under jit.")
    leaves, treedef = jax.tree.flatten(structure)
    labels = jax.tree.leaves(mask)
    if jax.tree.structure(mask) != treedef:
        raise ValueError(f"{name} has structure {jax.tree.structure(mask)}, parameters {treedef}.")
    try:
        full = [np.broadcast_to(np.asarray(m), x.shape) for m, x in zip(labels, leaves)]
    except ValueError as error:
        raise ValueError(f"{name} does not broadcast to the parameters' shapes: {error}") from None
    return np.concatenate([x.ravel() for x in full]).astype(dtype)


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


def parameter_structure(structure: PyTree) -> PyTree:
    """Shapes with the dtypes JAX will hold them in (float32 while x64 is off)."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype)), structure
    )
