"""A likelihood to second order around some outputs: Gaussian noise to every method."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, PyTree

from linmodels.likelihoods._likelihood import AbstractCurved, AbstractQuadratic


class QuadraticExpansion(AbstractQuadratic):
    """log p(y|f) ≈ const − ½‖r − R(f − f_t)‖², R taken at outputs f₀ and Rᵀr = ∂ log p/∂f at f_t.

    Its targets are the outputs f_t.

    Args:
        likelihood: that is expanded.
        outputs: f₀, where the curvature is taken.
        residual: r.
    """

    likelihood: AbstractCurved
    outputs: PyTree
    residual: PyTree

    def __init__(self, likelihood: AbstractCurved, outputs: PyTree, residual: PyTree):
        self.likelihood, self.outputs, self.residual = likelihood, outputs, residual

    @property
    def learn(self) -> bool:
        """It has no scale."""
        return False

    @property
    def per_output(self) -> bool:
        """It has no scale."""
        return False

    @property
    def is_unit(self) -> bool:
        """R is always applied."""
        return False

    @property
    def acts_by_entry(self) -> bool:
        """As of the likelihood."""
        return self.likelihood.acts_by_entry

    def root_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R(f₀) v."""
        return self.likelihood.root_product(self.outputs, vector)

    def root_transpose_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R(f₀)ᵀ u."""
        return self.likelihood.root_transpose_product(self.outputs, vector)

    def whitened(self, outputs: PyTree, residual: PyTree) -> PyTree:
        """R(f₀)(f_t − f) + r."""
        return jax.tree.map(jnp.add, self.root_product(outputs, residual), self.residual)

    def rank(self, outputs: PyTree) -> PyTree:
        """As of the likelihood."""
        return self.likelihood.rank(outputs)

    def log_determinant(self, outputs: PyTree) -> PyTree:
        """0: R is no density's, and has no constant."""
        return jax.tree.map(jnp.zeros_like, outputs)

    def log_prob(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """−½ v² for every entry of v = r − R(f − f_t)."""
        left = self.whitened(outputs, jax.tree.map(jnp.subtract, targets, outputs))
        return jax.tree.map(lambda v: -0.5 * v**2, left)

    def score(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """Rᵀ(r − R(f − f_t))."""
        left = self.whitened(outputs, jax.tree.map(jnp.subtract, targets, outputs))
        return self.root_transpose_product(outputs, left)

    def known(self, scale: Float[Any, " C"], outputs: PyTree) -> "QuadraticExpansion":
        """Itself."""
        return self
