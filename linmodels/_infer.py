"""`infer`: the posterior at given hyperparameters."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arguments import require_arguments
from linmodels._arrays import is_traced, parameter_structure
from linmodels._batches import Data, example_batch
from linmodels._laplace import prepared
from linmodels._plan import Plan, followed
from linmodels._posterior import Posterior
from linmodels._priors import GaussianPrior
from linmodels._results import RESULTS, Flag
from linmodels.likelihoods import AbstractLikelihood
from linmodels.methods import AbstractMethod, Hyperparameters, Solution, SolverReport


class Fit(eqx.Module):
    """A posterior with the hyperparameters it was computed at.

    Attributes:
        posterior: of θ.
        prior: with α and the factor in force.
        likelihood: with the noise precision in force, if it has one.
        log_evidence: log p(y | α, B) in nats; flat parameters are integrated with density 1.
        effective_dimension: γ, the number of penalised parameters that the data determine.
        group_dimensions: γ_l, the same of every group of parameters that has an α, (L,).
        group_norms: ‖θ̄_l − μ_l‖²_A of every group, (L,): γ_l where the evidence is largest.
        noise_scale: learned β, by which the given likelihood's precision was multiplied, (C,);
            1 where it is known.
        num_observations: n, with observations of weight 0.
        result: how the computation ended.
        method: of inference; `reason` says why it was chosen.
        steps: of learning; 0 for `infer`.
        flags: what is degenerate; empty as a rule.
        log_evidence_error: standard error of `log_evidence`; 0 where the method is exact.
        effective_dimension_error: standard error of `effective_dimension`; likewise.
        group_dimension_errors: standard errors of `group_dimensions`, (L,); likewise.
        alpha_errors: standard errors of log α of every group that the noise of a method's own
            estimates makes, (L,): 0 where α is given or the method exact, NaN where steps by
            samples do not tell (of groups or several outputs; not of `BlockCG` with one of each).
        noise_scale_errors: the same of log `noise_scale`, (C,).
        solver: how well an iterative method has solved; None where the method is exact.
        plan: what `plan` expected of the method that it chose; None where the caller chose.
    """

    posterior: Posterior
    prior: GaussianPrior
    likelihood: AbstractLikelihood
    log_evidence: Float[Array, ""]
    effective_dimension: Float[Array, ""]
    group_dimensions: Float[Array, " L"]
    group_norms: Float[Array, " L"]
    noise_scale: Float[Array, " C"]
    num_observations: int = eqx.field(static=True)
    result: RESULTS
    method: AbstractMethod
    reason: str = eqx.field(static=True)
    steps: int = eqx.field(static=True, default=0)
    flags: tuple[Flag, ...] = eqx.field(static=True, default=())
    log_evidence_error: Float[Any, ""] = 0.0
    effective_dimension_error: Float[Any, ""] = 0.0
    group_dimension_errors: Float[Any, "*L"] = 0.0
    alpha_errors: Float[Any, "*L"] = 0.0
    noise_scale_errors: Float[Any, "*C"] = 0.0
    solver: SolverReport | None = None
    plan: Plan | None = eqx.field(static=True, default=None)


class FitError(RuntimeError):
    """A fit that did not end well; `fit` is what there is of it."""

    def __init__(self, message: str, fit: Fit):
        super().__init__(message)
        self.fit = fit


def infer(
    data: Data,
    prior: GaussianPrior | None = None,
    *,
    method: AbstractMethod | None = None,
    num_samples: int = 64,
    key: Array | None = None,
    curvature_at: PyTree = None,
    throw: bool = True,
) -> Fit:
    """The posterior of θ at a known α and noise precision.

    Other likelihoods than `Gaussian` have Laplace's approximation around the mode, which damped
    Newton steps find, each by the method. Safe under jit, vmap and grad for a lone `Observations`
    with `Exact` and Gaussian noise.

    Args:
        data: observations with known noise, such as `Gaussian(4.0)`.
        prior: with known α.
        method: of inference; as `plan` chooses by default.
        num_samples: k, the deviations to draw; 0 needs no key.
        key: of the draws: the same key gives the same draws, whatever the batching or precision.
        curvature_at: θ at which the curvature of the likelihood is taken for samples, evidence and
            the g-prior, shaped as θ; the mode (and the prior mean for the g-prior) where None.
            The search of the mode begins there, if the prior's factor is diagonal.
        throw: raise where the result is not successful; outside jit only.

    Returns:
        A `Fit`.

    Raises:
        ValueError: unknown hyperparameters, a missing key, data that do not fit or are not finite.
        FitError: the posterior is not finite or its mode was not found, and `throw`.

    >>> import jax.numpy as jnp, lineax as lx
    >>> from linmodels import Gaussian, Observations
    >>> design = lx.MatrixLinearOperator(jnp.array([[1.0], [2.0]]))
    >>> data = Observations(design, jnp.array([1.0, 1.0]), Gaussian(1.0))
    >>> fit = infer(data, GaussianPrior(1.0), num_samples=0)
    >>> float(fit.posterior.mean[0])
    0.5
    """
    require_arguments(data, prior, method, num_samples, key)
    example = example_batch(data)
    if prior is None or prior.alpha is None:
        raise ValueError(
            "alpha is unknown: give a prior such as GaussianPrior(1.0), or use maximise_evidence."
        )
    if example.likelihood.learn:
        raise ValueError("The noise precision is unknown: give it, or use maximise_evidence.")
    method, made = followed(method, data, prior, num_samples)
    arguments = {"num_samples": num_samples, "key": key, "curvature_at": curvature_at}
    system = prepared(data, prior, method, **arguments)
    alpha = _per_group(prior, parameter_structure(example.design.in_structure()))
    beta = np.ones(1)
    solution = system.solve(alpha, beta)
    settled = system.prior.with_alpha(prior.alpha)
    about = method, system.reason, made
    return finish(data, *about, settled, beta, solution, throw=throw)


def log_evidence(
    data: Data, prior: GaussianPrior, *, method: AbstractMethod | None = None
) -> Float[Array, ""]:
    """log p(y | α, B), in nats; differentiable in α and the data of a lone Gaussian `Observations`.

    Raises:
        ValueError: as `infer`.

    >>> import jax.numpy as jnp, lineax as lx
    >>> from linmodels import Gaussian, Observations
    >>> design = lx.MatrixLinearOperator(jnp.array([[1.0], [2.0]]))
    >>> data = Observations(design, jnp.array([1.0, 1.0]), Gaussian(1.0))
    >>> round(float(log_evidence(data, GaussianPrior(1.0))), 4)
    -2.9838
    """
    return infer(data, prior, method=method, num_samples=0).log_evidence


def finish(
    data: Data,
    method: AbstractMethod,
    reason: str,
    chosen: Plan | None,
    prior: GaussianPrior,
    noise_scale: Float[np.ndarray, " C"],
    solution: Solution,
    *,
    steps: int = 0,
    flags: tuple[Flag, ...] = (),
    errors: Hyperparameters | None = None,
    result: RESULTS = RESULTS.successful,
    throw: bool,
) -> Fit:
    """Checks a solution and puts the fit together."""
    terms, posterior = solution.terms, solution.posterior
    dtype = jnp.result_type(*jax.tree.leaves(posterior.mean))
    evidence = jnp.asarray(terms.log_evidence, dtype)
    result = result if solution.result == RESULTS.successful else solution.result
    finite = _all_finite((posterior.mean, posterior.deviations, evidence, terms.group_dimension))
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    example = example_batch(data)
    likelihood = example.likelihood.known(noise_scale, example.targets)
    posterior = eqx.tree_at(lambda p: p.likelihood, posterior, likelihood)
    known = np.zeros(len(terms.group_dimension)), np.zeros(len(noise_scale))
    alpha_errors, noise_errors = known if errors is None else errors
    fit = Fit(
        posterior,
        prior,
        likelihood,
        evidence,
        jnp.asarray(terms.group_dimension.sum(), dtype),
        jnp.asarray(terms.group_dimension, dtype),
        jnp.asarray(terms.group_norm, dtype),
        jnp.asarray(noise_scale, dtype),
        data.num_observations,
        result,
        method,
        reason,
        steps,
        flags,
        jnp.asarray(terms.log_evidence_error, dtype),
        jnp.asarray(terms.dimension_error, dtype),
        jnp.broadcast_to(jnp.asarray(terms.group_error, dtype), terms.group_dimension.shape),
        jnp.asarray(alpha_errors, dtype),
        jnp.asarray(noise_errors, dtype),
        solution.report,
        chosen,
    )
    if throw and not is_traced(evidence) and result != RESULTS.successful:
        raise FitError(f"{RESULTS[result]} The fit as it is: `error.fit`, or throw=False.", fit)
    return fit


def _per_group(prior: GaussianPrior, structure: PyTree) -> Any:
    count = prior.group_labels(structure)[1]
    xp, dtype = (jnp, None) if is_traced(prior.alpha) else (np, np.float64)
    return xp.broadcast_to(xp.asarray(prior.alpha, dtype), (count,))


def _all_finite(tree: PyTree) -> Any:
    xp = jnp if is_traced(tree) else np  # on the host nothing compiles
    return xp.all(xp.stack([xp.all(xp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
