"""Training of the networks, and their weights kept in a folder."""

import os
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.paper._digits import Digits
from benchmarks.paper.mnist.lenet import Architecture, LeNet, Trained

SHIFT = 2
"""Pixels by which training images are moved at random, each way."""
MOMENTUM = 0.9
DROPOUT = 0.1
"""Of the network that drops at random, behind each of its normalisations."""


class Recipe(NamedTuple):
    """How long and how fast: Nesterov's momentum, the rate falling to 0 along a cosine."""

    epochs: int
    batch_size: int
    rate: float


def cache_folder() -> Path:
    """Where weights are kept: `LINMODELS_CACHE`, or a folder of the repository that git ignores."""
    folder = os.environ.get("LINMODELS_CACHE")
    return Path(folder) if folder else Path(__file__).parents[2] / ".cache" / "mnist"


def trained(
    architecture: Architecture,
    digits: Digits,
    recipe: Recipe,
    *,
    seed: int = 0,
    dropout: float = 0.0,
) -> Trained:
    """A network in inference mode, from the folder if it has been trained before."""
    fresh = eqx.nn.make_with_state(LeNet)(architecture, dropout, key=jax.random.key(seed))
    about = "-".join(map(str, architecture.channels)), len(digits.labels), *recipe, dropout, seed
    path = cache_folder() / ("lenet_" + "_".join(map(str, about)) + ".eqx")
    if path.exists():
        network, state = eqx.tree_deserialise_leaves(path, fresh)
    else:
        network, state = _train(*fresh, digits, recipe, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        eqx.tree_serialise_leaves(path, (network, state))
    return Trained(eqx.nn.inference_mode(network), state)


def _train(network, state, digits: Digits, recipe: Recipe, seed: int):
    count, size = len(digits.labels), min(recipe.batch_size, len(digits.labels))
    steps = recipe.epochs * (count // size)
    rate = optax.cosine_decay_schedule(recipe.rate, steps)
    optimiser = optax.sgd(rate, MOMENTUM, nesterov=True)
    memory = optimiser.init(eqx.filter(network, eqx.is_inexact_array))
    generator, key = np.random.default_rng(seed), jax.random.key(seed + 1_000)
    for step in range(steps):
        place = step % (count // size)
        if place == 0:
            order = generator.permutation(count)
        chosen = digits.at(order[place * size : (place + 1) * size])
        batch = _shifted(chosen.inputs, generator), chosen.labels
        made = _step(network, state, memory, optimiser, batch, jax.random.fold_in(key, step))
        network, state, memory = made
    return network, state


@eqx.filter_jit
def _step(network, state, memory, optimiser, batch, key):
    (_, state), gradient = _loss(network, state, batch, key)
    changes, memory = optimiser.update(gradient, memory)
    return eqx.apply_updates(network, changes), state, memory


@eqx.filter_value_and_grad(has_aux=True)
def _loss(network, state, batch, key):
    inputs, labels = batch
    keys = jax.random.split(key, len(inputs))
    each = jax.vmap(network, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
    outputs, state = each(inputs, state, keys)
    losses = optax.softmax_cross_entropy_with_integer_labels(outputs, labels)
    return jnp.mean(losses), state


def _shifted(inputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Every image moved by up to two pixels each way, the margin filled with background."""
    width = inputs.shape[-1]
    margin = [(0, 0), (0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)]
    padded = np.pad(inputs, margin, constant_values=inputs.min())
    moves = generator.integers(0, 2 * SHIFT + 1, (len(inputs), 2))
    across = moves[:, :, None] + np.arange(width)
    rows = np.arange(len(inputs))[:, None, None]
    return padded[rows, 0, across[:, 0, :, None], across[:, 1, None, :]][:, None]
