"""Where the evidence has no maximum, and what is then said about it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from linmodels._hyperparameters import NEGLIGIBLE, alpha_limits, bounded, initial
from linmodels._results import Flag, FlagKind
from linmodels.m_steps import Expectation, mackay
from linmodels.methods import (
    AbstractSystem,
    Evaluation,
    EvidenceTerms,
    Hyperparameters,
    Scales,
)

FLAT = 1e-6
"""Slope of the log evidence, in nats for a factor of e, below which it counts as flat."""
RUNAWAY = 1e-3
"""log ratio of MacKay's update above which a hyperparameter is still on its way."""
FAINT = 0.05
"""γ_l of a group that counts as not needed once a method can tell no more for its noise: the
evidence would lose about half of it, in nats."""
ERRORS = 2.0
"""Standard errors of a `FAINT` γ_l that a method may be off."""
FADED = 1.0
"""tr M_ll/α_l, a bound on γ_l and on its largest eigenvalue, at which α_l is above all of them:
from there γ_l and ‖x̄_l‖² fall together, so that nothing ahead would stop α_l."""
NOISE = 0.1
"""Share of a standard error that an excess over ‖x̄_l‖² must be above: draws stay the same."""
CANDIDATES = 8
"""Groups without a maximum that are tried alone."""
UPDATES = 6
"""Of a group alone: its evidence then is no more than at its maximum."""
EVIDENT = 3.0
"""Nats that a group alone must gain on none, at least."""
LOST = 2.0
"""Nats of evidence that may be lost where a method's noise is no more than the targets' own."""
SHARE = 0.5
"""Share of the gain of all groups together that makes it as good an explanation."""


def expected(
    found: Evaluation,
    system: AbstractSystem,
    current: Hyperparameters,
    scales: Scales,
    learn_noise: bool,
) -> Expectation:
    """What an M-step needs of an evaluation at the present hyperparameters."""
    noises = zip((found.alpha_noise, found.beta_noise), current, strict=True)
    noise = np.concatenate([np.broadcast_to(noise, values.shape) for noise, values in noises])
    elsewhere = system.nearby(found.start)
    return Expectation(current, found.terms, scales, learn_noise, elsewhere, noise)


class Outlook(NamedTuple):
    """How far hyperparameters are from where the evidence is stationary."""

    change: float
    """largest |log ratio| of MacKay's update, but for those that are noise or run away"""
    runaway: Bool[np.ndarray, " H"]
    """whether α (L) or β (C) grows along a flat evidence"""


def outlook(expectation: Expectation) -> Outlook:
    """How far it still is, from slopes: the log ratio of MacKay's update is one over γ/2.

    Whatever the M-step: a small step may be a slow one. What MacKay's update would still move by
    more than `RUNAWAY` for less than `FLAT` nats, or to where γ_l is within its own error, has no
    maximum; nor has what is at a `FAINT` γ_l within noise, or within its standard errors, of where
    it would settle, as far as can be told.
    """
    current, terms, scales, learn_noise, _, noise = expectation
    target = bounded(mackay(expectation), current, scales, learn_noise)
    ratios = np.log(np.concatenate(target) / np.concatenate(current))
    left = scales.rank - terms.output_dimension - current.beta * terms.residual
    slopes = 0.5 * np.abs(np.concatenate([terms.group_dimension - terms.group_norm, left]))
    distances, count = np.abs(ratios), len(terms.group_dimension)
    silent = (distances <= noise) & (noise > 0)
    error = np.broadcast_to(terms.group_error, count)
    unknown = (2 * slopes[:count] <= ERRORS * error) & (error > 0)
    faint = np.zeros(len(ratios), bool)
    faint[:count] = (terms.group_dimension <= FAINT) & (silent[:count] | unknown)
    runaway = (ratios >= RUNAWAY) & ((slopes <= FLAT) | (noise >= 1)) | faint
    return Outlook(float(np.where(runaway | silent, 0, distances).max()), runaway)


class Uncertainty(NamedTuple):
    """What the noise of a method's own estimates leaves uncertain about hyperparameters."""

    errors: Hyperparameters
    """standard errors of log α (L,) and log β (C,); NaN where unknown"""
    lost: float
    """nats by which the evidence may be below its maximum; 0 where unknown"""


def uncertainty(
    current: Hyperparameters, terms: EvidenceTerms, system: AbstractSystem, learn_noise: bool
) -> Uncertainty:
    """How well a maximum of the evidence is known."""
    exact = not np.any(terms.dimension_error)
    if exact or not system.has_path:
        one = np.full_like(current.alpha, 0 if exact else np.nan)
        other = np.full_like(current.beta, 0 if exact or not learn_noise else np.nan)
        return Uncertainty(Hyperparameters(one, other), 0.0)
    at = current.alpha[0], current.beta[0]
    errors = system.path.strength_errors(*at, noise_known=not learn_noise)
    each = Hyperparameters(np.array([errors.alpha]), np.array([errors.noise_precision]))
    return Uncertainty(each, errors.lost)


def flags(
    current: Hyperparameters,
    runaway: Bool[np.ndarray, " H"],
    log_evidence: float,
    terms: EvidenceTerms,
    settled: bool,
    lost: float,
    system: AbstractSystem,
    scales: Scales,
    learn_noise: bool,
) -> tuple[Flag, ...]:
    """What is degenerate about hyperparameters, settled or on their way.

    Args:
        current: the hyperparameters.
        runaway: which of them grow along a flat evidence.
        log_evidence: there, or before the last update.
        terms: there.
        settled: whether they do not move any more.
        lost: nats by which their evidence may be below its maximum.
        system: to try groups alone.
        scales: units of the hyperparameters.
        learn_noise: whether the noise precision was learned.
    """
    unseen, count = scales.information <= 0, len(current.alpha)
    _, upper = alpha_limits(*current, scales)
    large = runaway[:count] | (current.alpha >= 0.99 * upper)
    if not settled:
        large |= _fading(current, terms, scales)
    infinite = ~unseen & large
    collapsed = _collapsed(infinite, log_evidence, system, scales, learn_noise)
    found = _flags(FlagKind.NOTHING_OBSERVED, unseen)
    found += _flags(FlagKind.PRIOR_PRECISION_INFINITE, infinite & ~collapsed)
    found += _flags(FlagKind.GROUPS_COLLAPSED, collapsed)
    if learn_noise:
        seen = scales.rank > 0
        capped = runaway[count:] | (current.beta >= 0.99 * scales.max_noise_precision)
        found += _flags(FlagKind.NOTHING_OBSERVED, ~seen)
        found += _flags(FlagKind.NOISE_PRECISION_INFINITE, seen & capped)
    if lost > LOST and not found:
        found += (Flag(FlagKind.STRENGTHS_UNCERTAIN, 0),)
    return found


def _fading(
    current: Hyperparameters, terms: EvidenceTerms, scales: Scales
) -> Bool[np.ndarray, " L"]:
    """Groups that have little left, and still have less to lose than to gain as α_l grows."""
    left = scales.information * current.beta.max() <= FADED * current.alpha
    excess = terms.group_dimension - terms.group_norm
    return left & (excess > np.maximum(RUNAWAY * terms.group_norm, NOISE * terms.group_error))


def _flags(kind: FlagKind, where: Bool[np.ndarray, " L"]) -> tuple[Flag, ...]:
    return tuple(Flag(kind, int(i)) for i in np.flatnonzero(where))


def _collapsed(
    infinite: Bool[np.ndarray, " L"],
    log_evidence: float,
    system: AbstractSystem,
    scales: Scales,
    learn_noise: bool,
) -> Bool[np.ndarray, " L"]:
    """Groups without a maximum that alone gain as much evidence as all have, or nearly.

    Others are as good as absent. At α = ∞ a group alone raises the evidence iff ‖x̄_l‖² > γ_l;
    those where it does most clearly are tried.
    """
    found = np.zeros_like(infinite)
    if not infinite.any() or len(infinite) == 1:
        return found
    alone = lambda group: _alone(system, scales, learn_noise, group)
    nothing = alone(None)
    score = nothing.terms.group_norm / np.maximum(nothing.terms.group_dimension, 1e-300)
    score = np.where(infinite, score, 0)
    none = float(nothing.terms.log_evidence)
    wanted = max(SHARE * (log_evidence - none), EVIDENT)
    for group in np.argsort(-score)[:CANDIDATES]:
        if score[group] > 1:
            found[group] = float(alone(int(group)).terms.log_evidence) - none >= wanted
    return found


def _alone(
    system: AbstractSystem, scales: Scales, learn_noise: bool, group: int | None
) -> Expectation:
    """After some of MacKay's updates of one group (or of none) and the noise."""
    on = np.arange(len(scales.alpha)) == group
    at, start = initial(scales, learn_noise), None
    for _ in range(UPDATES):
        at = _only(on, at, scales)
        evaluation = system.evaluate(*at, start)
        found, start = expected(evaluation, system, at, scales, learn_noise), evaluation.start
        following = bounded(mackay(found), at, scales, learn_noise)
        if all(map(np.array_equal, _only(on, following, scales), at)):
            break
        at = following
    return found


def _only(on: Bool[np.ndarray, " L"], at: Hyperparameters, scales: Scales) -> Hyperparameters:
    """With all other groups as good as absent."""
    strength = scales.information * at.beta.max()
    off = np.where(scales.information > 0, strength / NEGLIGIBLE, 1.0)
    return Hyperparameters(np.where(on, at.alpha, off), at.beta)
