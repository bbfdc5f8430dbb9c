"""Data to second order around a point: Gaussian noise to every method, exact in the gradient."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import parameter_structure, shaped_like
from linmodels._observations import Batch, Data, Observations, batches, example_batch
from linmodels._priors import GaussianPrior
from linmodels.likelihoods import AbstractCurved, QuadraticExpansion


class Point(eqx.Module):
    """Where a likelihood is expanded.

    Attributes:
        parameters: θ_t, where its gradient is taken.
        curvature_at: θ₀, where its curvature is; θ_t where None.
    """

    parameters: PyTree
    curvature_at: PyTree = None


def expanded(data: Data, point: Point) -> Data:
    """The data with every likelihood expanded at outputs f_t = o + Φθ_t, which become the targets.

    With R at θ₀ and Pearson residuals r, whitened targets are √w (R(f_t − o − Φμ) + r), whose
    posterior mean is one Newton step from θ_t.
    """
    if isinstance(data, Observations):
        return _around(data, *_parts(data, point))
    return data.observed_by(_Expanded(data.observe), *data.shared, point)


def at_prior_mean(data: Data, prior: GaussianPrior) -> Data:
    """The data expanded at the prior mean; themselves where their noise is Gaussian."""
    example = example_batch(data)
    if not isinstance(example.likelihood, AbstractCurved):
        return data
    structure = parameter_structure(example.design.in_structure())
    return expanded(data, Point(prior_mean(prior, structure)))


def prior_mean(prior: GaussianPrior, structure: PyTree) -> PyTree:
    """μ, shaped as θ."""
    if prior.mean is not None:
        return shaped_like(prior.mean, structure, "prior mean", "θ")
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), structure)


class _Expanded(eqx.Module):
    """`observe` of the expanded data; equal for equal `observe`, so that nothing compiles anew."""

    observe: Any

    def __call__(self, *arguments: Any) -> Observations:
        *own, point = arguments
        data = self.observe(*own)
        return _around(data, *_parts(data, point))


def _around(data: Observations, targets: PyTree, likelihood: QuadraticExpansion) -> Observations:
    """Unchecked: where outputs are not finite, whoever meets them first names the cause."""
    return eqx.tree_at(lambda d: (d.targets, d.likelihood), data, (targets, likelihood))


@eqx.filter_jit
def _parts(data: Observations, point: Point) -> tuple[PyTree, QuadraticExpansion]:
    likelihood = data.likelihood
    assert isinstance(likelihood, AbstractCurved)
    outputs = at = outputs_at(data, point.parameters)
    if point.curvature_at is not None:
        at = outputs_at(data, point.curvature_at)
    residual = likelihood.pearson_residual(at, likelihood.score(outputs, data.targets))
    return outputs, QuadraticExpansion(likelihood, at, residual)


def outputs_at(data: Observations, parameters: PyTree) -> PyTree:
    """f = o + Φθ."""
    outputs = data.design.mv(parameters)
    return outputs if data.offset is None else jax.tree.map(jnp.add, outputs, data.offset)


class Line(NamedTuple):
    """What the data say along θ + τ d."""

    rises: Float[np.ndarray, " t"]
    """Σ w (log p(y|f + τΦd) − log p(y|f)) for every τ"""
    slope: float
    """its derivative at τ = 0"""
    slope_error: float
    """what rounding may have added to that"""
    curvature: float
    """‖√w RΦd‖²"""
    reach: float
    """the largest change of an output at τ = 1"""


def along(
    data: Data, parameters: PyTree, direction: PyTree, steps: Float[np.ndarray, " t"]
) -> Line:
    """The log-likelihood at every step of a line, in one pass: outputs are linear along it."""
    rises, slope, error, curvature, reach = np.zeros(len(steps)), 0.0, 0.0, 0.0, 0.0
    for batch in batches(data):
        first, *rest = _along(batch, parameters, direction, jnp.asarray(steps))
        rises += np.asarray(first, np.float64)
        seen = [float(value) for value in rest]
        slope, error, curvature = slope + seen[0], error + seen[1], curvature + seen[2]
        reach = max(reach, seen[3])
    return Line(rises, slope, error, curvature, reach)


@eqx.filter_jit
def _along(batch: Batch, parameters: PyTree, direction: PyTree, steps: Float[Array, " t"]):
    data = batch.observations()
    likelihood, targets = data.likelihood, data.targets
    outputs, change = outputs_at(data, parameters), data.design.mv(direction)
    before = likelihood.log_prob(outputs, targets)

    def rise(step: Array) -> Array:
        moved = jax.tree.map(lambda f, d: f + step.astype(f.dtype) * d, outputs, change)
        after = likelihood.log_prob(moved, targets)
        return total(data, jax.tree.map(jnp.subtract, after, before))

    slopes = jax.tree.map(jnp.multiply, likelihood.score(outputs, targets), change)
    squares = jax.tree.map(jnp.square, likelihood.root_product(outputs, change))
    error = 4 * jnp.finfo(steps.dtype).eps * total(data, jax.tree.map(jnp.abs, slopes))
    sums = total(data, slopes), error, total(data, squares)
    sizes = [jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(weighted(data, change, sign=True))]
    return jax.lax.map(rise, steps), *sums, jnp.stack(sizes).max()


def log_likelihood(data: Data, parameters: PyTree) -> float:
    """Σ w log p(y|o + Φθ) in nats, summed in float64."""
    entries = (_log_probs(batch, parameters) for batch in batches(data))
    return sum(float(np.sum(np.asarray(e, np.float64))) for tree in entries for e in tree)


@eqx.filter_jit
def _log_probs(batch: Batch, parameters: PyTree) -> list[Array]:
    data = batch.observations()
    log_prob = data.likelihood.log_prob(outputs_at(data, parameters), data.targets)
    return jax.tree.leaves(weighted(data, log_prob))


def total(data: Observations, values: PyTree) -> Float[Array, ""]:
    """Σ w over entries."""
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(weighted(data, values))), jnp.zeros(()))


def weighted(data: Observations, values: PyTree, *, sign: bool = False) -> PyTree:
    """w times entries, or w > 0 times them; 0 where w is, whatever the entry."""
    if data.weights is None:
        return values
    weights = (data.weights > 0).astype(data.weights.dtype) if sign else data.weights

    def one(leaf: Array) -> Array:
        spread = weights.reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(spread > 0, spread * leaf, 0)

    return jax.tree.map(one, values)
