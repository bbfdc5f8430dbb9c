"""What solves the equations of posterior deviations and the mean."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float

from linmodels._results import RESULTS
from linmodels.krylov import Progress, Recurrence
from linmodels.methods._equations import Equations
from linmodels.methods._method import SolverReport


class Solved(NamedTuple):
    """Solutions of Hq = b, and how they were come by."""

    value: Float[Array, "k1 n"]
    """q"""
    result: RESULTS
    progress: Progress
    """at the end, from true residuals"""
    recurrence: Recurrence
    """for the log determinant; of no length where none was asked for"""
    hint: Any = None
    """for another solve near by"""
    truncated: bool = False
    """whether the recurrence has ended before its own solve has"""


class AbstractSolver(eqx.Module):
    """Solves for all vectors of a block, to what the equations' rule asks."""

    krylov: ClassVar[bool]
    """whether it builds Krylov spaces: from those an evidence path may answer in its stead"""

    @abc.abstractmethod
    def solve(
        self,
        equations: Equations,
        begin: Float[Array, "k1 n"] | None,
        limit: int,
        hint: Any,
        *,
        quadrature: bool,
    ) -> Solved:
        """Solves.

        Args:
            equations: H q = b.
            begin: first iterates; the solver's own where None.
            limit: passes over the data before giving up.
            hint: of another solve near by, or None.
            quadrature: whether the log determinant is wanted.
        """

    @abc.abstractmethod
    def described(
        self, equations: Equations, value: Float[Array, "k1 n"], hint: Any, report: SolverReport
    ) -> SolverReport:
        """The report with what only this solver can say of a solution and its hint."""


class ConjugateGradients(AbstractSolver):
    """Block conjugate gradients from 0, whose recurrence comes for free."""

    callback: Callable[[Progress], None] | None
    krylov: ClassVar[bool] = True

    def solve(self, equations, begin, limit, hint, *, quadrature) -> Solved:
        """See `AbstractSolver.solve`."""
        solution = equations.solve(begin, limit, self.callback)
        about = solution.value, solution.result, solution.progress, solution.recurrence
        return Solved(*about, truncated=solution.truncated)

    def described(self, equations, value, hint, report) -> SolverReport:
        """As it is."""
        return report
