"""The descent itself: a loop over minibatches, in a fresh order each pass."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._batches import Batch, Data, num_batches, shuffled_batches, shuffles_rows
from linmodels._results import RESULTS
from linmodels.descent._objective import AbstractObjective
from linmodels.descent._recipe import LIMIT, Recipe
from linmodels.descent._state import DescentState, begun, looked, stepped

LOOKS = 6
"""Of the power iteration at the first batch, before any step."""
STRETCH = 10
"""Steps at least over which a loss is averaged, as momentum makes that of single steps swing."""
RACE = tuple(2.0**exponent for exponent in range(-4, 2))
"""Steps, times the largest curvature of a minibatch, that are tried: that of all data is less."""
SHARE = 8
"""A race is as long as this part of the passes to come: the longer they are the more noise of
minibatches limits them, √(step/passes), and the less what they have not reached yet."""
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
    """of every vector, averaged over the last stretch of steps; infinite where that was too long"""
    result: RESULTS


class _Stretch(NamedTuple):
    """Some passes over the data, judged together."""

    first: int
    """pass"""
    passes: int


class _Place(NamedTuple):
    """Where a descent stands."""

    state: DescentState
    steps: int
    """that have led here, without those that were undone"""
    loss: Float[np.ndarray, " k"]


class _Course(NamedTuple):
    """What a descent goes by."""

    objective: AbstractObjective
    data: Data
    recipe: Recipe
    key: Array
    drawn: Callable[[Batch], Float[Array, "k N"]] | None

    @property
    def total(self) -> int:
        """Batches."""
        return num_batches(self.data)

    @property
    def stretch(self) -> int:
        """Passes whose steps are judged together."""
        return -(-STRETCH // self.total)

    def begin(self, x: Float[Array, "k r"], curvature: float) -> _Place:
        """Looks at the curvature of the first batch; it is at least the given one."""
        probe = jax.random.normal(jax.random.fold_in(self.key, 0), x[:1].shape, x.dtype)
        probe = probe / jnp.linalg.norm(probe)
        averaged = self.recipe.averaging is not None
        state = begun(x, probe, curvature, self.recipe.transformation, averaged=averaged)
        batch = next(shuffled_batches(self.data, self._order(0)))
        drawn, scale = self._drawn(batch), self._scale(batch)
        for _ in range(LOOKS):
            state = looked(self.objective, batch, drawn, state, scale)
        return _Place(state, 0, np.full(len(x), np.inf))

    def run(
        self,
        place: _Place,
        stretch: _Stretch,
        rate: Callable[[int], Float[np.ndarray, " k"]],
    ) -> tuple[_Place, Float[np.ndarray, " k"]]:
        """Goes on for some passes; losses are means over their second half and over the first.

        Args:
            place: from where.
            stretch: which passes.
            rate: of every vector at a step, counted from the first of the stretch.
        """
        steps, state = stretch.passes * self.total, place.state
        state = eqx.tree_at(lambda s: s.loss, state, jnp.zeros_like(state.loss))
        half, step = jnp.zeros_like(state.loss), 0
        for number in range(stretch.passes):
            for batch in shuffled_batches(self.data, self._order(stretch.first + number)):
                before = state.loss
                half = before if step == steps // 2 else half
                state = self._step(state, batch, rate(step), place.steps + step)
                jax.block_until_ready(before)  # or jax would read tens of batches ahead
                step += 1
        before, after = np.asarray(half, np.float64), np.asarray(state.loss - half, np.float64)
        late = after / (steps - steps // 2)
        early = before / (steps // 2) if steps > 1 else late
        return _Place(state, place.steps + steps, late), early

    def _step(self, state: DescentState, batch: Batch, rate: np.ndarray, step: int) -> DescentState:
        recipe = self.recipe
        weight = 0.0 if recipe.averaging is None else recipe.averaging(step)
        return stepped(
            self.objective,
            batch,
            self._drawn(batch),
            state,
            np.asarray(rate, np.float32),
            np.asarray(weight, np.float32),
            self._scale(batch),
            transformation=recipe.transformation,
            automatic=recipe.automatic,
            clip=recipe.clip,
        )

    def _drawn(self, batch: Batch) -> Float[Array, "k N"] | None:
        return None if self.drawn is None else self.drawn(batch)

    def _scale(self, batch: Batch) -> np.ndarray:
        """All data over the batch's, as an array: another value compiles nothing anew."""
        if not shuffles_rows(self.data):
            return np.asarray(self.total, np.float32)
        return np.asarray(self.data.num_observations / np.sum(batch.mask), np.float32)

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
    drawn: Callable[[Batch], Float[Array, "k N"]] | None = None,
    rate: float | None = None,
    curvature: float = 1.0,
    callback: Callable[[int, DescentState], None] | None = None,
) -> Descended:
    """Minimises the objective for all vectors side by side, each on its own.

    Where losses rise over some passes, the descent goes back to where they were lowest, forgets its
    momentum, and halves its steps.

    Args:
        objective: what is minimised.
        data: the observations; their batches are the minibatches.
        start: first iterates.
        passes: over the data.
        recipe: the optimiser, and what is done with its iterates.
        key: of the order of the data.
        drawn: noise for the rows of a batch, if the objective takes any.
        rate: step times the largest curvature; decided by a race where None and automatic.
        curvature: what is known of the largest one.
        callback: called with the passes done and the state after every stretch of passes.
    """
    course = _Course(objective, data, recipe, key, drawn)
    race = _Race(1.0 if rate is None else rate, curvature, 0)
    if rate is None and recipe.automatic:
        race = _raced(course, start, passes, curvature)
    rate, place = race.rate, course.begin(start, race.curvature)
    good, marks, done, halvings = place, _Marks(place.loss, place.loss), 0, 0
    while done < passes and halvings < HALVINGS:
        stretch = _Stretch(done, min(course.stretch, passes - done))
        following, early = course.run(place, stretch, _decaying(course, passes, stretch, rate))
        done += stretch.passes
        if good.steps == 0:  # losses of steps that were too long are no measure
            marks = _Marks(early, early)
        if marks.exceeded(following.loss):
            place, rate, halvings = _back(good, following, recipe), rate / 2, halvings + 1
            continue
        if good.steps == 0 or following.loss.sum() <= marks.lowest.sum():
            good, marks = following, marks._replace(lowest=following.loss)
        place = following
        if callback is not None:
            callback(done, place.state)
    state, loss = place.state, place.loss
    finite = bool(np.isfinite(np.asarray(state.answer)).all())
    result = RESULTS.successful if finite else RESULTS.non_finite
    return Descended(state.answer, rate, float(state.curvature), race.passes + done, loss, result)


def _decaying(
    course: _Course, passes: int, stretch: _Stretch, first: float
) -> Callable[[int], Float[np.ndarray, " k"]]:
    """The step size of every vector at a step of a stretch."""
    count, begin = len(course.objective.centre), stretch.first * course.total
    share = lambda step: (begin + step) / (passes * course.total)
    return lambda step: np.full(count, first * course.recipe.decay(share(step)))


class _Marks(NamedTuple):
    """Losses that tell whether steps are too long."""

    first: Float[np.ndarray, " k"]
    lowest: Float[np.ndarray, " k"]

    def exceeded(self, loss: Float[np.ndarray, " k"]) -> bool:
        """Whether most vectors' losses have risen: by chance of minibatches alone they do a bit."""
        if not np.isfinite(loss).all():
            return True
        if not np.isfinite(self.lowest).all():
            return False
        allowed = np.maximum((self.first - self.lowest) / 2, 0.1 * np.abs(self.lowest))
        return bool(np.median(loss - self.lowest - allowed) > 0)


def _back(good: _Place, bad: _Place, recipe: Recipe) -> _Place:
    """The good place, at rest; what was learned of the curvature is kept."""
    known, seen = good.state.curvature, bad.state.curvature
    largest = jnp.maximum(known, jnp.where(jnp.isfinite(seen), seen, known))
    state = eqx.tree_at(lambda s: s.curvature, good.state, largest)
    return good._replace(state=state.at_rest(recipe.transformation))


class _Race(NamedTuple):
    """What a race has found, and the passes that it took."""

    rate: float
    curvature: float
    passes: int


def _raced(course: _Course, start: Float[Array, "k r"], passes: int, curvature: float) -> _Race:
    """The step whose loss is lowest after some passes with decay, for the first two vectors."""
    if passes < 2 * course.stretch:
        return _Race(LIMIT, curvature, 0)
    count = min(len(start), 2)
    columns = np.tile(np.arange(count), len(RACE))
    objective = eqx.tree_at(lambda o: o.centre, course.objective, course.objective.centre[columns])
    drawn = course.drawn
    racing = None if drawn is None else (lambda batch: drawn(batch)[columns])
    racers = course._replace(objective=objective, drawn=racing)
    stretch = _Stretch(passes, max(course.stretch, passes // SHARE))
    steps = stretch.passes * course.total
    rates = lambda step: np.repeat(RACE, count) * (1 - step / steps)
    place, _ = racers.run(racers.begin(start[columns], curvature), stretch, rates)
    loss = place.loss.reshape(len(RACE), count).sum(1)
    best = RACE[int(np.argmin(np.where(np.isfinite(loss), loss, np.inf)))]
    seen = float(place.state.curvature)
    return _Race(best, seen if np.isfinite(seen) else curvature, stretch.passes)
