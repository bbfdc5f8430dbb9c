"""The evidence of one α and one noise precision, for every value, from one decomposition."""

from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from linmodels.likelihoods import LOG_2PI
from linmodels.methods._evidence_terms import EvidenceTerms

GRID = 20
"""Points a decade among which the maximum is sought."""
BEYOND = 1e2
"""The largest ρλ of the smallest eigenvalue there: 1 % of its noise is left."""
ROUNDING = 1e-15
"""Share of the largest eigenvalue below which others are rounding, in double precision."""
ROUNDING_OF_SPACE = 1e-12
"""The same from a Krylov space in float32: singular values are known to 1e-7 of the largest."""
OFFSETS = np.geomspace(1e-4, np.log(1e4), 120)
"""Of log ρ from a maximum, where the evidence may be as large."""


class PathPoints(NamedTuple):
    """The evidence along a path of hyperparameters, each field (g,)."""

    log_evidence: Float[np.ndarray, " g"]
    """log p(y | α, β) in nats"""
    effective_dimension: Float[np.ndarray, " g"]
    """γ, flat parameters apart"""
    norm: Float[np.ndarray, " g"]
    """‖x̄‖² = α‖F⁻¹(θ̄ − μ)‖²"""
    residual: Float[np.ndarray, " g"]
    """‖y − o − Φθ̄‖²_{B₀}"""
    log_evidence_error: Float[np.ndarray, " g"]
    """standard error; 0 where exact"""
    effective_dimension_error: Float[np.ndarray, " g"]
    """standard error; 0 where exact"""


class StrengthErrors(NamedTuple):
    """What a method's own noise leaves uncertain about hyperparameters."""

    alpha: float
    """standard error of log α"""
    noise_precision: float
    """standard error of log β"""
    lost: float
    """nats by which the evidence may be below its maximum: 2 where that noise moves α and β by as
    much as the targets leave them uncertain"""


class EvidencePath(eqx.Module):
    """Eigenvalues λ_i of W₀W₀ᵀ, and the targets' coordinates t_i along its eigenvectors.

    With ρ = β/α, s_i = ρλ_i/(1 + ρλ_i): γ = Σ s_i, ‖x̄‖² = β Σ s_i (1 − s_i) t_i²,
    ‖y − Φθ̄‖²_{B₀} = Σ (1 − s_i)² t_i² + t_⊥², log det(I + WᵀW) = Σ log(1 + ρλ_i). From a Krylov
    space λ_i are Ritz values, and each counts as often as random probes say.

    Attributes:
        eigenvalues: λ_i, (s,).
        squares: t_i², (s,).
        remainder: t_⊥² ≥ 0, outside the range of W₀.
        num_flat: number of flat parameters.
        flat_log_determinant: log det Φ_fᵀB₀Φ_f.
        rank: Σ w rank B₀.
        log_determinant: Σ w log det B₀.
        multiplicities: of every λ_i by every probe, (p, s), of the same sum for all probes, the
            dimension of their sphere; None where each counts once.
        passes: products of a block with the data that it took.
        settled: whether more passes would change the maximum by less than its standard error.
        coarser: the path by a quadrature whose error is larger: how far it is apart is part of the
            standard errors, so that they hold at every α and β; None where exact.
        limit: of γ, the smaller of the numbers of penalised parameters and outputs.
    """

    eigenvalues: Float[np.ndarray, " s"]
    squares: Float[np.ndarray, " s"]
    remainder: float
    num_flat: int
    flat_log_determinant: float
    rank: float
    log_determinant: float
    multiplicities: Float[np.ndarray, "p s"] | None = None
    passes: int = 0
    settled: bool = True
    coarser: "EvidencePath | None" = None
    limit: float = np.inf

    def at(self, alpha: Any, noise_precision: Any) -> PathPoints:
        """The evidence at pairs of α and β: numbers or arrays that broadcast to (g,)."""
        alpha, beta = np.broadcast_arrays(np.atleast_1d(alpha), np.atleast_1d(noise_precision))
        alpha, beta = alpha.astype(np.float64), beta.astype(np.float64)
        signal = (beta / alpha)[:, None] * self.eigenvalues
        shrunk, kept = signal / (1 + signal), 1 / (1 + signal)
        dimension, dimension_error = self._sum(shrunk)
        dimension = np.minimum(dimension, self.limit)
        log_determinant, log_determinant_error = self._sum(np.log1p(signal))
        norm = beta * ((shrunk * kept) @ self.squares)
        residual = kept**2 @ self.squares + self.remainder
        log_evidence = 0.5 * (
            (self.rank - self.num_flat) * (np.log(beta) - LOG_2PI)
            + self.log_determinant
            - beta * residual
            - norm
            - log_determinant
            - self.flat_log_determinant
        )
        evidence_error = 0.5 * log_determinant_error
        if self.coarser is not None:
            coarser = self.coarser.at(alpha, beta)
            evidence_error = np.hypot(evidence_error, coarser.log_evidence - log_evidence)
            dimension_error = np.hypot(dimension_error, coarser.effective_dimension - dimension)
        return PathPoints(log_evidence, dimension, norm, residual, evidence_error, dimension_error)

    def evaluate(self, alpha: Float[np.ndarray, " 1"], beta: Float[np.ndarray, " 1"]):
        """The evidence terms at α (1,) and β (1,)."""
        point = self.at(alpha, beta)
        return EvidenceTerms(
            point.log_evidence[0],
            point.effective_dimension,
            point.norm,
            point.effective_dimension + self.num_flat,
            point.residual,
            point.effective_dimension_error[0],
            point.log_evidence_error[0],
            point.effective_dimension_error,
        )

    def strongest_signal(self, noise_precision: float | None) -> float:
        """ρ = β/α where the evidence is largest, β known or, where None, at its best for each ρ.

        Without a maximum it is the smallest or the largest ρ that the eigenvalues tell from 0 or ∞;
        1 where they are all 0, or the targets.
        """
        largest = self.eigenvalues.max(initial=0.0)
        if largest <= 0 or not self._has_targets:
            return 1.0
        negligible = ROUNDING if self.multiplicities is None else ROUNDING_OF_SPACE
        smallest = self.eigenvalues[self.eigenvalues > negligible * largest].min()
        ends = 1e-4 / largest, BEYOND / smallest
        coarse = self._largest(*ends, int(GRID * np.log10(ends[1] / ends[0])), noise_precision)
        step = 10 ** (1 / GRID)
        return self._largest(coarse / step, coarse * step, GRID, noise_precision)

    def _largest(
        self, smallest: float, largest: float, count: int, noise_precision: float | None
    ) -> float:
        """ρ of the largest evidence among some."""
        ratios = np.geomspace(smallest, largest, count)
        beta = self._noise(ratios, noise_precision)
        return float(ratios[np.argmax(self.at(beta / ratios, beta).log_evidence)])

    def maximum(self, noise_precision: float | None) -> tuple[float, float]:
        """α and β of `strongest_signal`; β is not positive if flat parameters fit the targets."""
        ratio = self.strongest_signal(noise_precision)
        beta = float(self._noise(np.array([ratio]), noise_precision)[0])
        return beta / ratio, beta

    def strength_errors(
        self, alpha: float, noise_precision: float, *, noise_known: bool
    ) -> StrengthErrors:
        """How far the noise of the probes may have moved α and β from the maximum of the evidence.

        Away from it, on the path of best β, the evidence falls by some nats, known with a standard
        error. As far as the fall is less than that the true maximum may be: where both are small,
        at twice the standard errors of log α and log β.
        """
        if self.multiplicities is None or not (self._has_targets and noise_precision > 0):
            return StrengthErrors(0.0, 0.0, 0.0)
        sides = []
        for offsets in (OFFSETS, -OFFSETS):
            ratios = noise_precision / alpha * np.exp(offsets)
            beta = self._noise(ratios, noise_precision if noise_known else None)
            fall, error = self._fall((alpha, noise_precision), (beta / ratios, beta))
            near = np.logical_and.accumulate(fall <= error)
            moved = np.log(beta / ratios / alpha), np.log(beta / noise_precision)
            moves = np.stack([np.abs(moved[0]) / 2, np.abs(moved[1]) / 2, fall])
            moves[:2] = np.inf if near.all() else moves[:2]  # no end is in sight
            sides.append(moves.max(axis=1, where=near, initial=0.0))
        return StrengthErrors(*np.maximum(*sides).tolist())

    @property
    def _has_targets(self) -> bool:
        return bool(self.squares.sum() + self.remainder > 0)

    def _fall(
        self, here: tuple[float, float], there: tuple[np.ndarray, np.ndarray]
    ) -> tuple[Float[np.ndarray, " g"], Float[np.ndarray, " g"]]:
        """By how much the evidence is lower there, and the standard error of that."""
        points = here, there
        logs = [np.log1p(np.atleast_1d(b / a)[:, None] * self.eigenvalues) for a, b in points]
        fall = self.at(*here).log_evidence - self.at(*there).log_evidence
        error = 0.5 * self._sum(logs[1] - logs[0])[1]
        if self.coarser is not None:
            error = np.hypot(error, self.coarser._fall(here, there)[0] - fall)
        return fall, error

    def best_noise(self, ratios: Float[np.ndarray, " g"]) -> Float[np.ndarray, " g"]:
        """The noise precision β of the largest evidence at every ρ = β/α."""
        left = 1 / (1 + ratios[:, None] * self.eigenvalues) @ self.squares + self.remainder
        count = self.rank - self.num_flat
        return count / np.maximum(left, max(count, 1.0) * np.finfo(float).tiny)

    def _noise(
        self, ratios: Float[np.ndarray, " g"], noise_precision: float | None
    ) -> Float[np.ndarray, " g"]:
        """β at every ρ: the one that is known, else the best."""
        if noise_precision is None:
            return self.best_noise(ratios)
        return np.full(len(ratios), noise_precision)

    def _sum(self, values: Float[np.ndarray, "g s"]) -> tuple[np.ndarray, np.ndarray]:
        """Σ over eigenvalues with their multiplicities, and its standard error."""
        if self.multiplicities is None:
            return values.sum(1), np.zeros(len(values))
        mean = self.multiplicities.mean(0)
        total = values @ mean
        # On the sphere uᵀf(K)u has variance 2 Σ (f(λ_i) − their mean)², but for 1 of its dimension.
        spread = np.maximum(values**2 @ mean - total**2 / mean.sum(), 0)
        return total, np.sqrt(2 * spread / len(self.multiplicities))


def require_one_each(num_groups: int, num_noises: int) -> None:
    """Refuses more than one α or noise precision: no single ratio would make a path.

    Raises:
        ValueError: as said.
    """
    if num_groups > 1 or num_noises > 1:
        raise ValueError(
            f"An evidence path has one alpha and one noise precision; here are {num_groups} groups "
            f"and {num_noises} noise precisions."
        )
