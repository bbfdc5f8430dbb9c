"""Operators side by side, each on its own part of the vector."""

from collections.abc import Sequence

import jax
import lineax as lx
from jaxtyping import Array, Float, PyTree

from ._matrix_free import AbstractMatrixFreeOperator, require_one_real_dtype, require_operators


class BlockDiagonal(AbstractMatrixFreeOperator):
    r"""The block-diagonal operator $\operatorname{diag}(A_1, \dots, A_k)$.

    It maps a tuple of vectors, one a block, to the tuple of their products:
    $(v_1, \dots, v_k) \mapsto (A_1 v_1, \dots, A_k v_k)$. Blocks need not be square, and may act
    on pytrees. It is symmetric, or semi-definite, when lineax knows every block to be.

    >>> import jax.numpy as jnp, lineax as lx
    >>> scale = lx.DiagonalLinearOperator(jnp.array([1.0, 2.0]))
    >>> total = lx.MatrixLinearOperator(jnp.ones((1, 3)))
    >>> BlockDiagonal([scale, total]).mv((jnp.ones(2), jnp.ones(3)))
    (Array([1., 2.], dtype=float32), Array([3.], dtype=float32))

    Args:
        blocks: the operators $A_i$, at least one, all of one real floating dtype.

    Raises:
        ValueError: for no blocks, a block that is no operator, or mixed dtypes.
    """

    blocks: tuple[lx.AbstractLinearOperator, ...]

    def __init__(self, blocks: Sequence[lx.AbstractLinearOperator]):
        self.blocks = tuple(blocks)
        require_operators("BlockDiagonal", self.blocks)
        require_one_real_dtype("BlockDiagonal", *self.blocks)

    def mv(self, vector: PyTree[Float[Array, "..."]]) -> PyTree[Float[Array, "..."]]:
        """The tuple of products $A_i v_i$ for the tuple `vector` of the $v_i$."""
        return tuple(block.mv(v) for block, v in zip(self.blocks, vector, strict=True))

    def as_matrix(self) -> Float[Array, "a b"]:
        """The dense matrix, blocks on the diagonal and zeros elsewhere."""
        return jax.scipy.linalg.block_diag(*(block.as_matrix() for block in self.blocks))

    def transpose(self) -> "BlockDiagonal":
        r"""$\operatorname{diag}(A_1^\top, \dots, A_k^\top)$."""
        return BlockDiagonal([block.T for block in self.blocks])

    def in_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The tuple of the blocks' input structures."""
        return tuple(block.in_structure() for block in self.blocks)

    def out_structure(self) -> PyTree[jax.ShapeDtypeStruct]:
        """The tuple of the blocks' output structures."""
        return tuple(block.out_structure() for block in self.blocks)


def _register_checks() -> None:
    for check in (
        lx.is_symmetric,
        lx.is_positive_semidefinite,
        lx.is_negative_semidefinite,
    ):
        check.register(BlockDiagonal, lambda op, check=check: all(map(check, op.blocks)))


_register_checks()
