"""Symmetric preconditioners from sketches of M, as changes of variables x = P^{-½} y.

P is like I + M up to a factor, which no Krylov method sees.
"""

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._blocks import gram, norms, orthonormalised, times
from linmodels._draws import normal_draws

Product = Callable[[Float[Array, "k d"]], Float[Array, "k d"]]
"""Products of a symmetric operator with every vector of a block."""
OVERSAMPLING = 10
"""Vectors of a sketch beyond the rank that is kept."""
PROBES = 64
"""Random signs for a diagonal: every entry to √(2/64), 18 %."""


class AbstractRoot(eqx.Module):
    """P^{½}, symmetric and positive definite, and its inverse."""

    @abc.abstractmethod
    def multiply(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """P^{½} x of every vector."""

    @abc.abstractmethod
    def divide(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """P^{-½} x of every vector."""

    @property
    @abc.abstractmethod
    def log_determinant(self) -> float:
        """log det P."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The largest eigenvalue of P: one over it bounds those of P^{-½}HP^{-½} where H ≥ 1."""


class IdentityRoot(AbstractRoot):
    """P = 1: no preconditioner."""

    def multiply(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """The vectors as they are."""
        return x

    def divide(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """The vectors as they are."""
        return x

    @property
    def log_determinant(self) -> float:
        """0."""
        return 0.0

    @property
    def largest(self) -> float:
        """1."""
        return 1.0


class DiagonalRoot(AbstractRoot):
    """P = 1 + diag(m).

    Args:
        diagonal: m ≥ 0.
    """

    diagonal: Float[Array, " n"]

    def multiply(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """√(1 + m) ⊙ x."""
        return x * jnp.sqrt(1 + self.diagonal)

    def divide(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """x ⊘ √(1 + m)."""
        return x / jnp.sqrt(1 + self.diagonal)

    @property
    def log_determinant(self) -> float:
        """Σ log(1 + m_i)."""
        return float(np.log1p(np.asarray(self.diagonal, np.float64)).sum())

    @property
    def largest(self) -> float:
        """1 + max m_i."""
        return 1 + float(self.diagonal.max())


class LowRankRoot(AbstractRoot):
    """P = I + U diag(l) Uᵀ, so that P^s = I + U((1 + l)^s − 1)Uᵀ.

    Args:
        basis: Uᵀ, orthonormal rows.
        values: l ≥ 0.
    """

    basis: Float[Array, "q n"]
    values: Float[Array, " q"]

    def multiply(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """x + U(√(1 + l) − 1)Uᵀx."""
        return self._stretched(x, jnp.sqrt(1 + self.values) - 1)

    def divide(self, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
        """x + U(1/√(1 + l) − 1)Uᵀx."""
        return self._stretched(x, 1 / jnp.sqrt(1 + self.values) - 1)

    @property
    def log_determinant(self) -> float:
        """Σ log(1 + l_i)."""
        return float(np.log1p(np.asarray(self.values, np.float64)).sum())

    @property
    def largest(self) -> float:
        """1 + max l_i."""
        return 1 + float(self.values.max())

    def _stretched(self, x: Array, change: Float[Array, " q"]) -> Array:
        return x + times(gram(x, self.basis) * change, self.basis)


class Sketchable(NamedTuple):
    """A symmetric positive semi-definite M = GGᵀ, in whole or estimated from some batches."""

    size: int
    """side of M"""
    dtype: jnp.dtype
    product: Product
    """M times every vector of a block"""
    probes: Callable[[int, Array], Float[Array, "p n"]]
    """G times p vectors of independent random signs, drawn with a key: of covariance M"""
    share: float
    """of a pass over the data that either costs"""


class AbstractPreconditioner(eqx.Module):
    """How P, like I + M up to a factor, is come by.

    Attributes:
        batches: how many of the data's batches are looked at, spread evenly; all where None.
    """

    batches: eqx.AbstractVar[int | None]
    num_products: eqx.AbstractClassVar[int]

    @abc.abstractmethod
    def root(self, operator: Sketchable, *, key: Array) -> AbstractRoot:
        """P^{½} from a look at M; 1 where M is not finite, which the solver then meets itself."""

    def passes(self, operator: Sketchable) -> int:
        """Passes over the data that the look takes, rounded up."""
        return int(np.ceil(self.num_products * operator.share))


class Jacobi(AbstractPreconditioner):
    """P = 1 + diag(M), from random signs: for parameters or outputs of very different scales.

    It does harm where M is far from diagonal, so that a few directions make up most of its
    diagonal. (Gε)_i², M = GGᵀ, has mean M_ii for independent signs ε (Bekas, Kokiopoulou & Saad
    2007); 64 of them know the diagonal to 18 %.

    Args:
        batches: how many of the data's batches to look at, spread evenly; all where None.

    Raises:
        ValueError: batches below 1.
    """

    num_products: ClassVar[int] = 1
    batches: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _require_positive("batches", self.batches)

    def root(self, operator: Sketchable, *, key: Array) -> DiagonalRoot:
        """One product of G with a block of signs."""
        return DiagonalRoot(jnp.mean(operator.probes(PROBES, key) ** 2, axis=0))


class Nystrom(AbstractPreconditioner):
    """P from the largest eigenpairs of the Nyström approximation M ≈ MΩ(ΩᵀMΩ)⁺ΩᵀM: one product.

    P = I + U diag((λ_i − λ_q)/(1 + λ_q)) Uᵀ, i = 1 … q. Ω is an orthonormalised Gaussian sketch; M
    is shifted by a few spacings of its size lest the core lose its root, and λ is shifted back
    (Frangella, Tropp & Udell 2023, algorithm 2.1 and equation 1.3).

    Args:
        rank: number of directions to keep.
        batches: how many of the data's batches to look at, spread evenly; all where None.

    Raises:
        ValueError: a rank or batches below 1.

    >>> Nystrom(20).rank
    20
    """

    num_products: ClassVar[int] = 1
    rank: int = eqx.field(static=True)
    batches: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _require_positive("rank", self.rank)
        _require_positive("batches", self.batches)

    def root(self, operator: Sketchable, *, key: Array) -> AbstractRoot:
        """One product with `rank` + 10 vectors."""
        return nystrom_eigenpairs(operator, self.rank, key=key).root()


class RandomisedEigen(AbstractPreconditioner):
    """P as in `Nystrom` from a randomised eigendecomposition of M: two products.

    The first finds the range Q of MΩ for a Gaussian sketch Ω, the second M's approximation
    MQ(QᵀMQ)⁺QᵀM (Halko, Martinsson & Tropp 2011, algorithms 4.1 and 5.5): closer than `Nystrom`
    of the same rank where the spectrum falls slowly.

    Args:
        rank: number of directions to keep.
        batches: how many of the data's batches to look at, spread evenly; all where None.

    Raises:
        ValueError: a rank or batches below 1.
    """

    num_products: ClassVar[int] = 2
    rank: int = eqx.field(static=True)
    batches: int | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        _require_positive("rank", self.rank)
        _require_positive("batches", self.batches)

    def root(self, operator: Sketchable, *, key: Array) -> AbstractRoot:
        """Two products with `rank` + 10 vectors."""
        sketch = _sketch(operator, self.rank, key)
        basis, _ = orthonormalised(operator.product(sketch))
        return _nystrom(basis, operator.product(basis), self.rank).root()


class Known(AbstractPreconditioner):
    """P from elsewhere, such as a problem that is much like this one.

    Args:
        known: P^{½}.
        whole: whether it is all of that problem, so that few eigenvalues are far from 1.
        batches: None; there is no look.
    """

    num_products: ClassVar[int] = 0
    known: AbstractRoot
    whole: bool = eqx.field(static=True, default=True)
    batches: int | None = eqx.field(static=True, default=None)

    def root(self, operator: Sketchable, *, key: Array) -> AbstractRoot:
        """What is known, without a look."""
        return self.known


class Eigenpairs(NamedTuple):
    """The largest eigenpairs of M, as far as they are known: M ≈ U diag(λ) Uᵀ."""

    basis: Float[Array, "q n"]
    """Uᵀ"""
    values: Float[np.ndarray, " q"]
    """λ, falling"""

    def rescaled(self, scale: Float[Array, " n"]) -> "Eigenpairs":
        """Of diag(s) M diag(s), without a look at M."""
        root = jnp.asarray(np.sqrt(self.values), self.basis.dtype)
        basis, coordinates = orthonormalised(root[:, None] * self.basis * scale)
        coordinates = np.asarray(coordinates, np.float64)
        if not np.isfinite(coordinates).all():
            return Eigenpairs(jnp.zeros_like(self.basis[:1]), np.zeros(1))
        directions, sizes, _ = np.linalg.svd(coordinates)
        return _turned(basis, _seen(sizes, basis) ** 2, directions)

    def root(self) -> LowRankRoot:
        """P^{½} with 1 + l relative to the smallest of 1 + λ.

        So that what is left out, of smaller eigenvalues, is not spread away from what is kept
        (Frangella, Tropp & Udell 2023, equation 1.3).
        """
        values = (self.values - self.values[-1]) / (1 + self.values[-1])
        return LowRankRoot(self.basis, jnp.asarray(values, self.basis.dtype))


def nystrom_eigenpairs(operator: Sketchable, rank: int, *, key: Array) -> Eigenpairs:
    """As `Nystrom` finds them, from one product with `rank` + 10 vectors."""
    sketch = _sketch(operator, rank, key)
    return _nystrom(sketch, operator.product(sketch), rank)


def _require_positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}.")


def _sketch(operator: Sketchable, rank: int, key: Array) -> Float[Array, "q n"]:
    """An orthonormal basis of a Gaussian block, drawn in float32 whatever the dtype."""
    count = min(rank + OVERSAMPLING, operator.size)
    block = normal_draws(key, (count, operator.size))
    return orthonormalised(jnp.asarray(block, operator.dtype))[0]


def _nystrom(sketch: Float[Array, "q n"], image: Float[Array, "q n"], rank: int) -> Eigenpairs:
    """M's largest eigenpairs from an orthonormal sketch Ω and MΩ, shifted by rounding."""
    epsilon = float(jnp.finfo(image.dtype).eps)
    size = np.linalg.norm(np.asarray(norms(image), np.float64))
    shift = np.sqrt(image.shape[1]) * epsilon * size
    image = image + jnp.asarray(shift, image.dtype) * sketch
    core = _symmetric(gram(sketch, image))
    if not np.isfinite(core).all():
        return Eigenpairs(jnp.zeros_like(sketch[:1]), np.zeros(1))
    basis, coordinates = orthonormalised(image)
    half = np.asarray(coordinates, np.float64) @ _inverse_root(core, epsilon)
    directions, sizes, _ = np.linalg.svd(half)
    return _turned(basis, _seen(sizes**2 - shift, basis), directions[:, :rank])


def _symmetric(matrix: Float[Array, "q q"]) -> Float[np.ndarray, "q q"]:
    full = np.asarray(matrix, np.float64)
    return (full + full.T) / 2


def _inverse_root(core: Float[np.ndarray, "q q"], epsilon: float) -> Float[np.ndarray, "q q"]:
    """V with VVᵀ the pseudo-inverse of a core; eigenvalues that are rounding count as 0."""
    values, vectors = np.linalg.eigh(core)
    kept = values > epsilon * max(values[-1], 0.0)
    return vectors * np.where(kept, np.where(kept, values, 1) ** -0.5, 0)


def _turned(
    basis: Float[Array, "q n"],
    values: Float[np.ndarray, " q"],
    directions: Float[np.ndarray, "q p"],
) -> Eigenpairs:
    """Eigenpairs from directions in a basis."""
    vectors = times(jnp.asarray(directions.T, basis.dtype), basis)
    return Eigenpairs(vectors, values[: directions.shape[1]])


def _seen(values: Float[np.ndarray, " q"], basis: Float[Array, "q n"]) -> Float[np.ndarray, " q"]:
    """With 0 for what is rounding of the largest, which comes first."""
    return np.where(values > 10 * float(jnp.finfo(basis.dtype).eps) * values[0], values, 0)
