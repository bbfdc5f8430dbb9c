"""One run of block conjugate gradients, with what it has found of the operator and its errors."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._blocks import (
    gram,
    orthonormalised,
    safe_square_sums,
    square_sums,
    times,
    triangle_inverse,
    unit_scales,
)
from linmodels._results import RESULTS
from linmodels.krylov._preconditioners import AbstractRoot, IdentityRoot, Product
from linmodels.krylov._stopping_rule import AbstractStoppingRule, Progress


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


class Problem(NamedTuple):
    """What is to be solved, how well, and who is told."""

    product: Product
    """of H"""
    rhs: Float[Array, "k d"]
    squares: Float[np.ndarray, " k"]
    """‖P^{-½}b‖²"""
    rule: AbstractStoppingRule
    root: AbstractRoot
    """P^{½}"""
    max_passes: int
    callback: Callable[[Progress], None]
    patience: Callable[[float], float] | None
    """passes before giving up, from the largest eigenvalue that a first one has shown"""

    def limit(self, curvature: Float[np.ndarray, "q q"]) -> int:
        """Of passes, from SᵀHS of a first step, S orthonormal."""
        if self.patience is None:
            return self.max_passes
        return int(min(self.max_passes, self.patience(float(np.linalg.norm(curvature, 2)))))

    def apply(self, block: Float[Array, "k d"]) -> Float[Array, "k d"]:
        """P^{-½}HP^{-½} of every vector."""
        return divided(self.root, self.product(divided(self.root, block)))

    @property
    def delay(self) -> int:
        """Steps whose decreases of the error are summed: more where a block is small."""
        return 4 + 12 // len(self.rhs)

    @property
    def epsilon(self) -> float:
        """Of the dtype."""
        return float(jnp.finfo(self.rhs.dtype).eps)


class Run(NamedTuple):
    """One run of the recursion, until the rule is met or nothing more is to be had."""

    iterate: Float[Array, "k d"]
    passes: int
    residual: Float[np.ndarray, " k"]
    """‖P^{-½}(b − Hx)‖² by recursion"""
    largest: Float[np.ndarray, " k"]
    """of these, from the start on"""
    error: Float[np.ndarray, " k"]
    """estimated squared error in the H-norm"""
    total: Float[np.ndarray, " k"]
    """its decrease over the run: from below, the squared error that the run started from"""
    recurrence: Recurrence
    failure: RESULTS | None
    ended: bool
    """whether it has met the rule, and not gone back, failed or run out of passes"""
    limit: int
    """of passes"""


class _Start(NamedTuple):
    """What a run starts from, and does not change."""

    iterate: Float[Array, "k d"]
    rhs: Float[Array, "k d"]
    scale: Float[Any, " k"]
    """of the residuals"""


class _State(NamedTuple):
    """Iterates start + P^{-½} scale · change, of residuals P^{½} scale · CᵀQ; scaled units."""

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


def run(problem: Problem, iterate: Array, residual: Array, passes: int, least: int) -> Run:
    """From an iterate and its true residual; a pass is a product.

    Only what is added to an iterate passes through P^{-½}, whose rounding, relative to what passes,
    is √λ₁ times as large in the H-norm.

    Args:
        problem: what is to be solved.
        iterate: x.
        residual: P^{-½}(b − Hx).
        passes: made before.
        least: steps before the error counts as known, as small eigenvalues show late in a run.
    """
    steps, failure, ended, limit = [], None, False, problem.max_passes
    scale = unit_scales(residual)
    start = _Start(iterate, problem.rhs, scale.astype(residual.dtype))
    state = first = _begin(start, residual)
    now = lowest = _Stand(0, state.change, safe_square_sums(residual))
    nothing = (
        problem.epsilon**4 * now.residual.sum()
    )  # to go on from: rounding has long had its way
    while not ended and passes < limit and now.residual.sum() > nothing:
        following, step = _advance(
            start, state, problem.apply(state.search), problem.rule, problem.root
        )
        step, passes = jax.tree.map(lambda x: np.asarray(x, np.float64), step), passes + 1
        if not step.sound:
            failure, now = _diagnosis(step.curvature), lowest
            break
        steps.append(step)
        limit = problem.limit(step.curvature) if len(steps) == 1 else limit
        state, now = following, _Stand(len(steps), following.change, step.residual * scale**2)
        lowest = min(now, lowest, key=lambda stand: stand.residual.sum())
        if problem.epsilon * now.residual.sum() > lowest.residual.sum():
            now = lowest  # rounding has done that: residuals rise by κ at most
            break
        error = _error(_decreases(steps if len(steps) >= least else [], scale), problem.delay)
        progress = Progress(passes, problem.squares, now.residual, error, step.measure)
        problem.callback(progress)
        ended = problem.rule.met(progress)
    decreases = _decreases(steps[: now.steps], scale)
    return Run(
        _latest(start, now.change, problem.root),
        passes,
        now.residual,
        _largest(residual, steps, scale),
        _error(decreases, problem.delay),
        decreases.sum(0),
        _recurrence(np.asarray(first.coordinates, np.float64) * scale, steps[: now.steps]),
        failure,
        ended,
        limit,
    )


def divided(root: AbstractRoot, block: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """P^{-½} of every vector."""
    return block if isinstance(root, IdentityRoot) else _divided(root, block)


@eqx.filter_jit
def _divided(root: AbstractRoot, block: Float[Array, "k d"]) -> Float[Array, "k d"]:
    return root.divide(block)


def _largest(
    residual: Array, steps: list[_Step], scale: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """Of the squared residuals from this one on, also of steps that were taken back."""
    later = [step.residual * scale**2 for step in steps]
    return np.max([safe_square_sums(residual), *later], axis=0)


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


@eqx.filter_jit
def _begin(start: _Start, residual: Array) -> _State:
    basis, coordinates = orthonormalised(residual / start.scale[:, None])
    return _State(jnp.zeros_like(residual), basis, coordinates, basis)


@eqx.filter_jit
def _advance(
    start: _Start, state: _State, applied: Array, rule: AbstractStoppingRule, root: AbstractRoot
) -> tuple[_State, _Step]:
    """One step, from HS: ξ = (SᵀHS)⁻¹, X += SξC, Qρ = qr(Q − HSξ), S = Q + Sρᵀ, C = ρC."""
    curvature = gram(state.search, applied)
    curvature = (curvature + curvature.T) / 2
    size = jnp.sqrt(jnp.abs(jnp.diag(curvature)))
    size = jnp.where(size > 0, size, 1)
    lower = jnp.linalg.cholesky(curvature / size / size[:, None])
    half = triangle_inverse(lower) / size
    inverse = times(half.T, half)
    weights = times(inverse, state.coordinates)
    basis, coupling = orthonormalised(state.basis - times(inverse, applied))
    following = _State(
        change=state.change + times(weights.T, state.search),
        basis=basis,
        coordinates=times(coupling, state.coordinates),
        search=basis + times(coupling, state.search),
    )
    residual = root.multiply(start.scale[:, None] * times(following.coordinates.T, basis))
    decrease = jnp.sum(state.coordinates * weights, axis=0)
    measure = rule.measure(_iterate(start, following.change, root), residual, start.rhs)
    squares = square_sums(following.coordinates.T)
    parts = lower, coupling, decrease, squares
    sound = jnp.stack([jnp.isfinite(part).all() for part in parts]).all()
    return following, _Step(curvature, coupling, decrease, squares, measure, sound)


def _iterate(start: _Start, change: Array, root: AbstractRoot) -> Float[Array, "k d"]:
    return start.iterate + root.divide(start.scale[:, None] * change)


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
