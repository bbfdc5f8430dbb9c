"""Exact inference under jit, vmap and grad: orthogonal factorisations in the data's own dtype.

With no float64 to be had, Gram matrices would lose the small eigenvalues; QR of [W; I] (or of
[Wᵀ; I]) does not, and is differentiable whatever the rank of W.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

from linmodels._batches import Data
from linmodels._draws import normal_draws
from linmodels._observations import Observations
from linmodels._posterior import posterior_from_arrays
from linmodels._priors import GaussianPrior
from linmodels._whitening import WhitenedRows, whiten
from linmodels.likelihoods import LOG_2PI
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._method import AbstractSystem, Evaluation, EvidenceTerms, Scales, Solution
from linmodels.methods._parameters import as_operator
from linmodels.operators import LowRankUpdate


class _Solved(NamedTuple):
    mean: Array
    deviations: Array
    covariance_root: Any
    log_determinant: Array
    leverage: Array
    """(N,) diagonal of WH⁻¹Wᵀ"""
    dimension: Array
    """(r,) diagonal of H⁻¹WᵀW"""
    residual: Array
    """(N,) whitened residual at the mean"""


class DirectSystem(AbstractSystem):
    """Whitened rows, to be factorised at given hyperparameters."""

    prior: GaussianPrior
    reason: str
    rows: WhitenedRows
    structure: PyTree
    prior_noise: Array
    primal: bool

    def scales(self) -> Scales:
        """Not available: learning hyperparameters is a Python loop.

        Raises:
            ValueError: always.
        """
        raise ValueError("Learning hyperparameters is a Python loop: call it outside jit and grad.")

    def evaluate(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: Any = None
    ) -> Evaluation:
        """The evidence at α (L,), β (C,)."""
        return Evaluation(self.solve(alpha, beta).terms)

    def solve(self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: Any = None) -> Solution:
        """The evidence and the posterior."""
        alpha, beta = (jnp.asarray(x, self.rows.design.dtype) for x in (alpha, beta))
        root, flat, (group, count) = self._prior_arrays()
        scale = jnp.where(flat, 1.0, alpha[group] ** -0.5)
        root_beta = jnp.sqrt(beta)[self.rows.output]
        design = self.rows.design if root is None else _times(self.rows.design, root)
        design = root_beta[:, None] * design * scale
        solve = _solve_primal if self.primal else _solve_dual
        solved = solve(
            design, root_beta * self.rows.targets, self.rows.noise, self.prior_noise, flat
        )
        units = scale if root is None else root * scale
        push = lambda x: _matmul(units, x) if units.ndim == 2 else (units * x.T).T
        posterior = posterior_from_arrays(
            self.structure,
            push(solved.mean),
            push(solved.deviations),
            _compose(units, solved.covariance_root),
            self.prior.mean,
        )
        return Solution(self._terms(solved, beta, flat, group, count), posterior)

    @property
    def path(self) -> EvidencePath:
        """Not available: eigenvectors have no gradient where eigenvalues are equal.

        Raises:
            ValueError: always.
        """
        raise ValueError("An evidence path is computed on the host: call it outside jit and grad.")

    def _prior_arrays(self):
        root, flat = self.prior.root(self.structure), self.prior.flat_mask(self.structure)
        group, count = self.prior.group_labels(self.structure)
        if root is not None and root.ndim == 2:
            return root, np.zeros(root.shape[1], bool), (np.zeros(root.shape[1], int), 1)
        return (None if root is None else jnp.where(flat, 1, root)), flat, (group, count)

    def _terms(self, solved: _Solved, beta, flat, group, count) -> EvidenceTerms:
        rows, pen = self.rows, ~flat
        by_group = lambda x: jnp.zeros(count, x.dtype).at[group].add(x * pen)
        by_output = lambda x: jnp.zeros(beta.shape, x.dtype).at[rows.output].add(x)
        norm, square = by_group(solved.mean**2), by_output(solved.residual**2)
        log_evidence = 0.5 * (
            jnp.sum(rows.rank * (jnp.log(beta) - LOG_2PI))
            + rows.log_determinant
            - jnp.sum(square)
            - jnp.sum(norm)
            - solved.log_determinant
            + int(flat.sum()) * LOG_2PI
        )
        return EvidenceTerms(
            log_evidence,
            by_group(solved.dimension),
            norm,
            by_output(solved.leverage),
            square / beta,
        )


def prepare_traced(
    data: Data,
    prior: GaussianPrior,
    structure: PyTree,
    side: str,
    reason: str,
    num_samples: int,
    key: Array | None,
) -> DirectSystem:
    """The system of one traced `Observations`.

    Raises:
        ValueError: batched data, whose passes are Python loops.
    """
    if not isinstance(data, Observations):
        raise ValueError("Batched data stream through a Python loop: call outside jit and grad.")
    noise_key, prior_key = (None, None) if key is None else jax.random.split(key)
    rows = whiten(data, prior.mean, 0, num_samples, noise_key)
    dtype = rows.design.dtype
    rows = rows._replace(design=jnp.asarray(rows.design), noise=rows.noise.astype(dtype))
    flat = prior.flat_mask(structure)
    if prior.normalised:
        basis = jnp.linalg.qr(rows.design[:, flat])[0]
        left = rows.design - basis @ (basis.T @ rows.design)
        squares, original = jnp.sum(left**2, 0), jnp.sum(rows.design**2, 0)
        floor = (10 * jnp.finfo(left.dtype).eps) ** 2 * original if flat.any() else 0.0
        prior = prior.normalise(jnp.where(squares > floor, squares, 0), structure)
    size = rows.design.shape[1] if prior.factor is None else prior.factor.in_size()
    noise = jnp.zeros((size, 0), dtype)
    if prior_key is not None:
        noise = jnp.asarray(normal_draws(prior_key, (num_samples, size)), dtype).T
    return DirectSystem(prior, reason, rows, structure, noise, side == "primal")


def _solve_primal(design, targets, noise, prior_noise, flat) -> _Solved:
    """Least squares on [W; P], P = 1 for penalised coordinates and 0 for flat ones."""
    penalty = jnp.diag(jnp.where(flat, 0, 1).astype(design.dtype))
    basis, triangle = jnp.linalg.qr(jnp.concatenate([design, penalty]))
    top, bottom = basis[: len(design)], basis[len(design) :]
    inverse = solve_triangular(triangle, jnp.eye(len(triangle), dtype=design.dtype))
    mean = inverse @ (top.T @ targets)
    deviations = inverse @ (_times(top.T, noise) + _times(bottom.T, prior_noise * ~flat[:, None]))
    return _Solved(
        mean,
        deviations,
        inverse,
        2 * jnp.sum(jnp.log(jnp.abs(jnp.diag(triangle)))),
        jnp.sum(top**2, 1),
        jnp.einsum("ij,ji->i", inverse, _times(top.T, design)),
        targets - design @ mean,
    )


class _Kernel(NamedTuple):
    """V = I + WWᵀ = LLᵀ, W the penalised columns with the flat ones, Z = QT, projected out."""

    design: Array
    """penalised columns, with zeros for the flat ones"""
    inner: Array
    """W"""
    lower: Array
    inverse: Array
    """L⁻¹"""
    basis: Array
    """Q"""
    triangle: Array
    """T"""
    flat: np.ndarray

    def project(self, values: Array) -> Array:
        """(I − QQᵀ) values."""
        return values - self.basis @ (self.basis.T @ values)

    def parameters(self, values: Array, start: Array) -> Array:
        """Matheron's rule from penalised `start`, flat ones by least squares on what is left."""
        values = values - self.design @ start
        step = self.inner.T @ (self.inverse.T @ (self.inverse @ self.project(values)))
        rest = self.basis.T @ (values - self.design @ step)
        solution = solve_triangular(self.triangle, rest)
        return (start + step).at[np.flatnonzero(self.flat)].set(solution)


def _kernel(design: Array, flat: np.ndarray) -> _Kernel:
    """Factorises by QR of [Wᵀ; I]."""
    basis, triangle = jnp.linalg.qr(design[:, flat])
    design = design * ~flat
    inner = design - basis @ (basis.T @ design)
    identity = jnp.eye(len(design), dtype=design.dtype)
    upper = jnp.linalg.qr(jnp.concatenate([inner.T, identity]), mode="r")
    lower = (upper * jnp.sign(jnp.diag(upper))[:, None]).T
    inverse = solve_triangular(lower, identity, lower=True)
    return _Kernel(design, inner, lower, inverse, basis, triangle, flat)


def _solve_dual(design, targets, noise, prior_noise, flat) -> _Solved:
    """Matheron's rule."""
    kernel = _kernel(design, flat)
    mean = kernel.parameters(targets, jnp.zeros(design.shape[1], design.dtype))
    deviations = kernel.parameters(noise, prior_noise * ~flat[:, None])
    weights = kernel.inverse.T @ kernel.inverse - kernel.basis @ kernel.basis.T
    log_determinant = jnp.sum(jnp.log(jnp.diag(kernel.lower)))
    log_determinant += jnp.sum(jnp.log(jnp.abs(jnp.diag(kernel.triangle))))
    return _Solved(
        mean,
        deviations,
        _dual_root(kernel),
        2 * log_determinant,
        1 - jnp.diag(weights),
        jnp.sum((kernel.inverse @ kernel.inner) ** 2, 0),
        weights @ targets,
    )


def _dual_root(kernel: _Kernel) -> LowRankUpdate:
    """D + U Vᵀ with square (I + WᵀW)⁻¹; see `DualSystem`."""
    lower, flat, where = kernel.lower, kernel.flat, np.flatnonzero(kernel.flat)
    identity = jnp.eye(len(lower), dtype=lower.dtype)
    left = -(kernel.inner.T @ kernel.inverse.T)
    right = (solve_triangular(lower + identity, kernel.inner, lower=True)).T
    if flat.any():
        root = solve_triangular(kernel.triangle, jnp.eye(len(where), dtype=lower.dtype))
        regression = root @ (kernel.basis.T @ kernel.design)
        bottom = -(regression + (regression @ left) @ right.T)
        bottom = bottom.at[:, where].set(root)
        unit = jnp.zeros((len(left), len(where)), lower.dtype)
        unit = unit.at[where, np.arange(len(where))].set(1)
        left = jnp.concatenate([left, unit], 1)
        right = jnp.concatenate([right, bottom.T], 1)
    return LowRankUpdate(jnp.asarray(~flat, lower.dtype), left, right)


def _compose(units: Array, root: Any) -> Any:
    if not isinstance(root, lx.AbstractLinearOperator):
        return _times(units, root) if units.ndim == 2 else units[:, None] * root
    return as_operator(units) @ root


def _times(a: Array, b: Array) -> Array:
    """a times a matrix, or a diagonal one given as a vector."""
    return _matmul(a, b) if b.ndim == 2 else a * b


def _matmul(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
