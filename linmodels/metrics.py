"""How good predictions are: arrays in, arrays out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from linmodels.likelihoods import LOG_2PI


def gaussian_log_prob(
    targets: Float[Array, "..."], mean: Float[Array, "..."], std: Float[Array, "..."]
) -> Float[Array, "..."]:
    """log N(y; mean, std²) entry by entry, in nats; all of one shape.

    Raises:
        ValueError: shapes differ.

    >>> import jax.numpy as jnp
    >>> round(float(gaussian_log_prob(jnp.zeros(()), jnp.zeros(()), jnp.ones(()))), 4)
    -0.9189
    """
    if not jnp.shape(targets) == jnp.shape(mean) == jnp.shape(std):
        raise ValueError(
            f"targets {jnp.shape(targets)}, mean {jnp.shape(mean)} and std {jnp.shape(std)} must "
            "have one shape."
        )
    return -0.5 * ((targets - mean) / std) ** 2 - jnp.log(std) - 0.5 * LOG_2PI


def gaussian_joint_log_prob(
    residual: Float[Array, " N"], root: Float[Array, "N r"]
) -> Float[Array, ""]:
    """log N(residual; 0, GGᵀ) of all entries together, in nats, by QR of Gᵀ.

    The covariance itself would have lost a noise that is small beside the spread of the outputs.

    Args:
        residual: of the targets.
        root: G, of full row rank, so r ≥ N.
    """
    upper = jnp.linalg.qr(root.T, mode="r")
    whitened = jax.scipy.linalg.solve_triangular(upper, residual, trans="T")
    log_determinant = 2 * jnp.sum(jnp.log(jnp.abs(jnp.diag(upper))))
    return -0.5 * (jnp.sum(whitened**2) + log_determinant + len(residual) * LOG_2PI)


def coverage(
    targets: Float[Array, "..."], lower: Float[Array, "..."], upper: Float[Array, "..."]
) -> Float[Array, ""]:
    """Share of targets inside their intervals; all of one shape.

    Raises:
        ValueError: shapes differ.
    """
    if not jnp.shape(targets) == jnp.shape(lower) == jnp.shape(upper):
        raise ValueError(
            f"targets {jnp.shape(targets)}, lower {jnp.shape(lower)} and upper {jnp.shape(upper)} "
            "must have one shape."
        )
    return jnp.mean((targets >= lower) & (targets <= upper))
