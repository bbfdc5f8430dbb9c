"""When a solve for posterior samples is good enough, and what it says of itself."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._blocks import inner_products, norms, square_sums
from linmodels._results import RESULTS
from linmodels.krylov import AbstractStoppingRule, Progress
from linmodels.methods._evidence_terms import EvidenceTerms
from linmodels.methods._method import Evaluation, SolverReport

SHARE = 0.1
"""Share of a standard error below which a change does not matter."""
USABLE = 0.25
"""ε² up to which a solve that has failed still tells where to go."""


class Measured(NamedTuple):
    """What stops a solve."""

    signal: Float[Any, " k1"]
    """‖Wx‖²"""
    residual: Float[Any, " k1"]
    """‖b − Hx‖, on the dual side with what rounding may add to the error"""


class PrimalRule(AbstractStoppingRule):
    """Σ‖e_j‖²_H ≤ tolerance · Σ‖Wx_j‖², and the mean's at most a deviation's share of it.

    ‖e‖²_H ≤ ‖r‖² as H ≥ 1; the solver's estimate of ‖e‖²_H serves where it is smaller. Where data
    tell next to nothing, ‖Wx‖² is lost beside ‖x‖², and errors of ε²‖x‖², rounding of x, will do.
    """

    tolerance: Float[Any, ""] = eqx.field(converter=np.asarray)
    """an array: another one needs no compilation"""

    def measure(self, iterate, residual, rhs) -> Measured:
        """‖Wx‖² = xᵀ(b − r) − ‖x‖²."""
        size = square_sums(iterate)
        signal = inner_products(iterate, rhs - residual) - size
        least = jnp.finfo(iterate.dtype).eps ** 2 / self.tolerance * size
        return Measured(jnp.maximum(signal, least), norms(residual))

    def met(self, progress: Progress) -> bool:
        """For deviations together and for the mean, which comes last."""
        error = np.minimum(progress.error, progress.measure.residual**2)
        return within(error, progress.measure, float(self.tolerance))


class DualRule(AbstractStoppingRule):
    """The same for x = z + Wᵀ(a + c), whose ‖e‖²_H = ‖r‖² − ‖e_c‖²_V ≤ ‖r‖².

    No residual shows what rounding makes of the sum Wᵀ(a + c), about ε‖W‖_F of the entries there.
    """

    rows: Float[Array, "k1 N"]
    """u and, last, v"""
    rounding: Float[Array, ""]
    """‖·‖² of it for ‖a + c‖ = 1"""
    tolerance: Float[Any, ""] = eqx.field(converter=np.asarray)
    """an array: another one needs no compilation"""
    known: Float[Array, "..."] = eqx.field(converter=jnp.asarray, default=0.0)
    """a, or 0"""

    def measure(self, iterate, residual, rhs) -> Measured:
        """‖Wx‖² with Wx = u − r − a − c."""
        total = self.known + iterate
        unseen = jnp.sqrt(self.rounding) * norms(total)
        return Measured(
            square_sums(self.rows - residual - total), jnp.hypot(norms(residual), unseen)
        )

    def met(self, progress: Progress) -> bool:
        """For deviations together and for the mean, which comes last."""
        measured = progress.measure
        return within(measured.residual**2, measured, float(self.tolerance))


def dual_rule(
    rows: Float[Array, "k1 N"], through: Float[Array, "k1 N"], tolerance: float
) -> DualRule:
    """With ‖W‖_F² = E‖Wz‖².

    Args:
        rows: u and, last, v.
        through: Wz of prior draws z and, last, of nothing.
        tolerance: of the rule.
    """
    epsilon = float(jnp.finfo(rows.dtype).eps)
    each = jnp.mean(square_sums(through[:-1])) / rows.shape[1]
    return DualRule(rows, (2 * epsilon) ** 2 * each, tolerance)


class MeanRule(AbstractStoppingRule):
    """‖e‖²_H ≤ tolerance · max(min(‖x‖², limit), 1) for a mean alone.

    ‖x‖² is γ where the evidence is largest; elsewhere a limit on γ keeps it from being far more.
    The error is judged as by `PrimalRule`.
    """

    limit: Float[Any, ""] = eqx.field(converter=np.asarray)
    tolerance: Float[Any, ""] = eqx.field(converter=np.asarray)
    """an array: another one needs no compilation"""

    def measure(self, iterate, residual, rhs) -> Measured:
        """min(‖x‖², limit) in the place of ‖Wx‖²."""
        return Measured(jnp.minimum(square_sums(iterate), self.limit), norms(residual))

    def met(self, progress: Progress) -> bool:
        """For all."""
        error = np.minimum(progress.error, progress.measure.residual**2)
        wanted = float(self.tolerance) * np.maximum(progress.measure.signal, 1)
        return bool((error <= wanted).all())


def within(error: Float[np.ndarray, " k1"], measured: Measured, tolerance: float) -> bool:
    """Whether the deviations' squared errors together, and the mean's, are small enough."""
    total = max(measured.signal[:-1].sum(), 0.0)
    if not np.isfinite(total):  # of iterates that have run away: beside it any error is small
        return False
    count = len(error) - 1
    return bool(error[:-1].sum() <= tolerance * total and error[-1] <= tolerance * total / count)


def report_of(
    measured: Measured,
    tolerance: float,
    passes: int,
    error: Float[np.ndarray, " k1"] | None = None,
) -> SolverReport:
    """What true residuals certify, and what the solver estimates ‖e‖²_H to be, if it does."""
    each = max(measured.signal[:-1].mean(), np.finfo(float).tiny)
    known = np.isfinite(each)  # beside iterates that have run away any error is small
    share = lambda squares: float(max(squares[:-1].mean(), squares[-1]) / each) if known else np.inf
    with np.errstate(over="ignore"):
        bound = measured.residual**2
        estimate = share(bound if error is None else np.minimum(error, bound))
        return SolverReport(passes, share(bound), estimate, tolerance, measured.residual)


def evaluation_of(
    terms: EvidenceTerms,
    report: SolverReport,
    result: RESULTS,
    rank: Float[np.ndarray, " C"],
    start: PyTree = None,
) -> Evaluation:
    """The evidence from a solve: updates below a tenth of its standard errors are noise.

    So are those below the solver's error, ε²γ, relative to what they are of; where it is most of
    what there is, an evidence is none to go on from.
    """
    error = report.estimate * terms.group_dimension.sum()
    alpha = _relative(SHARE * terms.group_error + error, terms.group_dimension)
    beta = _relative(SHARE * terms.dimension_error + error, rank - terms.output_dimension)
    finite = np.isfinite(terms.log_evidence) and np.isfinite(terms.group_norm).all()
    result = result if finite else RESULTS.non_finite
    if result == RESULTS.successful or (finite and report.estimate <= USABLE):
        return Evaluation(terms, alpha, beta, start=start)
    return Evaluation(terms, alpha, beta, result, usable=False)


def _relative(error: Any, of: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
    """Infinite of nothing."""
    error = np.broadcast_to(error, of.shape)
    return np.divide(error, of, out=np.full(of.shape, np.inf), where=of > 0)
