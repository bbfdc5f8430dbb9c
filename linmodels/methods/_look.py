"""The passes over the data that come before any hyperparameter."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import parameter_structure
from linmodels._batches import Batch, Data, batches
from linmodels._column_squares import column_squares
from linmodels._draws import normal_draws
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._products import (
    Factor,
    FlatColumns,
    backward,
    factor_of,
    look,
    look_at_rows,
    normal,
    unit_design,
)
from linmodels._whitening import gaussian, num_noises
from linmodels.methods._matrix_free import Flats, MatrixFree, Sums, spread, sum_of
from linmodels.methods._parameters import drop_rounding, require_identifiable


def look_once(
    data: Data,
    example: Observations,
    prior: GaussianPrior,
    num_samples: int,
    key: Array,
    explain: Callable[[int], None],
) -> tuple[MatrixFree, float]:
    """Everything that no hyperparameter changes, in at most three passes.

    Args:
        data: the observations.
        example: their `example_batch`.
        prior: its g-prior scale, if it has one, is settled here.
        num_samples: k.
        key: of the noise u, the prior draws z and the g-prior's probes.
        explain: raises the error for a batch that is not finite.

    Returns:
        What was seen, and the relative standard error of the g-prior's squares.

    Raises:
        ValueError: flat columns that are dependent, a prior that does not fit.
    """
    noise_key, prior_key = jax.random.split(key)
    structure = parameter_structure(example.design.in_structure())
    flats = _flats(data, example, prior, structure)
    prior, error = _normalised(data, prior, structure, flats, jax.random.fold_in(key, 3))
    factor = factor_of(prior, structure)
    flats = flats._replace(products=_through(factor, flats.products))
    dtype = jnp.result_type(*jax.tree.leaves(example.targets))
    at = _Look(factor, flats, prior.mean, num_samples, noise_key, dtype)
    sums = sum_of(at.sums(batch, index, explain) for index, batch in enumerate(batches(data)))
    noise = jnp.asarray(normal_draws(prior_key, (num_samples, factor.size)), sums.cross.dtype)
    return MatrixFree(data, prior, factor, sums, flats, noise, noise_key, structure), error


def _flats(data: Data, example: Observations, prior: GaussianPrior, structure: PyTree) -> Flats:
    """Products of flat columns with all columns of R₀Φ, and the targets' regression on them."""
    index = np.flatnonzero(prior.flat_mask(structure))
    raw, count = Factor(None, structure), num_noises(gaussian(example.likelihood), example.targets)
    size = raw.size
    if not len(index):
        return Flats(index, np.zeros((count, 0, size)), np.zeros(0))
    dtype = jnp.result_type(*jax.tree.leaves(structure))
    unit = jnp.asarray(np.arange(size) == index[:, None], dtype)
    products, cross = np.zeros((count, len(index), size)), np.zeros(len(index))
    for batch in batches(data):
        for c in range(count):
            design = unit_design(raw, np.arange(count) == c, dtype)
            products[c] += np.asarray(normal(batch, design, unit))
        targets = look(batch, prior.mean, 0, None).targets
        whole = unit_design(raw, np.ones(count), dtype)
        cross += np.asarray(backward(batch, whole, targets[None]))[0, index]
    require_identifiable(products.sum(0)[:, index])
    return Flats(index, products, np.linalg.solve(products.sum(0)[:, index], cross))


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


class _Look(NamedTuple):
    """What every batch is looked at with."""

    factor: Factor
    flats: Flats
    mean: PyTree
    num_samples: int
    noise_key: Array
    dtype: Any

    def sums(self, batch: Batch, index: int, explain: Callable[[int], None]) -> Sums:
        """One batch's part."""
        count = len(self.flats.products)
        shift = None
        if len(self.flats.index):
            shift = jnp.asarray(spread(self.flats, self.factor.size)[None], self.dtype)
        whole = unit_design(self.factor, np.ones(count), self.dtype)
        seen = look(batch, self.mean, self.num_samples, self.noise_key)
        rows = look_at_rows(batch, whole, shift, seen)
        noise, targets, finite = _crosses(batch, self.factor, rows, count)
        if not finite:
            explain(index)
        output = np.asarray(seen.output)
        squares = lambda v: np.bincount(output, np.asarray(v, np.float64) ** 2, minlength=count)
        return Sums(
            targets,
            noise,
            squares(rows[-1]),
            squares(seen.targets),
            np.asarray(seen.rank, np.float64),
            float(seen.log_determinant),
        )


@eqx.filter_jit
def _crosses(batch: Batch, factor: Factor, rows: Float[Array, "k1 N"], count: int):
    """W₀ᵀ of noise (C, k, r) and targets (C, r) by noise precision, and whether all are finite."""
    mask = lambda c: unit_design(factor, jnp.arange(count) == c, rows.dtype)
    both = jnp.stack([backward(batch, mask(c), rows) for c in range(count)])
    return both[:, :-1], both[:, -1], jnp.isfinite(both).all()
