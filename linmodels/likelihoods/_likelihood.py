"""What every likelihood offers: its value, its gradient and a factor of its curvature."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import shaped_like


class AbstractLikelihood(eqx.Module):
    """log p(y|f) through its value and a factor R(f) of its curvature B = RᵀR = −∂² log p/∂f²."""

    learn: eqx.AbstractVar[bool]
    """whether `maximise_evidence` learns its scale"""

    @abc.abstractmethod
    def root_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R(f) v for a vector shaped as the outputs."""

    @abc.abstractmethod
    def log_prob(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """Log-density of every target entry; of every observation, where entries depend."""

    @abc.abstractmethod
    def score(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """∂ log p(y|f) / ∂f, shaped as the outputs."""

    @abc.abstractmethod
    def known(self, scale: Float[Any, " C"], outputs: PyTree) -> "AbstractLikelihood":
        """The likelihood with its learned scale, if it has one, put in."""

    def root_transpose_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R(f)ᵀ u, derived from `root_product`."""
        product = lambda v: self.root_product(outputs, v)
        return jax.linear_transpose(product, vector)(vector)[0]

    def as_targets(self, targets: PyTree, structure: PyTree) -> PyTree[Float[Array, "..."]]:
        """Targets as they are used: real arrays shaped as the outputs.

        What cannot be checked because it is traced becomes NaN where it is wrong.

        Args:
            targets: as they were given.
            structure: of the outputs.

        Raises:
            ValueError: they do not fit the outputs, or are no targets of this likelihood.
        """
        return shaped_like(targets, structure, "targets")


class AbstractQuadratic(AbstractLikelihood):
    """A likelihood whose curvature B = βB₀ does not depend on f: that of a linear problem."""

    per_output: eqx.AbstractVar[bool]
    """whether every output has a β of its own"""
    is_unit: eqx.AbstractVar[bool]
    """whether B₀ = I and the residual is 0, so that R need not be applied"""
    acts_by_entry: eqx.AbstractVar[bool]
    """whether R is diagonal"""

    @abc.abstractmethod
    def rank(self, outputs: PyTree) -> PyTree:
        """Rank of B₀ split over entries, shaped as the outputs."""

    @abc.abstractmethod
    def log_determinant(self, outputs: PyTree) -> PyTree:
        """log det B₀ split over entries, shaped as the outputs."""

    @abc.abstractmethod
    def whitened(self, outputs: PyTree, residual: PyTree) -> PyTree:
        """v with log p = const − ½‖v − R(f − f₀)‖², from the residual y − f₀."""


class AbstractCurved(AbstractLikelihood):
    """A likelihood whose curvature depends on f, to be expanded around a mode."""

    acts_by_entry: eqx.AbstractVar[bool]
    """whether R is diagonal"""

    @property
    def learn(self) -> bool:
        """It has no scale."""
        return False

    @abc.abstractmethod
    def rank(self, outputs: PyTree) -> PyTree:
        """Rank of B split over entries, shaped as the outputs."""

    @abc.abstractmethod
    def expected_targets(self, outputs: PyTree) -> PyTree:
        """E[y|f], shaped as the outputs."""

    @abc.abstractmethod
    def pearson_residual(self, outputs: PyTree, score: PyTree) -> PyTree:
        """r with R(f)ᵀ r = score, whichever outputs the score was taken at."""

    def known(self, scale: Float[Any, " C"], outputs: PyTree) -> "AbstractCurved":
        """Itself."""
        return self


class AbstractEntrywise(AbstractCurved):
    """A likelihood of independent entries, with a diagonal R."""

    @property
    def acts_by_entry(self) -> bool:
        """R is diagonal."""
        return True

    @abc.abstractmethod
    def root(self, outputs: Float[Array, "..."]) -> Float[Array, "..."]:
        """The diagonal of R, never 0, for one leaf of the outputs."""

    def root_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R v."""
        return jax.tree.map(lambda f, v: self.root(f) * v, outputs, vector)

    def root_transpose_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R u."""
        return self.root_product(outputs, vector)

    def pearson_residual(self, outputs: PyTree, score: PyTree) -> PyTree:
        """The score over R, taken at `outputs`."""
        return jax.tree.map(lambda f, s: s / self.root(f), outputs, score)

    def rank(self, outputs: PyTree) -> PyTree:
        """1 for every entry."""
        return jax.tree.map(jnp.ones_like, outputs)
