"""The penalised log-likelihood as a sum over batches, to be minimised with its sign changed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import parameter_structure
from linmodels._batches import Batch, Data, example_batch
from linmodels._blocks import products, transpose_products
from linmodels._expansion import prior_mean, total, weighted
from linmodels._priors import GaussianPrior
from linmodels._products import Factor, factor_of
from linmodels._results import RESULTS
from linmodels.descent import AbstractObjective, Descended, Term


class PenalisedLikelihood(AbstractObjective):
    """−Σ w log p(y | o + Φ(μ + F α^{-½} x)) + ½‖x‖², flat coordinates apart."""

    centre: Float[Any, "1 r"]
    penalised: Float[Any, " r"]
    factor: Factor
    scale: Float[Array, " r"]
    """α^{-½}; 1 at flat coordinates"""
    mean: PyTree
    """μ"""

    def parameters(self, x: Float[Array, " r"]) -> PyTree:
        """θ."""
        return jax.tree.map(jnp.add, self.mean, self.factor.parameters(self.scale * x))

    def term(
        self, batch: Batch, drawn: None, x: Float[Array, "k r"], probe: Float[Array, "1 r"]
    ) -> Term:
        """−Σ w log p of a batch and its gradient; the curvature is the first vector's."""
        data = batch.observations()
        likelihood, targets = data.likelihood, data.targets
        outputs = products(data.design, jax.vmap(self.parameters)(x))
        if data.offset is not None:
            outputs = jax.tree.map(jnp.add, outputs, data.offset)
        loss = lambda f: -total(data, likelihood.log_prob(f, targets))
        descent = lambda f: jax.tree.map(jnp.negative, likelihood.score(f, targets))
        change = products(data.design, jax.vmap(self.factor.parameters)(probe * self.scale))
        first, change = jax.tree.map(lambda leaf: leaf[0], (outputs, change))
        root = likelihood.root_product(first, change)
        curved = likelihood.root_transpose_product(first, root)
        both = jax.tree.map(_appended, jax.vmap(descent)(outputs), curved)
        both = jax.vmap(lambda leaf: weighted(data, leaf))(both)
        pulled = jax.vmap(self.factor.cofactors)(transpose_products(data.design, both)) * self.scale
        return Term(jax.vmap(loss)(outputs), pulled[:-1], pulled[-1:])


def _appended(block: Float[Array, "k *n"], row: Float[Array, "*n"]) -> Float[Array, "k1 *n"]:
    return jnp.concatenate([block, row[None]])


def descended_mode(
    data: Data,
    prior: GaussianPrior,
    precision: Float[np.ndarray, " r"],
    start: Float[np.ndarray, " r"],
    descent: Callable[[AbstractObjective, Data, Array], Descended],
) -> Float[np.ndarray, " r"]:
    """Coordinates F⁻¹(θ − μ) nearer to the mode; the start where the descent has failed.

    Args:
        data: the observations.
        prior: with its factor settled.
        precision: α of every coordinate, 0 at flat ones.
        start: coordinates to start from.
        descent: `descend` with all but its first arguments.
    """
    structure = parameter_structure(example_batch(data).design.in_structure())
    dtype = jnp.result_type(*jax.tree.leaves(structure))
    scale = np.where(precision > 0, precision, 1) ** -0.5
    begin = jnp.asarray((start / scale)[None], dtype)
    objective = PenalisedLikelihood(
        jnp.zeros_like(begin),
        jnp.asarray(precision > 0, dtype),
        factor_of(prior, structure),
        jnp.asarray(scale, dtype),
        prior_mean(prior, structure),
    )
    descended = descent(objective, data, begin)
    if descended.result != RESULTS.successful:
        return start
    return np.asarray(descended.value[0], np.float64) * scale
