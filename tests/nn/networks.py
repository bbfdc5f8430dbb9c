"""Small networks of many kinds, each with the function of its chosen parameters written out."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from linmodels_nn import Linearised, linearise

N = 5


class Case(NamedTuple):
    """A linearised network, inputs, and f(θ, x) for all examples by other means."""

    linearised: Linearised
    inputs: Any
    direct: Callable[[Any], Any]


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def made(constructor, *arguments, **keywords):
    """A module with NumPy's weights: drawing them by JAX would compile for every shape."""
    key = jax.random.key(0)
    build = lambda: constructor(*arguments, key=key, **keywords)
    return jax.tree.map(_filled, eqx.filter_eval_shape(build), is_leaf=_is_shape)


def _is_shape(leaf):
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _filled(leaf):
    if not _is_shape(leaf):
        return leaf
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    return jnp.asarray(normal(*leaf.shape) if floating else 1, leaf.dtype)


def applied(network, inputs, *, filter_spec=eqx.is_inexact_array, **rest):
    """A network of one example, all of whose parameters are chosen."""
    linearised = linearise(network, filter_spec=filter_spec, **rest)
    static = eqx.filter(network, filter_spec, inverse=True)
    return Case(
        linearised, inputs, lambda theta: jax.vmap(eqx.combine(theta, static))(jnp.asarray(inputs))
    )


def mlp():
    return made(eqx.nn.MLP, 3, 2, 4, 1, activation=jnp.tanh)


class Convolutional(eqx.Module):
    """With statistics that are a state, drops, and an integer buffer."""

    first: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    drop: eqx.nn.Dropout
    last: eqx.nn.Linear
    order: jax.Array
    activation: Callable

    def __init__(self, key):
        self.first = eqx.nn.Conv2d(1, 2, 3, stride=2, key=key)
        self.norm = eqx.nn.BatchNorm(2, axis_name="batch", mode="batch")
        self.drop = eqx.nn.Dropout(0.5)
        self.last = eqx.nn.Linear(2, 3, key=key)
        self.order = jnp.array([2, 0, 1])
        self.activation = jax.nn.softplus

    def __call__(self, x, state, key=None):
        x, state = self.norm(self.activation(self.first(x)), state)
        return self.last(self.drop(x.mean((1, 2)), key=key))[self.order], state


def trained_convolutional():
    """In training mode, and its state."""
    network, state = made(eqx.nn.make_with_state(Convolutional))
    network = eqx.tree_at(lambda net: net.order, network, jnp.array([2, 0, 1]))
    return network, jax.tree.map(jnp.abs, state)


def convolutional():
    network, state = trained_convolutional()
    network = eqx.nn.inference_mode(network)
    static, inputs = eqx.filter(network, eqx.is_inexact_array, inverse=True), normal(N, 1, 6, 6)
    one = lambda theta, x: eqx.combine(theta, static)(x, state)[0]
    direct = lambda theta: jax.vmap(one, (None, 0))(theta, inputs)
    return Case(linearise(network, state=state), inputs, direct)


class Attention(eqx.Module):
    """A sequence of outputs from token numbers."""

    embedding: eqx.nn.Embedding
    attention: eqx.nn.MultiheadAttention
    last: eqx.nn.Linear

    def __init__(self, key):
        self.embedding = eqx.nn.Embedding(6, 4, key=key)
        self.attention = eqx.nn.MultiheadAttention(2, 4, key=key)
        self.last = eqx.nn.Linear(4, 2, key=key)

    def __call__(self, tokens):
        x = jax.vmap(self.embedding)(tokens)
        return jax.vmap(self.last)(self.attention(x, x, x))


TOKENS = np.random.default_rng(0).integers(0, 6, (N, 3))


class TwoInputs(eqx.Module):
    """A dict of numbers and a token in, a dict of arrays out."""

    matrix: jax.Array
    table: jax.Array
    scale: float

    def __call__(self, x):
        hidden = jnp.tanh(self.matrix @ x["numbers"]) * self.scale + self.table[x["token"]]
        return {"total": hidden.sum(), "each": hidden}


def two_inputs():
    network = TwoInputs(jnp.asarray(normal(3, 2)), jnp.asarray(normal(6, 3)), 0.5)
    inputs = {"numbers": normal(N, 2), "token": TOKENS[:, 0]}

    def direct(theta):
        hidden = jnp.tanh(inputs["numbers"] @ theta.matrix.T) * 0.5 + theta.table[TOKENS[:, 0]]
        return {"total": hidden.sum(1), "each": hidden}

    return Case(linearise(network), inputs, direct)


def image():
    """A convolution from image to image."""
    return applied(made(eqx.nn.Conv2d, 1, 1, 2, padding="SAME"), normal(N, 1, 3, 4))


def square():
    """Outputs of shape (2, 2)."""
    layers = [made(eqx.nn.Linear, 3, 4), eqx.nn.Lambda(lambda x: jnp.sin(x).reshape(2, 2))]
    return applied(eqx.nn.Sequential(layers), normal(N, 3))


def last_layer():
    network = mlp()
    spec = jax.tree.map(lambda _: False, network)
    spec = eqx.tree_at(lambda net: net.layers[-1], spec, True)
    features = jnp.tanh(jax.vmap(network.layers[0])(normal(N, 3)))

    def direct(theta):
        return features @ theta.layers[-1].weight.T + theta.layers[-1].bias

    return Case(linearise(network, filter_spec=spec), normal(N, 3), direct)


class LowRank(eqx.Module):
    """A frozen linear layer and a low-rank change of it."""

    base: eqx.nn.Linear
    left: jax.Array
    right: jax.Array

    def __call__(self, x):
        return jnp.tanh(self.base(x) + self.left @ (self.right @ x))


def low_rank():
    network = LowRank(
        made(eqx.nn.Linear, 3, 4), jnp.asarray(normal(4, 1)), jnp.asarray(normal(1, 3))
    )
    spec = eqx.tree_at(
        lambda net: (net.left, net.right), jax.tree.map(lambda _: False, network), (True, True)
    )
    x = normal(N, 3)

    def direct(theta):
        return jnp.tanh(jax.vmap(network.base)(x) + x @ theta.right.T @ theta.left.T)

    return Case(linearise(network, filter_spec=spec), x, direct)


def function():
    """A plain function of NumPy's arrays, for all examples at once."""
    weights, x = {"w": normal(3, 2), "b": [normal(2)]}, normal(N, 3)
    f = lambda w, x: jnp.tanh(x @ w["w"] + w["b"][0])
    return Case(linearise(f, weights, batched=True), x, lambda theta: f(theta, x))


class AllAtOnce(eqx.Module):
    """A layer that takes a batch."""

    matrix: jax.Array
    power: int

    def __call__(self, x):
        return jnp.tanh(x @ self.matrix) ** self.power


def all_at_once():
    network, x = AllAtOnce(jnp.asarray(normal(3, 2)), 2), normal(N, 3)
    direct = lambda theta: jnp.tanh(x @ theta.matrix) ** 2
    return Case(linearise(network, batched=True), x, direct)


def attention():
    return applied(made(Attention), TOKENS)


CASES: dict[str, Callable[[], Case]] = {
    "MLP": lambda: applied(mlp(), normal(N, 3)),
    "scalar": lambda: applied(made(eqx.nn.MLP, 3, "scalar", 4, 1), normal(N, 3)),
    "convolutions and statistics": convolutional,
    "attention over tokens": attention,
    "dicts in and out": two_inputs,
    "images": image,
    "(2, 2)": square,
    "last layer": last_layer,
    "low rank": low_rank,
    "all examples at once": all_at_once,
    "function": function,
}
