"""A diagonal plus a low-rank matrix, its inverse and its determinant."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
from jax.lax import Precision
from jaxtyping import Array, ArrayLike, Float

from ._matrix_free import AbstractMatrixFreeOperator


class LowRankUpdate(AbstractMatrixFreeOperator):
    r"""A diagonal with a low-rank update, $D + L R^\top$.

    Products cost $O(dr)$, the inverse and the determinant $O(dr^2 + r^3)$, through the core matrix
    $C = I_r + R^\top D^{-1} L$.

    >>> import jax.numpy as jnp
    >>> operator = LowRankUpdate(jnp.array([1.0, 1.0]), jnp.array([[1.0], [0.0]]))
    >>> operator.as_matrix()
    Array([[2., 0.],
           [0., 1.]], dtype=float32)
    >>> operator.inverse().mv(jnp.array([2.0, 3.0]))
    Array([1., 3.], dtype=float32)

    Args:
        diagonal: the entries of $D$.
        left: $L$.
        right: $R$; by default $L$, which makes the operator symmetric.

    Raises:
        ValueError: when the shapes do not match, or the arrays are not of one real floating dtype.
    """

    diagonal: Float[Array, " d"]
    left: Float[Array, "d r"]
    right: Float[Array, "d r"] | None

    def __init__(
        self,
        diagonal: Float[ArrayLike, " d"],
        left: Float[ArrayLike, "d r"],
        right: Float[ArrayLike, "d r"] | None = None,
    ):
        self.diagonal = jnp.asarray(diagonal)
        self.left = jnp.asarray(left)
        self.right = None if right is None else jnp.asarray(right)
        _require_shapes(self.diagonal, self.left, self.right)
        _require_one_dtype(self.diagonal, self.left, self.right)

    def mv(self, vector: Float[Array, " d"]) -> Float[Array, " d"]:
        r"""$D v + L (R^\top v)$ for $v$ = `vector`."""
        return self.diagonal * vector + _matmul(self.left, _matmul(self._right.T, vector))

    def as_matrix(self) -> Float[Array, "d d"]:
        """The dense matrix."""
        return _dense(self.diagonal, self.left, self._right)

    def transpose(self) -> "LowRankUpdate":
        r"""$D + R L^\top$."""
        return self if self.right is None else LowRankUpdate(self.diagonal, self.right, self.left)

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """One array of shape `(d,)`."""
        return jax.ShapeDtypeStruct(self.diagonal.shape, self.diagonal.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """One array of shape `(d,)`."""
        return self.in_structure()

    def inverse(self) -> "LowRankUpdate":
        r"""The inverse, by Woodbury's identity.

        $(D + L R^\top)^{-1} = D^{-1} - (D^{-1} L C^{-1}) (D^{-1} R)^\top$. The result keeps both
        factors, so lineax does not know it to be symmetric even when it is: wrap it in
        `lineax.TaggedLinearOperator` to say so.

        Returns:
            The inverse. It holds NaN or infinities where the identity does not apply or would
            give noise: for a zero in the diagonal (even if the whole is invertible), and for a
            core matrix that is singular to working precision. The latter happens when the whole
            is close to singular, and when nearly parallel columns of the factors outweigh the
            diagonal by more than 1/eps; more digits, or fewer columns, then help.
        """
        core = _core(self.diagonal, self.left, self._right)
        factor = _matmul(self.left / self.diagonal[:, None], core.inverse)
        return LowRankUpdate(1 / self.diagonal, -factor, self._right / self.diagonal[:, None])

    def log_abs_determinant(self) -> Float[Array, ""]:
        r"""$\log|\det(D + L R^\top)|$, by the matrix determinant lemma.

        $\det(D + L R^\top) = \det(D) \det(C)$.

        Returns:
            The logarithm, in nats. It is NaN where `inverse` fails: a zero in the diagonal, or a
            core matrix that is singular to working precision.
        """
        core = _core(self.diagonal, self.left, self._right)
        return jnp.sum(jnp.log(jnp.abs(self.diagonal))) + core.log_abs_determinant

    @property
    def _right(self) -> Array:
        return self.left if self.right is None else self.right


class _Core(NamedTuple):
    inverse: Array
    log_abs_determinant: Array


@jax.jit
def _core(diagonal: Array, left: Array, right: Array) -> _Core:
    r"""Inverse and log-determinant of $C = I + R^\top D^{-1} L$, NaN if they would be noise.

    Rounding in the factors and in the sums of length d perturbs $C$, entry by entry, by about
    $\delta E$ with $\delta = (2 + \sqrt d)$ eps and $E = I + |R|^\top |D^{-1}| |L|$. No such
    perturbation is singular while $\delta$ times the spectral radius of $|C^{-1}| E$ is below 1
    (Demmel, The componentwise distance to the nearest singular matrix, 1992). Unlike a condition
    number, this does not depend on how the columns are scaled.
    """
    scaled = left / diagonal[:, None]
    eye = jnp.eye(left.shape[1], dtype=left.dtype)
    core = eye + _matmul(right.T, scaled)
    inverse = jnp.linalg.inv(core)
    spread = _matmul(jnp.abs(inverse), eye + _matmul(jnp.abs(right).T, jnp.abs(scaled)))
    rounding = (2 + diagonal.size**0.5) * jnp.finfo(left.dtype).eps
    trusted = rounding * _spectral_radius_bound(spread) < 1
    log_abs_determinant = jnp.linalg.slogdet(core)[1]
    return _Core(
        jnp.where(trusted, inverse, jnp.nan), jnp.where(trusted, log_abs_determinant, jnp.nan)
    )


def _spectral_radius_bound(matrix: Array) -> Array:
    """An upper bound on the spectral radius of a non-negative matrix (Collatz and Wielandt).

    Any positive vector gives a bound; a few power iterations bring it close.
    """
    vector = jnp.ones(matrix.shape[0], matrix.dtype)
    for _ in range(8):
        vector = _matmul(matrix, vector)
        vector = vector / jnp.max(vector, initial=0)
    return jnp.max(_matmul(matrix, vector) / vector, initial=0)


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=Precision.HIGHEST)


def _require_shapes(diagonal: Array, left: Array, right: Array | None) -> None:
    if diagonal.ndim != 1:
        raise ValueError(
            f"LowRankUpdate: `diagonal` must have shape (d,), got {diagonal.shape}; take "
            "`jnp.diagonal` of a diagonal matrix."
        )
    if left.ndim != 2 or left.shape[0] != diagonal.shape[0]:
        raise ValueError(
            f"LowRankUpdate: `left` must have shape (d, r) with d = {diagonal.shape[0]}, the "
            f"size of `diagonal`, got {left.shape}."
        )
    if right is not None and right.shape != left.shape:
        raise ValueError(
            f"LowRankUpdate: `right` must have the shape of `left`, {left.shape}, got "
            f"{right.shape}."
        )


def _require_one_dtype(diagonal: Array, left: Array, right: Array | None) -> None:
    arrays = (diagonal, left) if right is None else (diagonal, left, right)
    dtypes = [str(array.dtype) for array in arrays]
    if len(set(dtypes)) > 1 or not jnp.issubdtype(diagonal.dtype, jnp.floating):
        raise ValueError(
            "LowRankUpdate: `diagonal`, `left` and `right` must share one real floating dtype, "
            f"got {', '.join(dtypes)}; cast them."
        )


lx.is_symmetric.register(LowRankUpdate, lambda operator: operator.right is None)


@lx.diagonal.register(LowRankUpdate)
def _(operator):
    return operator.diagonal + jnp.sum(operator.left * operator._right, axis=1)


@jax.jit
def _dense(diagonal: Array, left: Array, right: Array) -> Array:
    return jnp.diag(diagonal) + _matmul(left, right.T)
