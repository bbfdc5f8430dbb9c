"""Standard normal draws in float32, of few shapes: the generator takes XLA half a second each."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from linmodels._arrays import is_traced

PADDED = 2**16
"""Largest block that is drawn with others of about its size, as the beginning of a larger one."""


def normal_draws(key: Array, shape: tuple[int, ...]) -> Float[Any, "..."]:
    """What `jax.random.normal` draws for the shape; on the host where it is small."""
    size = math.prod(shape)
    padded = _padded(size)
    if padded > PADDED or not _is_counted():
        return jax.random.normal(key, shape, jnp.float32)
    return _beginning(_normal(key, padded))[:size].reshape(shape)


def row_draws(
    key: Array, leaf: int, first: int | Int[Any, "*n"], rows: int, size: int
) -> Float[Any, "rows size"]:
    """Draws keyed by a leaf's number and by each row's, on the host where they are few.

    Args:
        key: of all draws.
        leaf: number of the leaf.
        first: number of the first row, or of every row.
        rows: how many.
        size: of each row.
    """
    padded = _padded(rows), _padded(size)
    if math.prod(padded) > PADDED or not _is_counted():
        padded = rows, size
    draws = _rows(key, np.asarray(leaf), _numbers(first, padded[0]), *padded)
    return draws if padded == (rows, size) else _beginning(draws)[:rows, :size]


def _numbers(first: Any, rows: int) -> Any:
    """Of the first row; or of every row, and on, with any numbers, to as many as are drawn."""
    if np.ndim(first) == 0:
        return jnp.asarray(first)
    xp = jnp if is_traced(first) else np
    return xp.pad(first, (0, rows - len(first)))


def _padded(size: int) -> int:
    """The power of four from 16 on that is no smaller."""
    return 4 ** max(2, ((size - 1).bit_length() + 1) // 2)


def _is_counted() -> bool:
    """Whether every draw depends on its place alone, not on how many there are."""
    return jax.threefry_partitionable.value


def _beginning(block: Array) -> Any:
    return block if is_traced(block) else np.asarray(block)  # on the host a slice compiles nothing


@partial(jax.jit, static_argnums=1)
def _normal(key: Array, size: int) -> Float[Array, " size"]:
    return jax.random.normal(key, (size,), jnp.float32)


@partial(jax.jit, static_argnums=(3, 4))
def _rows(key: Array, leaf: Any, first: Any, rows: int, size: int) -> Float[Array, "rows size"]:
    key = jax.random.fold_in(key, leaf)
    draw = lambda row: jax.random.normal(jax.random.fold_in(key, row), (size,), jnp.float32)
    return jax.vmap(draw)(first if jnp.ndim(first) else first + jnp.arange(rows))
