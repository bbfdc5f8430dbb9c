"""Strengths of prior and noise, and how far one step may take them."""

import numpy as np
from jaxtyping import Float

from linmodels.methods import Hyperparameters, Scales

MAX_RATIO = 1e4
"""Largest change of a hyperparameter in one step."""
MAX_GROUP_RATIO = 1e12
"""Largest ratio of two groups' strengths: what a weaker one adds to the outputs, 1e-6 of the
stronger's standard deviation, is rounding in float32."""
NEGLIGIBLE = 1e-10
"""α is capped where the group's effective dimension has sunk to this."""


def initial(scales: Scales, learn_noise: bool) -> Hyperparameters:
    """Starts on the data's own scale."""
    beta = np.ones_like(scales.noise_precision)
    if learn_noise and (scales.rank > 0).any():
        seen = scales.noise_precision[scales.rank > 0]
        beta = np.where(scales.rank > 0, scales.noise_precision, seen.max())
    return Hyperparameters(np.where(scales.information > 0, scales.alpha, 1.0), beta)


def bounded(
    proposed: Hyperparameters, current: Hyperparameters, scales: Scales, learn_noise: bool
) -> Hyperparameters:
    """What a step may make of a proposal: steps and values are capped.

    α is capped where its group has nothing left to learn, or is far weaker than another; β where
    the model interpolates the targets. What no observation informs, or what is known, stays.
    """
    alpha = _near(proposed.alpha, current.alpha)
    alpha = np.clip(alpha, *alpha_limits(alpha, current.beta, scales))
    alpha = np.where(scales.information > 0, alpha, current.alpha)
    if not learn_noise:
        return Hyperparameters(alpha, current.beta)
    beta = np.minimum(_near(proposed.beta, current.beta), scales.max_noise_precision)
    return Hyperparameters(alpha, np.where(scales.rank > 0, beta, current.beta))


def alpha_limits(
    alpha: Float[np.ndarray, " L"], beta: Float[np.ndarray, " C"], scales: Scales
) -> tuple[Float[np.ndarray, " L"], Float[np.ndarray, " L"]]:
    """Smallest and largest α.

    At one nearly all of a group is prior, at the other nearly nothing, or the prior's share in the
    outputs, tr(Φ_l A_l⁻¹ Φ_lᵀ) = information/α, is `MAX_GROUP_RATIO` below that of another group.
    """
    seen = scales.information > 0
    strength = scales.information * beta.max()
    lower = np.where(seen, strength * 1e-24, 1e-300)
    share = np.max(scales.information / alpha, initial=0.0)
    weakest = scales.information * (MAX_GROUP_RATIO / share) if share > 0 else np.inf
    return lower, np.where(seen, np.minimum(strength / NEGLIGIBLE, weakest), np.inf)


def _near(proposed: np.ndarray, current: np.ndarray) -> np.ndarray:
    return np.clip(proposed, current / MAX_RATIO, current * MAX_RATIO)
