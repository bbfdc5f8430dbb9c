"""The descent itself: a loop over minibatches, in a fresh order each pass."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._observations import Data, num_batches, shuffled_batches
from linmodels._results import RESULTS
from linmodels.descent._objective import AbstractObjective
from linmodels.descent._recipe import LIMIT, Recipe
from linmodels.descent._state import DescentState, begun, looked, stepped

LOOKS = 6
"""Of the power iteration at the first batch, before any step."""
STRETCH = 10
"""Steps at least over which a loss is averaged, as momentum makes that of single steps swing."""
RACE = (0.25, 0.5, 1.0, 2.0)
"""Steps, times the largest curvature of a minibatch, that are tried: that of all data is less."""
HALVINGS = 30
"""Of the step size before giving up."""


class Descended(NamedTuple):
    """How a descent ended."""

    value: Float[Array, "k r"]
    rate: float
    """step at the start of the decay, times the largest curvature where automatic"""
    curvature: float
    """the largest that was seen; see `DescentState`"""
    passes: int
    loss: Float[np.ndarray, " k"]
    """of every vector, averaged over the last stretch of steps"""
    result: RESULTS


class _Stretch(NamedTuple):
    """Some passes over the data, judged together."""

    first: int
    """pass"""
    passes: int


class _Course(NamedTuple):
    """What a descent goes by."""

    objective: AbstractObjective
    data: Data
    recipe: Recipe
    key: Array

    @property
    def total(self) -> int:
        """Batches."""
        return num_batches(self.data)

    @property
    def _scale(self) -> np.ndarray:
        """The same as an array: other data compile nothing anew."""
        return np.asarray(self.total, np.float32)

    @property
    def stretch(self) -> int:
        """Passes whose steps are judged together."""
        return -(-STRETCH // self.total)

    def begin(self, x: Float[Array, "k r"], curvature: float = 1.0) -> DescentState:
        """Looks at the curvature of the first batch; it is at least the given one."""
        probe = jax.random.normal(jax.random.fold_in(self.key, 0), x[:1].shape, x.dtype)
        probe = probe / jnp.linalg.norm(probe)
        averaged = self.recipe.averaging is not None
        state = begun(x, probe, curvature, self.recipe.transformation, averaged=averaged)
        batch = next(shuffled_batches(self.data, self._order(0)))
        drawn = self.objective.drawn(batch)
        for _ in range(LOOKS):
            state = looked(self.objective, batch, drawn, state, self._scale)
        return state

    def run(
        self, state: DescentState, stretch: _Stretch, rate: Callable[[int], np.ndarray]
    ) -> tuple[DescentState, Float[np.ndarray, "2 k"]]:
        """Goes on for some passes; also the mean losses of their two halves."""
        first, steps = stretch.first * self.total, stretch.passes * self.total
        state = eqx.tree_at(lambda s: s.loss, state, jnp.zeros_like(state.loss))
        half, step = jnp.zeros_like(state.loss), first
        for number in range(stretch.passes):
            order = self._order(stretch.first + number)
            for batch in shuffled_batches(self.data, order):
                half = state.loss if step - first == steps // 2 else half
                state = self._step(state, batch, rate(step), step)
                step += 1
        before, after = np.asarray(half, np.float64), np.asarray(state.loss - half, np.float64)
        early = before / (steps // 2) if steps > 1 else after
        return state, np.stack([early, after / (steps - steps // 2)])

    def _step(self, state: DescentState, batch, rate: np.ndarray, step: int) -> DescentState:
        recipe = self.recipe
        weight = 0.0 if recipe.averaging is None else recipe.averaging(step)
        return stepped(
            self.objective,
            batch,
            self.objective.drawn(batch),
            state,
            np.asarray(rate, np.float32),
            np.asarray(weight, np.float32),
            self._scale,
            transformation=recipe.transformation,
            automatic=recipe.automatic,
            clip=recipe.clip,
        )

    def _order(self, number: int) -> np.random.Generator:
        key = jax.random.fold_in(self.key, 1 + number)
        return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def descend(
    objective: AbstractObjective,
    data: Data,
    start: Float[Array, "k r"],
    *,
    passes: int,
    recipe: Recipe,
    key: Array,
    rate: float | None = None,
    callback: Callable[[int, DescentState], None] | None = None,
) -> Descended:
    """Minimises the objective for all vectors side by side, each on its own.

    Where the loss rises over some passes, the descent goes back to where it was lowest, forgets its
    momentum, and halves its steps.

    Args:
        objective: what is minimised.
        data: the observations; their batches are the minibatches.
        start: first iterates.
        passes: over the data.
        recipe: the optimiser, and what is done with its iterates.
        key: of the order of the data.
        rate: step times the largest curvature; decided by a race where None and automatic.
        callback: called with the passes done and the state after every stretch of passes.
    """
    course, race = _Course(objective, data, recipe, key), _Race(rate or 1.0, 1.0, 0)
    if rate is None and recipe.automatic:
        race = _raced(course, start, passes)
    rate, state = race.rate, course.begin(start, race.curvature)
    good, lowest, first, done, halvings = state, np.inf, np.inf, 0, 0
    loss = np.full(len(start), np.inf)
    while done < passes and halvings < HALVINGS:
        stretch = _Stretch(done, min(course.stretch, passes - done))
        rates = partial(_rates, course, passes, np.full(len(start), rate))
        following, losses = course.run(state, stretch, rates)
        early, late = losses.sum(1)
        done += stretch.passes
        if np.isinf(first) and np.isfinite(early):
            first = lowest = early
        if _rises(late, lowest, first):
            state = _back(good, following, recipe)
            rate, halvings = rate / 2, halvings + 1
            continue
        if late <= lowest:
            lowest, good = late, following
        state, loss = following, losses[1]
        if callback is not None:
            callback(done, state)
    result = RESULTS.successful if np.isfinite(loss).all() else RESULTS.non_finite
    return Descended(state.answer, rate, float(state.curvature), race.passes + done, loss, result)


def _rates(
    course: _Course, passes: int, first: Float[np.ndarray, " k"], step: int
) -> Float[np.ndarray, " k"]:
    """Of every vector at a step."""
    return first * course.recipe.decay(step / (passes * course.total))


def _rises(loss: float, lowest: float, first: float) -> bool:
    """Whether steps are too long: noise of minibatches alone makes losses rise a little."""
    if not np.isfinite(loss):
        return True
    return bool(
        np.isfinite(lowest) and loss > lowest + max((first - lowest) / 2, 0.1 * abs(lowest))
    )


def _back(good: DescentState, bad: DescentState, recipe: Recipe) -> DescentState:
    """The good iterate, at rest; what was learned of the curvature is kept."""
    curvature = jnp.where(jnp.isfinite(bad.curvature), bad.curvature, good.curvature)
    state = eqx.tree_at(lambda s: s.curvature, good, jnp.maximum(curvature, good.curvature))
    return state.at_rest(recipe.transformation)


class _Race(NamedTuple):
    """What a race has found, and the passes that it took."""

    rate: float
    curvature: float
    passes: int


def _raced(course: _Course, start: Float[Array, "k r"], passes: int) -> _Race:
    """The step whose loss is lowest after a stretch with decay, for the first and last vector."""
    if passes < 2 * course.stretch:
        return _Race(LIMIT, 1.0, 0)
    columns = [column for _ in RACE for column in (0, len(start) - 1)]
    racers = course._replace(objective=course.objective.of(columns))
    stretch = _Stretch(passes, course.stretch)
    steps, first = stretch.passes * course.total, passes * course.total
    rates = lambda step: np.repeat(RACE, 2) * (1 - (step - first) / steps)
    state, losses = racers.run(racers.begin(start[np.array(columns)]), stretch, rates)
    best = RACE[int(np.argmin(_ranked(losses[1].reshape(len(RACE), 2))))]
    curvature = float(state.curvature)
    return _Race(best, curvature if np.isfinite(curvature) else 1.0, stretch.passes)


def _ranked(losses: Float[np.ndarray, "r 2"]) -> Float[np.ndarray, " r"]:
    """How far every racer is behind, in units of how far apart they are in each vector."""
    finite = np.isfinite(losses).all(1)
    if not finite.any():
        return np.arange(len(losses), dtype=float)
    behind = losses - losses[finite].min(0)
    apart = behind[finite].max(0)
    return np.where(finite, np.sum(behind / np.where(apart > 0, apart, 1), 1), np.inf)
