"""How good predictions are: arrays in, arrays out."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from linmodels.likelihoods import LOG_2PI


def gaussian_log_prob(
    targets: Float[Array, "..."], mean: Float[Array, "..."], std: Float[Array, "..."]
) -> Float[Array, "..."]:
    """log N(y; mean, std²) entry by entry, in nats; all of one shape.

    Where std is 0 it is ∞ at the mean and −∞ elsewhere.

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
    spread = jnp.where(std == 0, 1, std)
    density = -0.5 * ((targets - mean) / spread) ** 2 - jnp.log(spread) - 0.5 * LOG_2PI
    return jnp.where(std == 0, jnp.where(targets == mean, jnp.inf, -jnp.inf), density)


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


def brier(probabilities: Float[Any, "n c"], labels: Int[Any, " n"]) -> Float[Array, ""]:
    """Mean over observations of Σ_c (p_c − [y = c])², between 0 and 2 (Brier 1950).

    Raises:
        ValueError: shapes that do not fit, or labels that are no classes.
    """
    _require_labels(probabilities, labels)
    observed = jax.nn.one_hot(labels, probabilities.shape[1], dtype=probabilities.dtype)
    return jnp.mean(jnp.sum((probabilities - observed) ** 2, axis=1))


class Reliability(NamedTuple):
    """How often the most probable class is right, by its probability."""

    confidence: Float[Array, " bins"]
    """its mean probability in a bin; 0 in empty ones"""
    accuracy: Float[Array, " bins"]
    """share of observations of that class; 0 in empty bins"""
    count: Int[Array, " bins"]

    @property
    def expected_error(self) -> Float[Array, ""]:
        """Mean over observations of |accuracy − confidence| of their bins, the ECE."""
        gaps = jnp.abs(self.accuracy - self.confidence)
        return jnp.sum(self.count * gaps) / jnp.sum(self.count)


def reliability(
    probabilities: Float[Any, "n c"], labels: Int[Any, " n"], bins: int = 15
) -> Reliability:
    """By equal bins of the probability of the most probable class (Guo et al. 2017).

    Raises:
        ValueError: shapes that do not fit, labels that are no classes, or no bins.
    """
    _require_labels(probabilities, labels)
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}.")
    confidence = jnp.max(probabilities, axis=1)
    right = jnp.argmax(probabilities, axis=1) == labels
    place = jnp.clip(jnp.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    count = jnp.bincount(place, length=bins)
    mean = lambda values: jnp.bincount(place, values, length=bins) / jnp.maximum(count, 1)
    return Reliability(mean(confidence), mean(right.astype(confidence.dtype)), count)


def resampled_joint_log_prob(
    log_probs: Float[Array, "k n"],
    distinct: int,
    size: int | None = None,
    *,
    shuffles: int = 10,
    key: Array,
) -> Float[Array, ""]:
    """Mean over sets of observations of log 1/k Σ_j exp Σ_l b_l log p(y_l | f_jl), in nats a set.

    Every shuffle cuts the observations into sets of κ distinct ones, the rest left out; a set holds
    τ draws of them, b_l times each. Predictions that know which outputs vary together lose little
    as κ grows (Osband et al. 2022; Antorán, Padhy et al. 2023, appendix H.1, "κ-adic sampling").

    Args:
        log_probs: log p(y_i | f_ij) for every posterior sample j and observation i; −∞ only counts
            where it is drawn.
        distinct: κ.
        size: τ; 10 (κ − 1) where None, 1 for κ = 1.
        shuffles: of all observations.
        key: of shuffles and draws.

    Raises:
        ValueError: fewer observations than κ, or counts below 1.
    """
    count = log_probs.shape[1]
    size = max(10 * (distinct - 1), 1) if size is None else size
    if not 1 <= distinct <= count or size < 1 or shuffles < 1:
        raise ValueError(
            f"distinct={distinct} must be from 1 to the {count} observations, size={size} and "
            f"shuffles={shuffles} at least 1."
        )
    sets = count // distinct
    keys = jax.random.split(key, (shuffles, 2))
    permuted = jax.vmap(lambda k: jax.random.permutation(k, count))(keys[:, 0])
    places = permuted[:, : sets * distinct].reshape(shuffles, sets, distinct)
    draw = lambda k: jax.random.randint(k, (sets, size), 0, distinct)
    drawn = jax.vmap(draw)(keys[:, 1])
    times = jnp.sum(jax.nn.one_hot(drawn, distinct, dtype=log_probs.dtype), axis=2)
    sums = jnp.sum(jnp.where(times > 0, log_probs[:, places] * times, 0), axis=-1)
    return jnp.mean(jax.nn.logsumexp(sums, axis=0) - jnp.log(len(log_probs)))


def symmetric_kl(log_p: Float[Array, "*n c"], log_q: Float[Array, "*n c"]) -> Float[Array, "*n"]:
    """½ KL(p‖q) + ½ KL(q‖p) between categorical distributions, in nats, from log probabilities.

    Classes without mass in either add nothing (0 log 0 = 0); without mass in one of them it is ∞.

    Raises:
        ValueError: shapes differ.
    """
    if jnp.shape(log_p) != jnp.shape(log_q):
        raise ValueError(f"Shapes {jnp.shape(log_p)} and {jnp.shape(log_q)} must be the same.")
    gap = jnp.where(log_p == log_q, 0, log_p - log_q)
    terms = (jnp.exp(log_p) - jnp.exp(log_q)) * gap
    # A mass that underflows beside one of 0 is a mass all the same.
    return 0.5 * jnp.sum(jnp.where(jnp.isinf(gap), jnp.inf, terms), axis=-1)


def gaussian_wasserstein(
    mean: Float[Array, " c"],
    covariance: Float[Array, "c c"],
    other_mean: Float[Array, " c"],
    other_covariance: Float[Array, "c c"],
) -> Float[Array, ""]:
    """W₂ between two Gaussians, √(‖m − m′‖² + tr(C + C′ − 2 (C^{½} C′ C^{½})^{½})).

    Covariances may be singular. Olkin & Pukelsheim (1982).
    """
    values, vectors = jnp.linalg.eigh(covariance)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))
    inner = jnp.linalg.eigvalsh(root.T @ other_covariance @ root)
    shared = jnp.sum(jnp.sqrt(jnp.maximum(inner, 0)))
    spread = jnp.trace(covariance) + jnp.trace(other_covariance) - 2 * shared
    return jnp.sqrt(jnp.sum((mean - other_mean) ** 2) + jnp.maximum(spread, 0))


def _require_labels(probabilities: Array, labels: Array) -> None:
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
        raise ValueError(
            f"probabilities must be (n, c) and labels (n,), got {probabilities.shape} and "
            f"{labels.shape}."
        )
    wrong = (labels < 0) | (labels >= probabilities.shape[1])
    if bool(jnp.any(wrong)):
        first = int(jnp.argmax(wrong))
        raise ValueError(
            f"labels must be classes from 0 to {probabilities.shape[1] - 1}, but label {first} is "
            f"{int(labels[first])}."
        )
