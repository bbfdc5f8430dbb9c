"""The Gram matrix with flat columns eliminated, and its eigenvectors: every α and β at once."""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float

SIMILAR = 4.0
"""Ratio of the precision's diagonal entries up to which scaling them would gain nothing."""
UNRESOLVED = 1e-3
"""Relative rounding of the smallest eigenvalue from which a Cholesky factor is more careful."""


class Reduced(NamedTuple):
    """G = ΦᵀB₀Φ with the flat columns f eliminated from the others, p.

    With T = G_ff⁻¹G_fp, uᵀGu = (u_f + T u_p)ᵀG_ff(u_f + T u_p) + u_pᵀS u_p.
    """

    flat: Bool[np.ndarray, " r"]
    lower: Float[np.ndarray, "f f"]
    """L with LLᵀ = G_ff"""
    regression: Float[np.ndarray, "f p"]
    """T"""
    complement: Float[np.ndarray, "p p"]
    """S = G_pp − G_pf T"""

    def without_flat(self, cofactors: Float[np.ndarray, "r ..."]) -> Float[np.ndarray, "p ..."]:
        """b_p − Tᵀb_f."""
        if not self.flat.any():
            return cofactors
        return cofactors[~self.flat] - self.regression.T @ cofactors[self.flat]

    def has_similar_columns(self, alpha: float, beta: float) -> bool:
        """Whether eigenvectors tell αI + βS as well as a Cholesky factor would.

        They know it to d ε of its largest eigenvalue, a Cholesky factor to d ε of every diagonal
        entry: the same where those are similar, and much worse where the units of columns differ.
        """
        diagonal = alpha + beta * np.diag(self.complement)
        return bool(np.max(diagonal, initial=0) <= SIMILAR * np.min(diagonal, initial=np.inf))

    def solve_flat(self, cofactors: Float[np.ndarray, "f ..."]) -> Float[np.ndarray, "f ..."]:
        """G_ff⁻¹b_f."""
        return scipy.linalg.cho_solve((self.lower, True), cofactors)

    def with_flat(
        self, others: Float[np.ndarray, "p ..."], flat: Float[np.ndarray, "f ..."]
    ) -> Float[np.ndarray, "r ..."]:
        """u from u_p and from u_f + T u_p."""
        if not self.flat.any():
            return others
        result = np.empty((len(self.flat), *others.shape[1:]))
        result[~self.flat], result[self.flat] = others, flat - self.regression @ others
        return result


def eliminate(gram: Float[np.ndarray, "r r"], flat: Bool[np.ndarray, " r"]) -> Reduced:
    """Takes the flat columns off a Gram matrix in which they are independent."""
    if not flat.any():
        return Reduced(flat, np.zeros((0, 0)), np.zeros((0, len(gram))), gram)
    lower = np.linalg.cholesky(gram[np.ix_(flat, flat)])
    cross = gram[np.ix_(flat, ~flat)]
    regression = scipy.linalg.cho_solve((lower, True), cross)
    return Reduced(flat, lower, regression, gram[np.ix_(~flat, ~flat)] - cross.T @ regression)


class Eigenbasis(NamedTuple):
    """S = V diag(λ) Vᵀ, so that the precision H of u is αI + βS on p and βG_ff on f."""

    reduced: Reduced
    values: Float[np.ndarray, " p"]
    """λ, 0 where it is rounding"""
    vectors: Float[np.ndarray, "p p"]
    """V"""

    def resolves(self, alpha: float, beta: float) -> bool:
        """Whether rounding, d ε of H's largest eigenvalue, is small beside its smallest."""
        precision = alpha + beta * self.values
        rounding = len(precision) * np.finfo(float).eps * np.max(precision, initial=0)
        return bool(rounding <= UNRESOLVED * np.min(precision, initial=np.inf))

    def solve(
        self, cofactors: Float[np.ndarray, "r k"], alpha: float, beta: float
    ) -> Float[np.ndarray, "r k"]:
        """H⁻¹b."""
        reduced = self.reduced
        along = self.vectors.T @ reduced.without_flat(cofactors)
        others = self.vectors @ (along / (alpha + beta * self.values)[:, None])
        return reduced.with_flat(others, reduced.solve_flat(cofactors[reduced.flat]) / beta)

    def root(self, alpha: float, beta: float) -> Float[np.ndarray, "r r"]:
        """C with CCᵀ = H⁻¹."""
        others = self.vectors * (alpha + beta * self.values) ** -0.5
        count = len(self.reduced.lower)
        if count == 0:
            return others
        flat = scipy.linalg.solve_triangular(self.reduced.lower, np.eye(count), lower=True).T
        columns = np.concatenate([np.zeros((len(flat), len(others))), flat / np.sqrt(beta)], 1)
        return self.reduced.with_flat(np.pad(others, ((0, 0), (0, count))), columns)


def eigenbasis(reduced: Reduced) -> Eigenbasis:
    """Decomposes S."""
    values, vectors = np.linalg.eigh(reduced.complement)
    kept = values > len(values) * np.finfo(float).eps * values.max(initial=0)
    return Eigenbasis(reduced, np.where(kept, values, 0), vectors)
