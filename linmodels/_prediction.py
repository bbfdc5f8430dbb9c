"""Predictions: Gaussian outputs at new points, with and without the noise of new targets."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.special
from jaxtyping import Array, Float, PyTree

from linmodels import metrics, predictives
from linmodels._arrays import (
    ravel,
    require_single_key,
    shaped_like,
    unravel,
)
from linmodels.likelihoods import (
    AbstractCurved,
    AbstractLikelihood,
    Bernoulli,
    Categorical,
    Gaussian,
    Poisson,
)
from linmodels.operators import AbstractMatrixFreeOperator

ROWS_AT_ONCE = 1_024


class Prediction(eqx.Module):
    """Outputs f = o + Φθ at new points; every result has the outputs' own shape.

    Exact methods give exact variances; others estimate them from the k deviations.

    Attributes:
        mean: o + Φθ̄.
        deviations: Φζ with a leading axis k.
        likelihood: of new targets; None for combinations of parameters, which have no noise to ask
            for.
    """

    mean: PyTree[Float[Array, "..."]]
    deviations: PyTree[Float[Array, "k ..."]]
    design: lx.AbstractLinearOperator
    covariance_factor: lx.AbstractLinearOperator | None
    likelihood: AbstractLikelihood | None

    def std(self, noise: bool = False) -> PyTree:
        """Standard deviation of the outputs, or of new targets with `noise=True`.

        Raises:
            ValueError: the noise of new points is unknown, or nothing tells the variance.
        """
        variance = self._variance()
        if self._adds(noise):
            extra = self._gaussian.noise_variance(self.mean)
            variance = jax.tree.map(jnp.add, variance, extra)
        return jax.tree.map(jnp.sqrt, variance)

    def covariance(self, noise: bool = False) -> Float[Array, "N N"]:
        """Covariance between all outputs, ravelled; O(N²) memory.

        Raises:
            ValueError: as `std`.
        """
        root = self._root()
        result = jnp.matmul(root, root.T, precision=jax.lax.Precision.HIGHEST)
        return result + self._gaussian.noise_covariance(self.mean) if self._adds(noise) else result

    def samples(self, noise: bool = False, *, key: Array | None = None) -> PyTree:
        """k joint draws of the outputs, or of new targets with `noise=True` and a key.

        Raises:
            ValueError: no deviations were drawn, or noise without a key.
        """
        draws = jax.tree.map(jnp.add, self.mean, self._drawn())
        if not self._adds(noise):
            return draws
        if key is None:
            raise ValueError("samples(noise=True) needs a key.")
        require_single_key(key)
        flat = jax.vmap(ravel)(draws)
        scaled = self._scaled_noise(jax.random.normal(key, flat.shape, flat.dtype))
        return jax.vmap(lambda f: unravel(f, self.mean))(flat + scaled)

    def _scaled_noise(self, draws: Float[Array, "k N"]) -> Float[Array, "k N"]:
        """Noise of new targets from standard normal draws; a matrix only where it has one."""
        if self._gaussian.factor is None:
            return draws * jnp.sqrt(ravel(self._gaussian.noise_variance(self.mean)))
        root = jnp.linalg.cholesky(self._gaussian.noise_covariance(self.mean))
        return jnp.matmul(draws, root.T, precision=jax.lax.Precision.HIGHEST)

    def interval(self, level: float = 0.9, noise: bool = True) -> tuple[PyTree, PyTree]:
        """Central interval of new targets (or of the outputs with `noise=False`).

        Args:
            level: probability inside, in (0, 1).
            noise: whether to include the noise of a new target.

        Raises:
            ValueError: a level outside (0, 1), or as `std`.
        """
        exact = self.covariance_factor is not None
        width = quantile(level, None if exact else len(jax.tree.leaves(self._drawn())[0]))
        std = self.std(noise)
        lower = jax.tree.map(lambda m, s: m - width * s, self.mean, std)
        return lower, jax.tree.map(lambda m, s: m + width * s, self.mean, std)

    def log_prob(self, targets: PyTree) -> PyTree:
        """Marginal log-density of every target entry; of every observation for `Categorical`.

        Other likelihoods than `Gaussian` are averaged over the k samples, log 1/k Σ p(y|f_j).

        Raises:
            ValueError: targets that do not fit or are not finite, or as `std`; no deviations where
                they are needed.
        """
        targets = self._checked(targets)
        likelihood = self.likelihood
        if isinstance(likelihood, AbstractCurved):
            draws = jax.vmap(lambda f: likelihood.log_prob(f, targets))(self.samples())
            return jax.tree.map(_log_mean_exp, draws)
        return jax.tree.map(metrics.gaussian_log_prob, targets, self.mean, self.std(noise=True))

    def probabilities(self) -> PyTree:
        """p(y) of the classes, shaped as the outputs: the mean over the k samples of p(y|f).

        For `Categorical` they sum to 1 over the last axis; for `Bernoulli` they are of y = 1.

        Raises:
            ValueError: another likelihood, or no deviations were drawn.
        """
        return self._expected_targets(Categorical, Bernoulli)

    def probit_probabilities(self) -> PyTree:
        """The same from means and variances alone: `predictives.categorical_probit` and its like.

        Without the noise of few samples, but approximate: it overstates how unsure classes are
        where their logits vary together.

        Raises:
            ValueError: another likelihood, or nothing tells the variance.
        """
        kinds = {
            Categorical: predictives.categorical_probit,
            Bernoulli: predictives.bernoulli_probit,
        }
        self._require(*kinds)
        return jax.tree.map(kinds[type(self.likelihood)], self.mean, self._variance())

    def rate(self) -> PyTree:
        """E[y] for `Poisson`, shaped as the outputs: the mean over the k samples of eᶠ.

        Raises:
            ValueError: another likelihood, or no deviations were drawn.
        """
        return self._expected_targets(Poisson)

    def _require(self, *kinds: type) -> AbstractCurved:
        likelihood = self.likelihood
        if not isinstance(likelihood, AbstractCurved) or not isinstance(likelihood, kinds):
            raise ValueError(
                f"This is for {' or '.join(kind.__name__ for kind in kinds)} targets, not for "
                f"{'parameters' if likelihood is None else type(likelihood).__name__}."
            )
        return likelihood

    def _expected_targets(self, *kinds: type) -> PyTree:
        likelihood = self._require(*kinds)
        draws = jax.vmap(likelihood.expected_targets)(self.samples())
        return jax.tree.map(lambda d: jnp.mean(d, axis=0), draws)

    def joint_log_prob(self, targets: PyTree) -> Float[Array, ""]:
        """Log-density of all targets together; O(N³).

        Raises:
            ValueError: targets of another shape or not finite, or as `std`; more outputs than
                directions that they vary in.
        """
        targets = self._checked(targets)
        residual = ravel(targets) - ravel(self.mean)
        root = self._root()
        if self._adds(noise=True):
            noise = jnp.linalg.cholesky(self._gaussian.noise_covariance(self.mean))
            root = jnp.concatenate([root, noise], axis=1)
        if root.shape[0] > root.shape[1]:
            raise ValueError(
                f"{root.shape[0]} combinations of parameters without noise vary in "
                f"{root.shape[1]} directions at most: they have no joint density; give fewer."
            )
        return metrics.gaussian_joint_log_prob(residual, root)

    def _root(self) -> Float[Array, "N r"]:
        """G with GGᵀ the covariance of the outputs."""
        if self.covariance_factor is not None:
            return jax.vmap(self.covariance_factor.T.mv)(design_rows(self.design))
        draws = jax.vmap(ravel)(self._drawn())
        return draws.T / np.sqrt(len(draws))

    def _adds(self, noise: bool) -> bool:
        """Whether there is noise to add where it is asked for."""
        return noise and self.likelihood is not None

    @property
    def _gaussian(self) -> Gaussian:
        if not isinstance(self.likelihood, Gaussian):
            raise ValueError(
                f"{type(self.likelihood).__name__} has no additive noise: pass noise=False, or ask "
                "for log_prob, probabilities or rate."
            )
        return self.likelihood

    def _variance(self) -> PyTree:
        if self.covariance_factor is None:
            return jax.tree.map(lambda z: jnp.mean(z**2, axis=0), self._drawn())
        variance = row_variances(design_rows(self.design), self.covariance_factor)
        return unravel(variance, self.mean)

    def _drawn(self) -> PyTree:
        if jax.tree.leaves(self.deviations)[0].shape[0] == 0:
            raise ValueError("No deviations were drawn: infer with num_samples > 0.")
        return self.deviations

    def _checked(self, targets: PyTree) -> PyTree:
        if self.likelihood is None:
            return shaped_like(targets, self.mean, "targets", "the prediction")
        return self.likelihood.as_targets(targets, self.mean)


def design_rows(design: lx.AbstractLinearOperator) -> Float[Array, "N d"]:
    """Φ as a matrix, as its operator makes it; by products with Φᵀ where lineax would take more."""
    size = design.out_size()
    knows_how = isinstance(design, lx.MatrixLinearOperator | AbstractMatrixFreeOperator)
    if knows_how or design.in_size() <= size:
        return jnp.asarray(design.as_matrix())
    structure = design.out_structure()
    dtype = jnp.result_type(*jax.tree.leaves(structure))
    unit = jnp.eye(size, dtype=dtype)
    return jax.vmap(lambda e: ravel(design.T.mv(unravel(e, structure))))(unit)


def _log_mean_exp(values: Float[Array, "k ..."]) -> Float[Array, "..."]:
    return jax.nn.logsumexp(values, axis=0) - np.log(len(values))


@eqx.filter_jit
def row_variances(
    rows: Float[Array, "N d"], factor: lx.AbstractLinearOperator
) -> Float[Array, " N"]:
    """φ C Cᵀ φᵀ of every row φ as a sum of squares, so never negative."""
    variance = lambda row: jnp.sum(factor.T.mv(row) ** 2)
    return jax.lax.map(variance, rows, batch_size=min(ROWS_AT_ONCE, len(rows)))


def quantile(level: float, num_samples: int | None = None) -> float:
    """Half-width of a central interval in standard deviations.

    Student's t with k degrees of freedom where the variance was estimated from k deviations of
    known mean zero.

    Raises:
        ValueError: a level outside (0, 1).
    """
    if not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise ValueError(f"level must be a number between 0 and 1, got {level!r}.")
    if num_samples is None:
        return float(scipy.special.ndtri((1 + level) / 2))
    return float(scipy.special.stdtrit(num_samples, (1 + level) / 2))
