"""Exact inference on the parameters' side, from second moments."""

from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._posterior import Posterior, posterior_from_arrays
from linmodels._priors import GaussianPrior
from linmodels.krylov import Known, LowRankRoot
from linmodels.likelihoods import LOG_2PI
from linmodels.methods._dense import cholesky_above, inverse_triangle, scale_rows
from linmodels.methods._eigenbasis import Eigenbasis, Reduced, eigenbasis, eliminate
from linmodels.methods._evidence_path import EvidencePath, require_one_each
from linmodels.methods._mean import QUICK_SIDE
from linmodels.methods._method import AbstractSystem, Evaluation, EvidenceTerms, Scales, Solution
from linmodels.methods._moments import Moments
from linmodels.methods._parameters import ParameterMap, known_residual, scales_of


class _Factorised(NamedTuple):
    """H = LLᵀ in whitened coordinates x, and the mean there."""

    lower: np.ndarray
    inverse_root: np.ndarray
    """L⁻ᵀ"""
    mean: np.ndarray
    scale: np.ndarray
    """u = scale·x: α^{-½}, and 1 for flat parameters"""


class PrimalSystem(AbstractSystem):
    """Moments in the prior's coordinates u, θ = F u before the shift."""

    prior: GaussianPrior
    reason: str
    moments: Moments
    """with columns taken through F"""
    parameters: ParameterMap
    prior_noise: Float[np.ndarray, "r k"]

    @property
    def _flat(self) -> np.ndarray:
        return self.parameters.flat

    def scales(self) -> Scales:
        """Starts and caps from traces and from the targets with flat columns projected out."""
        return scales_of(
            self.parameters.group_sums(np.diag(self._reduced.complement)),
            self.parameters.group_sizes,
            self.moments.rank,
            self._centred_squares(),
            self.moments.raw_square,
            self.parameters.epsilon,
        )

    def evaluate(self, alpha: np.ndarray, beta: np.ndarray, start: Any = None) -> Evaluation:
        """The evidence at α (L,), β (C,): O(d') from eigenvectors, else one factorisation."""
        if self._has_eigenvectors(alpha, beta):
            return Evaluation(self.path.evaluate(alpha, beta))
        return Evaluation(self._terms(self._factorise(alpha, beta), beta))

    def solve(self, alpha: np.ndarray, beta: np.ndarray, start: Any = None) -> Solution:
        """The evidence and the posterior: from eigenvectors where they resolve it, or H = LLᵀ."""
        if self._has_eigenvectors(alpha, beta):
            return self._solve_by_eigenvectors(alpha, beta)
        solved = self._factorise(alpha, beta)
        scaled = scale_rows(solved.scale, self._noise(alpha, beta))
        deviations = solved.inverse_root @ (solved.inverse_root.T @ scaled)
        mean, *rest = (
            scale_rows(solved.scale, x) for x in (solved.mean, deviations, solved.inverse_root)
        )
        posterior = self._posterior(mean, *rest)
        return Solution(self._terms(solved, beta), posterior, coordinates=mean)

    def for_similar(self, alpha: np.ndarray, beta: np.ndarray) -> Known | None:
        """These eigenvectors, where another Gram matrix would cost more."""
        if len(self._flat) <= QUICK_SIDE or not self._has_eigenvectors(alpha, beta):
            return None
        values = jnp.asarray(beta[0] / alpha[0] * self._basis.values, float)
        return Known(known=LowRankRoot(self._directions, values))

    @cached_property
    def _directions(self) -> Float[Array, "p r"]:
        """Eigenvectors, 0 at flat coordinates."""
        basis = np.zeros((len(self._basis.values), len(self._flat)), np.float32)
        basis[:, ~self._flat] = self._basis.vectors.T
        return jnp.asarray(basis, float)

    def _has_eigenvectors(self, alpha: np.ndarray, beta: np.ndarray) -> bool:
        """Whether there are eigenvectors at these hyperparameters, as good as a factorisation."""
        if len(alpha) > 1 or len(beta) > 1:
            return False
        one = float(alpha[0]), float(beta[0])
        return self._reduced.has_similar_columns(*one) and self._basis.resolves(*one)

    def _solve_by_eigenvectors(self, alpha, beta) -> Solution:
        one = float(alpha[0]), float(beta[0])
        cross = beta[0] * self.moments.cross[0][:, None]
        cofactors = np.concatenate([cross, self._noise(alpha, beta)], axis=1)
        solution, root = self._basis.solve(cofactors, *one), self._basis.root(*one)
        mean = solution[:, 0]
        posterior = self._posterior(mean, solution[:, 1:], root)
        return Solution(self.path.evaluate(alpha, beta), posterior, coordinates=mean)

    def _noise(self, alpha: np.ndarray, beta: np.ndarray) -> Float[np.ndarray, "r k"]:
        """Draws from N(0, H), H the precision of u."""
        root = np.where(self._flat, 0, 1 / self.parameters.scale(alpha))
        return scale_rows(root, self.prior_noise) + np.einsum(
            "c,cdk->dk", np.sqrt(beta), self.moments.noise_cross
        )

    def _posterior(self, mean: np.ndarray, deviations: np.ndarray, root: np.ndarray) -> Posterior:
        """The posterior of θ from u."""
        push, shift = self.parameters.push, self.moments.shift
        return posterior_from_arrays(
            self.parameters.structure,
            push(mean, shift, centred=True),
            push(deviations, shift, centred=False),
            push(root, shift, centred=False),
            self.prior.mean,
        )

    def _factorise(self, alpha: np.ndarray, beta: np.ndarray) -> _Factorised:
        scale = self.parameters.scale(alpha)
        precision = np.tensordot(beta, self.moments.gram, 1) * scale * scale[:, None]
        precision[np.diag_indices_from(precision)] += ~self._flat
        inner = precision[np.ix_(self._flat, self._flat)]
        smallest = float(np.min(np.linalg.eigvalsh(inner), initial=1.0))
        factor = cholesky_above(precision, smallest)
        mean = factor.solve(scale * (beta @ self.moments.cross))
        return _Factorised(factor.lower, inverse_triangle(factor.lower).T, mean, scale)

    def _terms(self, solved: _Factorised, beta: np.ndarray) -> EvidenceTerms:
        pen, dimension = ~self._flat, self._dimension(solved, beta)
        residual = self._residual(solved.scale * solved.mean)
        norm = self.parameters.group_sums(solved.mean[pen] ** 2)
        log_evidence = 0.5 * (
            self.moments.rank @ (np.log(beta) - LOG_2PI)
            + self.moments.log_determinant
            - beta @ residual
            - norm.sum()
            - 2 * np.log(np.diag(solved.lower)).sum()
            + int(self._flat.sum()) * LOG_2PI
        )
        return EvidenceTerms(
            log_evidence,
            self.parameters.group_sums(dimension.sum(0)[pen]),
            norm,
            dimension.sum(1),
            residual,
        )

    def _dimension(self, solved: _Factorised, beta: np.ndarray) -> Float[np.ndarray, "C r"]:
        """Diagonal of H⁻¹M_c, the share of every noise precision and parameter in γ."""
        inverse = solved.inverse_root @ solved.inverse_root.T
        one = lambda gram: np.einsum("ij,ij->i", inverse, gram * solved.scale) * solved.scale
        shares = beta[:, None] * np.stack([one(gram) for gram in self.moments.gram])
        if len(beta) > 1:
            return shares
        # (H⁻¹M)_ii = 1 − (H⁻¹)_ii has no cancellation where it is not small.
        total = 1 - np.diag(inverse) * ~self._flat
        return np.where(total > 1e-3, total, shares)

    def _residual(self, coordinates: Float[np.ndarray, " r"]) -> Float[np.ndarray, " C"]:
        """‖y − Φθ‖²_{B₀} over the entries of every noise precision."""
        residual = self.moments.square - 2 * self.moments.cross @ coordinates
        residual = residual + (self.moments.gram @ coordinates) @ coordinates
        return known_residual(residual, self.moments.square)

    def _centred_squares(self) -> Float[np.ndarray, " C"]:
        """yᵀB₀y for every c with the flat columns' fit (at equal noise) taken off."""
        flat = self._flat
        if not flat.any():
            return self.moments.square
        gram = self.moments.gram[:, flat][:, :, flat]
        cross = self.moments.cross[:, flat]
        fitted = self._reduced.solve_flat(cross.sum(0))
        square = self.moments.square - 2 * cross @ fitted + (gram @ fitted) @ fitted
        return np.maximum(square, 0)

    @cached_property
    def _reduced(self) -> Reduced:
        return eliminate(self.moments.total_gram, self._flat)

    @cached_property
    def _basis(self) -> Eigenbasis:
        return eigenbasis(self._reduced)

    @property
    def has_path(self) -> bool:
        """Whether one α and one noise precision make a path."""
        return self.parameters.num_groups == len(self.moments.rank) == 1

    @cached_property
    def path(self) -> EvidencePath:
        """The evidence at every α and noise precision; see `AbstractSystem.path`."""
        require_one_each(self.parameters.num_groups, len(self.moments.rank))
        values, lower = self._basis.values, self._reduced.lower
        along = self._basis.vectors.T @ self._reduced.without_flat(self.moments.cross[0])
        squares = np.where(values > 0, along**2 / np.where(values > 0, values, 1), 0)
        total = self._centred_squares()[0]
        return EvidencePath(
            eigenvalues=values,
            squares=squares,
            remainder=float(known_residual(total - squares.sum(), total)),
            num_flat=len(lower),
            flat_log_determinant=float(2 * np.log(np.diag(lower)).sum()),
            rank=float(self.moments.rank[0]),
            log_determinant=self.moments.log_determinant,
        )
