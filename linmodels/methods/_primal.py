"""Exact inference on the parameters' side, from second moments."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from linmodels._likelihoods import LOG_2PI
from linmodels._posterior import posterior_from_arrays
from linmodels._priors import GaussianPrior
from linmodels.methods._dense import cholesky_above, inverse_triangle, scale_rows
from linmodels.methods._method import AbstractSystem, EvidenceTerms, Scales, Solution
from linmodels.methods._moments import Moments
from linmodels.methods._parameters import ParameterMap, known_residual, scales_of
from linmodels.methods._spectrum import Spectrum


class _Factorised(NamedTuple):
    """H = LLᵀ in whitened coordinates x, and the mean there."""

    lower: np.ndarray
    inverse_root: np.ndarray
    """L⁻ᵀ"""
    mean: np.ndarray
    scale: np.ndarray
    """θ = F·scale·x before the shift: α^{-½}, and 1 for flat parameters"""


class PrimalSystem(AbstractSystem):
    """Moments in the coordinates x of the prior, θ = F α^{-½} x."""

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
        pen, gram = ~self._flat, self.moments.gram.sum(0)
        return scales_of(
            self.parameters.group_sums(np.diag(self._projected(gram))[pen]),
            self.moments.rank,
            self._centred_squares(),
            self.moments.raw_square,
            self.parameters.epsilon,
        )

    def evaluate(self, alpha: np.ndarray, beta: np.ndarray) -> EvidenceTerms:
        """The evidence at α (L,), β (C,): O(d') for one of each, else one factorisation."""
        if len(alpha) == len(beta) == 1:
            return self._spectrum.evaluate(alpha, beta)
        return self._terms(self._factorise(alpha, beta), alpha, beta)

    def solve(self, alpha: np.ndarray, beta: np.ndarray) -> Solution:
        """The evidence and the posterior from H = LLᵀ."""
        solved = self._factorise(alpha, beta)
        rhs = self.prior_noise * ~self._flat[:, None]
        for c, b in enumerate(beta):
            rhs = rhs + np.sqrt(b) * solved.scale[:, None] * self.moments.noise_cross[c]
        deviations = solved.inverse_root @ (solved.inverse_root.T @ rhs)
        push = lambda x, *, centred: self.parameters.push(
            scale_rows(solved.scale, x), self.moments.shift, centred=centred
        )
        posterior = posterior_from_arrays(
            self.parameters.structure,
            push(solved.mean, centred=True),
            push(deviations, centred=False),
            push(solved.inverse_root, centred=False),
            self.prior.mean,
        )
        return Solution(self._terms(solved, alpha, beta), posterior)

    def _factorise(self, alpha: np.ndarray, beta: np.ndarray) -> _Factorised:
        scale = self.parameters.scale(alpha)
        precision = np.tensordot(beta, self.moments.gram, 1) * scale * scale[:, None]
        precision[np.diag_indices_from(precision)] += ~self._flat
        inner = precision[np.ix_(self._flat, self._flat)]
        smallest = float(np.min(np.linalg.eigvalsh(inner), initial=1.0))
        factor = cholesky_above(precision, smallest)
        mean = factor.solve(scale * (beta @ self.moments.cross))
        return _Factorised(factor.lower, inverse_triangle(factor.lower).T, mean, scale)

    def _terms(self, solved: _Factorised, alpha, beta) -> EvidenceTerms:
        inverse = solved.inverse_root @ solved.inverse_root.T
        by_output = np.stack(
            [self._data_dimension(inverse, g, solved.scale) for g in self.moments.gram]
        )
        by_output *= beta[:, None]
        if len(beta) == 1:
            # (H⁻¹M)_ii = 1 − (H⁻¹)_ii has no cancellation where it is not small.
            total = 1 - np.diag(inverse) * ~self._flat
            by_output = np.where(total > 1e-3, total, by_output)
        pen, weights = ~self._flat, solved.scale * solved.mean
        residual = self.moments.square - 2 * self.moments.cross @ weights
        residual = residual + (self.moments.gram @ weights) @ weights
        residual = known_residual(residual, self.moments.square)
        norm = self.parameters.group_sums(solved.mean[pen] ** 2)
        num_flat = int(self._flat.sum())
        log_evidence = 0.5 * (
            self.moments.rank @ (np.log(beta) - LOG_2PI)
            + self.moments.log_determinant
            - beta @ residual
            - norm.sum()
            - 2 * np.log(np.diag(solved.lower)).sum()
            + num_flat * LOG_2PI
        )
        return EvidenceTerms(
            log_evidence,
            self.parameters.group_sums(by_output.sum(0)[pen]),
            norm,
            by_output.sum(1),
            residual,
        )

    @staticmethod
    def _data_dimension(inverse: np.ndarray, gram: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Diagonal of H⁻¹ S G S: tr H⁻¹M entry by entry."""
        return np.einsum("ij,ij->i", inverse, gram * scale) * scale

    def _projected(self, matrix: np.ndarray) -> np.ndarray:
        """The Schur complement of the flat columns, on all columns."""
        if not self._flat.any():
            return matrix
        flat = self._flat
        solve = np.linalg.solve(matrix[np.ix_(flat, flat)], matrix[flat])
        return matrix - matrix[:, flat] @ solve

    def _centred_squares(self) -> np.ndarray:
        """yᵀB₀y for every c with the flat columns' fit (at equal noise) taken off."""
        flat = self._flat
        if not flat.any():
            return self.moments.square
        gram = self.moments.gram[:, flat][:, :, flat]
        cross = self.moments.cross[:, flat]
        fitted = np.linalg.solve(gram.sum(0), cross.sum(0))
        square = self.moments.square - 2 * cross @ fitted + (gram @ fitted) @ fitted
        return np.maximum(square, 0)

    @cached_property
    def _spectrum(self) -> Spectrum:
        flat, gram = self._flat, self._projected(self.moments.gram[0])
        values, vectors = np.linalg.eigh(gram[np.ix_(~flat, ~flat)])
        flat_gram = self.moments.gram[0][np.ix_(flat, flat)]
        cross = self.moments.cross[0][~flat]
        if flat.any():
            solve = np.linalg.solve(flat_gram, self.moments.cross[0][flat])
            cross = cross - self.moments.gram[0][np.ix_(~flat, flat)] @ solve
        kept = values > len(values) * np.finfo(float).eps * values.max(initial=0)
        squares = np.where(kept, (vectors.T @ cross) ** 2 / np.where(kept, values, 1), 0)
        total = self._centred_squares()[0]
        return Spectrum(
            eigenvalues=np.where(kept, values, 0),
            squares=squares,
            remainder=float(known_residual(total - squares.sum(), total)),
            num_flat=int(flat.sum()),
            flat_log_determinant=float(np.linalg.slogdet(flat_gram)[1]) if flat.any() else 0.0,
            rank=float(self.moments.rank[0]),
            log_determinant=self.moments.log_determinant,
        )
