"""What solves the equations of posterior deviations and the mean."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from linmodels._results import RESULTS
from linmodels.krylov import BlockSolution, Progress, Recurrence
from linmodels.methods._equations import Equations
from linmodels.methods._method import SolverReport
from linmodels.methods.stopping import DualRule

ROUNDED = RESULTS.stagnated, RESULTS.breakdown, RESULTS.negative_curvature
"""How solves end that rounding has misled."""
GAIN = 0.25
"""A solve that leaves more than this share of the squared residuals has gained nothing."""


class Solved(NamedTuple):
    """Solutions of Hq = b, and how they were come by."""

    value: Float[Array, "k1 n"]
    """q"""
    equations: Equations
    """that it solves: with another preconditioner than at first, or for what was left to find"""
    result: RESULTS
    progress: Progress
    """at the end, from true residuals"""
    recurrence: Recurrence
    """of their P^{-½}HP^{-½}, for the log determinant; of no length where none was asked for"""
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
    """Block conjugate gradients from 0, whose recurrence comes for free.

    Where the largest eigenvalues are so large that their rounding hides small ones, they may have
    no end unless something preconditions them: a sketch, for a solve that begins anew with it; on
    the dual side also solves for what the best iterates have left.
    """

    callback: Callable[[Progress], None] | None
    key: Array
    """of the sketch"""
    krylov: ClassVar[bool] = True

    def solve(self, equations, begin, limit, hint, *, quadrature) -> Solved:
        """See `AbstractSolver.solve`."""
        first = equations.solve(begin, limit, self.callback, equations.patience)
        if first.progress.passes + 1 < limit and _wants_sketch(equations, first):
            equations = equations.sketched(self.key)
            first = self._later(equations, begin, limit, first.progress.passes + 1)
        last = first
        while isinstance(equations.rule, DualRule) and last.result in ROUNDED:
            spent = last.progress.passes + 1
            if spent >= limit:
                break
            left = equations.rebased(last.value)
            finer = self._later(left, None, limit, spent)
            if _size(finer) > GAIN * _size(last):
                break
            equations, last = left, finer
        about = last.value, equations, last.result, last.progress, first.recurrence
        return Solved(*about, truncated=first.truncated)

    def _later(
        self, equations: Equations, begin: Array | None, limit: int, spent: int
    ) -> BlockSolution:
        """A solve after others."""
        later = lambda progress: progress._replace(passes=spent + progress.passes)
        tell = self.callback or (lambda progress: None)
        solution = equations.solve(begin, limit - spent, lambda progress: tell(later(progress)))
        return solution._replace(progress=later(solution.progress))

    def described(self, equations, value, hint, report) -> SolverReport:
        """As it is."""
        return report


def _wants_sketch(equations: Equations, solution: BlockSolution) -> bool:
    """Whether a solve has failed for eigenvalues that are too large."""
    if solution.result in (RESULTS.successful, RESULTS.non_finite):
        return False
    shown = [float(np.linalg.norm(first, 2)) for first in solution.recurrence.diagonal[:1]]
    return any(np.isfinite(equations.patience(largest)) for largest in shown)


def _size(solution: BlockSolution) -> float:
    """Σ‖b − Hq‖²."""
    return float(np.sum(solution.progress.measure.residual**2))
