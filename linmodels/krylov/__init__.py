"""Krylov methods for symmetric operators known by products with blocks of vectors."""

from linmodels.krylov._block_cg import AbstractStoppingRule as AbstractStoppingRule
from linmodels.krylov._block_cg import BlockSolution as BlockSolution
from linmodels.krylov._block_cg import Progress as Progress
from linmodels.krylov._block_cg import Recurrence as Recurrence
from linmodels.krylov._block_cg import RelativeResidual as RelativeResidual
from linmodels.krylov._block_cg import block_cg as block_cg
from linmodels.krylov._block_lanczos import Ritz as Ritz
from linmodels.krylov._block_lanczos import block_lanczos as block_lanczos
from linmodels.krylov._quadrature import quadratic_forms as quadratic_forms

__all__ = [
    "AbstractStoppingRule",
    "BlockSolution",
    "Progress",
    "Recurrence",
    "RelativeResidual",
    "Ritz",
    "block_cg",
    "block_lanczos",
    "quadratic_forms",
]
