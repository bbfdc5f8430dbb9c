"""Blocks of k vectors, one a row: products of them, orthonormal bases, scales and norms."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

PIECE = 32
"""Rows of a matrix that few vectors are multiplied with at once."""
LONG = 2_000
"""Length from which vectors are orthonormalised by products: below, reflections are as quick."""
TRIANGLE = 24
"""Side up to which the inverse of a triangle is formed."""


def times(a: Float[Array, "... i j"], b: Float[Array, "... j k"]) -> Float[Array, "... i k"]:
    """a b in the dtype's full precision, whatever the hardware's default."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def gram(a: Float[Array, "i d"], b: Float[Array, "j d"]) -> Float[Array, "i j"]:
    """Inner products of the vectors of two blocks."""
    return times(a, b.T)


def products(
    operator: lx.AbstractLinearOperator, block: PyTree[Float[Array, "k ..."]]
) -> PyTree[Float[Array, "k ..."]]:
    """A v for every vector.

    A matrix gets them as columns in memory: given rows, XLA transposes the matrix on a CPU.
    """
    if not isinstance(operator, lx.MatrixLinearOperator):
        return jax.vmap(operator.mv)(block)
    columns = jax.lax.optimization_barrier(block.T)
    return jax.lax.optimization_barrier(times(operator.matrix, columns)).T


def transpose_products(
    operator: lx.AbstractLinearOperator, block: PyTree[Float[Array, "k ..."]]
) -> PyTree[Float[Array, "k ..."]]:
    """Aᵀ c for every vector.

    A matrix gets them as `products` does. Two to eight are multiplied with pieces of its rows on a
    CPU, where XLA would otherwise copy the matrix into another order first: twice as fast, for
    sums that take up to k/32 of the matrix.
    """
    if not isinstance(operator, lx.MatrixLinearOperator):
        return jax.vmap(operator.T.mv)(block)
    matrix, (k, rows) = operator.matrix, block.shape
    if jax.default_backend() == "cpu" and 1 < k <= 8 and rows % PIECE == 0:
        left = jax.lax.optimization_barrier(block.reshape(k, -1, PIECE).swapaxes(0, 1))
        return times(left, matrix.reshape(-1, PIECE, matrix.shape[1])).sum(0)
    columns = jax.lax.optimization_barrier(block.T)
    return times(columns.T, matrix)


@jax.jit
def orthonormalised(block: Float[Array, "k d"]) -> tuple[Float[Array, "q d"], Float[Array, "q k"]]:
    """An orthonormal basis Q of a block and its coordinates C, block = Cᵀ Q, q = min(k, d).

    Long vectors by Cholesky factors of Gram matrices, twice (CholeskyQR2; Yamamoto et al. 2015,
    "Roundoff error analysis of the CholeskyQR2 algorithm"): products, where Householder reflections
    on a CPU are up to twice as slow, and many times beside other work. As exact where the first
    basis is well conditioned, up to κ(block) of about ε^{-½}; elsewhere reflections are taken. They
    need no rank decision: zero and dependent vectors get spare directions of their own, and
    coordinates of exactly or nearly zero.
    """
    k, d = block.shape
    if d < max(LONG, k):
        return _reflected(block)
    lower = jnp.linalg.cholesky(gram(block, block))
    nearly = _solved(lower, block)
    gramian = gram(nearly, nearly)
    near = jnp.linalg.norm(gramian - jnp.eye(k, dtype=block.dtype)) <= 0.5  # not where NaN
    second = lambda: _from_nearly_orthonormal(nearly, gramian, lower)
    return jax.lax.cond(near, second, lambda: _reflected(block))


def triangle_inverse(lower: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """L⁻¹, from halves.

    OpenBLAS takes threads for larger triangles, which then wait busily where a product comes next.
    """
    k = len(lower)
    if k <= TRIANGLE:
        return solve_triangular(lower, jnp.eye(k, dtype=lower.dtype), lower=True)
    half = k // 2
    first, last = triangle_inverse(lower[:half, :half]), triangle_inverse(lower[half:, half:])
    corner = -times(last, times(lower[half:, :half], first))
    return jnp.block([[first, jnp.zeros_like(corner.T)], [corner, last]])


def _solved(lower: Float[Array, "k k"], block: Float[Array, "k d"]) -> Float[Array, "k d"]:
    """L⁻¹ of a block, half by half, by products: with inverses of small triangles, refined."""
    k = len(lower)
    if k <= TRIANGLE:
        inverse = triangle_inverse(lower)
        solved = times(inverse, block)
        return solved + times(inverse, block - times(lower, solved))
    half = k // 2
    first = _solved(lower[:half, :half], block[:half])
    rest = block[half:] - times(lower[half:, :half], first)
    return jnp.concatenate([first, _solved(lower[half:, half:], rest)])


def _from_nearly_orthonormal(nearly: Array, gramian: Array, lower: Array) -> tuple[Array, Array]:
    again = jnp.linalg.cholesky(gramian)
    return _solved(again, nearly), times(lower, again).T


def _reflected(block: Array) -> tuple[Array, Array]:
    basis, coordinates = jnp.linalg.qr(block.T)
    return basis.T, coordinates


def square_sums(block: Float[Array, "k d"]) -> Float[Array, " k"]:
    """‖·‖² of every vector, summed pairwise."""
    return jnp.sum(block * block, axis=1)


@jax.jit
def norms(block: Float[Array, "k d"]) -> Float[Array, " k"]:
    """‖·‖ of every vector, its squares out of reach of under- and overflow."""
    largest = jnp.max(jnp.abs(block), axis=1)
    scale = jnp.where(largest > 0, largest, 1)
    return scale * jnp.sqrt(square_sums(block / scale[:, None]))


def inner_products(a: Float[Array, "k d"], b: Float[Array, "k d"]) -> Float[Array, " k"]:
    """Inner product of every vector of `a` with its partner in `b`, summed pairwise."""
    return jnp.sum(a * b, axis=1)


def unit_scales(block: Float[Array, "k d"]) -> Float[np.ndarray, " k"]:
    """The power of two below every vector's largest entry; 1 for zero vectors.

    Dividing by it is exact, and keeps squares from underflow and overflow.
    """
    largest = np.asarray(_largest_entries(block), np.float64)
    return np.where(largest > 0, 2.0 ** np.floor(np.log2(np.where(largest > 0, largest, 1))), 1.0)


@jax.jit
def _largest_entries(block: Float[Array, "k d"]) -> Float[Array, " k"]:
    return jnp.max(jnp.abs(block), axis=1)


def safe_square_sums(block: Float[Array, "k d"]) -> Float[np.ndarray, " k"]:
    """‖·‖² of every vector in float64, out of reach of underflow."""
    scale = unit_scales(block)
    return np.asarray(_scaled_square_sums(block, scale.astype(block.dtype)), np.float64) * scale**2


@jax.jit
def _scaled_square_sums(block: Float[Array, "k d"], scale: Float[Array, " k"]):
    return square_sums(block / scale[:, None])
