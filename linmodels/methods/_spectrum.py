"""The evidence of one α and one noise precision, for every value, from one decomposition."""

import equinox as eqx
import numpy as np
from jaxtyping import Float

from linmodels._likelihoods import LOG_2PI
from linmodels.methods._method import EvidenceTerms


class Spectrum(eqx.Module):
    """Eigenvalues λ_i of W₀W₀ᵀ and the targets' coordinates t_i along its eigenvectors.

    With ρ = β/α, s_i = ρλ_i/(1 + ρλ_i): γ = Σ s_i, ‖x̄‖² = β Σ s_i (1 − s_i) t_i²,
    ‖y − Φθ̄‖²_{B₀} = Σ (1 − s_i)² t_i² + t_⊥², log det(I + WᵀW) = Σ log(1 + ρλ_i).
    """

    eigenvalues: Float[np.ndarray, " r"]
    squares: Float[np.ndarray, " r"]
    """t_i²"""
    remainder: float
    """t_⊥² ≥ 0, outside the range of W₀"""
    num_flat: int
    flat_log_determinant: float
    """log det Φ_fᵀB₀Φ_f"""
    rank: float
    log_determinant: float

    def evaluate(self, alpha: Float[np.ndarray, " 1"], beta: Float[np.ndarray, " 1"]):
        """The evidence terms at α (1,) and β (1,)."""
        signal = beta[0] / alpha[0] * self.eigenvalues
        shrunk, kept = signal / (1 + signal), 1 / (1 + signal)
        dimension = shrunk.sum()
        norm = beta[0] * np.sum(shrunk * kept * self.squares)
        residual = np.sum(kept**2 * self.squares) + self.remainder
        log_evidence = 0.5 * (
            self.rank * (np.log(beta[0]) - LOG_2PI)
            + self.log_determinant
            - beta[0] * residual
            - norm
            - np.log1p(signal).sum()
            - self.flat_log_determinant
            - self.num_flat * (np.log(beta[0]) - LOG_2PI)
        )
        return EvidenceTerms(
            log_evidence,
            np.array([dimension]),
            np.array([norm]),
            np.array([dimension + self.num_flat]),
            np.array([residual]),
        )
