"""`maximise_evidence`: α and the noise precision from the data."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from linmodels._acceleration import extrapolated
from linmodels._arguments import require_arguments
from linmodels._arrays import is_traced
from linmodels._batches import Data, example_batch, require_untraced
from linmodels._degeneracy import expected, flags, outlook, uncertainty
from linmodels._hyperparameters import bounded, initial
from linmodels._infer import Fit, finish
from linmodels._laplace import prepared
from linmodels._plan import Plan, followed
from linmodels._priors import GaussianPrior
from linmodels._results import RESULTS
from linmodels.likelihoods import AbstractLikelihood
from linmodels.m_steps import Expectation, MStep, mackay
from linmodels.methods import AbstractMethod, AbstractSystem, Hyperparameters, Scales

NATS, ERRORS = 1.0, 3.0
"""By how much the evidence must be larger elsewhere: nats, and standard errors."""


class EvidenceState(eqx.Module):
    """Where learning stands; save it, and pass it as `state=` to go on bit for bit.

    Attributes:
        step: updates made so far.
        alpha: α of every group, (L,).
        noise_precision: β of every noise precision, (C,); ones where it is known.
        log_evidence: at the hyperparameters before the last update, in nats.
        effective_dimension: γ there, summed over groups.
        change: largest |log ratio| of MacKay's update there, whatever the M-step, a measure of the
            evidence's slope; 0 where that is noise of the method or runs away.
        runaway: which of α and, behind it, β grow along a flat evidence, (L + C,).
        result: how the method ended there, where its errors do not say all about that. One that is
            too far off to go on from leaves the hyperparameters as they are, and no `change`.
        start: from where the method goes on; arrays as large as the deviations, or nothing. Where
            the curvature follows the mode of block-CG with several groups, also what preconditions
            it, up to 310 vectors of parameters.
        trail: α and β before the last one or two updates, which a third extrapolates.
    """

    step: int
    alpha: Float[np.ndarray, " L"]
    noise_precision: Float[np.ndarray, " C"]
    log_evidence: float
    effective_dimension: float
    change: float
    runaway: Bool[np.ndarray, " H"]
    result: RESULTS
    start: PyTree = None
    trail: tuple[Float[np.ndarray, " H"], ...] = ()

    def settled(self, tolerance: float) -> bool:
        """Whether the evidence is stationary in all hyperparameters that do not run away.

        So are values that are not numbers: more updates would not help.
        """
        return not self.change > tolerance


def maximise_evidence(
    data: Data,
    prior: GaussianPrior | None = None,
    *,
    m_step: MStep = mackay,
    method: AbstractMethod | None = None,
    num_samples: int = 64,
    key: Array | None = None,
    max_steps: int = 1_000,
    tolerance: float = 1e-6,
    curvature_at: PyTree = None,
    callback: Callable[[EvidenceState], None] | None = None,
    state: EvidenceState | None = None,
    throw: bool = True,
) -> Fit:
    """The posterior at the α (and noise precision, where unknown) that maximise the evidence.

    Updates by the M-step, from starts on the data's own scale: results do not depend on units, nor
    on the M-step. Of one α and one Gaussian noise precision the largest of several maxima is taken,
    by `Exact` and `BlockCG`. Where there is none, hyperparameters are capped and the fit is
    flagged; so are groups of parameters that explain the same, of which one is left. With other
    likelihoods than `Gaussian` the evidence is Laplace's, and every update goes to the mode first;
    the updates take its curvature as given.

    Args:
        data: observations; `Gaussian()` noise is learned, `Gaussian(4.0)` kept.
        prior: `GaussianPrior.g_prior()` by default; a given α is the start.
        m_step: one such as `linmodels.m_steps.mackay`.
        method: of inference; as `plan` chooses by default.
        num_samples: k, the deviations to draw at the end; 0 needs no key.
        key: of the draws.
        max_steps: updates before giving up.
        tolerance: largest |log ratio| of MacKay's update that counts as settled, whatever the
            M-step: by that much α_l‖θ̄_l‖² may differ from γ_l.
        curvature_at: as for `infer`.
        callback: called with the `EvidenceState` after every update.
        state: go on from here instead of from the start.
        throw: raise where the result is not successful.

    Returns:
        A `Fit`.

    Raises:
        ValueError: data that do not fit or are not finite, a missing key, traced arguments.
        FitError: not settled after `max_steps`, or not finite, and `throw`.
    """
    require_arguments(data, prior, method, num_samples, key)
    require_untraced(data, "maximise_evidence")
    if not callable(m_step):
        raise ValueError(f"m_step must be one such as linmodels.m_steps.mackay, got {m_step!r}.")
    if max_steps < 1 or not tolerance > 0:
        raise ValueError(f"max_steps={max_steps} and tolerance={tolerance} must be positive.")
    prior = GaussianPrior.g_prior() if prior is None else prior
    if is_traced(prior):
        raise ValueError("maximise_evidence is a Python loop: call it outside jit and grad.")
    method, made = followed(method, data, prior, num_samples)
    likelihood = example_batch(data).likelihood
    arguments = {"num_samples": num_samples, "key": key, "curvature_at": curvature_at}
    system = prepared(data, prior, method, **arguments)
    scales = system.scales()
    state = _start(scales, prior, likelihood, state)
    update = partial(_step, system, scales, likelihood.learn, m_step)
    _require_own(state, update, tolerance, max_steps)
    search = partial(_searched, update, tolerance, max_steps, callback)
    learned = scales, likelihood.learn
    state = _largest(search, partial(_elsewhere, system, *learned), state)
    return _finish(data, (method, made), system, *learned, state, tolerance, throw)


def _start(
    scales: Scales,
    prior: GaussianPrior,
    likelihood: AbstractLikelihood,
    state: EvidenceState | None,
) -> EvidenceState:
    if state is not None:
        return _checked(state, scales, likelihood)
    alpha, beta = initial(scales, likelihood.learn)
    if prior.alpha is not None:
        alpha = np.broadcast_to(np.asarray(prior.alpha, np.float64), alpha.shape)
    nowhere = np.zeros(len(alpha) + len(beta), bool)
    return EvidenceState(0, alpha, beta, -np.inf, 0.0, np.inf, nowhere, RESULTS.successful)


def _checked(state: EvidenceState, scales: Scales, likelihood: AbstractLikelihood) -> EvidenceState:
    if not isinstance(state, EvidenceState):
        raise ValueError(f"state must be an EvidenceState, got {type(state).__name__}.")
    shapes = state.alpha.shape, state.noise_precision.shape
    if shapes != (scales.alpha.shape, scales.noise_precision.shape):
        raise ValueError(
            f"state has α and noise of shapes {shapes}, the problem needs "
            f"{(scales.alpha.shape, scales.noise_precision.shape)}: it is of another fit."
        )
    for name, values in (("α", state.alpha), ("noise precision", state.noise_precision)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise ValueError(f"state has {name} {values}: it must be positive and finite.")
    if not likelihood.learn and (state.noise_precision != 1).any():
        raise ValueError(
            f"state has learned the noise precision {state.noise_precision}, which is known here: "
            "it is of another fit."
        )
    return state


def _require_own(
    state: EvidenceState,
    update: Callable[[EvidenceState], EvidenceState],
    tolerance: float,
    max_steps: int,
) -> None:
    """Refuses a state that has settled, but not on these data.

    Where no update is left to make, looks at the data once more as the last one has.
    """
    if state.step > 0 and (state.settled(tolerance) or state.step >= max_steps):
        following = update(state)
        if state.settled(tolerance) and not following.settled(10 * tolerance):
            raise ValueError(
                f"state has settled, but these data would still change it by a factor of "
                f"{np.exp(following.change):.3g}: it is of another fit. Start without it."
            )


def _searched(
    update: Callable[[EvidenceState], EvidenceState],
    tolerance: float,
    max_steps: int,
    callback: Callable[[EvidenceState], None] | None,
    state: EvidenceState,
) -> EvidenceState:
    while not state.settled(tolerance) and state.step < max_steps:
        state = _advanced(update, state)
        if callback is not None:
            callback(state)
    return state


def _largest(
    search: Callable[[EvidenceState], EvidenceState],
    elsewhere: Callable[[EvidenceState], EvidenceState | None],
    state: EvidenceState,
) -> EvidenceState:
    """The maximum that a search ends at, or another one that is larger."""
    one = search(state)
    start = elsewhere(one)
    if start is None:
        return one
    other = search(start)
    return replace(other if other.log_evidence > one.log_evidence else one, step=other.step)


def _elsewhere(
    system: AbstractSystem, scales: Scales, learn_noise: bool, state: EvidenceState
) -> EvidenceState | None:
    """Where the evidence is larger, by more than its error, than at the maximum that was found.

    Of one α there may be several, where columns that matter have different units.
    """
    if not system.has_path or state.runaway[len(state.alpha) :].any():
        return None
    path = system.path
    alpha, beta = (np.array([x]) for x in path.maximum(None if learn_noise else 1.0))
    if not beta[0] > 0:  # no more observations than flat parameters
        return None
    share = min(1.0, float(scales.max_noise_precision[0] / beta[0])) if learn_noise else 1.0
    alpha, beta = alpha * share, beta * share
    there, here = path.at(alpha, beta), path.at(state.alpha, state.noise_precision)
    gain = there.log_evidence[0] - here.log_evidence[0]
    if not gain > max(NATS, ERRORS * there.log_evidence_error[0]):
        return None
    nowhere = np.zeros_like(state.runaway)
    begin = {"alpha": alpha, "noise_precision": beta, "start": None, "trail": ()}
    return replace(state, **begin, change=np.inf, runaway=nowhere)


def _advanced(
    update: Callable[[EvidenceState], EvidenceState], state: EvidenceState
) -> EvidenceState:
    """One update; every third goes where the two before it point, unless the evidence falls."""
    points = (*state.trail, np.concatenate([state.alpha, state.noise_precision]))
    if len(points) < 3:
        return replace(update(state), trail=points)
    target = extrapolated(points, together=state.step // 3 % 2 == 0)
    alpha, beta = np.split(target, [len(state.alpha)])
    third = update(replace(state, alpha=alpha, noise_precision=beta))
    rounding = 1e-12 * abs(state.log_evidence)
    better = third.log_evidence >= state.log_evidence - rounding and np.isfinite(third.change)
    return replace(third if better else replace(state, step=third.step), trail=())


def _step(
    system: AbstractSystem, scales: Scales, learn_noise: bool, m_step: MStep, state: EvidenceState
) -> EvidenceState:
    old = Hyperparameters(state.alpha, state.noise_precision)
    found = system.evaluate(*old, state.start)
    if not found.usable:
        return replace(state, step=state.step + 1, change=np.nan, result=found.result)
    terms = found.terms
    expectation = expected(found, system, old, scales, learn_noise)
    new = bounded(_proposal(m_step, expectation), old, scales, learn_noise)
    change, runaway = outlook(expectation)
    # What runs away is not sent back by an estimate of γ_l that is nothing but its own noise.
    new = _no_smaller(new, old, runaway)
    return EvidenceState(
        state.step + 1,
        new.alpha,
        new.beta,
        float(terms.log_evidence),
        float(np.sum(terms.group_dimension)),
        change,
        runaway,
        found.result,
        found.start,
    )


def _no_smaller(
    new: Hyperparameters, old: Hyperparameters, where: Bool[np.ndarray, " H"]
) -> Hyperparameters:
    alpha, beta = np.split(where, [len(old.alpha)])
    return Hyperparameters(
        np.where(alpha, np.maximum(new.alpha, old.alpha), new.alpha),
        np.where(beta, np.maximum(new.beta, old.beta), new.beta),
    )


def _proposal(m_step: MStep, expectation: Expectation) -> Hyperparameters:
    """What the M-step proposes.

    Raises:
        ValueError: it does not have the shapes of what it is to replace, or is not positive.
    """
    proposed = m_step(expectation)
    if not isinstance(proposed, tuple) or len(proposed) != 2:
        raise ValueError(f"m_step must return α and β, got {proposed!r}.")
    alpha, beta = (np.asarray(x, np.float64) for x in proposed)
    for name, new, old in zip(("α", "β"), (alpha, beta), expectation.current, strict=True):
        finite = np.isfinite(expectation.terms.log_evidence)
        if new.shape != old.shape or (finite and not (new >= 0).all()):
            raise ValueError(
                f"m_step made {name} {new} of {old}: it must be positive, one for each."
            )
    return Hyperparameters(alpha, beta)


def _finish(
    data: Data,
    chosen: tuple[AbstractMethod, Plan | None],
    system: AbstractSystem,
    scales: Scales,
    learn_noise: bool,
    state: EvidenceState,
    tolerance: float,
    throw: bool,
) -> Fit:
    found = Hyperparameters(state.alpha, state.noise_precision)
    grouped = system.prior.groups is not None
    solution = system.solve(*found, state.start)
    settled = state.settled(tolerance)
    errors, lost = uncertainty(found, solution.terms, system, learn_noise)
    about = state.log_evidence, solution.terms, settled, lost, system, scales, learn_noise
    return finish(
        data,
        chosen[0],
        system.reason,
        chosen[1],
        system.prior.with_alpha(state.alpha if grouped else state.alpha[0]),
        state.noise_precision,
        solution,
        steps=state.step,
        flags=flags(found, state.runaway, *about),
        errors=errors,
        result=_result(state, tolerance),
        throw=throw,
    )


def _result(state: EvidenceState, tolerance: float) -> RESULTS:
    if state.result != RESULTS.successful:
        return state.result
    return RESULTS.successful if state.settled(tolerance) else RESULTS.max_steps_reached
