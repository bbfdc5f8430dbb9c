"""What solves the equations of posterior deviations and the mean."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._blocks import safe_square_sums
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


class _Attempt(NamedTuple):
    """A solve, and solves for what it has left."""

    equations: Equations
    """of the last"""
    first: BlockSolution
    last: BlockSolution
    passes: int


class ConjugateGradients(AbstractSolver):
    """Block conjugate gradients from 0, whose recurrence comes for free.

    Where the largest eigenvalues are so large that their rounding hides small ones, they may have
    no end: on the dual side further solves are for what the best iterates have left; what then
    still fails begins anew with a sketch as preconditioner.
    """

    callback: Callable[[Progress], None] | None
    key: Array
    """of the sketch"""
    krylov: ClassVar[bool] = True

    def solve(self, equations, begin, limit, hint, *, quadrature) -> Solved:
        """See `AbstractSolver.solve`."""
        found = self._attempt(equations, begin, limit, 0)
        if 2 * (found.passes + 1) <= limit and _wants_sketch(equations, found):
            sketched, passes = equations.sketched(self.key)
            other = self._attempt(sketched, begin, limit, found.passes + passes)
            better = other.last.result == RESULTS.successful or _size(other) <= _size(found)
            found = (other if better else found)._replace(passes=other.passes)
        first, last = found.first, found.last
        progress = last.progress._replace(passes=found.passes)
        about = last.value, found.equations, last.result, progress, first.recurrence
        return Solved(*about, truncated=first.truncated)

    def _attempt(
        self, equations: Equations, begin: Array | None, limit: int, spent: int
    ) -> _Attempt:
        first = self._solved(equations, begin, limit, spent)
        found = _Attempt(equations, first, first, spent + first.progress.passes)
        if isinstance(equations.rule, DualRule) and first.result in ROUNDED:
            return self._rebased(found, limit)
        return found

    def _rebased(self, found: _Attempt, limit: int) -> _Attempt:
        """Goes on for as long as that gains; what succeeds is an x as it is kept."""
        size = np.inf
        while found.passes + 1 < limit:
            left = found.equations.rebased(found.last.value)
            before, size = size, float(safe_square_sums(left.rhs).sum())
            finer = self._solved(left, None, limit, found.passes + 1)
            passes = found.passes + 1 + finer.progress.passes
            if finer.progress.passes == 0:
                return _Attempt(left, found.first, finer, passes)
            if not size <= GAIN * before:
                progress = finer.progress._replace(measure=left.measured_at_zero())
                kept = finer._replace(value=jnp.zeros_like(left.rhs), result=RESULTS.stagnated)
                return _Attempt(left, found.first, kept._replace(progress=progress), passes)
            found = _Attempt(left, found.first, finer, passes)
        unknown = found.last.result == RESULTS.successful
        result = RESULTS.max_passes_reached if unknown else found.last.result
        return found._replace(last=found.last._replace(result=result))

    def _solved(
        self, equations: Equations, begin: Array | None, limit: int, spent: int
    ) -> BlockSolution:
        """One solve after others."""
        tell = self.callback or (lambda progress: None)
        later = lambda progress: tell(progress._replace(passes=spent + progress.passes))
        return equations.solve(begin, max(limit - spent, 1), later, equations.patience)

    def described(self, equations, value, hint, report) -> SolverReport:
        """As it is."""
        return report


def _wants_sketch(equations: Equations, found: _Attempt) -> bool:
    """Whether a solve without a preconditioner has failed for eigenvalues that are too large."""
    if found.last.result in (RESULTS.successful, RESULTS.non_finite):
        return False
    shown = [float(np.linalg.norm(first, 2)) for first in found.first.recurrence.diagonal[:1]]
    return any(np.isfinite(equations.patience(largest)) for largest in shown)


def _size(found: _Attempt) -> float:
    """Σ‖e‖²_H, as far as it is known."""
    progress, primal = found.last.progress, not isinstance(found.equations.rule, DualRule)
    bound = progress.measure.residual**2
    return float(np.sum(np.minimum(progress.error, bound) if primal else bound))
