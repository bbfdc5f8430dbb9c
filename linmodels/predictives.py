"""Probabilities of classes under Gaussian outputs, in closed form: arrays in, arrays out."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def categorical_probit(
    mean: Float[Array, "*n c"], variance: Float[Array, "*n c"]
) -> Float[Array, "*n c"]:
    """softmax(κ f̄), κ_c = (1 + π/8 · variance_c)^{-½}: an approximation to E softmax(f).

    It moves to equal probabilities as variances grow, and ignores covariances between classes.
    MacKay (1992), "The evidence framework applied to classification networks", for two classes;
    Gibbs (1997) for several.

    Args:
        mean: f̄, logits with the classes last.
        variance: of every logit, at least 0.

    >>> import jax.numpy as jnp
    >>> [round(float(p), 4) for p in categorical_probit(jnp.array([3.0, 1.0, 0.0]), jnp.ones(3))]
    [0.7922, 0.1455, 0.0623]
    """
    return jax.nn.softmax(_shrunk(mean, variance), axis=-1)


def bernoulli_probit(mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """σ(κ f̄), κ = (1 + π/8 · variance)^{-½}: an approximation to E σ(f); MacKay (1992).

    >>> import jax.numpy as jnp
    >>> round(float(bernoulli_probit(jnp.array(2.0), jnp.array(3.0))), 5)
    0.79497
    """
    return jax.nn.sigmoid(_shrunk(mean, variance))


def _shrunk(mean: Float[Array, "*n"], variance: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return mean / jnp.sqrt(1 + np.pi / 8 * variance)
