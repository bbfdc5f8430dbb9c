"""Small convolutional networks for digits, in the style of LeNet."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

CLASSES = 10
KERNELS = 5, 3, 3


class Architecture(NamedTuple):
    """A network by its name and the channels of its three convolutions."""

    name: str
    channels: tuple[int, int, int]


LENET_TINY = Architecture("LeNetTiny", (8, 12, 16))
LENET_SMALL = Architecture("LeNetSmall", (16, 32, 32))
LENET = Architecture("LeNet", (32, 32, 64))
LENET_BIG = Architecture("LeNetBig", (42, 48, 60))


class LeNet(eqx.Module):
    """Three convolutions of stride 2, each with ReLU and batch normalisation, mean, a dense layer.

    Convolutions have biases and the normalisation has no scale and shift of its own, one vector a
    convolution. Dropout, off as a rule, comes behind each normalisation.
    """

    convolutions: tuple[eqx.nn.Conv2d, ...]
    norms: tuple[eqx.nn.BatchNorm, ...]
    dropout: eqx.nn.Dropout
    dense: eqx.nn.Linear

    def __init__(self, architecture: Architecture, dropout: float, *, key: Array):
        *keys, last = jax.random.split(key, 4)
        channels = architecture.channels
        parts = zip((1, *channels), channels, KERNELS, keys, strict=False)
        self.convolutions = tuple(
            eqx.nn.Conv2d(c, d, size, stride=2, padding=size // 2, key=k) for c, d, size, k in parts
        )
        norm = lambda c: eqx.nn.BatchNorm(
            c, axis_name="batch", channelwise_affine=False, momentum=0.9, mode="batch"
        )
        self.norms = tuple(map(norm, channels))
        self.dropout = eqx.nn.Dropout(dropout)
        self.dense = eqx.nn.Linear(channels[-1], CLASSES, key=last)

    def __call__(self, x: Array, state: eqx.nn.State, key: Array | None = None) -> Any:
        """Logits (10,) of one image (1, 28, 28), and the new state."""
        keys = [None] * 3 if key is None else jax.random.split(key, 3)
        for convolution, norm, key in zip(self.convolutions, self.norms, keys, strict=True):
            x, state = norm(jax.nn.relu(convolution(x)), state)
            x = self.dropout(x, key=key)
        return self.dense(jnp.mean(x, (1, 2))), state

    @property
    def num_parameters(self) -> int:
        """Weights and biases, without running statistics."""
        held = eqx.filter(eqx.nn.delete_init_state(self), eqx.is_inexact_array)
        return sum(leaf.size for leaf in jax.tree.leaves(held))


class Trained(NamedTuple):
    """A network in inference mode, and its state."""

    network: LeNet
    state: eqx.nn.State

    @property
    def statistics(self) -> list[tuple[Array, Array]]:
        """Mean and variance (channels,) that each normalisation uses."""
        return [normalisation(norm, self.state) for norm in self.network.norms]


def normalisation(norm: eqx.nn.BatchNorm, state: eqx.nn.State) -> tuple[Array, Array]:
    """Mean and variance in inference mode, found by what the layer makes of 0 and 1."""
    ends = [jnp.full((norm.input_size, 1), value) for value in (0.0, 1.0)]
    low, high = (norm(x, jax.tree.map(jnp.asarray, state), inference=True)[0][:, 0] for x in ends)
    slope = high - low
    return -low / slope, slope**-2 - norm.eps


def logits(trained: Trained, inputs: Array, batch_size: int = 1_000) -> Array:
    """Outputs (n, 10) in inference mode."""
    parts = range(0, len(inputs), batch_size)
    return jnp.concatenate([_logits(trained, inputs[i : i + batch_size]) for i in parts])


@eqx.filter_jit
def _logits(trained: Trained, inputs: Array) -> Array:
    one: Callable = lambda x: trained.network(x, trained.state)[0]
    return jax.vmap(one)(jnp.asarray(inputs))
