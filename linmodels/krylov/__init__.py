"""Krylov methods for symmetric operators known by products with blocks of vectors."""

from linmodels.krylov._bidiagonal import Quadrature as Quadrature
from linmodels.krylov._bidiagonal import Ritz as Ritz
from linmodels.krylov._bidiagonal import RitzPairs as RitzPairs
from linmodels.krylov._bidiagonal import bidiagonalise as bidiagonalise
from linmodels.krylov._block_cg import BlockSolution as BlockSolution
from linmodels.krylov._block_cg import Residual as Residual
from linmodels.krylov._block_cg import block_cg as block_cg
from linmodels.krylov._block_cg import rounding_of as rounding_of
from linmodels.krylov._preconditioners import OVERSAMPLING as OVERSAMPLING
from linmodels.krylov._preconditioners import AbstractPreconditioner as AbstractPreconditioner
from linmodels.krylov._preconditioners import AbstractRoot as AbstractRoot
from linmodels.krylov._preconditioners import DiagonalRoot as DiagonalRoot
from linmodels.krylov._preconditioners import Eigenpairs as Eigenpairs
from linmodels.krylov._preconditioners import IdentityRoot as IdentityRoot
from linmodels.krylov._preconditioners import Jacobi as Jacobi
from linmodels.krylov._preconditioners import Known as Known
from linmodels.krylov._preconditioners import LowRankRoot as LowRankRoot
from linmodels.krylov._preconditioners import Nystrom as Nystrom
from linmodels.krylov._preconditioners import RandomisedEigen as RandomisedEigen
from linmodels.krylov._preconditioners import Sketchable as Sketchable
from linmodels.krylov._preconditioners import nystrom_eigenpairs as nystrom_eigenpairs
from linmodels.krylov._quadrature import quadratic_forms as quadratic_forms
from linmodels.krylov._quadrature import with_node_at_one as with_node_at_one
from linmodels.krylov._recursion import Recurrence as Recurrence
from linmodels.krylov._stopping_rule import AbstractStoppingRule as AbstractStoppingRule
from linmodels.krylov._stopping_rule import Progress as Progress
from linmodels.krylov._stopping_rule import RelativeResidual as RelativeResidual

__all__ = [
    "OVERSAMPLING",
    "AbstractPreconditioner",
    "AbstractRoot",
    "AbstractStoppingRule",
    "BlockSolution",
    "DiagonalRoot",
    "Eigenpairs",
    "IdentityRoot",
    "Jacobi",
    "Known",
    "LowRankRoot",
    "Nystrom",
    "Progress",
    "Quadrature",
    "RandomisedEigen",
    "Recurrence",
    "RelativeResidual",
    "Residual",
    "Ritz",
    "RitzPairs",
    "Sketchable",
    "bidiagonalise",
    "block_cg",
    "nystrom_eigenpairs",
    "quadratic_forms",
    "rounding_of",
    "with_node_at_one",
]
