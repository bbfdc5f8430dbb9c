"""The effective dimension γ = tr H⁻¹M: how many parameters the data determine."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import parameter_structure, ravel
from linmodels._batches import Data, example_batch
from linmodels._expansion import expanded
from linmodels._posterior import Posterior
from linmodels._priors import GaussianPrior
from linmodels._whitening import whitened_rows
from linmodels.likelihoods import AbstractCurved


class Estimate(NamedTuple):
    """A value and its standard error; the error is 0 for exact values."""

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


class SampleNorms(NamedTuple):
    """Norms of k posterior deviations in whitened coordinates."""

    data: Float[Array, " k"]
    """‖Wx_j‖² = ‖ζ_j‖²_M, less 1 for every flat parameter: of mean γ"""
    parameters: Float[Array, " k"]
    """‖x_j‖² = ‖ζ_j‖²_A: of mean d' − γ"""
    num_parameters: int
    """d', the penalised ones"""
    limit: float
    """largest possible γ, min(rank B, d')"""
    least: float | Float[Any, ""] = 0.0
    """smallest possible value, other than 0 where not γ itself is estimated"""


def function_space(norms: SampleNorms) -> Estimate:
    """γ ≈ mean ‖Wx‖², variance 2Σs²/k (Antorán et al. 2023, eq. 4).

    With one deviation the standard error is the bound √(2γ).
    """
    return _estimate(norms.data, norms.limit, norms.least)


def weight_space(norms: SampleNorms) -> Estimate:
    """γ ≈ d' − mean ‖x‖², variance 2Σ(1−s)²/k: for parameters that the data mostly determine.

    With one deviation the standard error is the bound √(2(d' − γ)).
    """
    mirrored = _estimate(norms.parameters, float(norms.num_parameters))
    value = jnp.clip(norms.num_parameters - jnp.mean(norms.parameters), norms.least, norms.limit)
    return Estimate(value, mirrored.standard_error)


def combined(norms: SampleNorms) -> Estimate:
    """Function space with ‖x‖² + ‖Wx‖² (of mean d') as control variate, variance 2(Σs² − γ²/d')/k.

    Each draw's coefficient γ̂/d' comes from the other draws, so that the estimate is unbiased; the
    coefficient's own noise is in the standard error. Fewer than 6 draws fall back to function
    space.
    """
    k, size = norms.data.shape[0], norms.num_parameters
    if k < 6:
        return function_space(norms)
    others = (jnp.sum(norms.data) - norms.data) / (k - 1)
    draws = norms.data + others / size * (size - norms.parameters - norms.data)
    estimate = _estimate(draws, norms.limit, norms.least)
    extra = (2 * estimate.value / ((k - 1) * float(size))) ** 2
    return Estimate(estimate.value, jnp.sqrt(estimate.standard_error**2 + extra))


def num_samples_for(relative_error: float, dimension: float) -> int:
    """k for which any of the estimators knows γ to a relative standard error: ⌈2/(γ ε²)⌉.

    The variance in function space, 2Σs²/k, is at most 2γ/k, and the combined one is smaller.

    Args:
        relative_error: ε > 0.
        dimension: γ > 0, roughly.

    Raises:
        ValueError: either is not positive and finite.

    >>> num_samples_for(0.05, 100.0)
    8
    """
    for name, value in (("relative_error", relative_error), ("dimension", dimension)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}.")
    return int(np.ceil(2 / (dimension * relative_error**2)))


def sample_norms(data: Data, prior: GaussianPrior, posterior: Posterior) -> SampleNorms:
    """What the estimators need of a posterior's deviations, in one pass over the data.

    Likelihoods other than `Gaussian` have their curvature at the posterior mean.

    Args:
        data: the observations, with known noise precision (`posterior.likelihood` of a fit).
        prior: with known α and a settled factor, such as `fit.prior`.
        posterior: with at least one deviation.

    Raises:
        ValueError: no deviations, unknown hyperparameters, or a prior factor without inverse.
    """
    example = example_batch(data)
    if posterior.num_samples == 0 or prior.alpha is None or example.likelihood.learn:
        raise ValueError(
            "sample_norms needs deviations, a known alpha and a known noise precision."
        )
    if isinstance(example.likelihood, AbstractCurved):
        data = expanded(data, posterior.mean)
    deviations = jax.vmap(ravel)(posterior.deviations)
    total, rank = np.zeros(posterior.num_samples), 0.0
    for rows in whitened_rows(data, prior.mean):
        products = np.asarray(rows.design, np.float64) @ np.asarray(deviations, np.float64).T
        total += np.sum(products**2, axis=0)
        rank += float(np.sum(rows.rank))
    structure = parameter_structure(example.design.in_structure())
    num_flat = int(prior.flat_mask(structure).sum())
    coordinates = _coordinates(prior, deviations, structure)
    size = coordinates.shape[1] - num_flat
    return SampleNorms(
        jnp.asarray(total - num_flat, deviations.dtype),
        jnp.sum(coordinates**2, axis=1),
        size,
        min(rank, float(size)),
    )


def _coordinates(
    prior: GaussianPrior, deviations: Float[Array, "k d"], structure: PyTree
) -> Float[Array, "k r"]:
    """x = α^{½} F⁻¹ζ, 0 for flat ones."""
    root, flat = prior.root(structure), prior.flat_mask(structure)
    group, _ = prior.group_labels(structure)
    alpha = jnp.broadcast_to(jnp.asarray(prior.alpha), (int(group.max()) + 1,))
    if root is not None and root.ndim == 2:
        if root.shape[0] != root.shape[1]:
            raise ValueError(f"A prior factor of shape {root.shape} has no inverse.")
        return jnp.sqrt(alpha[0]) * jnp.linalg.solve(root, deviations.T).T
    unscaled = deviations if root is None else deviations / root
    return jnp.where(flat, 0, jnp.sqrt(alpha[group]) * unscaled)


def _estimate(
    draws: Float[Array, " k"], limit: float, least: float | Float[Any, ""] = 0.0
) -> Estimate:
    k, mean = draws.shape[0], jnp.mean(draws)
    value = jnp.clip(mean, least, limit)
    if k == 1:
        return Estimate(value, jnp.sqrt(2 * jnp.abs(jnp.maximum(mean, least))))
    return Estimate(value, jnp.std(draws, ddof=1) / jnp.sqrt(k))
