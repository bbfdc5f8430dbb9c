"""Two classes by one logit."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import shaped_like
from linmodels.likelihoods._likelihood import AbstractEntrywise
from linmodels.likelihoods._targets import curvature_floor, require_between


class Bernoulli(AbstractEntrywise):
    """p(y = 1) = σ(f) = 1/(1 + e⁻ᶠ), for targets in {0, 1} (or bools) or, soft, in [0, 1].

    R v = √(p(1 − p)) v. Every entry of the outputs is a logit of its own.

    >>> import jax.numpy as jnp
    >>> Bernoulli().root_product(jnp.zeros(1), jnp.ones(1))
    Array([0.5], dtype=float32)
    """

    def __init__(self):  # for type checkers, which take abstract variables for fields
        pass

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

    def root(self, outputs: Float[Array, "..."]) -> Float[Array, "..."]:
        """√(p(1 − p)), not below the root of the floor."""
        variance = jax.nn.sigmoid(outputs) * jax.nn.sigmoid(-outputs)
        return jnp.sqrt(jnp.maximum(variance, curvature_floor(outputs.dtype)))

    def expected_targets(self, outputs: PyTree) -> PyTree:
        """σ(f)."""
        return jax.tree.map(jax.nn.sigmoid, outputs)
