"""MacKay's updates of α and of the noise precision."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from linmodels._results import Flag, FlagKind
from linmodels.methods import EvidenceTerms, Scales

MAX_RATIO = 1e4
"""Largest change of a hyperparameter in one step."""
NEGLIGIBLE = 1e-10
"""α is capped where the group's effective dimension has sunk to this."""
RUNAWAY = 1e-3
"""|log ratio| of an update above which a hyperparameter is still on its way."""


class Hyperparameters(NamedTuple):
    """α of every group and β of every noise precision."""

    alpha: Float[np.ndarray, " L"]
    beta: Float[np.ndarray, " C"]


def mackay(
    current: Hyperparameters, terms: EvidenceTerms, scales: Scales, learn_noise: bool
) -> Hyperparameters:
    """α_l ← α_l γ_l / ‖x̄_l‖² and β_c ← β_c (N_c − γ_c) / ‖residual_c‖² at unit noise.

    MacKay (1992); its fixed points are those of the evidence. Steps and values are capped: α where
    its group has nothing left to learn, β where the model interpolates the targets.
    """
    alpha = _ratio_step(current.alpha, terms.group_dimension, terms.group_norm)
    alpha = np.clip(alpha, *alpha_limits(current.beta, scales))
    alpha = np.where(scales.information > 0, alpha, current.alpha)
    if not learn_noise:
        return Hyperparameters(alpha, current.beta)
    left = np.maximum(scales.rank - terms.output_dimension, 0)
    beta = _ratio_step(current.beta, left, current.beta * terms.residual)
    beta = np.minimum(beta, scales.max_noise_precision)
    return Hyperparameters(alpha, np.where(scales.rank > 0, beta, current.beta))


def alpha_limits(beta: Float[np.ndarray, " C"], scales: Scales) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest α: where nearly all, or nearly nothing, of a group is prior."""
    strength = scales.information * beta.max()
    lower = np.where(strength > 0, strength * 1e-24, 1e-300)
    return lower, np.where(strength > 0, strength / NEGLIGIBLE, np.inf)


def flags(
    current: Hyperparameters, growth: Hyperparameters, scales: Scales, learn_noise: bool
) -> tuple[Flag, ...]:
    """What is degenerate about settled hyperparameters.

    Args:
        current: the hyperparameters.
        growth: log ratio that one more update would give; those still growing have no maximum.
        scales: units of the hyperparameters.
        learn_noise: whether the noise precision was learned.
    """
    unseen = scales.information <= 0
    _, upper = alpha_limits(current.beta, scales)
    runaway = (growth.alpha >= RUNAWAY / 2) | (current.alpha >= 0.99 * upper)
    found = _flags(FlagKind.NOTHING_OBSERVED, unseen)
    found += _flags(FlagKind.PRIOR_PRECISION_INFINITE, ~unseen & runaway)
    if learn_noise:
        seen = scales.rank > 0
        capped = current.beta >= 0.99 * scales.max_noise_precision
        runaway = capped | (growth.beta >= RUNAWAY / 2)
        found += _flags(FlagKind.NOTHING_OBSERVED, ~seen)
        found += _flags(FlagKind.NOISE_PRECISION_INFINITE, seen & runaway)
    return found


def _flags(kind: FlagKind, where: Bool[np.ndarray, " L"]) -> tuple[Flag, ...]:
    return tuple(Flag(kind, int(i)) for i in np.flatnonzero(where))


def _ratio_step(value: np.ndarray, numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    safe = np.where(denominator > 0, denominator, 1)
    ratio = np.where(denominator > 0, numerator / safe, MAX_RATIO)
    return value * np.clip(ratio, 1 / MAX_RATIO, MAX_RATIO)
