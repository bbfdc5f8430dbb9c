"""Where a descent stands, and one step of it."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from linmodels._batches import Batch
from linmodels._blocks import inner_products, norms
from linmodels.descent._objective import AbstractObjective

MEMORY = 0.1
"""Weight of a step in the recent size of a vector's gradient."""


class DescentState(eqx.Module):
    """Iterates and what the optimiser remembers; all that a descent needs to go on.

    Attributes:
        x: iterates, (k, r).
        average: of them, (k, r); None where the last iterate is the answer.
        optimiser: optax's state, with a leading axis k: every vector has its own.
        size: recent ‖gradient‖ of every vector, (k,); 0 at the start.
        curvature: the largest seen yet, 1 + λmax of a minibatch's Hessian scaled to all data.
        probe: the direction it was seen in, (1, r).
        loss: summed over the steps since it was last read, (k,).
    """

    x: Float[Array, "k r"]
    average: Float[Array, "k r"] | None
    optimiser: PyTree
    size: Float[Array, " k"]
    curvature: Float[Array, ""]
    probe: Float[Array, "1 r"]
    loss: Float[Array, " k"]

    @property
    def answer(self) -> Float[Array, "k r"]:
        """The average, or the last iterates."""
        return self.x if self.average is None else self.average

    def at_rest(self, transformation: optax.GradientTransformation) -> "DescentState":
        """With nothing remembered by the optimiser, and no loss."""
        fresh = jax.vmap(transformation.init)(self.x), jnp.zeros_like(self.loss)
        return eqx.tree_at(lambda s: (s.optimiser, s.loss), self, fresh)


def begun(
    x: Float[Array, "k r"],
    probe: Float[Array, "1 r"],
    curvature: float,
    transformation: optax.GradientTransformation,
    *,
    averaged: bool,
) -> DescentState:
    """Before the first step."""
    zeros, largest = jnp.zeros(len(x), x.dtype), jnp.asarray(curvature, x.dtype)
    average = x if averaged else None
    return DescentState(x, average, jax.vmap(transformation.init)(x), zeros, largest, probe, zeros)


@eqx.filter_jit
def looked(
    objective: AbstractObjective, batch: Batch, drawn: Array | None, state: DescentState, total: Any
) -> DescentState:
    """The state after another look at the curvature of a batch."""
    curved = objective.term(batch, drawn, state.x, state.probe).curved
    return _with_curvature(state, curved, total)


@eqx.filter_jit
def stepped(
    objective: AbstractObjective,
    batch: Batch,
    drawn: Array | None,
    state: DescentState,
    rate: Float[Any, " k"],
    weight: Any,
    total: Any,
    *,
    transformation: optax.GradientTransformation,
    automatic: bool,
    clip: float,
) -> DescentState:
    """The state after a step on one batch.

    Args:
        objective: what is minimised.
        batch: the data of the step.
        drawn: noise of its rows, where the objective needs it.
        state: before.
        rate: of every vector; over the curvature where automatic.
        weight: of the new iterate in the average.
        total: all data over the batch's, by which its part is scaled; an array.
        transformation: the optimiser.
        automatic: whether its learning rate is 1.
        clip: see `Recipe`.
    """
    term = objective.term(batch, drawn, state.x, state.probe)
    state = _with_curvature(state, term.curved, total)
    penalised, centre = objective.penalised * state.x, objective.penalised * objective.centre
    offset = penalised - centre
    gradient, size = _clipped(total * term.gradient + offset, state.size, clip)
    updates, optimiser = jax.vmap(transformation.update)(gradient, state.optimiser, state.x)
    rate = rate / state.curvature if automatic else rate
    x = state.x + rate.astype(state.x.dtype)[:, None] * updates
    average = state.average
    if average is not None:
        average = average + weight * (x - average)
    # Less ½‖p c‖², which may be so much larger that rounding of it would hide the rest.
    known = inner_products(
        objective.penalised * state.x, offset - objective.penalised * objective.centre
    )
    loss = state.loss + total * term.loss + known / 2
    return DescentState(x, average, optimiser, size, state.curvature, state.probe, loss)


def _with_curvature(state: DescentState, curved: Array, total: Any) -> DescentState:
    """One step of the power iteration, from batch to batch; the largest value counts."""
    size = norms(curved)[0]
    probe = jnp.where(size > 0, curved / jnp.where(size > 0, size, 1), state.probe)
    curvature = jnp.maximum(state.curvature, 1 + total * size)
    return eqx.tree_at(lambda s: (s.curvature, s.probe), state, (curvature, probe))


def _clipped(gradient: Array, size: Array, clip: float) -> tuple[Array, Array]:
    """Gradients no longer than `clip` times their recent size, and that size; each on its own."""
    length = norms(gradient)
    limit = jnp.where(size > 0, clip * size, jnp.inf)
    kept = jnp.minimum(length, limit)
    factor = jnp.where(length > 0, kept / jnp.where(length > 0, length, 1), 1)
    return gradient * factor[:, None], jnp.where(size > 0, size + MEMORY * (kept - size), kept)
