"""The effective dimension γ = tr H⁻¹M: how many parameters the data determine."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._arrays import parameter_structure, ravel
from linmodels._observations import Data, example_batch
from linmodels._posterior import Posterior
from linmodels._priors import GaussianPrior
from linmodels._whitening import whitened_rows


class Estimate(NamedTuple):
    """A value and its standard error; the error is 0 for exact values."""

    value: Float[Array, ""]
    standard_error: Float[Array, ""]


def function_space(data_norms: Float[Array, " k"], limit: float) -> Estimate:
    """γ ≈ mean ‖Wx‖², variance 2Σs²/k (Antorán et al. 2023, eq. 4).

    Args:
        data_norms: ‖Wx_j‖² = ‖ζ_j‖²_M of k posterior deviations.
        limit: largest possible γ, min(rank B, d').

    With one deviation the standard error is the bound √(2γ).
    """
    return _estimate(data_norms, limit)


def weight_space(parameter_norms: Float[Array, " k"], size: int, limit: float) -> Estimate:
    """γ ≈ d' − mean ‖x‖², variance 2Σ(1−s)²/k.

    Args:
        parameter_norms: ‖x_j‖² = ‖ζ_j‖²_A of k posterior deviations.
        size: d', the number of penalised parameters.
        limit: largest possible γ.
    """
    return _estimate(size - parameter_norms, limit)


def combined(
    data_norms: Float[Array, " k"], parameter_norms: Float[Array, " k"], size: int, limit: float
) -> Estimate:
    """Function space with ‖x‖² + ‖Wx‖² (of mean d') as control variate, variance 2(Σs² − γ²/d')/k.

    Each draw's coefficient γ̂/d' comes from the other draws, so that the estimate is unbiased; the
    coefficient's own noise is in the standard error. Fewer than 6 draws fall back to function
    space.

    Args:
        data_norms: ‖Wx_j‖².
        parameter_norms: ‖x_j‖².
        size: d', the number of penalised parameters.
        limit: largest possible γ.
    """
    k = data_norms.shape[0]
    if k < 6:
        return function_space(data_norms, limit)
    others = (jnp.sum(data_norms) - data_norms) / (k - 1)
    draws = data_norms + others / size * (size - parameter_norms - data_norms)
    estimate = _estimate(draws, limit)
    extra = 4 * estimate.value**2 / ((k - 1) ** 2 * size)
    return Estimate(estimate.value, jnp.sqrt(estimate.standard_error**2 + extra))


def sample_norms(
    data: Data, prior: GaussianPrior, posterior: Posterior
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """‖Wx_j‖² and ‖x_j‖² of a posterior's deviations, in one pass over the data.

    Args:
        data: the observations, with known noise precision.
        prior: with known α and a settled factor (that of a fit).
        posterior: with at least one deviation.

    Returns:
        Norms in function space and in weight space, (k,) each; flat parameters are projected out
        of neither.

    Raises:
        ValueError: no deviations, an unknown α, or a factor that is singular.
    """
    if posterior.num_samples == 0 or prior.alpha is None:
        raise ValueError("sample_norms needs deviations and a prior with known alpha.")
    deviations = jax.vmap(ravel)(posterior.deviations)
    total = np.zeros(posterior.num_samples)
    for rows in whitened_rows(data, prior.mean):
        products = np.asarray(rows.design) @ np.asarray(deviations).T
        total += np.sum(products**2, axis=0, dtype=np.float64)
    coordinates = _coordinates(prior, deviations, example_batch(data).design.in_structure())
    return jnp.asarray(total, deviations.dtype), jnp.sum(coordinates**2, axis=1)


def _coordinates(prior: GaussianPrior, deviations: Array, structure) -> Float[Array, "k r"]:
    """x = α^{½} F⁻¹ζ, flat ones left out."""
    structure = parameter_structure(structure)
    root, flat = prior.root(structure), prior.flat_mask(structure)
    group, _ = prior.group_labels(structure)
    alpha = jnp.broadcast_to(jnp.asarray(prior.alpha), (int(group.max()) + 1,))
    if root is not None and root.ndim == 2:
        if root.shape[0] != root.shape[1]:
            raise ValueError(f"A prior factor of shape {root.shape} has no inverse.")
        return jnp.sqrt(alpha[0]) * jnp.linalg.solve(root, deviations.T).T
    unscaled = deviations if root is None else deviations / root
    return jnp.where(flat, 0, jnp.sqrt(alpha[group]) * unscaled)


def _estimate(draws: Float[Array, " k"], limit: float) -> Estimate:
    k, mean = draws.shape[0], jnp.mean(draws)
    value = jnp.clip(mean, 0, limit)
    if k == 1:
        return Estimate(value, jnp.sqrt(2 * jnp.maximum(mean, 0)))
    return Estimate(value, jnp.std(draws, ddof=1) / jnp.sqrt(k))
