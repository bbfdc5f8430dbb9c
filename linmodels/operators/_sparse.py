"""A sparse matrix as an operator."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental.sparse import BCOO
from jaxtyping import Array, Float

from ._matrix_free import AbstractMatrixFreeOperator


class Sparse(AbstractMatrixFreeOperator):
    r"""A two-dimensional sparse matrix in coordinate format.

    A product costs one gather and one scatter over the stored entries. Duplicate entries add up.
    Entries whose row or column lies beyond the shape are padding, and count as zero whatever
    their value.

    >>> import jax.numpy as jnp
    >>> from jax.experimental.sparse import BCOO
    >>> operator = Sparse(BCOO.fromdense(jnp.array([[0.0, 2.0], [3.0, 0.0]])))
    >>> operator.mv(jnp.array([1.0, 10.0]))
    Array([20.,  3.], dtype=float32)

    Args:
        matrix: of shape `(a, b)`, real floating, without batch or dense dimensions. For a
            SciPy matrix, `BCOO.from_scipy_sparse`.

    Raises:
        ValueError: for anything else.
    """

    matrix: BCOO

    def __init__(self, matrix: BCOO):
        if not isinstance(matrix, BCOO):
            raise ValueError(
                f"Sparse needs a jax.experimental.sparse.BCOO, got {type(matrix).__name__}; "
                "convert it with BCOO.fromdense or BCOO.from_scipy_sparse."
            )
        if matrix.n_sparse != 2 or matrix.n_batch or matrix.n_dense:
            raise ValueError(
                "Sparse needs a 2-D BCOO without batch or dense dimensions, got one of shape "
                f"{matrix.shape} with n_batch={matrix.n_batch}, n_sparse={matrix.n_sparse}, "
                f"n_dense={matrix.n_dense}; see jax.experimental.sparse.bcoo_update_layout."
            )
        self.matrix = matrix

    def mv(self, vector: Float[Array, " b"]) -> Float[Array, " a"]:
        r"""$A v$ for $v$ = `vector`."""
        matrix = self.matrix
        return _product(matrix.data, matrix.indices, vector, shape=tuple(matrix.shape))

    def as_matrix(self) -> Float[Array, "a b"]:
        """The dense matrix."""
        return _dense(self.matrix)

    def transpose(self) -> "Sparse":
        r"""$A^\top$, on the same entries."""
        return Sparse(_transposed(self.matrix))

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """One array of shape `(b,)`."""
        return jax.ShapeDtypeStruct((self.matrix.shape[1],), self.matrix.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """One array of shape `(a,)`."""
        return jax.ShapeDtypeStruct((self.matrix.shape[0],), self.matrix.dtype)


# Compiled, because outside of jit either would be ten dispatches.
_dense = jax.jit(BCOO.todense)
_transposed = jax.jit(BCOO.transpose)


@functools.partial(jax.jit, static_argnames="shape")
def _product(data: Array, indices: Array, vector: Array, *, shape: tuple[int, int]) -> Array:
    # Not `BCOO @ vector`: a NaN among the padding would reach the result, and on a GPU it may
    # warn about unsorted indices. Compiled, because outside of jit it would be ten dispatches.
    rows, columns = indices.T
    inside = (rows < shape[0]) & (columns < shape[1])
    entries = jnp.where(inside, data, 0)
    products = entries * vector.at[columns].get(mode="fill", fill_value=0)
    return jnp.zeros_like(vector, shape=shape[0]).at[rows].add(products)
