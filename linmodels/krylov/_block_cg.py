"""Conjugate gradients for all right-hand sides in one block."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from linmodels._blocks import (
    gram,
    orthonormalised,
    safe_square_sums,
    square_sums,
    times,
    unit_scales,
)
from linmodels._results import RESULTS
from linmodels.krylov._stopping_rule import AbstractStoppingRule, Progress

Product = Callable[[Float[Array, "k d"]], Float[Array, "k d"]]
"""Products of a symmetric operator with every vector of a block."""
CONSISTENT = 4.0
"""Largest ratio of true to recursive squared residuals at which the recursion is believed."""
GAIN = 0.25
"""A restart that leaves more than this share of the squared error has gained nothing."""


class Recurrence(NamedTuple):
    """T = L D Lᵀ, the operator in the Krylov basis: L has −ρ below its unit diagonal blocks.

    The basis starts from the first residual, R₀ = C₀ᵀQ₀.
    """

    start: Float[np.ndarray, "q k"]
    """C₀"""
    diagonal: list[Float[np.ndarray, "q q"]]
    """D_i"""
    below: list[Float[np.ndarray, "q q"]]
    """ρ_{i+1}"""


class BlockSolution(NamedTuple):
    """Solutions of Hx = b for k right-hand sides, and how they were come by."""

    value: Float[Array, "k d"]
    result: RESULTS
    columns: Bool[np.ndarray, " k"]
    """the right-hand sides that `result` is about; none where it is successful"""
    progress: Progress
    """at the end, from true residuals"""
    recurrence: Recurrence
    """of the first run, for Gauss quadrature"""
    truncated: bool
    """whether that has ended before it has met the rule"""


class _Problem(NamedTuple):
    product: Product
    rhs: Float[Array, "k d"]
    squares: Float[np.ndarray, " k"]
    rule: AbstractStoppingRule
    max_passes: int
    callback: Callable[[Progress], None]
    rounding: Float[np.ndarray, " k"]
    """squared size of what rounding makes of a true residual"""

    @property
    def delay(self) -> int:
        """Steps whose decreases of the error are summed: more where a block is small."""
        return 4 + 12 // len(self.rhs)

    @property
    def epsilon(self) -> float:
        """Of the dtype."""
        return float(jnp.finfo(self.rhs.dtype).eps)


class _Found(NamedTuple):
    """The best iterates yet, with true residuals."""

    iterate: Float[Array, "k d"]
    residual: Float[Array, "k d"]
    error: Float[np.ndarray, " k"]
    passes: int
    doubted: bool = False
    """whether the recursion's estimates count no more: only errors that another run has measured"""


class _State(NamedTuple):
    """Iterates base + scale · change with residuals scale · CᵀQ; the rest in scaled units."""

    base: Float[Array, "k d"]
    scale: Float[Array, " k"]
    change: Float[Array, "k d"]
    basis: Float[Array, "q d"]
    coordinates: Float[Array, "q k"]
    search: Float[Array, "q d"]


class _Stand(NamedTuple):
    """Where the recursion stands after some steps."""

    steps: int
    change: Float[Array, "k d"]
    residual: Float[np.ndarray, " k"]
    """‖·‖²"""


class _Step(NamedTuple):
    """What the host needs of one step, in scaled units."""

    curvature: Float[Any, "q q"]
    coupling: Float[Any, "q q"]
    decrease: Float[Any, " k"]
    residual: Float[Any, " k"]
    measure: PyTree[Float[Any, " k"]]
    sound: Any


class _Run(NamedTuple):
    """One run of the recursion, until the rule is met or nothing more is to be had."""

    iterate: Float[Array, "k d"]
    passes: int
    residual: Float[np.ndarray, " k"]
    """‖·‖² by recursion"""
    error: Float[np.ndarray, " k"]
    """estimated squared error in the H-norm"""
    total: Float[np.ndarray, " k"]
    """its decrease over the run: from below, the squared error that the run started from"""
    recurrence: Recurrence
    failure: RESULTS | None
    ended: bool
    """whether it has met the rule, and not gone back, failed or run out of passes"""


def block_cg(
    product: Product,
    rhs: Float[Array, "k d"],
    rule: AbstractStoppingRule,
    *,
    start: Float[Array, "k d"] | None = None,
    max_passes: int = 1_000,
    callback: Callable[[Progress], None] | None = None,
    rounding: Float[np.ndarray, " k"] | None = None,
) -> BlockSolution:
    """Solves Hx = b for all right-hand sides together; H is symmetric positive definite.

    Orthonormalised block conjugate gradients (BCGrQ; Dubrulle 2001, "Retooling the method of block
    conjugate gradients"). The true residual decides: where it has parted from the recursive one,
    the recursion starts again from it, for as long as that gains anything. The best iterate of
    every column is kept, also where rounding drives the recursion away from it. Where rounding of
    a residual could hide more error than the rule allows, in directions of small eigenvalues,
    another run from the true residual has to measure that error, as the sum of its decreases.

    Args:
        product: H times every vector of a block; one call is one pass.
        rhs: b.
        rule: when to stop.
        start: first iterates; zeros where None.
        max_passes: products before giving up, beside the last check.
        callback: called with the `Progress` after every pass of the recursion.
        rounding: squared size of what rounding makes of b − Hx; of b itself where None.

    Raises:
        ValueError: max_passes below 1, or a start of another shape.

    >>> import jax.numpy as jnp
    >>> from linmodels.krylov import RelativeResidual
    >>> matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    >>> solution = block_cg(lambda x: x @ matrix, jnp.array([[1.0, -2.0]]), RelativeResidual(1e-5))
    >>> solution.value.round(3)
    Array([[ 1., -1.]], dtype=float32)
    """
    if max_passes < 1:
        raise ValueError(f"max_passes must be at least 1, got {max_passes}.")
    if start is not None and start.shape != rhs.shape:
        raise ValueError(f"start has shape {start.shape}, the right-hand sides {rhs.shape}.")
    callback = callback or (lambda progress: None)
    squares = safe_square_sums(rhs)
    rounding = rounding_of(rhs) if rounding is None else rounding
    problem = _Problem(product, rhs, squares, rule, max_passes, callback, rounding)
    found = _started(problem, start)
    progress = _progress(problem, found)
    if not np.isfinite(progress.residual).all():
        return _solution(found, progress, None, RESULTS.non_finite)
    return _restarted_until_met(problem, found, progress)


def rounding_of(rhs: Float[Array, "k d"]) -> Float[np.ndarray, " k"]:
    """The squared size of the rounding of b − Hx near a solution, twice ε‖b‖."""
    return (2 * float(jnp.finfo(rhs.dtype).eps)) ** 2 * safe_square_sums(rhs)


def _restarted_until_met(problem: _Problem, found: _Found, progress: Progress) -> BlockSolution:
    previous, first, result, longest = np.inf, None, None, 0
    while not problem.rule.met(progress):
        if result is not None:
            return _solution(found, progress, first, result)
        run = _run(problem, found, longest if found.doubted else 0)
        first, longest = first or run, max(longest, len(run.recurrence.diagonal))
        found, gained = _verified(problem, found, run, previous)
        previous, progress = run.total.sum(), _progress(problem, found)
        if _hides_an_error(problem, found, progress):
            unknown, gained = np.full_like(found.error, np.inf), True
            found = found._replace(error=unknown, doubted=True)
            progress = progress._replace(error=unknown)
        if run.failure is not None and not gained:
            result = run.failure
        elif found.passes >= problem.max_passes:
            result = RESULTS.max_passes_reached
        elif not gained:
            result = RESULTS.stagnated
    return _solution(found, progress, first, RESULTS.successful)


def _hides_an_error(problem: _Problem, found: _Found, progress: Progress) -> bool:
    """Whether the rule is met, but would not be if all rounding were in small eigenvalues."""
    hidden = progress._replace(error=np.maximum(progress.error, problem.rounding))
    return not found.doubted and problem.rule.met(progress) and not problem.rule.met(hidden)


_NOTHING = Recurrence(np.zeros((0, 0)), [], [])


def _started(problem: _Problem, start: Array | None) -> _Found:
    unknown = np.full(len(problem.rhs), np.inf)
    if start is None:
        return _Found(jnp.zeros_like(problem.rhs), problem.rhs, unknown, 0)
    return _Found(start, problem.rhs - problem.product(start), unknown, 1)


def _run(problem: _Problem, found: _Found, least: int) -> _Run:
    """A run of at least so many steps, as small eigenvalues show late in one."""
    steps, passes, failure, ended = [], found.passes, None, False
    scale = unit_scales(found.residual)
    state = _begin(found.iterate, found.residual, scale.astype(found.residual.dtype))
    start = np.asarray(state.coordinates, np.float64) * scale
    now = lowest = _Stand(0, state.change, safe_square_sums(found.residual))
    while not ended and passes < problem.max_passes:
        following, step = _advance(state, problem.product(state.search), problem.rhs, problem.rule)
        step, passes = jax.tree.map(lambda x: np.asarray(x, np.float64), step), passes + 1
        if not step.sound:
            failure, now = _diagnosis(step.curvature), lowest
            break
        steps.append(step)
        state, now = following, _Stand(len(steps), following.change, step.residual * scale**2)
        lowest = min(now, lowest, key=lambda stand: stand.residual.sum())
        if problem.epsilon * now.residual.sum() > lowest.residual.sum():
            now = lowest  # rounding has done that: residuals rise by κ at most
            break
        error = _error(_decreases(steps, scale), problem.delay)
        progress = Progress(passes, problem.squares, now.residual, error, step.measure)
        problem.callback(progress)
        ended = now.steps >= least and problem.rule.met(progress)
    decreases = _decreases(steps[: now.steps], scale)
    about = now.residual, _error(decreases, problem.delay), decreases.sum(0)
    recurrence = _recurrence(start, steps[: now.steps])
    return _Run(
        _latest(state._replace(change=now.change)), passes, *about, recurrence, failure, ended
    )


def _decreases(steps: list[_Step], scale: Float[np.ndarray, " k"]) -> Float[np.ndarray, "i k"]:
    """Of the squared errors, step by step."""
    return np.array([step.decrease for step in steps]).reshape(-1, len(scale)) * scale**2


def _recurrence(start: Float[np.ndarray, "q k"], steps: list[_Step]) -> Recurrence:
    return Recurrence(start, [step.curvature for step in steps], [step.coupling for step in steps])


def _error(decreases: Float[np.ndarray, "i k"], delay: int) -> Float[np.ndarray, " k"]:
    """The squared error a step ago: the tail of a geometric series, from the last decreases.

    The rate of the tail is the columns' median: it belongs to the operator more than to them.
    """
    delay = min(max(delay, len(decreases) // 8), len(decreases) // 2)
    if delay < 2:
        return np.full(decreases.shape[1], np.inf)
    last, before = decreases[-delay:].sum(0), decreases[-2 * delay : -delay].sum(0)
    if not (before > 0).any():
        return np.zeros(decreases.shape[1])
    rate = np.median(last[before > 0] / before[before > 0])
    if rate >= 1:
        return np.full(len(last), np.inf)
    return np.where(last > 0, last * rate ** (1 - 1 / delay) / (1 - rate), 0)


def _verified(problem: _Problem, found: _Found, run: _Run, previous: float) -> tuple[_Found, bool]:
    """The better of two iterates in every column by true residuals, and whether a run has gained.

    The recursion's estimates hold for its own iterates; where the true residual is another, what
    is known is the error that a run to its end started from, which its steps have not made larger;
    where all estimates are in doubt, as rounding makes it anew, not much larger.
    """
    residual = problem.rhs - problem.product(run.iterate)
    old, new = safe_square_sums(found.residual), safe_square_sums(residual)
    consistent = new <= CONSISTENT * run.residual  # not where NaN
    better = consistent | (new <= old)  # steps that are sound lower the error, if not the residual
    doubted = (
        found.doubted
        or run.failure is not None
        or (not run.ended and run.passes < problem.max_passes)
    )
    total = run.total if run.ended else np.full_like(run.total, np.inf)
    error = np.where(consistent, np.minimum(run.error, total), total)
    error = CONSISTENT * total if doubted else error
    error = error if run.recurrence.diagonal else found.error
    gained = (new < GAIN * old).any() or 0 < total.sum() < GAIN * previous
    new, old = (run.iterate, residual), (found.iterate, found.residual)
    iterate, residual = _picked(better, new, old)
    return _Found(iterate, residual, error, run.passes + 1, doubted), bool(gained)


@jax.jit
def _picked(better: Any, new: tuple, old: tuple) -> tuple:
    return jax.tree.map(lambda a, b: jnp.where(better[:, None], a, b), new, old)


@eqx.filter_jit
def _begin(base: Array, residual: Array, scale: Any) -> _State:
    basis, coordinates = orthonormalised(residual / scale[:, None])
    return _State(base, scale, jnp.zeros_like(base), basis, coordinates, basis)


@eqx.filter_jit
def _advance(
    state: _State, applied: Array, rhs: Array, rule: AbstractStoppingRule
) -> tuple[_State, _Step]:
    """One step, from HS: ξ = (SᵀHS)⁻¹, X += SξC, Qρ = qr(Q − HSξ), S = Q + Sρᵀ, C = ρC."""
    curvature = gram(state.search, applied)
    curvature = (curvature + curvature.T) / 2
    size = jnp.sqrt(jnp.abs(jnp.diag(curvature)))
    size = jnp.where(size > 0, size, 1)
    lower = jnp.linalg.cholesky(curvature / size / size[:, None])
    inverse = jax.scipy.linalg.cho_solve((lower, True), jnp.eye(len(size), dtype=size.dtype))
    inverse = inverse / size / size[:, None]
    weights = times(inverse, state.coordinates)
    basis, coupling = orthonormalised(state.basis - times(inverse, applied))
    following = state._replace(
        change=state.change + times(weights.T, state.search),
        basis=basis,
        coordinates=times(coupling, state.coordinates),
        search=basis + times(coupling, state.search),
    )
    residual = times(following.coordinates.T, basis)
    decrease = jnp.sum(state.coordinates * weights, axis=0)
    measure = rule.measure(_iterate(following), state.scale[:, None] * residual, rhs)
    squares = square_sums(following.coordinates.T)
    parts = lower, coupling, decrease, squares
    sound = jnp.stack([jnp.isfinite(part).all() for part in parts]).all()
    return following, _Step(curvature, coupling, decrease, squares, measure, sound)


def _iterate(state: _State) -> Float[Array, "k d"]:
    return state.base + state.scale[:, None] * state.change


_latest = eqx.filter_jit(_iterate)


def _diagnosis(curvature: Float[np.ndarray, "q q"]) -> RESULTS:
    """Why SᵀHS has no Cholesky factor."""
    if not np.isfinite(curvature).all():
        return RESULTS.non_finite
    size = np.sqrt(np.abs(np.diag(curvature)))
    size = np.where(size > 0, size, 1)
    values = np.linalg.eigvalsh(curvature / size / size[:, None])
    rounding = 10 * len(values) * np.finfo(np.float32).eps
    return RESULTS.negative_curvature if values[0] < -rounding else RESULTS.breakdown


def _progress(problem: _Problem, found: _Found) -> Progress:
    measure = _measured(problem.rule, found.iterate, found.residual, problem.rhs)
    squares = safe_square_sums(found.residual)
    measure = jax.tree.map(lambda x: np.asarray(x, np.float64), measure)
    return Progress(found.passes, problem.squares, squares, found.error, measure)


@eqx.filter_jit
def _measured(rule: AbstractStoppingRule, iterate: Array, residual: Array, rhs: Array) -> PyTree:
    return rule.measure(iterate, residual, rhs)


def _solution(
    found: _Found, progress: Progress, first: _Run | None, result: RESULTS
) -> BlockSolution:
    columns = ~np.isfinite(progress.residual)
    value = found.iterate
    if columns.any():
        value = jnp.where(jnp.asarray(columns)[:, None], jnp.nan, value)
    if result not in (RESULTS.successful, RESULTS.non_finite):
        columns = progress.residual > 0
    recurrence, ended = (_NOTHING, True) if first is None else (first.recurrence, first.ended)
    return BlockSolution(value, result, columns, progress, recurrence, truncated=not ended)
