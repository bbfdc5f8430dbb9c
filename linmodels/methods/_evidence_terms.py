"""What M-steps need of the evidence."""

from typing import Any, NamedTuple

from jaxtyping import Float


class EvidenceTerms(NamedTuple):
    """The evidence at given hyperparameters, and what M-steps need of it.

    γ_l and γ_c are the effective dimension split over groups of parameters and over noise
    precisions; flat parameters count in γ_c only.
    """

    log_evidence: Float[Any, ""]
    group_dimension: Float[Any, " L"]
    """γ_l = tr (H⁻¹M)_ll"""
    group_norm: Float[Any, " L"]
    """‖x̄_l‖² = α_l ‖F⁻¹(θ̄ − μ)_l‖²"""
    output_dimension: Float[Any, " C"]
    """γ_c = tr WH⁻¹Wᵀ over the entries with noise precision β_c"""
    residual: Float[Any, " C"]
    """‖y − o − Φθ̄‖²_{B₀} over the same entries"""
    dimension_error: Float[Any, ""] = 0.0
    """standard error of Σ γ_l; 0 where exact"""
    log_evidence_error: Float[Any, ""] = 0.0
    """standard error of the log evidence; 0 where exact"""
    group_error: Float[Any, "*L"] = 0.0
    """standard error of γ_l; 0 where exact"""
