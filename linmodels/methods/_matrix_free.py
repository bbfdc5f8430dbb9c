"""Data and prior as products: what a matrix-free method has looked at once."""

import operator
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from linmodels._batches import Batch, batches, num_batches
from linmodels._posterior import Posterior
from linmodels._priors import GaussianPrior
from linmodels._products import (
    Factor,
    FlatColumns,
    WhitenedDesign,
    backward,
    forward,
    look,
    look_at_rows,
    misfit,
    normal,
    unit_design,
)
from linmodels._whitening import RowVectors


class Sums(NamedTuple):
    """Sums over the data at unit noise and α = 1, for every noise precision β_c."""

    cross: Float[Array, "C r"]
    """W₀ᵀv, v = √w R₀(y − o − Φμ − Φ_f τ)"""
    noise_cross: Float[Array, "C k r"]
    """W₀ᵀu"""
    square: Float[np.ndarray, " C"]
    """‖v‖²"""
    raw_square: Float[np.ndarray, " C"]
    """‖v‖² before Φ_f τ is taken off"""
    rank: Float[np.ndarray, " C"]
    log_determinant: float


class Flats(NamedTuple):
    """Products of the flat columns Z with all columns, for every noise precision."""

    index: Int[np.ndarray, " f"]
    products: Float[np.ndarray, "C f r"]
    """ZᵀB₀ΦF"""
    targets: Float[np.ndarray, " f"]
    """τ"""

    def gram(self, beta: Float[np.ndarray, " C"]) -> Float[np.ndarray, "f f"]:
        """ZᵀBZ."""
        return np.tensordot(beta, self.products, 1)[:, self.index]

    def regression(self, beta: Float[np.ndarray, " C"]) -> Float[np.ndarray, "f r"]:
        """T = (ZᵀBZ)⁻¹ZᵀBΦF, 0 at flat coordinates."""
        products = np.tensordot(beta, self.products, 1)
        result = np.linalg.solve(products[:, self.index], products)
        result[:, self.index] = 0
        return result


class MatrixFree(eqx.Module):
    """Everything of a linear model that hyperparameters do not change."""

    data: Any
    prior: GaussianPrior
    factor: Factor
    sums: Sums
    flats: Flats
    prior_noise: Float[Array, "k r"]
    """z"""
    noise_key: Array
    structure: PyTree = eqx.field(static=True)

    @cached_property
    def flat(self) -> Bool[np.ndarray, " r"]:
        """Which coordinates are flat."""
        mask = np.zeros(self.factor.size, bool)
        mask[self.flats.index] = True
        return mask

    @cached_property
    def groups(self) -> tuple[Int[np.ndarray, " r"], int]:
        """Group of every coordinate, and how many there are."""
        if self.prior.groups is None:
            return np.zeros(self.factor.size, int), 1
        return self.prior.group_labels(self.structure)

    @property
    def num_samples(self) -> int:
        """k."""
        return len(self.prior_noise)

    @property
    def num_penalised(self) -> int:
        """Coordinates that are not flat."""
        return self.factor.size - len(self.flats.index)

    @property
    def largest_dimension(self) -> float:
        """What γ cannot exceed: penalised coordinates or rows that count."""
        return min(float(self.num_penalised), float(self.sums.rank.sum()))

    def group_sums(self, values: Float[Any, "... r"]) -> Float[np.ndarray, "... L"]:
        """Sums over the penalised coordinates of every group."""
        labels, count = self.groups
        values = np.where(self.flat, 0, np.asarray(values, np.float64))
        return np.stack([values[..., labels == group].sum(-1) for group in range(count)], -1)

    def design(self, alpha: Float[np.ndarray, " L"], beta: Float[np.ndarray, " C"]):
        """W at these hyperparameters, flat columns projected out."""
        scale = np.where(self.flat, 0, alpha[self.groups[0]] ** -0.5)
        flat = None
        if len(self.flats.index):
            regression = self._cast(self.flats.regression(beta))
            flat = FlatColumns(jnp.asarray(self.flats.index), regression)
        return WhitenedDesign(self.factor, self._cast(scale), self._cast(beta), flat)

    def whole_design(self, beta: Float[np.ndarray, " C"]) -> WhitenedDesign:
        """√β W₀ on coordinates at α = 1, flat ones free."""
        return unit_design(self.factor, beta, self.sums.cross.dtype)

    def units(self, design: WhitenedDesign, x: Float[Array, "k r"], cross: Float[Array, "k r"]):
        """Coordinates at α = 1: flat ones by least squares on what the others leave.

        Args:
            design: W.
            x: penalised coordinates.
            cross: √β W₀ᵀ of the rows that x fits.
        """
        y = _units(design, x)
        if design.flat is None:
            return y
        gram = self.flats.gram(np.asarray(design.beta, np.float64))
        fitted = np.linalg.solve(gram, np.asarray(cross, np.float64)[:, self.flats.index].T).T
        return _with_flat(y, design.flat.index, self._cast(fitted))

    def crosses(self, beta: Float[np.ndarray, " C"]) -> Float[Array, "k1 r"]:
        """√β W₀ᵀ of the noise and, last, of the targets, √β v."""
        return _crosses(self.sums.noise_cross, self.sums.cross, self._cast(beta))

    def normal(self, design: WhitenedDesign, x: Float[Array, "k r"]) -> Float[Array, "k r"]:
        """WᵀWx in one pass."""
        return sum_of(normal(batch, design, x) for batch in batches(self.data))

    def misfit(
        self, design: WhitenedDesign, beta: Float[np.ndarray, " C"], x: Float[Array, "k1 r"]
    ) -> tuple[Float[Array, "k1 r"], Float[Array, "2 k1"]]:
        """Wᵀ(c − Wx) of `rows` c in one pass, and ‖c‖² and ‖c − Wx‖²."""
        rows_of = self.rows_by_batch(beta)
        return sum_of(misfit(batch, design, x, rows_of(batch)) for batch in batches(self.data))

    def forward(self, design: WhitenedDesign, x: Float[Array, "k r"]) -> Float[Array, "k N"]:
        """Wx in one pass."""
        return _joined(forward(batch, design, x) for batch in batches(self.data))

    def backward(self, design: WhitenedDesign, rows: Float[Array, "k N"]) -> Float[Array, "k r"]:
        """Wᵀc in one pass."""
        parts = jnp.split(rows, num_batches(self.data), axis=1)
        return sum_of(
            backward(batch, design, part)
            for batch, part in zip(batches(self.data), parts, strict=True)
        )

    def outward(self, design: WhitenedDesign, rows: Float[Array, "k N"]) -> Float[Array, "k N"]:
        """WWᵀc in two half passes."""
        return self.forward(design, self.backward(design, rows))

    def rows(
        self, beta: Float[np.ndarray, " C"], num_samples: int | None = None
    ) -> Float[Array, "k1 N"]:
        """Noise u and, last, targets √β v of all rows; another u for another number than k."""
        rows_of = self.rows_by_batch(beta, num_samples)
        return _joined(map(rows_of, batches(self.data)))

    def rows_by_batch(
        self, beta: Float[np.ndarray, " C"], num_samples: int | None = None
    ) -> Callable[[Batch], Float[Array, "k1 N"]]:
        """The same of one batch at a time."""
        whole = self.whole_design(beta)
        shift = self._shift() if len(self.flats.index) else None
        return lambda batch: look_at_rows(batch, whole, shift, self.look(batch, num_samples))

    def look(self, batch: Batch, num_samples: int | None = None) -> RowVectors:
        """Whitened targets and noise of one batch at unit noise."""
        count = self.num_samples if num_samples is None else num_samples
        return look(batch, self.prior.mean, count, self.noise_key)

    def prior_draws(self) -> Float[Array, "k1 r"]:
        """z, and 0 for the mean."""
        return _prior_draws(self.prior_noise, jnp.asarray(~self.flat))

    def posterior(self, units: Float[Array, "k1 r"]) -> Posterior:
        """The posterior of θ from coordinates at α = 1 of the deviations and, last, of the mean."""
        return Posterior(*_parameters(self.factor, units, self._shift(), self.prior.mean), None)

    def _shift(self) -> Float[Array, "1 r"]:
        return self._cast(spread(self.flats, self.factor.size)[None])

    def _cast(self, values: Any) -> Array:
        return jnp.asarray(values, self.sums.cross.dtype)


@eqx.filter_jit
def _parameters(factor: Factor, units: Array, shift: Array, mean: PyTree) -> tuple[PyTree, PyTree]:
    """Mean and deviations shaped as θ, from coordinates at α = 1."""
    centre = factor.parameters(units[-1] + shift[0])
    if mean is not None:
        centre = jax.tree.map(jnp.add, centre, mean)
    return centre, jax.vmap(factor.parameters)(units[:-1])


@jax.jit
def _prior_draws(noise: Array, free: Array) -> Array:
    return jnp.concatenate([noise * free, jnp.zeros((1, len(free)), noise.dtype)])


@eqx.filter_jit
def _crosses(noise: Array, targets: Array, beta: Array) -> Array:
    root = jnp.tensordot(jnp.sqrt(beta), noise, 1)
    return jnp.concatenate([root, jnp.tensordot(beta, targets, 1)[None]])


@eqx.filter_jit
def _units(design: WhitenedDesign, x: Array) -> Array:
    return design.units(x)


@eqx.filter_jit
def _with_flat(y: Array, index: Array, fitted: Array) -> Array:
    return y.at[:, index].add(fitted)


def spread(flats: Flats, size: int) -> Float[np.ndarray, " r"]:
    """τ at flat coordinates, 0 elsewhere."""
    result = np.zeros(size)
    result[flats.index] = flats.targets
    return result


def _joined(parts: Iterable[Float[Array, "k n"]]) -> Float[Array, "k N"]:
    """Rows of all batches."""
    found = list(_in_turn(parts))
    return found[0] if len(found) == 1 else jnp.concatenate(found, axis=1)


def _in_turn(parts: Iterable[Any]) -> Iterator[Any]:
    """Waits for each before the next but one: jax would read tens of batches ahead."""
    before = None
    for part in parts:
        yield part
        jax.block_until_ready(before)
        before = part


def sum_of(parts: Iterable[Any]) -> Any:
    """The sum of arrays, or of trees of them, as they come."""
    total = None
    for part in _in_turn(parts):
        total = part if total is None else jax.tree.map(operator.add, total, part)
    assert total is not None
    return total
