"""Linear operators that lineax lacks, and a check that an operator obeys its laws.

They are `lineax.AbstractLinearOperator`s: add, compose, transpose and scale them as any other.
"""

from ._block_diagonal import BlockDiagonal as BlockDiagonal
from ._from_matrix import from_matrix as from_matrix
from ._kronecker import Kronecker as Kronecker
from ._kronecker import multi_output as multi_output
from ._low_rank_update import LowRankUpdate as LowRankUpdate
from ._matrix_free import AbstractMatrixFreeOperator as AbstractMatrixFreeOperator
from ._sparse import Sparse as Sparse
from ._stacked import ColumnBlocks as ColumnBlocks
from ._stacked import RowBlocks as RowBlocks
from .laws import check_operator_laws as check_operator_laws

__all__ = [
    "AbstractMatrixFreeOperator",
    "BlockDiagonal",
    "ColumnBlocks",
    "Kronecker",
    "LowRankUpdate",
    "RowBlocks",
    "Sparse",
    "check_operator_laws",
    "from_matrix",
    "multi_output",
]
