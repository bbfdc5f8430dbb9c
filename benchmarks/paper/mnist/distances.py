"""How far apart two predictive distributions of classes are, and how good one of them is."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import linmodels as lm

DRAWS = 1_000
"""Of the logits of an image, where their covariance is known."""
SMALLEST = 1e-30
"""Probabilities below it count as that, before a logarithm."""
SET, SHUFFLES = 10, 20
"""Distinct images in a set whose joint log-likelihood is taken, and shuffles into sets."""
BINS = 15


class Logits(NamedTuple):
    """Gaussian logits of every image: mean (n, c) and covariance (n, c, c)."""

    mean: Float[Array, "n c"]
    covariance: Float[Array, "n c c"]

    @classmethod
    def of_deviations(cls, mean: Array, deviations: Float[Array, "k n c"]) -> "Logits":
        """With the covariance of deviations, whose mean is known to be 0."""
        square = jnp.einsum("knc,kne->nce", deviations, deviations, precision="highest")
        return cls(mean, square / len(deviations))

    def probit(self) -> Float[Array, "n c"]:
        """Probabilities of the classes in closed form, from variances alone."""
        variance = jnp.diagonal(self.covariance, axis1=1, axis2=2)
        return lm.predictives.categorical_probit(self.mean, variance)

    def averaged(self, *, key: Array) -> Float[Array, "n c"]:
        """Mean softmax over draws, the same ones for whoever has the key."""
        draws = jax.random.normal(key, (DRAWS, self.mean.shape[1]))
        one = lambda about: _average(*about, draws)
        return jax.lax.map(one, (self.mean, self.covariance), batch_size=100)


def _average(mean: Array, covariance: Array, draws: Array) -> Array:
    values, vectors = jnp.linalg.eigh(covariance)
    # The symmetric root: close covariances then have close draws.
    root = (vectors * jnp.sqrt(jnp.maximum(values, 0))) @ vectors.T
    return jnp.mean(jax.nn.softmax(mean + draws @ root), axis=0)


def divergence(p: Float[Array, "n c"], q: Float[Array, "n c"]) -> float:
    """Mean symmetrised KL divergence over images, in nats."""
    log = lambda probabilities: jnp.log(jnp.maximum(probabilities, SMALLEST))
    return float(jnp.mean(lm.metrics.symmetric_kl(log(p), log(q))))


@jax.jit
def _wasserstein(one: Logits, other: Logits) -> Array:
    distance = lambda about: lm.metrics.gaussian_wasserstein(*about)
    return jax.lax.map(distance, (*one, *other), batch_size=500)


def wasserstein(one: Logits, other: Logits) -> float:
    """Mean Wasserstein-2 distance of the logits over images."""
    return float(jnp.mean(_wasserstein(one, other)))


class Scores(NamedTuple):
    """Of predictions, on one set of images."""

    log_likelihood: float
    """mean over images, in nats"""
    error: float
    """its standard error"""
    joint: float
    """of sets of distinct images drawn 10 (κ − 1) times, in nats a draw"""
    calibration: float
    """ECE"""
    accuracy: float


def scored(logits: Float[Array, "k n c"], labels: np.ndarray, *, key: Array) -> Scores:
    """Of joint draws of the logits of all images; one draw is a point estimate."""
    log_probs = jax.nn.log_softmax(jnp.asarray(logits))
    found = jnp.take_along_axis(log_probs, jnp.asarray(labels)[None, :, None], 2)[..., 0]
    marginal = np.asarray(jax.nn.logsumexp(found, 0) - jnp.log(len(found)), np.float64)
    probabilities = jnp.mean(jnp.exp(log_probs), 0)
    distinct = min(SET, len(labels))
    size = max(10 * (distinct - 1), 1)
    joint = lm.metrics.resampled_joint_log_prob(found, distinct, size, shuffles=SHUFFLES, key=key)
    right = np.asarray(jnp.argmax(probabilities, 1) == labels)
    return Scores(
        float(marginal.mean()),
        float(marginal.std() / np.sqrt(len(marginal))),
        float(joint) / size,
        float(lm.metrics.reliability(probabilities, jnp.asarray(labels), BINS).expected_error),
        float(right.mean()),
    )
