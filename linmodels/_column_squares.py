"""The diagonal of ΦᵀB₀Φ without the matrix, for the g-prior."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import ravel, size_of, unravel
from linmodels._batches import Batch, Data, batches
from linmodels._blocks import times
from linmodels._observations import Observations
from linmodels._products import Factor, FlatColumns, WhitenedDesign
from linmodels._whitening import gaussian, root_product
from linmodels.operators import Sparse

DENSE_ENTRIES = 2**25
"""Largest batch, in entries, whose rows are written out where an operator does not hold them."""
ROWS_AT_ONCE = 8_192
PROBES = 64


class ColumnSquares(NamedTuple):
    """Σ over rows of every column's squares, √w R₀Φ."""

    projected: Float[np.ndarray, " d"]
    """with flat columns taken off"""
    original: Float[np.ndarray, " d"]
    relative_error: float
    """standard error of every entry, relative; 0 where exact"""


def column_squares(
    data: Data, structure: PyTree, flat: FlatColumns | None, key: Array
) -> ColumnSquares:
    """Column squares in one pass: exact where rows can be had, else from random signs.

    (W₀ᵀε)_i² has mean (W₀ᵀW₀)_ii for independent signs ε (Bekas, Kokiopoulou & Saad 2007), and
    variance at most 2(W₀ᵀW₀)_ii². Batches take independent signs.

    Args:
        data: the observations.
        structure: of θ.
        flat: the flat columns and their regression on all others, or None.
        key: of the signs.
    """
    factor = Factor(None, structure)
    ones = jnp.asarray(np.ones(factor.size), float)
    projected = WhitenedDesign(factor, ones, jnp.asarray(np.ones(1), float), flat)
    total, original, exact = np.zeros(len(ones)), np.zeros(len(ones)), True
    for index, batch in enumerate(batches(data)):
        kept = _exact(batch, flat)
        if kept is None:
            kept, exact = _estimated(batch, projected, jax.random.fold_in(key, index)), False
        total += np.asarray(kept[0], np.float64)
        original += np.asarray(kept[1], np.float64)
    return ColumnSquares(total, original, 0.0 if exact else float(np.sqrt(2 / PROBES)))


@eqx.filter_jit
def _estimated(batch: Batch, design: WhitenedDesign, key: Array):
    data = batch.observations()
    shape = PROBES, size_of(data.targets)
    signs = jax.random.rademacher(key, shape, design.scale.dtype)
    whole = eqx.tree_at(lambda d: d.flat, design, None, is_leaf=lambda x: x is None)
    means = [jnp.mean(d.transpose_product(data, signs) ** 2, axis=0) for d in (design, whole)]
    return tuple(means)


@eqx.filter_jit
def _exact(batch: Batch, flat: FlatColumns | None):
    """Both sums of squares, or None where the operator does not give its rows."""
    data = batch.observations()
    design, by_entry = data.design, gaussian(data.likelihood).acts_by_entry
    if by_entry and isinstance(design, lx.MatrixLinearOperator):
        return _by_rows(design.matrix, _row_weights(data), flat)
    if by_entry and isinstance(design, Sparse):
        return _sparse(design, _row_weights(data), flat)
    if design.out_size() * design.in_size() > DENSE_ENTRIES:
        return None
    column = lambda c: ravel(root_product(data, unravel(c, data.targets)))
    matrix = jax.vmap(column, in_axes=1, out_axes=1)(design.as_matrix())
    return _by_rows(matrix, jnp.ones(len(matrix), matrix.dtype), flat)


def _row_weights(data: Observations) -> Float[Array, " N"]:
    """w b₀ of every row."""
    return ravel(root_product(data, jax.tree.map(jnp.ones_like, data.targets))) ** 2


def _by_rows(matrix: Array, weights: Array, flat: FlatColumns | None):
    original = jnp.sum(weights[:, None] * matrix**2, axis=0)
    if flat is None:
        return original, original
    count = min(ROWS_AT_ONCE, len(matrix))

    def add(total, start):
        first = jnp.minimum(start, len(matrix) - count)  # the last slice overlaps the one before
        rows, scale = (jax.lax.dynamic_slice_in_dim(x, first, count) for x in (matrix, weights))
        scale = jnp.where(first + jnp.arange(count) >= start, scale, 0)
        rows = rows - times(rows[:, flat.index], flat.regression)
        return total + jnp.sum(scale[:, None] * rows**2, axis=0), None

    starts = jnp.arange(0, len(matrix), count)
    return jax.lax.scan(add, jnp.zeros_like(original), starts)[0], original


def _sparse(design: Sparse, weights: Array, flat: FlatColumns | None):
    entries = design.matrix.sum_duplicates(nse=design.matrix.nse)
    rows, columns = entries.indices.T
    squares = entries.data**2 * weights.at[rows].get(mode="fill", fill_value=0)
    original = jnp.zeros(design.in_size(), squares.dtype).at[columns].add(squares, mode="drop")
    if flat is None:
        return original, original
    unit = jnp.zeros((len(flat.index), design.in_size()), squares.dtype)
    unit = unit.at[jnp.arange(len(flat.index)), flat.index].set(1)
    cross = jax.vmap(design.T.mv)(weights * jax.vmap(design.mv)(unit))
    return jnp.maximum(original - jnp.sum(cross * flat.regression, axis=0), 0), original
