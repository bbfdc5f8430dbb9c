"""Rows of the whitened design: the one place where the noise factor R meets Φ, y and the offset.

With B = βB₀, B₀ = RᵀR and weights w, row blocks of √w RΦ, of √w R(y − o − Φμ) and of standard
normal noise u are everything that an exact method needs of the data.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from linmodels._arrays import one_observation, ravel, require_structure, size_of, unravel
from linmodels._batches import Batch, Batched, Data, batches
from linmodels._draws import row_draws
from linmodels._observations import Observations
from linmodels.likelihoods import AbstractLikelihood, AbstractQuadratic


class WhitenedRows(NamedTuple):
    """A block of N whitened rows, ravelled over observations and outputs."""

    design: Float[Array, "N d"]
    """√w RΦ"""
    targets: Float[Array, " N"]
    """√w R(y − o − Φμ), and √w r beside it where the likelihood was expanded"""
    noise: Float[Array, "N k"]
    """u ~ N(0, I) in float32, one draw a row of the data whatever the batch"""
    output: Int[Array, " N"]
    """which noise precision β_c a row has"""
    rank: Float[Array, " C"]
    """Σ w rank B₀ for every c"""
    log_determinant: Float[Array, ""]
    """Σ w log det B₀"""


class RowVectors(NamedTuple):
    """`WhitenedRows` without the design."""

    targets: Float[Array, " N"]
    noise: Float[Array, "N k"]
    output: Int[Array, " N"]
    rank: Float[Array, " C"]
    log_determinant: Float[Array, ""]


def whitened_rows(
    data: Data, mean: PyTree = None, *, num_samples: int = 0, key: Array | None = None
) -> Iterator[WhitenedRows]:
    """The blocks of whitened rows, one for `Observations`, one a batch for `Batched`.

    Args:
        data: with Gaussian noise.
        mean: prior mean μ, taken off the targets.
        num_samples: k, noise draws a row.
        key: of the noise draws.

    Raises:
        ValueError: a batch holds NaN or infinities (with the batch and the field named).
    """
    if isinstance(data, Observations):
        yield _whiten_alone(data, mean, num_samples, key)
        return
    for batch in batches(data):
        yield _whiten_batch(batch, mean, num_samples, key)


def _whiten_alone(data, mean, num_samples, key) -> WhitenedRows:
    """In one compilation a shape, without the design: its functions would be new every time."""
    matrix, residual = data.design.as_matrix(), unexplained(data, mean)
    data = eqx.tree_at(lambda d: d.design, data, None)
    # Through the compiled function the matrix would be copied where it stays as it is.
    rows = _whiten_compiled(data, None if _is_unit(data) else matrix, residual)
    rows = rows._replace(noise=row_noise(data.targets, 0, num_samples, key))
    return rows._replace(design=matrix) if _is_unit(data) else rows


@eqx.filter_jit
def _whiten_compiled(data, matrix, residual) -> WhitenedRows:
    return _whiten(data, matrix, residual, 0, 0, None)


@eqx.filter_jit
def _whiten_batch(batch: Batch, mean, num_samples, key) -> WhitenedRows:
    return whiten(batch.observations(), mean, batch.first, num_samples, key)


def whiten(
    data: Observations, mean: PyTree, first: int | Array, num_samples: int, key: Array | None
) -> WhitenedRows:
    """Whitens one block whose first row is row `first` of the data."""
    matrix, residual = data.design.as_matrix(), unexplained(data, mean)
    return _whiten(data, matrix, residual, first, num_samples, key)


def unexplained(data: Observations, mean: PyTree) -> PyTree:
    """y − o − Φμ."""
    residual = data.targets
    if data.offset is not None:
        residual = jax.tree.map(jnp.subtract, residual, data.offset)
    if mean is not None:
        residual = jax.tree.map(jnp.subtract, residual, data.design.mv(_as(mean, data)))
    return residual


def _whiten(data: Observations, matrix, residual, first, num_samples, key) -> WhitenedRows:
    vectors = row_vectors(data, residual, first, num_samples, key)
    return WhitenedRows(_whiten_design(data, matrix), *vectors)


def row_vectors(
    data: Observations, residual: PyTree, first: int | Array, num_samples: int, key: Array | None
) -> RowVectors:
    """Whitens y − o − Φμ, and all else of the data but their design."""
    likelihood, counts = gaussian(data.likelihood), entry_weights(data)
    output, rank = _ranks(likelihood, data.targets, counts)
    return RowVectors(
        targets=ravel(_times_root_weights(data, likelihood.whitened(data.targets, residual))),
        noise=row_noise(data.targets, first, num_samples, key),
        output=output,
        rank=rank,
        log_determinant=jnp.sum(counts * ravel(likelihood.log_determinant(data.targets))),
    )


def gaussian(likelihood: AbstractLikelihood) -> AbstractQuadratic:
    """The likelihood, if it is that of Gaussian noise, as every expansion is.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(likelihood, AbstractQuadratic):
        raise ValueError(f"This method is for Gaussian noise, not {type(likelihood).__name__}.")
    return likelihood


def root_product(data: Observations, vector: PyTree) -> PyTree:
    """√w R v."""
    product = gaussian(data.likelihood).root_product(data.targets, vector)
    return _times_root_weights(data, product)


def root_transpose_product(data: Observations, vector: PyTree) -> PyTree:
    """Rᵀ √w u."""
    weighted = _times_root_weights(data, vector)
    return gaussian(data.likelihood).root_transpose_product(data.targets, weighted)


def _times_root_weights(data: Observations, vector: PyTree) -> PyTree:
    if data.weights is None:
        return vector
    root = jnp.sqrt(data.weights)
    return jax.tree.map(lambda v: root.reshape(-1, *[1] * (v.ndim - 1)) * v, vector)


def row_noise(
    targets: PyTree, first: int | Array, num_samples: int, key: Array | None
) -> Float[Array, "N k"]:
    """Standard normal draws keyed by each row's position in the data.

    In float32 whatever the data, so that 32 and 64 bit see the same draws.
    """
    leaves = jax.tree.leaves(targets)
    if key is None or num_samples == 0:
        return jnp.zeros((size_of(targets), 0), jnp.float32)
    draws = []
    for number, leaf in enumerate(leaves):
        rows, shape = (leaf.shape[0], leaf.shape[1:]) if leaf.ndim else (1, ())
        block = row_draws(key, number, first, rows, int(np.prod(shape)) * num_samples)
        draws.append(block.reshape(-1, num_samples))
    return jnp.asarray(draws[0]) if len(draws) == 1 else jnp.concatenate(draws)


def _as(mean: PyTree, data: Observations) -> PyTree:
    structure = data.design.in_structure()
    require_structure(mean, structure, "The prior mean", "θ")
    for given, wanted in zip(jax.tree.leaves(mean), jax.tree.leaves(structure), strict=True):
        if jnp.shape(given) != wanted.shape:
            raise ValueError(f"The prior mean has shape {jnp.shape(given)}, θ {wanted.shape}.")
    return jax.tree.map(lambda m, s: jnp.asarray(m, s.dtype), mean, structure)


def _whiten_design(data: Observations, matrix: Any) -> Any:
    if _is_unit(data):
        return matrix
    column = lambda c: ravel(root_product(data, unravel(c, data.targets)))
    return jax.vmap(column, in_axes=1, out_axes=1)(matrix)


def _is_unit(data: Observations) -> bool:
    return gaussian(data.likelihood).is_unit and data.weights is None


def entry_weights(data: Observations) -> Float[Array, " N"] | Float[Array, ""]:
    """w_i for every entry of the ravelled targets; a scalar 1 where there are no weights."""
    if data.weights is None:
        return jnp.ones((), jax.tree.leaves(data.targets)[0].dtype)
    weights = data.weights
    spread = lambda t: jnp.broadcast_to(weights.reshape(-1, *[1] * (t.ndim - 1)), t.shape)
    return ravel(jax.tree.map(spread, data.targets))


def _ranks(likelihood: AbstractQuadratic, targets: PyTree, counts: Array) -> tuple[Array, Array]:
    """Index of every entry's noise precision, and the summed rank for each."""
    rank = ravel(likelihood.rank(targets)) * counts
    output = noise_labels(likelihood, targets)
    if not likelihood.per_output:
        return output, jnp.sum(rank)[None]
    return output, jnp.zeros(num_noises(likelihood, targets), rank.dtype).at[output].add(rank)


def num_noises(likelihood: AbstractQuadratic, targets: PyTree) -> int:
    """C, the number of noise precisions β_c."""
    return size_of(one_observation(targets)) if likelihood.per_output else 1


def noise_labels(likelihood: AbstractQuadratic, targets: PyTree) -> Int[Array, " N"]:
    """Index c of the noise precision β_c that every entry has."""
    if not likelihood.per_output:
        return jnp.zeros(size_of(targets), int)
    start, labels = 0, []
    for leaf in jax.tree.leaves(targets):
        size = int(np.prod(leaf.shape[1:]))
        labels.append(jnp.tile(start + jnp.arange(size), leaf.shape[0]))
        start += size
    return jnp.concatenate(labels)


def explain_non_finite(data: Data, index: int) -> None:
    """Raises the error that names the field and the entry of a NaN or an infinity in a block.

    Raises:
        ValueError: always.
    """
    prefix = "" if isinstance(data, Observations) else f"batch {index}: "
    try:
        if isinstance(data, Batched):
            data = data.observe(*data.read(index), *data.shared)
    except ValueError as error:
        raise ValueError(f"{prefix}{error}") from None
    bad = np.argwhere(~np.isfinite(np.asarray(data.design.as_matrix())))
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"{prefix}the design must be finite; row {row}, column {column} is not. Outputs and "
            "parameters are counted in the order of `ravel`."
        )
    ones = jax.tree.map(jnp.ones_like, data.targets)
    if not np.isfinite(np.asarray(ravel(root_product(data, ones)))).all():
        raise ValueError(f"{prefix}the factor of the noise precision must be finite.")
    raise ValueError(f"{prefix}products of the data overflow: rescale the design or the targets.")
