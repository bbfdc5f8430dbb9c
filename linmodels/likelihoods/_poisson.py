"""Counts, by the logarithm of their rate."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import shaped_like
from linmodels.likelihoods._likelihood import AbstractEntrywise
from linmodels.likelihoods._targets import curvature_floor, require_between


class Poisson(AbstractEntrywise):
    """y ~ Poisson(eᶠ); an exposure enters as the offset log(exposure).

    R v = e^{f/2} v. Beyond f = 44 (354 in float64), far above any count, eᶠ goes on as its tangent,
    so that nothing overflows.

    >>> import jax.numpy as jnp
    >>> Poisson().score(jnp.zeros(2), jnp.array([0.0, 3.0]))
    Array([-1.,  2.], dtype=float32)
    """

    def __init__(self):  # for type checkers, which take abstract variables for fields
        pass

    def as_targets(self, targets: PyTree, structure: PyTree) -> PyTree[Float[Array, "..."]]:
        """Targets shaped as the outputs; see `AbstractLikelihood.as_targets`.

        Raises:
            ValueError: a negative count.
        """
        targets = shaped_like(targets, structure, "targets")
        return jax.tree.map(
            lambda y: require_between(y, 0.0, float("inf"), "Poisson counts"), targets
        )

    def log_prob(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """y f − eᶠ − log y! of every entry."""

        def one(f: Array, y: Array) -> Array:
            beyond = jnp.maximum(f - _largest(f), 0)
            return y * f - _rate(f) * (1 + beyond) - jax.scipy.special.gammaln(y + 1)

        return jax.tree.map(one, outputs, targets)

    def score(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """y − eᶠ."""
        return jax.tree.map(lambda f, y: y - _rate(f), outputs, targets)

    def root(self, outputs: Float[Array, "..."]) -> Float[Array, "..."]:
        """e^{f/2}, not below the root of the floor."""
        return jnp.sqrt(jnp.maximum(_rate(outputs), curvature_floor(outputs.dtype)))

    def expected_targets(self, outputs: PyTree) -> PyTree:
        """eᶠ."""
        return jax.tree.map(_rate, outputs)


def _largest(outputs: Array) -> float:
    """f up to which eᶠ is taken, its square within the range of the dtype."""
    return 0.5 * float(np.log(jnp.finfo(outputs.dtype).max))


def _rate(outputs: Array) -> Array:
    return jnp.exp(jnp.minimum(outputs, _largest(outputs)))
