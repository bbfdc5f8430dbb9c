"""Operators stacked on top of each other, or beside each other."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float, PyTree

from ._matrix_free import AbstractMatrixFreeOperator, require_one_real_dtype, require_operators


class RowBlocks(AbstractMatrixFreeOperator):
    r"""Blocks of rows, $[A_1; \dots; A_k]$: $v \mapsto (A_1 v; \dots; A_k v)$.

    The blocks share their input; their outputs are concatenated along the leading axis, leaf by
    leaf. Its transpose is a `ColumnBlocks`.

    >>> import jax.numpy as jnp, lineax as lx
    >>> ones = lx.MatrixLinearOperator(jnp.ones((1, 2)))
    >>> twice = lx.DiagonalLinearOperator(jnp.array([2.0, 2.0]))
    >>> RowBlocks([ones, twice]).mv(jnp.array([1.0, 3.0]))
    Array([4., 2., 6.], dtype=float32)

    Args:
        blocks: the operators $A_i$, at least one, with one input structure and with output
            leaves that agree beyond their leading axis.

    Raises:
        ValueError: for no blocks, a block that is no operator, mixed dtypes, or structures
            that do not agree.
    """

    blocks: tuple[lx.AbstractLinearOperator, ...]

    def __init__(self, blocks: Sequence[lx.AbstractLinearOperator]):
        self.blocks = tuple(blocks)
        require_operators("RowBlocks", self.blocks)
        require_one_real_dtype("RowBlocks", *self.blocks)
        _require_equal("RowBlocks", "input", [b.in_structure() for b in self.blocks])
        _require_stackable("RowBlocks", "output", [b.out_structure() for b in self.blocks])

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The products $A_i v$, concatenated."""
        return _concatenate([block.mv(vector) for block in self.blocks])

    def as_matrix(self) -> Float[Array, "a b"]:
        """The dense matrix. The rows of one output leaf lie together, block after block."""
        rows = [_rows_by_leaf(block.as_matrix(), block.out_structure()) for block in self.blocks]
        return jnp.concatenate([part for leaf in zip(*rows, strict=True) for part in leaf])

    def transpose(self) -> "ColumnBlocks":
        r"""$[A_1^\top, \dots, A_k^\top]$."""
        return ColumnBlocks([block.T for block in self.blocks])

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The input structure of every block."""
        return self.blocks[0].in_structure()

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The blocks' output structures, concatenated along the leading axis leaf by leaf."""
        return _stacked_structure([block.out_structure() for block in self.blocks])


class ColumnBlocks(AbstractMatrixFreeOperator):
    r"""Blocks of columns, $[A_1, \dots, A_k]$: $(v_1; \dots; v_k) \mapsto \sum_i A_i v_i$.

    The blocks share their output; their inputs are concatenated along the leading axis, leaf by
    leaf. Its transpose is a `RowBlocks`.

    Args:
        blocks: the operators $A_i$, at least one, with one output structure and with input
            leaves that agree beyond their leading axis.

    Raises:
        ValueError: for no blocks, a block that is no operator, mixed dtypes, or structures
            that do not agree.
    """

    blocks: tuple[lx.AbstractLinearOperator, ...]

    def __init__(self, blocks: Sequence[lx.AbstractLinearOperator]):
        self.blocks = tuple(blocks)
        require_operators("ColumnBlocks", self.blocks)
        require_one_real_dtype("ColumnBlocks", *self.blocks)
        _require_equal("ColumnBlocks", "output", [b.out_structure() for b in self.blocks])
        _require_stackable("ColumnBlocks", "input", [b.in_structure() for b in self.blocks])

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The sum of the products $A_i v_i$, where the $v_i$ are the parts of `vector`."""
        parts = _split(vector, [block.in_structure() for block in self.blocks])
        products = [block.mv(v) for block, v in zip(self.blocks, parts, strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *products)

    def as_matrix(self) -> Float[Array, "a b"]:
        """The dense matrix. The columns of one input leaf lie together, block after block."""
        columns = [_rows_by_leaf(b.as_matrix().T, b.in_structure()) for b in self.blocks]
        return jnp.concatenate([part for leaf in zip(*columns, strict=True) for part in leaf]).T

    def transpose(self) -> RowBlocks:
        r"""$[A_1^\top; \dots; A_k^\top]$."""
        return RowBlocks([block.T for block in self.blocks])

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The blocks' input structures, concatenated along the leading axis leaf by leaf."""
        return _stacked_structure([block.in_structure() for block in self.blocks])

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The output structure of every block."""
        return self.blocks[0].out_structure()


def _concatenate(parts: Sequence[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _split(vector: PyTree, structures: Sequence[PyTree]) -> list[PyTree]:
    """Cuts each leaf along its leading axis into the leading sizes of `structures`."""
    starts = jax.tree.map(lambda _: 0, structures[0])
    parts = []
    for structure in structures:
        stops = jax.tree.map(lambda start, leaf: start + leaf.shape[0], starts, structure)
        parts.append(jax.tree.map(lambda leaf, a, b: leaf[a:b], vector, starts, stops))
        starts = stops
    return parts


def _rows_by_leaf(matrix: Array, structure: PyTree) -> list[Array]:
    rows, start = [], 0
    for leaf in jax.tree.leaves(structure):
        rows.append(matrix[start : start + leaf.size])
        start += leaf.size
    return rows


def _stacked_structure(structures: Sequence[PyTree]) -> PyTree[jax.ShapeDtypeStruct]:
    def stack(*leaves):
        leading = sum(leaf.shape[0] for leaf in leaves)
        return jax.ShapeDtypeStruct((leading, *leaves[0].shape[1:]), leaves[0].dtype)

    return jax.tree.map(stack, *structures)


def _require_equal(name: str, side: str, structures: Sequence[PyTree]) -> None:
    _require_agreement(name, side, structures, lambda leaf: leaf.shape, "")


def _require_stackable(name: str, side: str, structures: Sequence[PyTree]) -> None:
    for i, structure in enumerate(structures):
        for leaf in jax.tree.leaves(structure):
            if not leaf.shape:
                raise ValueError(
                    f"{name}: the {side} of block {i} has a scalar leaf, which has no leading "
                    f"axis to concatenate along: {structure}; give it the shape (1,)."
                )
    beyond = " beyond the leading axis"
    _require_agreement(name, side, structures, lambda leaf: leaf.shape[1:], beyond)


def _require_agreement(
    name: str,
    side: str,
    structures: Sequence[PyTree],
    shape: Callable[[jax.ShapeDtypeStruct], tuple[int, ...]],
    where: str,
) -> None:
    """`ValueError` unless all structures are one tree with leaves of equal `shape`."""
    shapes = [jax.tree.map(shape, structure) for structure in structures]
    for i, candidate in enumerate(shapes):
        if not eqx.tree_equal(candidate, shapes[0]):
            raise ValueError(
                f"{name}: the {side} structures of the blocks must agree{where}, but block 0 has "
                f"{structures[0]} and block {i} has {structures[i]}."
            )
