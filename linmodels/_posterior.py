"""The Gaussian posterior of the parameters, by its mean, deviations and covariance factor."""

import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import (
    describe,
    parameter_structure,
    ravel,
    real_array,
    require_finite,
    require_floats,
    shaped_like,
    size_of,
    unravel,
)
from linmodels._prediction import Prediction, quantile, row_variances
from linmodels._priors import GaussianPrior
from linmodels._storage import load, save
from linmodels.likelihoods import AbstractLikelihood, Gaussian


class Summary(NamedTuple):
    """Marginal posterior of every parameter, each field shaped as θ, in θ's own units."""

    mean: PyTree
    std: PyTree
    lower: PyTree
    upper: PyTree


class Posterior(eqx.Module):
    """θ | y ~ N(θ̄, H⁻¹).

    Attributes:
        mean: θ̄, a pytree shaped as θ.
        deviations: k draws ζ ~ N(0, H⁻¹) shaped as θ with a leading axis k; θ̄ + ζ are samples.
        covariance_factor: C with CCᵀ = H⁻¹ on ravelled θ (d', r) where the method is exact.
        likelihood: with the noise precision in force, for noisy predictions.
    """

    mean: PyTree[Float[Array, "..."]]
    deviations: PyTree[Float[Array, "k ..."]]
    covariance_factor: lx.AbstractLinearOperator | None
    likelihood: AbstractLikelihood = Gaussian()

    @property
    def num_samples(self) -> int:
        """k, the number of deviations."""
        return jax.tree.leaves(self.deviations)[0].shape[0]

    def predict(
        self,
        design: lx.AbstractLinearOperator,
        offset: PyTree | None = None,
        *,
        likelihood: AbstractLikelihood | None = None,
    ) -> Prediction:
        """The posterior of outputs f = o + Φθ at new points.

        Args:
            design: Φ of the new points, from θ to their outputs.
            offset: o of the new points, shaped as the outputs; 0 where None.
            likelihood: of the new targets, where it is not that of the fit.

        Raises:
            ValueError: design or offset do not fit, or are not finite.
        """
        noise = self.likelihood if likelihood is None else likelihood
        return self._predicted(design, offset, noise)

    def _predicted(
        self,
        design: lx.AbstractLinearOperator,
        offset: PyTree | None,
        likelihood: AbstractLikelihood | None,
    ) -> Prediction:
        self._check_design(design)
        mean = design.mv(_cast(self.mean, design.in_structure()))
        if offset is not None:
            offset = shaped_like(offset, mean, "offset")
            mean = jax.tree.map(jnp.add, mean, offset)
        require_finite(mean, "the predicted mean, and so the design,")
        structure = design.in_structure()
        deviations = jax.vmap(lambda z: design.mv(_cast(z, structure)))(self.deviations)
        return Prediction(
            mean=mean,
            deviations=deviations,
            design=design,
            covariance_factor=self.covariance_factor,
            likelihood=likelihood,
        )

    def contrast(self, weights: Any) -> Prediction:
        """The posterior of linear combinations of the ravelled parameters.

        They have no noise, whatever the likelihood: `interval` and `log_prob` are of the
        combinations themselves.

        Args:
            weights: (d',) for one combination, (c, d') for several.

        Raises:
            ValueError: the wrong number of columns.
        """
        matrix = jnp.atleast_2d(real_array(weights, "weights", self._dtype))
        if matrix.ndim != 2 or matrix.shape[1] != self._size:
            raise ValueError(f"weights have shape {matrix.shape}, θ has {self._size} entries.")
        require_finite(matrix, "weights")
        flat = Posterior(
            ravel(self.mean),
            jax.vmap(ravel)(self.deviations),
            self.covariance_factor,
            self.likelihood,
        )
        return flat._predicted(lx.MatrixLinearOperator(matrix), None, None)

    def std(self) -> PyTree:
        """Standard deviation of every parameter, shaped as θ.

        Raises:
            ValueError: there are neither a covariance factor nor deviations.
        """
        if self.covariance_factor is not None:
            unit = jnp.asarray(np.eye(self._size, dtype=self._dtype))  # compiles nothing
            variance = row_variances(unit, self.covariance_factor)
            return unravel(jnp.sqrt(variance), self.mean)
        if self.num_samples == 0:
            raise ValueError("No deviations were drawn: infer with num_samples > 0.")
        return jax.tree.map(lambda z: jnp.sqrt(jnp.mean(z**2, axis=0)), self.deviations)

    def summary(self, level: float = 0.9) -> Summary:
        """Mean, standard deviation and central interval of every parameter.

        Args:
            level: probability of the interval, in (0, 1).

        Raises:
            ValueError: a level outside (0, 1).
        """
        exact = self.covariance_factor is not None
        width = quantile(level, None if exact else self.num_samples)
        std = self.std()
        lower = jax.tree.map(lambda m, s: m - width * s, self.mean, std)
        upper = jax.tree.map(lambda m, s: m + width * s, self.mean, std)
        return Summary(self.mean, std, lower, upper)

    def samples(self) -> PyTree:
        """k draws from the posterior, shaped as θ with a leading axis k."""
        return jax.tree.map(jnp.add, self.mean, self.deviations)

    def as_prior(self) -> GaussianPrior:
        """This posterior as the prior of the next data (α = 1).

        Raises:
            ValueError: the method was not exact, so that no covariance factor is known.
        """
        if self.covariance_factor is None:
            raise ValueError("Only an exact posterior has the covariance factor of a prior.")
        return GaussianPrior(1.0, self.covariance_factor, mean=self.mean)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the posterior to one file; see `save`.

        Raises:
            ValueError: θ is a pytree of classes that are not the library's.
        """
        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Posterior":
        """Reads what `Posterior.save` wrote; see `load`.

        Raises:
            ValueError: the file is damaged, foreign, or holds something else.
        """
        return load(path, cls)

    @property
    def _size(self) -> int:
        return size_of(self.mean)

    @property
    def _dtype(self) -> Any:
        return jax.tree.leaves(self.mean)[0].dtype

    def _check_design(self, design: lx.AbstractLinearOperator) -> None:
        if not isinstance(design, lx.AbstractLinearOperator):
            raise ValueError(
                f"design must be a lineax operator, got {type(design).__name__}: wrap an array as "
                "lineax.MatrixLinearOperator(jnp.asarray(x))."
            )
        require_floats((design.in_structure(), design.out_structure()), "The design")
        shapes = lambda tree: jax.tree.map(lambda leaf: tuple(leaf.shape), tree)
        if shapes(design.in_structure()) != shapes(self.mean):
            raise ValueError(
                f"The design takes {describe(design.in_structure())}, θ is {describe(self.mean)}."
            )


def _cast(tree: PyTree, structure: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x, s: x.astype(jax.dtypes.canonicalize_dtype(s.dtype)), tree, structure
    )


def posterior_from_arrays(
    structure: PyTree, mean: Any, deviations: Any, root: Any, prior_mean: PyTree
) -> Posterior:
    """The posterior from ravelled arrays, in the parameters' own structure and dtypes.

    Args:
        structure: of θ.
        mean: θ̄ − μ, (d',).
        deviations: (d', k).
        root: C, (d', r) or an operator.
        prior_mean: μ, shaped as θ, or None.
    """
    structure = parameter_structure(structure)
    dtype = jnp.result_type(*jax.tree.leaves(structure))
    if not isinstance(root, lx.AbstractLinearOperator):
        root = lx.MatrixLinearOperator(jnp.asarray(root, dtype))
    if isinstance(mean, np.ndarray) and prior_mean is not None:
        mean = mean + np.concatenate([np.ravel(m) for m in jax.tree.leaves(prior_mean)])
    elif prior_mean is not None:
        mean = mean + ravel(prior_mean)
    return Posterior(_shaped(mean, structure), _shaped(deviations.T, structure), root)


def _shaped(values: Any, structure: PyTree) -> PyTree:
    """(…, d') as a pytree of leaves (…, *shape); NumPy arrays are cut on the host, uncompiled."""
    leaves, treedef = jax.tree.flatten(structure)
    ends = np.cumsum([int(np.prod(leaf.shape)) for leaf in leaves])
    pieces = [values[..., i:j] for i, j in zip([0, *ends[:-1]], ends, strict=True)]
    shaped = [
        jnp.asarray(piece.reshape((*values.shape[:-1], *leaf.shape)), leaf.dtype)
        for piece, leaf in zip(pieces, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, shaped)
