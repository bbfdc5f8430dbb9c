"""Gaussian noise, of known or learned precision."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import (
    is_traced,
    one_observation,
    ravel,
    real_array,
    require_finite,
    size_of,
    unravel,
)
from linmodels._noise_factors import psd_factor, rank_and_log_determinant, require_factor
from linmodels.likelihoods._likelihood import AbstractQuadratic

LOG_2PI = float(np.log(2 * np.pi))


class Gaussian(AbstractQuadratic):
    """Gaussian noise of precision B: y = f + η, η ~ N(0, B⁻¹).

    `Gaussian()` has one unknown noise precision, `Gaussian(per_output=True)` one an output; both
    are learned by `maximise_evidence`. `Gaussian(4.0)` is known. An array of precisions broadcasts
    to the targets: per output `(m,)`, per observation `(n, 1)`, both `(n, m)`; for targets that are
    a pytree give a pytree. A precision of 0 marks an entry as unobserved. A matrix comes as a
    lineax operator on one observation's outputs (shared by all observations), or on all targets
    at once. With `learn=True` the given precision is a relative one, B = β B₀.

    Args:
        noise_precision: B or B₀ in 1/(units of y)², or None for unknown.
        learn: whether a scale β is learned; by default only where `noise_precision` is None.
        per_output: learn one β an output instead of one for all.
        factor: an operator R with RᵀR = B in place of `noise_precision`.

    Raises:
        ValueError: negative or non-finite precisions, an operator that is not positive
            semi-definite or too large to factorise, or contradictory arguments.

    ??? cite
        Antorán, Padhy et al. (ICLR 2023), "Sampling-based inference for large linear models", §2.
    """

    noise_precision: PyTree
    factor: lx.AbstractLinearOperator | None
    learn: bool = eqx.field(static=True)
    per_output: bool = eqx.field(static=True)

    def __init__(
        self,
        noise_precision: Any = None,
        *,
        learn: bool | None = None,
        per_output: bool = False,
        factor: lx.AbstractLinearOperator | None = None,
    ):
        if factor is not None and noise_precision is not None:
            raise ValueError("Give noise_precision or its factor, not both.")
        self.learn = (noise_precision is None and factor is None) if learn is None else learn
        self.per_output = per_output
        if per_output and not self.learn:
            raise ValueError("per_output=True learns the noise; a known one is given as an array.")
        if not self.learn and noise_precision is None and factor is None:
            raise ValueError("learn=False needs a noise_precision.")
        if isinstance(noise_precision, lx.AbstractLinearOperator):
            self.noise_precision, self.factor = None, psd_factor(noise_precision)
        else:
            self.noise_precision = _precision_arrays(noise_precision, factor)
            self.factor = factor
        if self.factor is not None:
            require_factor(self.factor)
        if per_output and self.factor is not None:
            raise ValueError("per_output=True needs noise that is independent between outputs.")

    @property
    def is_unit(self) -> bool:
        """True where B₀ = I, so that R need not be applied."""
        return self.learn and self.noise_precision is None and self.factor is None

    @property
    def acts_by_entry(self) -> bool:
        """True for arrays of precisions."""
        return self.factor is None

    def covers_all_targets(self, outputs: PyTree) -> bool:
        """True for an operator that acts on all targets at once."""
        return self.factor is not None and not _per_observation(self.factor, outputs)

    def root_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """R v: √b ⊙ v for arrays, the operator's factor otherwise."""
        if self.factor is None:
            roots = jax.tree.map(jnp.sqrt, self.precision_like(outputs))
            return jax.tree.map(lambda r, v: r * v, roots, vector)
        if _per_observation(self.factor, outputs):
            return jax.vmap(lambda v: _apply(self.factor, v))(vector)
        return _apply(self.factor, vector)

    def precision_like(self, outputs: PyTree) -> PyTree:
        """B₀'s diagonal entries, broadcast to `outputs` (B itself where it is known).

        Raises:
            ValueError: the precision does not broadcast to the outputs.
        """
        precision = 1.0 if self.noise_precision is None else self.noise_precision
        if not isinstance(precision, (int, float)) and jax.tree.structure(
            precision
        ) == jax.tree.structure(outputs):
            return jax.tree.map(_broadcast_precision, precision, outputs)
        if jax.tree.structure(precision) != jax.tree.structure(0.0) or np.ndim(precision) > 0:
            raise ValueError(
                f"noise_precision has structure {jax.tree.structure(precision)}, the targets "
                f"{jax.tree.structure(outputs)}: give a scalar or one array a leaf."
            )
        return jax.tree.map(lambda f: _broadcast_precision(precision, f), outputs)

    def log_determinant(self, outputs: PyTree) -> PyTree:
        """log det B₀ split over entries, shaped as the outputs; unobserved entries count 0."""
        if self.factor is None:
            safe = lambda b: jnp.where(b > 0, jnp.log(jnp.where(b > 0, b, 1)), 0)
            return jax.tree.map(safe, self.precision_like(outputs))
        total = rank_and_log_determinant(self.factor)[1]
        return jax.tree.map(lambda f: jnp.full(f.shape, total / self._block_size, f.dtype), outputs)

    def rank(self, outputs: PyTree) -> PyTree:
        """1 for observed entries, 0 for unobserved ones; fractional for a singular operator.

        Raises:
            ValueError: a factor whose rank is unknown: large, and not triangular.
        """
        if self.factor is None:
            return jax.tree.map(
                lambda b, f: (b > 0).astype(f.dtype), self.precision_like(outputs), outputs
            )
        share = rank_and_log_determinant(self.factor)[0] / self._block_size
        return jax.tree.map(lambda f: jnp.full(f.shape, share, f.dtype), outputs)

    @property
    def _block_size(self) -> int:
        assert self.factor is not None
        return self.factor.in_size()

    def log_constant(self, outputs: PyTree) -> PyTree:
        """½ log(b/2π), the log-density of a residual of 0; a matrix B is spread over entries."""
        half = lambda d, r: 0.5 * (d - LOG_2PI * r)
        return jax.tree.map(half, self.log_determinant(outputs), self.rank(outputs))

    def log_prob(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """½ log(b/2π) − ½ b (y − f)² for every entry; a matrix B is spread over its entries."""
        residual = jax.tree.map(lambda y, f: y - f, targets, outputs)
        whitened = self.root_product(outputs, residual)
        constant = self.log_constant(outputs)
        if self.factor is None:
            return jax.tree.map(lambda c, e: c - 0.5 * e**2, constant, whitened)
        curved = self.root_transpose_product(outputs, whitened)
        return jax.tree.map(lambda c, r, q: c - 0.5 * r * q, constant, residual, curved)

    def whitened(self, outputs: PyTree, residual: PyTree) -> PyTree:
        """R(y − f)."""
        return self.root_product(outputs, residual)

    def score(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """B (y − f)."""
        residual = jax.tree.map(lambda y, f: y - f, targets, outputs)
        return self.root_transpose_product(outputs, self.root_product(outputs, residual))

    def known(self, scale: Float[Any, " C"], outputs: PyTree) -> "Gaussian":
        """The likelihood with its learned scale β put in: B = β B₀.

        Args:
            scale: β, one entry, or one an output in the order of `ravel` of one observation.
            outputs: structure of the outputs, to shape per-output precisions.
        """
        if not self.learn:
            return self
        if self.factor is not None:
            return Gaussian(factor=self.factor * jnp.sqrt(jnp.asarray(scale[0])))
        if not self.per_output:
            base = 1.0 if self.noise_precision is None else self.noise_precision
            return Gaussian(jax.tree.map(lambda b: jnp.asarray(b * scale[0]), base))
        one = one_observation(outputs)
        scales = unravel(jnp.asarray(scale), one)
        if self.noise_precision is None:
            return Gaussian(scales)
        return Gaussian(jax.tree.map(lambda b, s: b * s, self.precision_like(outputs), scales))

    def noise_variance(self, outputs: PyTree) -> PyTree:
        """Variance of the noise on new outputs, shaped as they are, in (units of y)².

        Raises:
            ValueError: the precision is unknown, singular, or belongs to the training
                observations and so says nothing about new ones.
        """
        if self.learn:
            raise ValueError("The noise precision is unknown; use the likelihood of the fit.")
        if self.factor is None:
            self._refuse_per_observation(outputs)
            self._refuse_zeros()
            return jax.tree.map(lambda b: 1 / b, self.precision_like(outputs))
        diagonal = jnp.diag(self._block_covariance(outputs))
        one = one_observation(outputs)
        block = unravel(diagonal, one)
        return jax.tree.map(lambda b, f: jnp.broadcast_to(b, f.shape), block, outputs)

    def noise_covariance(self, outputs: PyTree) -> Float[Array, "N N"]:
        """Covariance of the noise between all entries of new outputs, ravelled.

        Raises:
            ValueError: as `noise_variance`.
        """
        if self.factor is None:
            return jnp.diag(ravel(self.noise_variance(outputs)))
        block = self._block_covariance(outputs)
        unit = jnp.eye(size_of(outputs))
        columns = jax.vmap(lambda e: self._spread(block, unravel(e, outputs)))(unit)
        return columns.T

    def _spread(self, block: Float[Array, "m m"], vector: PyTree) -> Float[Array, " N"]:
        one = one_observation(vector)
        return ravel(jax.vmap(lambda v: unravel(block @ ravel(v), one))(vector))

    def _block_covariance(self, outputs: PyTree) -> Float[Array, "m m"]:
        if self.factor is None or not _per_observation(self.factor, outputs):
            raise ValueError(
                "The noise operator belongs to the training targets; for new points give predict "
                "their own `likelihood=Gaussian(...)`."
            )
        rank = rank_and_log_determinant(self.factor)[0]
        if not is_traced(rank) and rank < self._block_size:
            raise ValueError(
                f"The noise precision is singular (rank {rank} of {self._block_size}): "
                "noisy predictions have infinite variance in some directions."
            )
        # Inverting R, not RᵀR, keeps the condition number.
        inverse = jnp.linalg.inv(jnp.asarray(self.factor.as_matrix()))
        return jnp.matmul(inverse, inverse.T, precision=jax.lax.Precision.HIGHEST)

    def _refuse_zeros(self) -> None:
        if self.noise_precision is None or is_traced(self.noise_precision):
            return
        for precision in jax.tree.leaves(self.noise_precision):
            if np.any(np.asarray(precision) == 0):
                raise ValueError(
                    "A noise precision is 0, so new targets have infinite variance: give predict "
                    "their own `likelihood=Gaussian(...)`."
                )

    def _refuse_per_observation(self, outputs: PyTree) -> None:
        precisions = jax.tree.leaves(self.noise_precision)
        for precision, f in zip(precisions, jax.tree.leaves(outputs), strict=False):
            if jnp.ndim(precision) == f.ndim > 0 and jnp.shape(precision)[0] != 1:
                raise ValueError(
                    f"The noise precision {jnp.shape(precision)} is one an observation; for "
                    "new points give predict their own `likelihood=Gaussian(...)`."
                )


def _precision_arrays(noise_precision: Any, factor: Any) -> PyTree:
    if noise_precision is None:
        return None
    arrays = jax.tree.map(_as_precision, noise_precision)
    require_finite(arrays, "noise_precision", minimum=0.0)
    return arrays


def _as_precision(value: Any) -> Any:
    return real_array(value, "noise_precision", jnp.result_type(float), positive=True)


def _broadcast_precision(precision: Any, output: Any) -> Array:
    shape = jnp.shape(precision)
    try:
        fits = np.broadcast_shapes(shape, output.shape) == tuple(output.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"noise_precision of shape {shape} does not broadcast to targets of shape "
            f"{tuple(output.shape)}; a precision matrix comes as a lineax operator."
        )
    return jnp.broadcast_to(jnp.asarray(precision, output.dtype), output.shape)


def _per_observation(factor: lx.AbstractLinearOperator, outputs: PyTree) -> bool:
    """Whether `factor` acts on one observation's outputs (else on all of them)."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(factor.in_structure())]
    whole = [tuple(f.shape) for f in jax.tree.leaves(outputs)]
    if shapes == whole:
        return False
    if shapes == [s[1:] for s in whole]:
        return True
    if len(shapes) == 1 and shapes[0] == (sum(int(np.prod(s)) for s in whole),):
        return False
    if len(shapes) == 1 and shapes[0] == (sum(int(np.prod(s[1:])) for s in whole),):
        return True
    raise ValueError(
        f"The noise operator takes {shapes}; the targets are {whole}, one observation's "
        f"{[s[1:] for s in whole]}: it fits neither."
    )


def _apply(factor: Any, vector: PyTree) -> PyTree:
    """R v, padded with zeros where R has fewer rows than columns (a singular B)."""
    structure = factor.in_structure()
    result = ravel(factor.mv(unravel(ravel(vector), structure)))
    missing = factor.in_size() - factor.out_size()
    return unravel(jnp.pad(result, (0, max(missing, 0))), vector)
