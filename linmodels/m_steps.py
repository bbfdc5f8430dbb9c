"""M-steps: how the strengths of prior and noise move, given the posterior at the present ones.

`maximise_evidence(..., m_step=mackay)` takes any of them, or a function of yours. All of them stop
where the evidence is stationary, α_l‖θ̄_l‖² = γ_l and β_c‖residual_c‖² = rank_c − γ_c, and differ in
how fast they get there.

| step | what it maximises | steps |
|---|---|---|
| `mackay` | nothing: it solves those equations with γ held | fewest |
| `evidence_bound` | the evidence's bound 𝓜, the mean held | few, each with inner steps |
| `em_elbo` | the ELBO, mean and covariance held: true EM | most, more so where γ_l ≪ d_l |

With Gaussian noise the last two never lower the evidence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from linmodels._hyperparameters import bounded
from linmodels.methods import EvidenceTerms, Hyperparameters, Scales

INNER_STEPS = 30
"""Of `evidence_bound`, each at least halving what is left."""
INNER_TOLERANCE = 1e-3
"""Share of the first inner step at which they end."""


class Expectation(NamedTuple):
    """The posterior at the present hyperparameters, as far as an M-step needs it."""

    current: Hyperparameters
    """α (L,) and β (C,)"""
    terms: EvidenceTerms
    """γ_l, α_l‖θ̄_l‖², γ_c and residuals there"""
    scales: Scales
    """d_l and rank_c"""
    learn_noise: bool
    """whether β moves"""
    elsewhere: Callable[[Float[Any, " L"], Float[Any, " C"]], EvidenceTerms]
    """γ_l and γ_c at another α and β; with Laplace's approximation the curvature is held"""
    noise: Float[Any, "*H"] = 0.0
    """relative changes of α and, behind it, β that are noise of the method, (L + C,)"""


MStep = Callable[[Expectation], Hyperparameters]
"""Proposes hyperparameters, ∞ allowed; caps on steps and values are put on afterwards."""


def mackay(expectation: Expectation) -> Hyperparameters:
    """α_l ← γ_l / ‖θ̄_l‖² and β_c ← (rank_c − γ_c) / ‖residual_c‖² at unit noise.

    ‖θ̄_l‖² = ‖F⁻¹(θ̄ − μ)_l‖². MacKay (1992); Antorán, Padhy et al. (2023), eq. 3.
    """
    current, terms, scales = expectation.current, expectation.terms, expectation.scales
    left = np.maximum(scales.rank - terms.output_dimension, 0)
    return Hyperparameters(
        current.alpha * _ratio(terms.group_dimension, terms.group_norm),
        current.beta * _ratio(left, current.beta * terms.residual),
    )


def evidence_bound(expectation: Expectation) -> Hyperparameters:
    """Maximises 𝓜(α, β), below the evidence and tangent to it, with the mean θ̄ held.

    2𝓜 = Σ rank_c log β_c − Σ β_c‖residual_c‖² − Σ α_l‖θ̄_l‖² − log det(I + WᵀW) + constants, the
    ELBO of N(θ̄, H(α, β)⁻¹); Antorán, Padhy et al. (2023), eq. 2, there for α. It is concave in
    log α and log β, as det H is a polynomial in α and β with coefficients that are not negative. At
    its maximum MacKay's updates, with the γ there but the norms of θ̄, stop; going half of each, in
    logarithms, at least halves the largest distance to it.
    """
    start, terms = expectation.current, expectation.terms
    at, first = start, np.inf
    for inner in range(INNER_STEPS):
        held = terms._replace(
            group_norm=expectation.terms.group_norm * (at.alpha / start.alpha),
            residual=expectation.terms.residual,
        )
        target = mackay(expectation._replace(current=at, terms=held))
        target = bounded(target, at, expectation.scales, expectation.learn_noise)
        ratios = Hyperparameters(target.alpha / at.alpha, target.beta / at.beta)
        at = Hyperparameters(at.alpha * np.sqrt(ratios.alpha), at.beta * np.sqrt(ratios.beta))
        changes = np.abs(np.log(np.concatenate(ratios)))
        first = changes.max() if inner == 0 else first
        if not (changes > np.maximum(INNER_TOLERANCE * first, expectation.noise)).any():
            break
        terms = expectation.elsewhere(*at)
    return at


def em_elbo(expectation: Expectation) -> Hyperparameters:
    """True EM: α_l ← d_l / E‖θ_l‖² and β_c ← rank_c / E‖residual_c‖² under the posterior.

    E‖θ_l‖² = ‖θ̄_l‖² + (d_l − γ_l)/α_l and E‖residual_c‖² = ‖residual_c‖² + γ_c/β_c. These maximise
    E log p(y, θ | α, β), and so the ELBO E log p(y|θ, β) − KL(q ‖ p(θ|α)) of a posterior q whose
    mean and covariance are held, which differs from it by the entropy of q: the "decoupled ELBO" of
    Antorán, Padhy et al. (2023), appendix H.2. log α moves by only about γ_l/d_l of MacKay's
    update.
    """
    current, terms, scales = expectation.current, expectation.terms, expectation.scales
    spread = terms.group_norm + np.maximum(scales.size - terms.group_dimension, 0)
    misfit = current.beta * terms.residual + terms.output_dimension
    return Hyperparameters(
        current.alpha * _ratio(scales.size, spread), current.beta * _ratio(scales.rank, misfit)
    )


def _ratio(
    numerator: Float[np.ndarray, " p"], denominator: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " p"]:
    """∞ where the denominator is 0."""
    safe = np.where(denominator > 0, denominator, 1)
    return np.where(denominator > 0, numerator / safe, np.inf)
