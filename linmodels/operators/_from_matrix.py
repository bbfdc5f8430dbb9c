"""A dense matrix as an operator between pytrees."""

import math

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree


def from_matrix(
    matrix: Float[ArrayLike, "a b"],
    in_structure: PyTree[jax.ShapeDtypeStruct] | None = None,
    out_structure: PyTree[jax.ShapeDtypeStruct] | None = None,
) -> lx.AbstractLinearOperator:
    """A dense matrix as an operator between the given structures.

    Columns follow the leaves of the input, rows those of the output, in the order of
    `jax.tree.leaves` with each leaf ravelled: the order of `as_matrix`, of which this is the
    inverse.

    >>> import jax, jax.numpy as jnp
    >>> image = jax.ShapeDtypeStruct((2, 2), jnp.float32)
    >>> from_matrix(jnp.ones((3, 4)), in_structure=image).mv(jnp.ones((2, 2)))
    Array([4., 4., 4.], dtype=float32)

    Args:
        matrix: of shape `(a, b)`, real floating.
        in_structure: a pytree of `jax.ShapeDtypeStruct`s with `b` scalars in all and the dtype of
            the matrix. By default one array of shape `(b,)`.
        out_structure: likewise with `a` scalars.

    Returns:
        A `lineax.MatrixLinearOperator` between single 1-D arrays, otherwise a
        `lineax.PyTreeLinearOperator`.

    Raises:
        ValueError: when `matrix` is not a real floating matrix, or when a structure does not
            have its size or dtype.
    """
    matrix = jnp.asarray(matrix)
    if matrix.ndim != 2 or not jnp.issubdtype(matrix.dtype, jnp.floating):
        raise ValueError(
            "from_matrix: `matrix` must be two-dimensional and real floating, got the shape "
            f"{matrix.shape} and dtype {matrix.dtype}."
        )
    rows = _structure("out_structure", out_structure, matrix.shape[0], matrix.dtype)
    columns = _structure("in_structure", in_structure, matrix.shape[1], matrix.dtype)
    if _is_vector(rows) and _is_vector(columns):
        return lx.MatrixLinearOperator(matrix)
    return lx.PyTreeLinearOperator(_blocks(matrix, rows, columns), rows)


def _structure(name: str, structure: PyTree | None, size: int, dtype) -> PyTree:
    if structure is None:
        return jax.ShapeDtypeStruct((size,), dtype)
    structure = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), structure)
    leaves = jax.tree.leaves(structure)
    total = sum(math.prod(leaf.shape) for leaf in leaves)
    if not leaves or total != size:
        side = "rows" if name == "out_structure" else "columns"
        raise ValueError(
            f"from_matrix: `{name}` holds {total} scalars in {len(leaves)} leaves but the matrix "
            f"has {size} {side}: {structure}."
        )
    for leaf in leaves:
        if leaf.dtype != dtype:
            raise ValueError(
                f"from_matrix: `{name}` has a leaf of dtype {leaf.dtype} but the matrix is "
                f"{dtype}; cast one to the other."
            )
    return structure


def _is_vector(structure: PyTree) -> bool:
    return isinstance(structure, jax.ShapeDtypeStruct) and len(structure.shape) == 1


def _blocks(matrix: Array, rows: PyTree, columns: PyTree) -> PyTree[Array]:
    """The blocks of `matrix` as the tree [tree(rows), tree(columns)] that lineax expects."""
    row_leaves, row_tree = jax.tree.flatten(rows)
    column_leaves, column_tree = jax.tree.flatten(columns)
    column_ends = np.cumsum([leaf.size for leaf in column_leaves])[:-1]
    row_ends = np.cumsum([leaf.size for leaf in row_leaves])[:-1]
    blocks = [
        column_tree.unflatten(
            block.reshape(row.shape + column.shape)
            for block, column in zip(jnp.split(strip, column_ends, 1), column_leaves, strict=True)
        )
        for strip, row in zip(jnp.split(matrix, row_ends), row_leaves, strict=True)
    ]
    return row_tree.unflatten(blocks)
