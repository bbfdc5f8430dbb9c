"""Leave-one-out residuals and log-densities in closed form."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import one_observation, ravel, size_of, unravel
from linmodels._batches import Batched, Data
from linmodels._infer import Fit
from linmodels._observations import Observations
from linmodels.likelihoods import Gaussian


class LeaveOneOut(NamedTuple):
    """Predictions of every observation from all the others, at fixed hyperparameters."""

    residuals: PyTree
    """y_i − E[y_i | the others], shaped as the targets"""
    log_prob: Float[Array, " n"]
    """log p(y_i | the others) over all outputs of observation i, in nats"""


def leave_one_out(data: Data, fit: Fit) -> LeaveOneOut:
    """What every observation looks like to a model that has not seen it.

    With C the posterior covariance of f_i and w_iB_i its precision, y_i − f_i becomes
    (I − C w_iB_i)⁻¹(y_i − f_i) and C becomes (I − C w_iB_i)⁻¹C.

    Args:
        data: the observations of the fit.
        fit: with an exact posterior.

    Raises:
        ValueError: no covariance factor, noise shared between observations, or an observation
            without which the model is improper (named).
    """
    if not isinstance(data, Observations | Batched) or not isinstance(fit, Fit):
        raise ValueError("leave_one_out takes the observations and their fit, in this order.")
    if fit.posterior.covariance_factor is None:
        raise ValueError("leave_one_out needs an exact posterior (its covariance factor).")
    if isinstance(data, Observations):
        parts = [_leave_out(data, fit)]
    else:
        parts = [_batch(data, index, fit) for index in range(len(data.batches))]
    residuals = jax.tree.map(lambda *r: jnp.concatenate(r), *[p.residuals for p in parts])
    log_prob = jnp.concatenate([p.log_prob for p in parts])
    bad = np.flatnonzero(~np.isfinite(np.asarray(log_prob)))
    if len(bad):
        raise ValueError(
            f"Observation {bad[0]} alone determines a parameter: without it the model is improper "
            "(to working precision)."
        )
    return LeaveOneOut(residuals, log_prob)


def _batch(data: Batched, index: int, fit: Fit) -> LeaveOneOut:
    arrays, mask = data.padded(index)
    padded = _leave_out_batch(data.observe, arrays, data.shared, fit)
    return jax.tree.map(lambda leaf: leaf[: int(mask.sum())], padded)


@eqx.filter_jit
def _leave_out_batch(observe, arrays, shared, fit):
    return _leave_out(observe(*arrays, *shared), fit)


def _leave_out(data: Observations, fit: Fit) -> LeaveOneOut:
    count = data._require_observation_axis("leave_one_out")
    if not isinstance(data.likelihood, Gaussian):
        raise ValueError(
            f"leave_one_out has a closed form for Gaussian noise only, not for "
            f"{type(data.likelihood).__name__}: hold out observations instead."
        )
    likelihood = data.likelihood.known(fit.noise_scale, data.targets)
    if likelihood.covers_all_targets(data.targets):
        raise ValueError("leave_one_out needs noise that is independent between observations.")
    mean = fit.posterior.predict(data.design, data.offset).mean
    matrix, constant = data.design.as_matrix(), likelihood.log_constant(data.targets)
    factor = fit.posterior.covariance_factor
    weights = np.ones(count) if data.weights is None else data.weights
    return _compiled(data.targets, mean, weights, constant, likelihood, matrix, factor)


@eqx.filter_jit
def _compiled(targets, mean, weights, constant, likelihood, matrix, factor) -> LeaveOneOut:
    """In one piece, without the design: its functions would be new every time."""
    residual = jax.vmap(ravel)(jax.tree.map(jnp.subtract, targets, mean))
    root = _roots(matrix, factor, targets)
    precision = _precisions(likelihood, targets, len(weights))
    weights = jnp.asarray(weights, residual.dtype)
    constant = jax.vmap(ravel)(constant).sum(1)
    left, log_prob = jax.vmap(_one)(root, precision, weights, residual, constant)
    one = one_observation(targets)
    return LeaveOneOut(jax.vmap(lambda r: unravel(r, one))(left), log_prob)


def _one(root: Array, precision: Array, weight: Array, residual: Array, constant: Array):
    """One observation's residual and log-density, with that of its noise at 0."""
    values, vectors = jnp.linalg.eigh(precision)
    half = (vectors * jnp.sqrt(jnp.maximum(values, 0))) @ vectors.T
    covariance = root @ root.T
    identity = jnp.eye(len(residual), dtype=residual.dtype)
    kept = jnp.linalg.inv(identity - weight * covariance @ precision)
    left, remaining = kept @ residual, kept @ covariance
    predictive = identity + half @ remaining @ half
    _, log_determinant = jnp.linalg.slogdet(predictive)
    # 1 − h for the largest leverage h; at rounding, the others say nothing about some direction.
    gap = jnp.linalg.eigvalsh(identity - weight * half @ covariance @ half)[0]
    improper = gap <= 16 * len(residual) * jnp.finfo(residual.dtype).eps
    whitened = half @ left
    square = whitened @ jnp.linalg.solve(predictive, whitened)
    log_prob = constant - 0.5 * (log_determinant + square)
    return left, jnp.where(improper, -jnp.inf, log_prob)


def _roots(matrix: Array, factor: Any, targets: PyTree) -> Float[Array, "n m r"]:
    """Φ_i C for every observation."""
    rows, leaves = jax.vmap(factor.T.mv)(matrix), jax.tree.leaves(targets)
    by_leaf = [jnp.arange(leaf.size).reshape(len(leaf), -1) for leaf in leaves]
    sizes = np.cumsum([0] + [leaf.size for leaf in leaves])
    index = jnp.concatenate([i + int(s) for i, s in zip(by_leaf, sizes[:-1], strict=True)], axis=1)
    return rows[index]


def _precisions(likelihood, targets: PyTree, count: int) -> Float[Array, "n m m"]:
    """B_i for every observation."""
    one = one_observation(targets)
    size = size_of(one)

    def column(unit: Array) -> Array:
        vector = jax.tree.map(
            lambda u, t: jnp.broadcast_to(u, t.shape), unravel(unit, one), targets
        )
        product = likelihood.root_transpose_product(
            targets, likelihood.root_product(targets, vector)
        )
        return jax.vmap(ravel)(product)

    dtype = jax.tree.leaves(targets)[0].dtype
    return jax.vmap(column, out_axes=2)(jnp.eye(size, dtype=dtype))
