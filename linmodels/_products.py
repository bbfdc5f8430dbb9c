"""Products with the whitened design W, for blocks of vectors, batch by batch.

Nothing here is larger than the rows of a batch or a block of parameters, and no matrix is formed.
Vectors x are coordinates of the prior, θ − μ = F α^{-½} x; rows are ravelled outputs.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from linmodels._arrays import ravel, size_of, unravel
from linmodels._batches import Batch
from linmodels._blocks import products, square_sums, times, transpose_products
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._whitening import (
    RowVectors,
    gaussian,
    noise_labels,
    root_product,
    root_transpose_product,
    row_noise,
    row_vectors,
    unexplained,
)


class Factor(eqx.Module):
    """F, from coordinates (r,) to parameters shaped as θ; 1 for flat parameters."""

    operator: lx.AbstractLinearOperator | None
    structure: PyTree = eqx.field(static=True)

    @property
    def size(self) -> int:
        """r."""
        if self.operator is not None:
            return self.operator.in_size()
        return size_of(self.structure)

    def parameters(self, x: Float[Array, " r"]) -> PyTree:
        """F x."""
        if self.operator is None:
            return unravel(x, self.structure)
        y = self.operator.mv(unravel(x, self.operator.in_structure()))
        return unravel(ravel(y), self.structure)

    def cofactors(self, theta: PyTree) -> Float[Array, " r"]:
        """Fᵀ θ."""
        if self.operator is None:
            return ravel(theta)
        vector = unravel(ravel(theta), self.operator.out_structure())
        return ravel(self.operator.T.mv(vector))


def factor_of(prior: GaussianPrior, structure: PyTree) -> Factor:
    """The factor of a settled prior, without forming its matrix.

    Raises:
        ValueError: F does not map onto θ, or is not diagonal beside flat or grouped parameters.
    """
    prior.require_fit(structure)
    flat, operator = prior.flat_mask(structure), prior.factor
    if operator is not None and flat.any():
        root = jnp.where(flat, 1, lx.diagonal(operator))
        operator = lx.DiagonalLinearOperator(root)
    return Factor(operator, structure)


class FlatColumns(NamedTuple):
    """How flat parameters follow the others: θ_f = −T y, T = (ZᵀBZ)⁻¹ZᵀBΦF."""

    index: Int[Array, " f"]
    regression: Float[Array, "f r"]
    """T, 0 at flat coordinates"""


class WhitenedDesign(eqx.Module):
    """W = √β √w R₀ Φ F α^{-½} at given hyperparameters, flat columns projected out.

    Args:
        factor: F.
        scale: α^{-½} of every coordinate; 0 at flat ones where `flat` is given.
        beta: β, one or one an output.
        flat: where flat columns are to be projected out.
    """

    factor: Factor
    scale: Float[Array, " r"]
    beta: Float[Array, " C"]
    flat: FlatColumns | None = None

    def units(self, x: Float[Array, "k r"]) -> Float[Array, "k r"]:
        """Coordinates at α = 1, flat ones as the others make them."""
        y = x * self.scale
        if self.flat is None:
            return y
        return y.at[:, self.flat.index].add(-times(y, self.flat.regression.T))

    def product(self, data: Observations, x: Float[Array, "k r"]) -> Float[Array, "k N"]:
        """W x of every vector."""
        outputs = products(data.design, jax.vmap(self.factor.parameters)(self.units(x)))
        whiten = lambda f: ravel(root_product(data, f))
        return jax.vmap(whiten)(outputs) * self._root_beta(data)

    def transpose_product(
        self, data: Observations, rows: Float[Array, "k N"]
    ) -> Float[Array, "k r"]:
        """Wᵀ c of every vector."""
        colour = lambda c: root_transpose_product(data, unravel(c, data.targets))
        outputs = jax.vmap(colour)(rows * self._root_beta(data))
        return self.pull(jax.vmap(self.factor.cofactors)(transpose_products(data.design, outputs)))

    def pull(self, cofactors: Float[Array, "k r"]) -> Float[Array, "k r"]:
        """Wᵀc from what free coordinates at α = 1 would get."""
        if self.flat is not None:
            cofactors -= times(cofactors[:, self.flat.index], self.flat.regression)
        return cofactors * self.scale

    def _root_beta(self, data: Observations) -> Float[Array, "..."]:
        root = jnp.sqrt(self.beta)
        if len(root) == 1:
            return root[0]
        return root[noise_labels(gaussian(data.likelihood), data.targets)]


def unit_design(factor: Factor, beta: Any, dtype: Any) -> WhitenedDesign:
    """√β W₀ on coordinates at α = 1, flat ones free; β may be a mask of noise precisions."""
    ones = jnp.asarray(np.ones(factor.size), dtype)  # on the host nothing compiles
    return WhitenedDesign(factor, ones, jnp.asarray(beta, dtype))


def look(batch: Batch, mean: PyTree, num_samples: int, key: Array | None) -> RowVectors:
    """Whitened targets and noise of one batch at unit noise."""
    if batch.observe is not None:
        return _look(batch, mean, num_samples, key)
    # Apart: drawing compiles for longer than all the rest, and not anew for every likelihood.
    noise = row_noise(batch.arguments.targets, 0, num_samples, key)
    return _look(batch, mean, 0, None)._replace(noise=noise)


@eqx.filter_jit
def _look(batch: Batch, mean: PyTree, num_samples: int, key: Array | None) -> RowVectors:
    data = batch.observations()
    return row_vectors(data, unexplained(data, mean), batch.first, num_samples, key)


@eqx.filter_jit
def look_at_rows(
    batch: Batch,
    design: WhitenedDesign,
    shift: Float[Array, "1 r"] | None,
    seen: RowVectors,
) -> Float[Array, "k1 N"]:
    """Noise u and, last, targets √β v − W shift of one batch."""
    targets = jnp.sqrt(design.beta)[seen.output] * seen.targets
    if shift is not None:
        targets = targets - forward(batch, design, shift)[0]
    return jnp.concatenate([seen.noise.T.astype(targets.dtype), targets[None]])


@eqx.filter_jit
def forward(batch: Batch, design: WhitenedDesign, x: Float[Array, "k r"]) -> Float[Array, "k N"]:
    """W x."""
    return design.product(batch.observations(), x)


@eqx.filter_jit
def backward(batch: Batch, design: WhitenedDesign, rows: Float[Array, "k N"]):
    """Wᵀ c."""
    return design.transpose_product(batch.observations(), rows)


@eqx.filter_jit
def normal(batch: Batch, design: WhitenedDesign, x: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Wᵀ W x."""
    data = batch.observations()
    return design.transpose_product(data, design.product(data, x))


@eqx.filter_jit
def misfit(batch: Batch, design: WhitenedDesign, x: Float[Array, "k r"], rows: Float[Array, "k N"]):
    """Wᵀ(c − Wx) of rows c, and ‖c‖² and ‖c − Wx‖², (2, k)."""
    data = batch.observations()
    left = rows - design.product(data, x)
    return design.transpose_product(data, left), jnp.stack([square_sums(rows), square_sums(left)])
