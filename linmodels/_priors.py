"""Gaussian priors by a factor of their covariance."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import (
    DENSE_LIMIT,
    is_traced,
    ravel_mask,
    real_array,
    require_finite,
    size_of,
)


class GaussianPrior(eqx.Module):
    """θ ~ N(μ, A⁻¹) with A⁻¹ = α⁻¹ F Fᵀ.

    Isotropic without `factor`; diagonal with `lineax.DiagonalLinearOperator(standard_deviations)`;
    scale-free with `GaussianPrior.g_prior()`; from a dense precision with
    `GaussianPrior.from_precision(A)`.

    Args:
        alpha: α > 0, in 1/(units of F⁻¹θ)²: a scalar, or one a group (L,). None is unknown.
            `maximise_evidence` learns α and takes a given one as its start.
        factor: F, a lineax operator onto θ (ravelled or shaped as θ); identity where None.
        mean: μ, shaped as θ; zero where None.
        flat: bools shaped as θ, or one a leaf: True marks unpenalised parameters such as an
            intercept, whose prior is flat. They need a diagonal factor.
        groups: integers 0 … L−1 shaped as θ, or one a leaf: parameters that share an α.

    Raises:
        ValueError: α not positive and finite, groups that are not 0 … L−1, α of another length.
    """

    alpha: Array | None
    factor: lx.AbstractLinearOperator | None
    mean: PyTree
    flat: PyTree
    groups: PyTree
    normalised: bool = eqx.field(static=True)

    def __init__(
        self,
        alpha: Any = None,
        factor: lx.AbstractLinearOperator | None = None,
        *,
        mean: PyTree = None,
        flat: PyTree = None,
        groups: PyTree = None,
        normalised: bool = False,
    ):
        self.alpha = None if alpha is None else _checked_alpha(alpha)
        if factor is not None:
            _require_factor(factor)
        self.mean = _checked_mean(mean)
        self.factor, self.normalised = factor, normalised
        self.flat, self.groups = _labels(flat, "flat"), _labels(groups, "groups")

    @classmethod
    def g_prior(
        cls, alpha: Any = None, *, mean: PyTree = None, flat: PyTree = None, groups: PyTree = None
    ) -> "GaussianPrior":
        """The diagonal g-prior, F = diag(M)^{-½} with M = ΦᵀBΦ, where noise is learned at β = 1.

        The scale of every column is taken from the data when they are first seen, after flat
        columns are projected out, and then frozen: predictions do not depend on the columns'
        units (nor, with a flat intercept, on their origin). Columns of zero norm take the median.
        The prior of a fit, `fit.prior`, keeps its scale; one made anew from its α may have another.
        """
        return cls(alpha, mean=mean, flat=flat, groups=groups, normalised=True)

    @classmethod
    def from_precision(
        cls, precision: Any, alpha: Any = 1.0, *, mean: PyTree = None
    ) -> "GaussianPrior":
        """The prior with a dense precision α·P, P of shape (d', d'); F = L⁻ᵀ where P = LLᵀ.

        Raises:
            ValueError: P is not square, symmetric, finite and positive definite, or d' > 4,000.
        """
        if isinstance(precision, lx.AbstractLinearOperator):
            precision = precision.as_matrix()
        if is_traced(precision):
            raise ValueError("from_precision factorises on the host: call it outside jit and grad.")
        real_array(precision, "The prior precision", jnp.result_type(float))
        matrix = np.asarray(precision, np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"The prior precision must be square, got shape {matrix.shape}.")
        if matrix.shape[0] > DENSE_LIMIT:
            raise ValueError(f"The prior precision has side {len(matrix)} > {DENSE_LIMIT}.")
        dtype = np.asarray(precision).dtype
        exact = not jnp.issubdtype(dtype, np.floating)
        factor = _inverse_root(matrix, float(jnp.finfo(float if exact else dtype).eps))
        operator = lx.MatrixLinearOperator(jnp.asarray(factor, jnp.result_type(float)))
        return cls(alpha, operator, mean=mean)

    def group_labels(self, structure: PyTree) -> tuple[np.ndarray, int]:
        """Group of every parameter (d',), and the number of groups L.

        Raises:
            ValueError: labels are not 0 … L−1, or α has another length.
        """
        if self.groups is None:
            labels = np.zeros(size_of(structure), int)
        else:
            labels = ravel_mask(self.groups, structure, "groups", int)
        count = int(labels.max(initial=0)) + 1
        if labels.min(initial=0) < 0 or len(np.unique(labels)) != count:
            raise ValueError(f"groups must be 0 … L−1 without gaps, got {np.unique(labels)}.")
        if self.alpha is not None and jnp.size(self.alpha) not in (1, count):
            raise ValueError(f"alpha has {jnp.size(self.alpha)} entries for {count} groups.")
        return labels, count

    def flat_mask(self, structure: PyTree) -> np.ndarray:
        """True for unpenalised parameters, (d',)."""
        if self.flat is None:
            return np.zeros(size_of(structure), bool)
        return ravel_mask(self.flat, structure, "flat", bool)

    def require_fit(self, structure: PyTree) -> None:
        """Refuses a factor that does not fit the parameters.

        Raises:
            ValueError: F does not map onto θ, or is dense beside flat or grouped parameters.
        """
        if self.factor is None:
            return
        size = size_of(structure)
        if self.factor.out_size() != size:
            raise ValueError(
                f"The prior's factor maps onto {self.factor.out_size()} numbers, θ has {size}."
            )
        labelled = self.flat is not None or self.groups is not None
        if labelled and not lx.is_diagonal(self.factor):
            raise ValueError("Flat or grouped parameters need a diagonal prior factor.")

    def root(self, structure: PyTree) -> Array | None:
        """F: None for the identity, (d',) for a diagonal, else (d', r).

        Raises:
            ValueError: F does not map onto θ, or is dense beside flat or grouped parameters.
        """
        self.require_fit(structure)
        if self.factor is None:
            return None
        diagonal = lx.is_diagonal(self.factor)
        root = jnp.asarray(lx.diagonal(self.factor) if diagonal else self.factor.as_matrix())
        require_finite(root, "The prior's factor")
        return root

    def normalise(self, diagonal: Float[Any, " d"], structure: PyTree) -> "GaussianPrior":
        """The g-prior with its scale put in: F = diag(M)^{-½}; other priors unchanged.

        Args:
            diagonal: of M = ΦᵀB₀Φ, flat columns projected out.
            structure: of θ.
        """
        if not self.normalised:
            return self
        xp = jnp if is_traced(diagonal) else np
        masked = xp.where((diagonal > 0) & ~self.flat_mask(structure), diagonal, xp.nan)
        typical = xp.nan_to_num(xp.nanmedian(masked), nan=1.0) if _any(masked) else 1.0
        scale = xp.where(xp.isnan(masked), typical, masked) ** -0.5
        factor = lx.DiagonalLinearOperator(xp.asarray(scale, jnp.result_type(float)))
        return GaussianPrior(self.alpha, factor, mean=self.mean, flat=self.flat, groups=self.groups)

    def with_alpha(self, alpha: Any) -> "GaussianPrior":
        """This prior at another α, a scalar or (L,)."""
        return GaussianPrior(
            alpha,
            self.factor,
            mean=self.mean,
            flat=self.flat,
            groups=self.groups,
            normalised=self.normalised,
        )


def _any(masked: Any) -> bool:
    return is_traced(masked) or bool(np.isfinite(masked).any())


def _checked_alpha(alpha: Any) -> Array:
    array = real_array(alpha, "alpha", jnp.result_type(float), positive=True)
    if array.ndim > 1 or array.size == 0:
        raise ValueError(f"alpha must be a scalar or (L,), got shape {array.shape}.")
    if not is_traced(array):
        require_finite(array, "alpha")
        if np.any(np.asarray(array) <= 0):
            raise ValueError(f"alpha must be positive, got {np.asarray(array)}.")
    return array


def _checked_mean(mean: PyTree) -> PyTree:
    dtype = lambda m: jnp.result_type(float) if not hasattr(m, "dtype") else m.dtype
    floating = lambda m: dtype(m) if jnp.issubdtype(dtype(m), np.floating) else float
    held = lambda m: jax.dtypes.canonicalize_dtype(floating(m))
    mean = jax.tree.map(lambda m: real_array(m, "prior mean", held(m)), mean)
    require_finite(mean, "prior mean")
    return mean


def _require_factor(factor: Any) -> None:
    if not isinstance(factor, lx.AbstractLinearOperator):
        raise ValueError(f"factor must be a lineax operator, got {type(factor).__name__}.")
    for leaf in jax.tree.leaves((factor.in_structure(), factor.out_structure())):
        if jnp.issubdtype(leaf.dtype, np.complexfloating):
            raise ValueError(f"The prior's factor must be real, got dtype {leaf.dtype}.")


def _labels(labels: PyTree, name: str) -> PyTree:
    if is_traced(labels):
        raise ValueError(f"{name} must be known before tracing: close over it under jit.")
    return jax.tree.map(np.asarray, labels)


def _inverse_root(precision: np.ndarray, epsilon: float) -> np.ndarray:
    require_finite(precision, "prior precision")
    scale = np.abs(precision).max(initial=0.0)
    if np.abs(precision - precision.T).max(initial=0.0) > len(precision) * epsilon * scale:
        raise ValueError("The prior precision is not symmetric.")
    symmetric = (precision + precision.T) / 2
    try:
        lower = np.linalg.cholesky(symmetric)
    except np.linalg.LinAlgError:
        smallest = np.linalg.eigvalsh(symmetric)[0]
        raise ValueError(
            f"The prior precision is not positive definite (eigenvalue {smallest:g}); give "
            "unpenalised parameters by `flat` instead."
        ) from None
    return np.linalg.inv(lower).T
