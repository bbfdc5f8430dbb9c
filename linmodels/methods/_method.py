"""What every method of inference offers to `infer` and `maximise_evidence`."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import is_traced
from linmodels._batches import Data
from linmodels._observations import Observations
from linmodels._posterior import Posterior
from linmodels._priors import GaussianPrior
from linmodels._results import RESULTS
from linmodels.krylov import AbstractPreconditioner
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._evidence_terms import EvidenceTerms
from linmodels.methods._sketch import Carried


class GradientVariances(NamedTuple):
    """Of a minibatch's gradient at the solution, summed over coordinates; a mean of deviations.

    In whitened coordinates, at the batch size of the data.
    """

    fit: float
    """noise in the fit, L"""
    regulariser: float
    """noise in the regulariser, L′"""
    predicted_difference: float
    """fit − regulariser as expected of exact samples: above 0 where L′ is the quieter loss"""


class DescentReport(NamedTuple):
    """How the last descent of `SampleThenOptimise` went."""

    rate: float
    """first step, times the largest curvature where it is automatic"""
    curvature: float
    """largest eigenvalue of a minibatch's Hessian, scaled to all data, that was seen"""
    loss: Float[np.ndarray, " k1"]
    """of every deviation and, last, of the mean, averaged over the last steps"""
    variances: GradientVariances


class SolverReport(eqx.Module):
    """How well an iterative method has solved, in ε² = E‖e‖²_H / γ, e the error of a deviation.

    Variances estimated from k deviations are off by √(2/k) anyway, so that ε² ≤ 1/(8k) keeps the
    solver's part below half of that. The mean is held to the same: where its ‖e‖²_H is larger than
    that of the deviations on average, ε² is its.

    Attributes:
        passes: products of the whole block with the data.
        certificate: upper bound on ε², from true residuals.
        estimate: of ε², from how the last steps lowered it; the certificate where that is smaller.
        tolerance: what ε² was to reach.
        residuals: ‖b − Hx‖ of every deviation and, last, of the mean, (k + 1,).
        descent: how stochastic gradients went, if they were taken.
    """

    passes: int
    certificate: float
    estimate: float
    tolerance: float
    residuals: Float[np.ndarray, " k1"]
    descent: DescentReport | None = None


class Hyperparameters(NamedTuple):
    """α of every group and β of every noise precision."""

    alpha: Float[np.ndarray, " L"]
    beta: Float[np.ndarray, " C"]


class Solution(NamedTuple):
    """The evidence and the posterior at some hyperparameters."""

    terms: EvidenceTerms
    posterior: Posterior
    result: RESULTS = RESULTS.successful
    report: SolverReport | None = None
    coordinates: Float[Any, " r"] | None = None
    """F⁻¹(θ̄ − μ), anything at flat parameters, where a dense method knows it"""


NOTHING = 1e-10
"""Squared error of a mean, ‖e‖²_H over γ, that is none to speak of."""


class Mean(NamedTuple):
    """A posterior mean, solved for alone."""

    coordinates: Float[Any, " r"]
    """F⁻¹(θ̄ − μ), anything at flat parameters"""
    parameters: PyTree
    """θ̄"""
    size: float
    """γ or a bound on it: the unit of closeness"""
    closeness: float
    """‖e‖²_H over that, as asked for, or as reached where it was not"""
    finest: bool
    """whether the method comes no closer"""
    result: RESULTS = RESULTS.successful

    @property
    def norm_error(self) -> float:
        """Relative error of ‖x̄‖² that the solver may have left; 0 where it is none to speak of."""
        return 2 * self.closeness**0.5 if self.closeness > NOTHING else 0.0


class Evaluation(NamedTuple):
    """The evidence at some hyperparameters."""

    terms: EvidenceTerms
    alpha_noise: Float[Any, "*L"] = 0.0
    """relative changes of α below which an update is noise of the solver or of the samples"""
    beta_noise: Float[Any, "*C"] = 0.0
    """the same of β"""
    result: RESULTS = RESULTS.successful
    """how the method ended, where the noises above do not say all about that"""
    usable: bool = True
    """whether hyperparameters can go on from this"""
    start: PyTree = None
    """from where an evaluation at hyperparameters near by may go on: arrays, or nothing"""
    carried: Carried | None = None
    """what preconditions problems of a curvature like this one, where it was made for this one"""


class Scales(NamedTuple):
    """Data-dependent units of the hyperparameters: starts and caps."""

    alpha: Float[Any, " L"]
    """where the prior's variance of the outputs equals that of the targets"""
    noise_precision: Float[Any, " C"]
    """1 / variance of the targets"""
    information: Float[Any, " L"]
    """tr (F₀ᵀΦᵀB₀ΦF₀)_ll: what the data say about a group at unit noise"""
    size: Float[Any, " L"]
    """d_l: the number of penalised parameters"""
    max_noise_precision: Float[Any, " C"]
    """beyond which residuals are rounding"""
    rank: Float[Any, " C"]
    """Σ w rank B₀: the number of observed entries"""


class AbstractSystem(eqx.Module):
    """Data and prior prepared so that any hyperparameters are cheap to try."""

    prior: eqx.AbstractVar[GaussianPrior]
    """the prior with its factor settled"""
    reason: eqx.AbstractVar[str]
    """method, side and why, for people"""

    @abc.abstractmethod
    def scales(self) -> Scales:
        """Units in which hyperparameters start and stop."""

    @abc.abstractmethod
    def evaluate(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: PyTree = None
    ) -> Evaluation:
        """The evidence at α (L,) and noise precisions β (C,), from the `start` of another."""

    @abc.abstractmethod
    def solve(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: PyTree = None
    ) -> Solution:
        """The evidence and the posterior there; a `start` changes them by less than their error."""

    def nearby(
        self, start: PyTree
    ) -> Callable[[Float[Any, " L"], Float[Any, " C"]], EvidenceTerms]:
        """γ at other hyperparameters, beside the evaluation that has left this `start`.

        Where the curvature depends on θ it is held; the other terms then are of no use.
        """
        return lambda alpha, beta: self.evaluate(alpha, beta, start).terms

    def for_similar(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"]
    ) -> AbstractPreconditioner | None:
        """What preconditions problems of a curvature like this one, if that is affordable."""
        return None

    @property
    def has_path(self) -> bool:
        """Whether there is a path, at little cost beside the evaluations."""
        return False

    def carrying(self, carried: Carried | None) -> "AbstractSystem":
        """The same, with what an `Evaluation` of a curvature like this one has carried."""
        return self

    @property
    @abc.abstractmethod
    def path(self) -> EvidencePath:
        """The evidence of one α and one noise precision, for every value.

        Raises:
            ValueError: there are several of either.
        """


class AbstractMethod(eqx.Module):
    """How posteriors are computed."""

    @abc.abstractmethod
    def prepare(
        self, data: Data, prior: GaussianPrior, *, num_samples: int, key: Array | None
    ) -> AbstractSystem:
        """Looks at the data once and returns what depends on no hyperparameter."""

    @abc.abstractmethod
    def mean(
        self,
        data: Data,
        prior: GaussianPrior,
        alpha: Float[np.ndarray, " L"],
        near: Float[np.ndarray, " r"],
        closeness: float,
        similar: AbstractPreconditioner | None,
    ) -> Mean:
        """The posterior mean alone, at unit noise.

        Args:
            data: the observations.
            prior: with its factor settled.
            alpha: α.
            near: coordinates F⁻¹(θ − μ) near the mean, anything at flat parameters.
            closeness: ‖e‖²_H over γ that will do.
            similar: of a problem like this one, if one was solved.
        """

    @abc.abstractmethod
    def approach_mode(
        self,
        data: Data,
        prior: GaussianPrior,
        precision: Float[np.ndarray, " r"],
        start: Float[np.ndarray, " r"],
        key: Array | None,
    ) -> Float[np.ndarray, " r"]:
        """Coordinates F⁻¹(θ − μ) nearer to the mode; `start` where Newton steps do as well.

        Args:
            data: the observations, of another likelihood than `Gaussian`.
            prior: with its factor settled.
            precision: α of every coordinate, 0 at flat ones.
            start: coordinates to start from.
            key: of the draws.
        """


def required_key(
    name: str, data: Data, prior: GaussianPrior, num_samples: int, key: Array | None
) -> Array:
    """The key of a method that is a Python loop and estimates from samples.

    Raises:
        ValueError: no key or no samples, or arguments that are traced.
    """
    if is_traced(prior) or (isinstance(data, Observations) and is_traced(data)):
        raise ValueError(f"{name} is a Python loop: call it outside jit, vmap and grad.")
    if num_samples < 1 or key is None:
        raise ValueError(
            f"{name} estimates the effective dimension and the log determinant from samples: "
            "give num_samples of at least 1 and a key."
        )
    return key
