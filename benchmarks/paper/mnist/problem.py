"""A trained network on its digits as a linear model, its Jacobian as products or written out."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

import linmodels as lm
import linmodels_nn as nn
from benchmarks.paper._digits import Digits
from benchmarks.paper.mnist.lenet import LeNet, Trained
from linmodels._expansion import expanded

ROWS_AT_ONCE = 250
"""Images whose Jacobian is a matrix at one time."""


class Problem(NamedTuple):
    """What `linmodels_nn.laplace` is given, with the network behind it.

    Where the Jacobian is written out, it and the offset are the inputs of a network that is linear:
    the same model, in products of matrices. On a CPU that is worth it for a small network.
    """

    trained: Trained
    linearised: nn.Linearised
    """of the network itself: for images"""
    digits: Digits
    subject: nn.Linearised
    """what is fitted: the same, or the linear network of what is written out"""
    inputs: PyTree
    batch_size: int

    @property
    def data(self) -> lm.Observations | lm.Batched:
        """For `linmodels.infer`, which has the prior given; in one piece where that is a batch."""
        leaves, structure = jax.tree.flatten(self.inputs)
        if len(leaves[0]) <= self.batch_size:
            return self.subject.observations(self.inputs, self.digits.labels, lm.Categorical())
        rows = lm.RowSlices(*leaves, self.digits.labels, batch_size=self.batch_size)
        places = jax.tree.unflatten(structure, range(len(leaves)))
        return lm.Batched(rows, self.subject.observe(lm.Categorical(), places))

    @property
    def size(self) -> int:
        """d'."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.linearised.parameters))

    @property
    def layers(self) -> PyTree:
        """The layer of every parameter, shaped as θ: a prior's groups."""
        parameters = self.linearised.parameters
        layers = [*parameters.convolutions, parameters.dense]
        paint = lambda number, layer: jax.tree.map(lambda w: np.full(w.shape, number), layer)
        *convolutions, dense = (paint(number, layer) for number, layer in enumerate(layers))
        where = lambda p: (p.convolutions, p.dense)
        return eqx.tree_at(where, parameters, (tuple(convolutions), dense))

    def learned(self, prior: lm.GaussianPrior, **arguments: Any) -> nn.Laplace:
        """`linmodels_nn.laplace` with this prior; raises nothing."""
        pair = self.inputs, self.digits.labels
        settings = {"batch_size": self.batch_size, "throw": False, **arguments}
        return nn.laplace(self.subject, pair, lm.Categorical(), prior=prior, **settings)

    def sampled(self, prior: lm.GaussianPrior, **arguments: Any) -> lm.Fit:
        """`linmodels.infer` at a known α, without a search of the mode.

        The likelihood is expanded at the network's own weights, as it is for deviations.
        """
        data = expanded(self.data, self.subject.parameters)
        return lm.infer(data, prior, throw=False, **arguments)

    def shaped(self, vectors: Array) -> PyTree:
        """Vectors (k, d') as deviations of θ."""
        unravel = ravel_pytree(self.linearised.parameters)[1]
        return jax.vmap(unravel)(jnp.asarray(vectors, jnp.float32))


def made(trained: Trained, digits: Digits, batch_size: int, *, written_out: bool) -> Problem:
    """The linear model of a network and its digits."""
    linearised = nn.linearise(trained.network, state=trained.state)
    if not written_out:
        inputs = digits.inputs
        return Problem(trained, linearised, digits, linearised, inputs, batch_size)
    rows = np.concatenate(list(jacobians(linearised, digits.inputs)))
    offset = np.asarray(linearised.offset(digits.inputs))
    subject = nn.linearise(_linear, trained.network, batched=True)
    return Problem(trained, linearised, digits, subject, (offset, rows), batch_size)


def jacobians(linearised: nn.Linearised, inputs: np.ndarray):
    """Jacobians (n, 10, d') of some images after the other."""
    for start in range(0, len(inputs), ROWS_AT_ONCE):
        batch = inputs[start : start + ROWS_AT_ONCE]
        missing = min(ROWS_AT_ONCE, len(inputs)) - len(batch)
        padded = np.concatenate([batch, np.repeat(batch[-1:], missing, 0)])  # one shape compiles
        matrix = linearised.jacobian(padded).as_matrix()
        yield matrix.reshape(len(padded), -1, matrix.shape[1])[: len(batch)]


def _linear(network: LeNet, inputs: tuple[Array, Array]) -> Array:
    """o + J θ of all examples, θ the weights of the network."""
    offset, rows = inputs
    theta = ravel_pytree(eqx.filter(network, eqx.is_inexact_array))[0]
    flat = rows.reshape(-1, rows.shape[-1])
    return offset + jnp.matmul(flat, theta, precision="highest").reshape(offset.shape)


def flat_deviations(fit: lm.Fit) -> np.ndarray:
    """Deviations (k, d'), in the order of θ's leaves."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(fit.posterior.deviations)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
