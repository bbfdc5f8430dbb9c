"""Two classes by one logit."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import shaped_like
from linmodels.likelihoods._likelihood import AbstractCurved
from linmodels.likelihoods._targets import curvature_floor, require_between


class Bernoulli(AbstractCurved):
    """p(y = 1) = σ(f) = 1/(1 + e⁻ᶠ), for targets in {0, 1} (or bools) or, soft, in [0, 1].

    R v = √(p(1 − p)) v. Every entry of the outputs is a logit of its own.

    >>> import jax.numpy as jnp
    >>> Bernoulli().root_product(jnp.zeros(1), jnp.ones(1))
    Array([0.5], dtype=float32)
    """

    @property
    def acts_by_entry(self) -> bool:
        """R is diagonal."""
        return True

    def as_targets(self, targets: PyTree, structure: PyTree) -> PyTree[Float[Array, "..."]]:
        """Targets shaped as the outputs; see `AbstractLikelihood.as_targets`.

        Raises:
            ValueError: a target outside [0, 1].
        """
        targets = shaped_like(targets, structure, "targets", kinds="biuf")
        return jax.tree.map(lambda y: require_between(y, 0.0, 1.0, "Bernoulli targets"), targets)

    def log_prob(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """y log σ(f) + (1 − y) log σ(−f) of every entry."""
        one = lambda f, y: y * jax.nn.log_sigmoid(f) + (1 - y) * jax.nn.log_sigmoid(-f)
        return jax.tree.map(one, outputs, targets)

    def score(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """y − p, without cancellation."""
        one = lambda f, y: y * jax.nn.sigmoid(-f) - (1 - y) * jax.nn.sigmoid(f)
        return jax.tree.map(one, outputs, targets)

    def root_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """√(p(1 − p)) v."""
        return jax.tree.map(lambda f, v: _root(f) * v, outputs, vector)

    def root_transpose_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """√(p(1 − p)) u."""
        return self.root_product(outputs, vector)

    def pearson_residual(self, outputs: PyTree, score: PyTree) -> PyTree:
        """(y − p)/√(p(1 − p)), the factor taken at `outputs`."""
        return jax.tree.map(lambda f, s: s / _root(f), outputs, score)

    def rank(self, outputs: PyTree) -> PyTree:
        """1 for every entry."""
        return jax.tree.map(jnp.ones_like, outputs)

    def expected_targets(self, outputs: PyTree) -> PyTree:
        """σ(f)."""
        return jax.tree.map(jax.nn.sigmoid, outputs)


def _root(logits: Array) -> Array:
    """√(p(1 − p)), not below the root of the floor."""
    variance = jax.nn.sigmoid(logits) * jax.nn.sigmoid(-logits)
    return jnp.sqrt(jnp.maximum(variance, curvature_floor(logits.dtype)))
