"""Laplace's approximation: the posterior around its mode, by any method for Gaussian noise."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from linmodels._arrays import is_traced, parameter_structure, ravel, shaped_like, size_of
from linmodels._batches import Data, example_batch
from linmodels._expansion import at_prior_mean, expanded, log_likelihood, prior_mean
from linmodels._mode import Mode, find_mode
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._products import factor_of
from linmodels._results import RESULTS
from linmodels.krylov import AbstractPreconditioner
from linmodels.likelihoods import LOG_2PI, AbstractCurved
from linmodels.methods import (
    AbstractMethod,
    AbstractSystem,
    Carried,
    Evaluation,
    EvidencePath,
    EvidenceTerms,
    Mean,
    Scales,
    Solution,
)

ROUNDINGS = 4
"""Of the expansion's own fit, which is taken off again: huge where a curvature is held far away."""


def prepared(
    data: Data,
    prior: GaussianPrior,
    method: AbstractMethod,
    *,
    num_samples: int,
    key: Array | None,
    curvature_at: PyTree = None,
) -> AbstractSystem:
    """The method's own system for Gaussian noise, else one that goes to the mode first.

    Args:
        data: the observations.
        prior: its g-prior scale, if it has one, is settled at its mean, or at `curvature_at`.
        method: of inference.
        num_samples: k.
        key: of the draws.
        curvature_at: θ at which the curvature is taken; the mode where None.

    Raises:
        ValueError: as the method's `prepare`; traced arguments; a curvature of Gaussian noise.
    """
    likelihood = example_batch(data).likelihood
    if isinstance(likelihood, AbstractCurved):
        return _around_the_mode(data, prior, method, num_samples, key, curvature_at)
    if curvature_at is not None:
        raise ValueError("curvature_at: the curvature of Gaussian noise is the same everywhere.")
    return method.prepare(data, prior, num_samples=num_samples, key=key)


def _around_the_mode(
    data: Data,
    prior: GaussianPrior,
    method: AbstractMethod,
    num_samples: int,
    key: Array | None,
    curvature_at: PyTree,
) -> "LaplaceSystem":
    example = example_batch(data)
    name = type(example.likelihood).__name__
    if is_traced(prior) or (isinstance(data, Observations) and is_traced(data)):
        raise ValueError(f"The mode with {name} is a Python loop: call it outside jit and grad.")
    structure = parameter_structure(example.design.in_structure())
    if curvature_at is not None:
        curvature_at = shaped_like(curvature_at, structure, "curvature_at", "θ")
    if curvature_at is None:
        start = at_prior_mean(data, prior)
    else:
        start = expanded(data, curvature_at, curvature_alone=True)
    first = method.prepare(start, prior, num_samples=num_samples, key=key)
    return LaplaceSystem(
        prior=first.prior,
        reason=f"Laplace's approximation of {name} around the mode; {first.reason}",
        data=data,
        method=method,
        num_samples=num_samples,
        key=key,
        curvature_at=curvature_at,
        structure=structure,
        first_scales=first.scales(),
        held=None if curvature_at is None else first,
    )


class Left(NamedTuple):
    """What an evaluation leaves for the next one."""

    mode: Mode
    inner: PyTree
    """of the method's own evaluation"""
    carried: Carried | None
    """of the curvature at the mode, where it is not held"""


class LaplaceSystem(AbstractSystem):
    """θ | y ≈ N(θ̄, H⁻¹), H = A + ΦᵀB(θ₀)Φ, θ₀ the mode θ̄ or a point of the caller's.

    The evidence is log p(y) ≈ Σ w log p(y|o + Φθ̄) − ½‖x̄‖² − ½ log det(I + WᵀW).
    """

    prior: GaussianPrior
    reason: str
    data: Any
    method: AbstractMethod
    num_samples: int
    key: Array | None
    curvature_at: PyTree
    structure: PyTree = eqx.field(static=True)
    first_scales: Scales
    """at the start"""
    held: AbstractSystem | None
    """the data expanded at θ₀, where that is the caller's: H is the same at every mode"""

    def scales(self) -> Scales:
        """Starts and caps, from the expansion at the prior mean, or where the curvature is.

        In the latter case α starts where α‖x̄‖² = γ at the parameters that the caller names, were
        all eigenvalues of a group the same.
        """
        scales, (_, groups, count) = self.first_scales, self._coordinates
        near = self._first_coordinates(len(groups))
        square = np.bincount(groups, near**2, minlength=count)
        seen = (square > 0) & (scales.information > 0) & (scales.size > 0)
        mean = np.divide(scales.information, scales.size, out=np.ones(count), where=seen)
        dimension = np.divide(scales.size, square, out=np.ones(count), where=seen)
        alpha = 2 * dimension / (1 + np.sqrt(1 + 4 * dimension / mean))
        return scales._replace(alpha=np.where(seen, alpha, scales.alpha))

    def evaluate(
        self,
        alpha: Float[Any, " L"],
        beta: Float[Any, " C"],
        start: "Left | None" = None,
    ) -> Evaluation:
        """Laplace's evidence at α (L,), at its mode; β is 1."""
        mode, system = self._at_mode(alpha, start)
        inner = None if start is None else start.inner
        found = system.evaluate(alpha, beta, inner)
        terms = self._terms(mode, found.terms, alpha)
        noise = np.maximum(found.alpha_noise, mode.norm_error)
        left = Left(mode, found.start, found.carried if self.held is None else None)
        return found._replace(terms=terms, alpha_noise=noise, start=left)

    def nearby(
        self, start: "Left"
    ) -> Callable[[Float[Any, " L"], Float[Any, " C"]], EvidenceTerms]:
        """γ at other α with the curvature that it has at the mode of `start`."""
        system = lambda: self._curved_at(start.mode).carrying(start.carried)
        held = cache(lambda: system().nearby(start.inner))

        def terms(alpha: Float[Any, " L"], beta: Float[Any, " C"]) -> EvidenceTerms:
            return held()(alpha, beta)  # only now is there a look at the data

        return terms

    def solve(
        self,
        alpha: Float[Any, " L"],
        beta: Float[Any, " C"],
        start: "Left | None" = None,
    ) -> Solution:
        """The evidence and the posterior, its mean the mode."""
        mode, system = self._at_mode(alpha, start)
        system = system.carrying(None if start is None else start.carried)
        solution = system.solve(alpha, beta)
        failed = mode.result != RESULTS.successful
        return solution._replace(
            terms=self._terms(mode, solution.terms, alpha),
            posterior=eqx.tree_at(lambda p: p.mean, solution.posterior, mode.parameters),
            result=mode.result if failed else solution.result,
        )

    @property
    def path(self) -> EvidencePath:
        """Not available: the curvature changes with the mode, and that with α.

        Raises:
            ValueError: always.
        """
        raise ValueError("An evidence path needs Gaussian noise: use maximise_evidence.")

    def _at_mode(
        self, alpha: Float[np.ndarray, " L"], start: "Left | None"
    ) -> tuple[Mode, AbstractSystem]:
        flat, groups, _ = self._coordinates
        precision = np.where(flat, 0, np.asarray(alpha, np.float64)[groups])
        similar = self._similar(alpha, precision, None if start is None else start.carried)

        def newton(here: Mode, closeness: float) -> Mean:
            data, near = expanded(self.data, here.parameters), here.coordinates
            return self.method.mean(data, self.prior, alpha, near, closeness, similar)

        before = None if start is None else start.mode
        if before is None or before.result != RESULTS.successful:
            before = self._first_mode(precision)
        mode = find_mode(self.data, newton, precision, before, any_flat=bool(flat.any()))
        return mode, self._curved_at(mode)

    def _similar(
        self, alpha: np.ndarray, precision: Float[np.ndarray, " r"], carried: Carried | None
    ) -> AbstractPreconditioner | None:
        """Of the curvature that is held, else of the one at the mode before."""
        if self.held is not None:
            return self.held.for_similar(alpha, np.ones(1))
        if carried is None:
            return None
        scale = np.where(precision > 0, precision, np.inf) ** -0.5
        return carried.at(jnp.asarray(scale, carried.scale.dtype))

    def _curved_at(self, mode: Mode) -> AbstractSystem:
        """Of H; its targets, and so its mean, are of no use where the curvature is held."""
        if self.held is not None:
            return self.held
        data = expanded(self.data, mode.parameters)
        arguments = {"num_samples": self.num_samples, "key": self.key}
        return self.method.prepare(data, self.prior, **arguments)

    def _first_mode(self, precision: Float[np.ndarray, " r"]) -> Mode:
        start, mean = (
            self._first_coordinates(len(precision)),
            prior_mean(self.prior, self.structure),
        )
        found = self.method.approach_mode(self.data, self.prior, precision, start, self.key)
        if not found.any():
            return Mode(mean, found, RESULTS.successful, 0)
        dtype = jnp.result_type(*jax.tree.leaves(mean))
        move = factor_of(self.prior, self.structure).parameters(jnp.asarray(found, dtype))
        return Mode(jax.tree.map(jnp.add, mean, move), found, RESULTS.successful, 0)

    def _first_coordinates(self, size: int) -> Float[np.ndarray, " r"]:
        """F⁻¹(θ₀ − μ) where the caller names θ₀ and F is diagonal, else 0.

        The likelihood may be far from quadratic between there and the prior mean: outputs of a
        linearised network without their weights are like none that it was trained to.
        """
        operator = factor_of(self.prior, self.structure).operator
        if self.curvature_at is None or not (operator is None or lx.is_diagonal(operator)):
            return np.zeros(size)
        mean = prior_mean(self.prior, self.structure)
        away = np.asarray(ravel(self.curvature_at), np.float64) - np.asarray(ravel(mean))
        root = np.ones(size) if operator is None else np.asarray(lx.diagonal(operator), np.float64)
        return np.divide(away, root, out=np.zeros(size), where=root != 0)

    def _terms(self, mode: Mode, terms: EvidenceTerms, alpha: np.ndarray) -> EvidenceTerms:
        """Laplace's evidence from that of the expansion, less its constant, fit and penalty."""
        flat, groups, count = self._coordinates
        squares = np.where(flat, 0, mode.coordinates**2)
        norm = np.asarray(alpha, np.float64) * np.bincount(groups, squares, minlength=count)
        rest = (
            terms.residual.sum() + terms.group_norm.sum() + LOG_2PI * self.first_scales.rank.sum()
        )
        fitted = log_likelihood(self.data, mode.parameters)
        cancelled = ROUNDINGS * np.finfo(float).eps * np.abs(rest)
        return terms._replace(
            log_evidence=fitted - 0.5 * norm.sum() + terms.log_evidence + 0.5 * rest,
            log_evidence_error=np.hypot(terms.log_evidence_error, cancelled),
            group_norm=norm,
        )

    @property
    def _coordinates(self) -> tuple[Bool[np.ndarray, " r"], Int[np.ndarray, " r"], int]:
        """Which coordinates are flat, the group of each, and the number of groups."""
        if self.prior.flat is None and self.prior.groups is None:
            factor = self.prior.factor
            size = size_of(self.structure) if factor is None else factor.in_size()
            return np.zeros(size, bool), np.zeros(size, int), 1
        return self.prior.flat_mask(self.structure), *self.prior.group_labels(self.structure)
