"""The mode of the posterior by damped Newton steps."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from linmodels._batches import Data
from linmodels._expansion import along
from linmodels._results import RESULTS
from linmodels.methods import Mean

MAX_STEPS = 25
"""Newton steps before giving up: where the mode lies at infinity, outputs grow by 1 a step."""
WORKING = 1e-3
"""Rise still expected, in nats and over γ, that counts as none where nothing more can be gained at
the working precision: ½‖e‖²_H of a mean as far from the mode as the mean of a linear model may be
from the solution for 64 samples."""
FIRST, FORCING = 1e-2, 0.02
"""How closely the first step is solved for, over γ, and later ones over the rise of the one before
(Eisenstat & Walker 1996)."""
REACH = 0.1
"""Largest change of an output for which the quadratic model is trusted. With flat columns, which
may send outputs to infinity, a last step is no longer than that."""
LENGTHS = 2.0 ** np.arange(6, -21, -1)
"""Of steps that are tried; as many with flat columns, where none is longer than 1."""


class Mode(NamedTuple):
    """Where the penalised log-likelihood is largest.

    Attributes:
        parameters: θ̄.
        coordinates: F⁻¹(θ̄ − μ), anything at flat parameters.
        result: how the search ended.
        steps: Newton steps that it took.
    """

    parameters: PyTree
    coordinates: Float[np.ndarray, " r"]
    result: RESULTS
    steps: int
    norm_error: float = 0.0
    """as of the last mean"""


def find_mode(
    data: Data,
    newton: Callable[[Mode, float], Mean],
    precision: Float[np.ndarray, " r"],
    start: Mode,
    *,
    any_flat: bool,
) -> Mode:
    """Maximises Σ w log p(y|o + Φθ) − ½‖x‖², which falls by no more than rounding.

    Args:
        data: the observations.
        newton: the posterior mean of the data expanded at a point, a Newton step from there, as
            closely as is asked for.
        precision: α of every coordinate, 0 at flat ones.
        start: where to start.
        any_flat: whether there are flat columns, with which there may be no mode.
    """
    here, before, closeness, count = start, np.inf, FIRST, 0
    for count in range(1, MAX_STEPS + 1):
        mean = newton(here, closeness)
        size = max(mean.size, 1.0)
        if not _is_solved(mean):
            return here._replace(result=mean.result, steps=count)
        tolerance = size * mean.closeness
        step = _step(data, here, mean, precision, tolerance, any_flat=any_flat)
        here = here if step.end is None else step.end
        stuck = step.end is None or step.expected > before / 2
        small = step.expected <= (WORKING * size if stuck else tolerance)
        if mean.finest and step.may_be_last and small:
            reached = {"steps": count, "norm_error": mean.norm_error}
            return here._replace(result=RESULTS.successful, **reached)
        if mean.finest and step.end is None:
            break
        before = step.expected if mean.finest else np.inf  # a loose solve tells no stand-still
        closeness = 0.0 if step.end is None else min(FORCING * step.expected / size, FIRST)
    return here._replace(result=RESULTS.mode_not_found, steps=count)


def _is_solved(mean: Mean) -> bool:
    """As closely as was asked for, or as the working precision allows."""
    working = mean.result == RESULTS.stagnated and mean.closeness <= WORKING
    return bool(mean.result == RESULTS.successful or working)


class _Step(NamedTuple):
    """A damped Newton step."""

    end: Mode | None
    """None where no step raises the penalised log-likelihood"""
    expected: float
    """rise of the quadratic model over a whole step: ½‖e‖²_H, e how far the mode seems to be"""
    may_be_last: bool


def _step(
    data: Data,
    here: Mode,
    mean: Mean,
    precision: Float[np.ndarray, " r"],
    tolerance: float,
    *,
    any_flat: bool,
) -> _Step:
    """From here towards the mean, as far as raises the penalised log-likelihood most.

    Where no output changes by more than `REACH`, third derivatives of all the likelihoods add at
    most 8 % to the quadratic term, which then tells a rise that rounding of the objective hides;
    a whole step is taken unless it falls by more than the tolerance or rounding of θ.
    """
    toward = np.asarray(mean.coordinates, np.float64) - here.coordinates
    direction = jax.tree.map(jnp.subtract, mean.parameters, here.parameters)
    lengths = LENGTHS / LENGTHS[0] if any_flat else LENGTHS
    line = along(data, here.parameters, direction, lengths)
    slope, square = (precision * here.coordinates) @ toward, precision @ toward**2
    short, curvature = line.reach <= REACH, line.curvature + square
    epsilon = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(direction))).eps)
    rounding = line.slope_error + epsilon * (precision @ here.coordinates**2)
    if short and line.slope - slope - 0.54 * curvature >= -tolerance - rounding:
        length = 1.0
    else:
        rises = line.rises - lengths * slope - 0.5 * lengths**2 * square
        best = int(np.nanargmax(np.append(rises, 0.0)))
        length = np.append(lengths, 0.0)[best]
    end = _moved(here, length, direction, toward) if length > 0 else None
    return _Step(end, float(0.5 * curvature), short or not any_flat)


def _moved(here: Mode, step: float, direction: PyTree, toward: Float[np.ndarray, " r"]) -> Mode:
    move = lambda theta, d: theta + np.asarray(step, theta.dtype) * d
    parameters = jax.tree.map(move, here.parameters, direction)
    return here._replace(parameters=parameters, coordinates=here.coordinates + step * toward)
