"""Data to second order around a point: Gaussian noise to every method, exact in the gradient."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import parameter_structure, shaped_like
from linmodels._batches import Batch, Data, batches, example_batch
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels.likelihoods import AbstractCurved, QuadraticExpansion


def expanded(data: Data, parameters: PyTree, *, curvature_alone: bool = False) -> Data:
    """The data with every likelihood expanded at outputs f_t = o + Φθ_t, which become the targets.

    With Pearson residuals r, whitened targets are √w (R(f_t − o − Φμ) + r), whose posterior mean is
    one Newton step from θ_t. What is expanded, two numbers a target, is kept, so that passes over
    batches do not compute it anew: a batch has to have the same rows every time.

    Args:
        data: the observations.
        parameters: θ_t.
        curvature_alone: whether r is to be 0, as only the curvature matters. It may be huge where
            an outcome was thought impossible.
    """
    if isinstance(data, Observations):
        batch = Batch(None, data, None, None)
        return _around(data, _expand(batch, parameters, curvature_alone))
    kept, parts, own = [], None, 0
    for batch in batches(data):
        own, rows = len(batch.arguments) - len(data.shared), int(np.sum(batch.mask))
        parts = _expand(batch, parameters, curvature_alone)
        kept.append(tuple(np.asarray(leaf)[:rows] for leaf in jax.tree.leaves(parts)))
    assert parts is not None
    return data.extended(kept, _Expanded(data.observe, own, jax.tree.structure(parts)))


def at_prior_mean(data: Data, prior: GaussianPrior) -> Data:
    """The data expanded at the prior mean; themselves where their noise is Gaussian."""
    example = example_batch(data)
    if not isinstance(example.likelihood, AbstractCurved):
        return data
    structure = parameter_structure(example.design.in_structure())
    return expanded(data, prior_mean(prior, structure))


def prior_mean(prior: GaussianPrior, structure: PyTree) -> PyTree:
    """μ, shaped as θ."""
    if prior.mean is not None:
        return shaped_like(prior.mean, structure, "prior mean", "θ")
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), structure)


class _Parts(NamedTuple):
    """An expansion of some observations."""

    outputs: PyTree
    """f_t"""
    residual: PyTree
    """r"""


@eqx.filter_jit
def _expand(batch: Batch, parameters: PyTree, curvature_alone: bool) -> _Parts:
    data = batch.observations()
    likelihood = data.likelihood
    assert isinstance(likelihood, AbstractCurved)
    outputs = outputs_at(data, parameters)
    if curvature_alone:
        return _Parts(outputs, jax.tree.map(jnp.zeros_like, outputs))
    score = likelihood.score(outputs, data.targets)
    return _Parts(outputs, likelihood.pearson_residual(outputs, score))


def _around(data: Observations, parts: _Parts) -> Observations:
    """Unchecked: where outputs are not finite, whoever meets them first names the cause."""
    assert isinstance(data.likelihood, AbstractCurved)
    likelihood = QuadraticExpansion(data.likelihood, parts.outputs, parts.residual)
    return eqx.tree_at(lambda d: (d.targets, d.likelihood), data, (parts.outputs, likelihood))


class _Expanded(eqx.Module):
    """`observe` of the expanded data; equal for equal `observe`, so that nothing compiles anew."""

    observe: Any
    own: int = eqx.field(static=True)
    """arrays of a batch that are the data's; the leaves of an expansion follow"""
    parts: Any = eqx.field(static=True)
    """tree structure of that"""

    def __call__(self, *arguments: Any) -> Observations:
        end = self.own + self.parts.num_leaves
        data = self.observe(*arguments[: self.own], *arguments[end:])
        return _around(data, jax.tree.unflatten(self.parts, arguments[self.own : end]))


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
