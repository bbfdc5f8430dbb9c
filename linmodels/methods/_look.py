"""The passes over the data that come before any hyperparameter."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Real

from linmodels._column_squares import column_squares
from linmodels._observations import Data
from linmodels._priors import GaussianPrior
from linmodels._products import (
    Batch,
    Factor,
    FlatColumns,
    WhitenedDesign,
    backward,
    batches,
    factor_of,
    forward,
    look,
    normal,
)
from linmodels.methods._matrix_free import Flats, MatrixFree, Sums, spread
from linmodels.methods._parameters import drop_rounding, require_identifiable


def look_once(
    data: Data,
    prior: GaussianPrior,
    structure: PyTree,
    num_samples: int,
    key: Array,
    explain: Callable[[int], None],
) -> tuple[MatrixFree, float]:
    """Everything that no hyperparameter changes, in at most three passes.

    Args:
        data: the observations.
        prior: its g-prior scale, if it has one, is settled here.
        structure: of θ.
        num_samples: k.
        key: of the noise u, the prior draws z and the g-prior's probes.
        explain: raises the error for a batch that is not finite.

    Returns:
        What was seen, and the relative standard error of the g-prior's squares.

    Raises:
        ValueError: flat columns that are dependent, a prior that does not fit.
    """
    noise_key, prior_key = jax.random.split(key)
    flats = _flats(data, prior, structure)
    prior, error = _normalised(data, prior, structure, flats, jax.random.fold_in(key, 3))
    factor = factor_of(prior, structure)
    flats = flats._replace(products=_through(factor, flats.products))
    sums = _sums(data, prior, factor, flats, num_samples, noise_key, explain)
    noise = jax.random.normal(prior_key, (num_samples, factor.size), jnp.float32)
    noise = noise.astype(sums.cross.dtype)
    return MatrixFree(data, prior, factor, sums, flats, noise, noise_key, structure), error


def _flats(data: Data, prior: GaussianPrior, structure: PyTree) -> Flats:
    """Products of flat columns with all columns of R₀Φ, and the targets' regression on them."""
    index = np.flatnonzero(prior.flat_mask(structure))
    size, count = Factor(None, structure).size, _num_noises(data)
    if not len(index):
        return Flats(index, np.zeros((count, 0, size)), np.zeros(0))
    dtype = jnp.result_type(*jax.tree.leaves(structure))
    unit = jnp.zeros((len(index), size), dtype).at[np.arange(len(index)), index].set(1)
    products, cross = np.zeros((count, len(index), size)), np.zeros(len(index))
    for batch in batches(data):
        for c in range(count):
            design = _raw(structure, np.arange(count) == c, dtype)
            products[c] += np.asarray(normal(batch, design, unit))
        targets = look(batch, prior.mean, 0, None).targets
        whole = _raw(structure, np.ones(count), dtype)
        cross += np.asarray(backward(batch, whole, targets[None]))[0, index]
    require_identifiable(products.sum(0)[:, index])
    return Flats(index, products, np.linalg.solve(products.sum(0)[:, index], cross))


def _raw(structure: PyTree, beta, dtype) -> WhitenedDesign:
    factor = Factor(None, structure)
    return WhitenedDesign(factor, jnp.ones(factor.size, dtype), jnp.asarray(beta, dtype))


def _num_noises(data: Data) -> int:
    """C, from the first batch."""
    return len(look(next(batches(data)), None, 0, None).rank)


def _normalised(
    data: Data, prior: GaussianPrior, structure: PyTree, flats: Flats, key: Array
) -> tuple[GaussianPrior, float]:
    if not prior.normalised:
        return prior, 0.0
    columns = None
    if len(flats.index):
        regression = flats.regression(np.ones(len(flats.products)))
        columns = FlatColumns(jnp.asarray(flats.index), jnp.asarray(regression, float))
    squares = column_squares(data, structure, columns, key)
    epsilon = float(jnp.finfo(jnp.result_type(*jax.tree.leaves(structure))).eps)
    floor = (10 * epsilon) ** 2 * squares.original if columns is not None else 0.0
    kept = np.where(squares.projected > floor, squares.projected, 0)
    return prior.normalise(drop_rounding(kept, squares.original), structure), squares.relative_error


def _through(factor: Factor, products: Float[np.ndarray, "C f d"]) -> Float[np.ndarray, "C f r"]:
    """Products with the columns of ΦF from those with the columns of Φ."""
    if products.shape[1] == 0:
        return np.zeros((len(products), 0, factor.size))
    rows = jax.vmap(jax.vmap(factor.cofactors))(jnp.asarray(products, float))
    return np.asarray(rows, np.float64)


def _sums(data, prior, factor, flats, num_samples, noise_key, explain) -> Sums:
    look_at = _Look(factor, flats, prior.mean, num_samples, noise_key)
    total = None
    for index, batch in enumerate(batches(data)):
        part = look_at.sums(batch)
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in (part.cross, part.noise_cross)):
            explain(index)
        total = part if total is None else jax.tree.map(operator.add, total, part)
    assert total is not None
    return total


class _Look(NamedTuple):
    """What every batch is looked at with."""

    factor: Factor
    flats: Flats
    mean: PyTree
    num_samples: int
    noise_key: Array | None

    def design(
        self, mask: Real[np.ndarray, " C"] | Bool[np.ndarray, " C"], dtype: Any
    ) -> WhitenedDesign:
        """W₀ on the rows of some noise precisions."""
        ones = jnp.ones(self.factor.size, dtype)
        return WhitenedDesign(self.factor, ones, jnp.asarray(mask, dtype))

    def sums(self, batch: Batch) -> Sums:
        """One batch's part."""
        seen = look(batch, self.mean, self.num_samples, self.noise_key)
        count, dtype = len(seen.rank), seen.targets.dtype
        targets = seen.targets
        if len(self.flats.index):
            shift = jnp.asarray(spread(self.flats, self.factor.size)[None], dtype)
            targets = targets - forward(batch, self.design(np.ones(count), dtype), shift)[0]
        rows = jnp.concatenate([seen.noise.T.astype(dtype), targets[None]])
        masks = [self.design(np.arange(count) == c, dtype) for c in range(count)]
        both = jnp.stack([backward(batch, design, rows) for design in masks])
        output = np.asarray(seen.output)
        squares = lambda v: np.bincount(output, np.asarray(v, np.float64) ** 2, minlength=count)
        return Sums(
            both[:, -1],
            both[:, :-1],
            squares(targets),
            squares(seen.targets),
            np.asarray(seen.rank, np.float64),
            float(seen.log_determinant),
        )
