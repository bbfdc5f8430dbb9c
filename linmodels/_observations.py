"""What was observed: a design, targets and a likelihood."""

from typing import Any

import equinox as eqx
import jax
import lineax as lx
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import (
    describe,
    real_array,
    require_finite,
    require_floats,
    shaped_like,
)
from linmodels.likelihoods import AbstractLikelihood, Gaussian


class Observations(eqx.Module):
    """Targets y = o + Φθ + η, with the likelihood of η.

    Args:
        design: Φ, any lineax operator; its input structure is that of θ, its output structure
            that of the targets. Leaves of the output share their leading axis, the n observations.
        targets: y, a pytree shaped as `design.out_structure()`, in the data's own units; class
            numbers where the likelihood takes them.
        likelihood: of y given the outputs; `Gaussian()` learns its noise precision.
        offset: o, a fixed part of the outputs, shaped as the targets; nothing where None.
        weights: (n,), w_i ≥ 0: observation i counts w_i times. Weight 2 is the row twice, 0 not
            at all.

    Raises:
        ValueError: shapes, structures or dtypes that do not fit, empty data, NaN or infinities
            (with the entry named), weights where observations are not separate.
    """

    design: lx.AbstractLinearOperator
    targets: PyTree[Float[Array, "n ..."]]
    likelihood: AbstractLikelihood
    offset: PyTree[Float[Array, "n ..."]] | None
    weights: Float[Array, " n"] | None

    def __init__(
        self,
        design: lx.AbstractLinearOperator,
        targets: PyTree,
        likelihood: AbstractLikelihood | None = None,
        offset: PyTree | None = None,
        weights: Any = None,
    ):
        if not isinstance(design, lx.AbstractLinearOperator):
            raise ValueError(
                f"design must be a lineax operator, got {type(design).__name__}: wrap an array as "
                "lineax.MatrixLinearOperator(jnp.asarray(x))."
            )
        self.design = design
        require_floats((design.in_structure(), design.out_structure()), "The design")
        self.likelihood = Gaussian() if likelihood is None else likelihood
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(f"likelihood must be one such as Gaussian(), got {likelihood!r}.")
        structure = design.out_structure()
        self.targets = self.likelihood.as_targets(targets, structure)
        self.offset = None if offset is None else shaped_like(offset, structure, "offset")
        self.weights = self._checked_weights(weights)
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.design.out_size() == 0 or self.design.in_size() == 0:
            raise ValueError(
                f"Empty data: the design has {self.design.out_size()} outputs and "
                f"{self.design.in_size()} parameters."
            )
        if isinstance(self.likelihood, Gaussian):
            if self.likelihood.factor is None:
                # Of shapes: only whether they fit is asked.
                jax.eval_shape(self.likelihood.precision_like, self.targets)
            elif self.likelihood.covers_all_targets(self.targets) and self.weights is not None:
                raise ValueError("weights need noise that is independent between observations.")
        if isinstance(self.likelihood, Gaussian) and self.likelihood.per_output:
            self._require_observation_axis("per-output noise")

    def _checked_weights(self, weights: Any) -> Array | None:
        if weights is None:
            return None
        count = self._require_observation_axis("weights")
        dtype = jax.tree.leaves(self.targets)[0].dtype
        array = real_array(weights, "weights", dtype, kinds="biuf")
        if array.shape != (count,):
            raise ValueError(
                f"weights must be one an observation, ({count},), got shape {array.shape}."
            )
        require_finite(array, "weights", minimum=0.0)
        return array

    def _require_observation_axis(self, purpose: str) -> int:
        leading = {leaf.shape[:1] for leaf in jax.tree.leaves(self.targets)}
        if len(leading) != 1 or leading == {()}:
            raise ValueError(
                f"{purpose} needs outputs that share a leading observation axis; the targets are "
                f"{describe(self.targets)}."
            )
        return leading.pop()[0]

    @property
    def num_observations(self) -> int:
        """n, where the outputs share a leading axis; else all outputs are one observation."""
        leading = {leaf.shape[:1] for leaf in jax.tree.leaves(self.targets)}
        return leading.pop()[0] if len(leading) == 1 and leading != {()} else 1

    def reweighted(self, weights: Float[Array, " n"]) -> "Observations":
        """These observations with their weights multiplied by `weights`, shape (n,)."""
        old = 1.0 if self.weights is None else self.weights
        return Observations(self.design, self.targets, self.likelihood, self.offset, old * weights)
