"""Krylov methods for symmetric operators known by products with blocks of vectors."""

from linmodels.krylov._block_cg import AbstractStoppingRule as AbstractStoppingRule
from linmodels.krylov._block_cg import BlockSolution as BlockSolution
from linmodels.krylov._block_cg import Progress as Progress
from linmodels.krylov._block_cg import RelativeResidual as RelativeResidual
from linmodels.krylov._block_cg import block_cg as block_cg

__all__ = ["AbstractStoppingRule", "BlockSolution", "Progress", "RelativeResidual", "block_cg"]
