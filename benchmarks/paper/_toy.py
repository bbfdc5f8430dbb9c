"""A one-dimensional regression with a gap, and a small network linearised at its trained weights.

The data are ours, in the style of the toy problems of Antorán et al. (2020): one draw from a
Gaussian process with a Matérn 3/2 kernel (length scale 0.8, unit variance), seen at 100 inputs in
each of two intervals with noise of standard deviation 0.15. The seed is one whose picture is clear.

The network has two hidden layers of 50 units, each a linear map, layer normalisation without
scale and shift of its own, and GELU: 2,701 parameters. Adam fits them in float64 to the least
squares with a penalty on the last layer alone, since the size of the others changes nothing. For
the same reason φ(x) w̄ = f(w̄, x), but for the small constant in the normalisation, and the
offset of the linear model is nearly 0. It is carried all the same. Where training ends depends on
rounding: on another machine expect the tables to two digits.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import linmodels as lm

NOISE = 0.15
"""Standard deviation of the noise, in the units of y; known to all fits."""
LENGTH_SCALE = 0.8
INTERVALS = (-2.0, -0.7), (0.7, 2.0)
"""Of x with data; between them is the gap."""
ROWS = 100
"""Observations in each interval, and as many held-out ones there and in the gap."""
WIDTH = 50
PENALTY = 1.0
"""Half of it times the squared weights of the last layer is added to the log-likelihood's loss."""
STEPS, RATE = 1_000, 3e-3
"""Of Adam; the rate falls to 0 along a cosine."""


class Data(NamedTuple):
    """Inputs and targets, (n,) in float32."""

    x: np.ndarray
    y: np.ndarray


class Toy(NamedTuple):
    """Observations, held-out ones among them and in the gap, and the function they come from."""

    train: Data
    held_out: Data
    gap: Data
    curve: Data
    """without noise"""


def make() -> Toy:
    """The data, always the same."""
    generator = np.random.default_rng(3)
    inside = [generator.uniform(*interval, 2 * ROWS) for interval in INTERVALS]
    train = np.concatenate([part[:ROWS] for part in inside])
    held_out = np.concatenate([part[ROWS:] for part in inside])
    gap = generator.uniform(INTERVALS[0][1], INTERVALS[1][0], ROWS)
    x = np.concatenate([train, held_out, gap, np.linspace(-3.0, 3.0, 301)])
    values = matern_draw(x, generator.standard_normal(len(x)))
    cuts = np.cumsum([len(train), len(held_out), len(gap)])
    y = values + NOISE * generator.standard_normal(len(x))
    y[cuts[-1] :] = values[cuts[-1] :]
    # Three decimals: the rounding of one machine's Cholesky factor would decide about the network.
    parts = (np.split(np.float32(np.round(values, 3)), cuts) for values in (x, y))
    return Toy(*(Data(*pair) for pair in zip(*parts, strict=True)))


def matern_draw(x: np.ndarray, white: np.ndarray) -> np.ndarray:
    """Values at x of the Gaussian process, by Cholesky from standard normal draws."""
    distance = np.sqrt(3) * np.abs(x[:, None] - x) / LENGTH_SCALE
    kernel = (1 + distance) * np.exp(-distance)
    return np.linalg.cholesky(kernel + 1e-10 * np.eye(len(x))) @ white


class Network(eqx.Module):
    """Linear, LayerNorm, GELU; the same again; linear."""

    layers: list[eqx.nn.Linear]
    norms: list[eqx.nn.LayerNorm]

    def __init__(self, key: jax.Array):
        keys = jax.random.split(key, 3)
        sizes = [(1, WIDTH), (WIDTH, WIDTH), (WIDTH, 1)]
        self.layers = [eqx.nn.Linear(*s, key=k) for s, k in zip(sizes, keys, strict=True)]
        self.norms = [eqx.nn.LayerNorm(WIDTH, use_weight=False, use_bias=False) for _ in range(2)]

    def __call__(self, x: jax.Array) -> jax.Array:
        """The output, a number, at the number x."""
        hidden = x[None]
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            hidden = jax.nn.gelu(norm(layer(hidden)))
        return self.layers[-1](hidden)[0]


class Linearised(NamedTuple):
    """The network as a linear model in w: f(w, x) ≈ o(x) + φ(x) w, o(x) = f(w̄, x) − φ(x) w̄."""

    weights: np.ndarray
    """w̄, (d',) in float64"""
    outputs: Callable[[jax.Array, jax.Array], jax.Array]
    """f(w, x), (n,), from w (d',) and x (n,)"""

    def rows(self, x: np.ndarray) -> tuple[lx.MatrixLinearOperator, np.ndarray]:
        """Φ, the dense Jacobian, and o at x: computed in float64, kept in float32."""
        with jax.enable_x64(True):
            weights, x = jnp.asarray(self.weights), jnp.asarray(x, jnp.float64)
            jacobian = jax.jacrev(self.outputs)(weights, x)
            offset = self.outputs(weights, x) - jacobian @ weights
            jacobian, offset = np.asarray(jacobian, np.float32), np.asarray(offset, np.float32)
        return lx.MatrixLinearOperator(jnp.asarray(jacobian)), offset

    def observations(self, data: Data) -> lm.Observations:
        """The linear model's data at the known noise."""
        design, offset = self.rows(data.x)
        return lm.Observations(design, data.y, lm.Gaussian(NOISE**-2), offset=offset)

    def predict(self, posterior: lm.Posterior, x: np.ndarray) -> lm.Prediction:
        """The linear model's deviations around the network's own output (linearised Laplace)."""
        weights = jnp.asarray(self.weights, jnp.float32)
        around = eqx.tree_at(lambda p: p.mean, posterior, weights)
        return around.predict(*self.rows(x))


def train(data: Data) -> Linearised:
    """The network at its penalised least squares."""
    with jax.enable_x64(True):
        arrays, static = eqx.partition(Network(jax.random.key(0)), eqx.is_array)
        start, unravel = ravel_pytree(arrays)
        outputs = jax.jit(lambda w, x: jax.vmap(eqx.combine(unravel(w), static))(x))
        x, y = (jnp.asarray(v, jnp.float64) for v in data)

        def loss(w: jax.Array) -> jax.Array:
            residual = (outputs(w, x) - y) / NOISE
            return 0.5 * jnp.sum(residual**2) + 0.5 * PENALTY * jnp.sum(w[-WIDTH - 1 :] ** 2)

        adam = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))

        def step(carry: tuple, _: None) -> tuple[tuple, None]:
            w, state = carry
            change, state = adam.update(jax.grad(loss)(w), state)
            return (w + change, state), None

        run = jax.jit(lambda w: jax.lax.scan(step, (w, adam.init(w)), None, STEPS)[0][0])
        return Linearised(np.asarray(run(start)), outputs)
