"""Result codes of a computation, and flags for degenerate but finite answers."""

import enum
from typing import NamedTuple

import equinox as eqx


class RESULTS(eqx.Enumeration):
    """How a computation ended. `fit.result == RESULTS.successful` is the usual test."""

    successful = ""
    max_steps_reached = "The hyperparameters did not settle within `max_steps`."
    max_passes_reached = (
        "The solver did not reach its tolerance within `max_passes`: allow more or, where noise is "
        "less than a thousandth of the signal, enable x64."
    )
    stagnated = (
        "The solver's true residual stopped falling at the working precision: enable x64, give a "
        "preconditioner, rescale, or ask for a larger tolerance."
    )
    negative_curvature = (
        "The solver met negative curvature: the operator is not positive definite, or its "
        "eigenvalues spread beyond the working precision (enable x64, or rescale)."
    )
    breakdown = "The solver's search directions became dependent before it converged."
    non_finite = "A NaN or an infinity appeared in the posterior: check design and hyperparameters."
    mode_not_found = (
        "Newton's method did not reach a mode of the posterior: a flat column may separate the "
        "targets, so that there is none (give it a prior), or the prior mean is too far off."
    )
    not_positive_definite = (
        "The posterior precision is not positive definite: flat columns that are zero or linearly "
        "dependent, or a prior precision too small for the working precision."
    )


class FlagKind(enum.Enum):
    """What is degenerate about a finite answer; the value says what it means."""

    PRIOR_PRECISION_INFINITE = (
        "the evidence has no maximum in α: the group is not needed; α left large"
    )
    NOISE_PRECISION_INFINITE = (
        "the model interpolates the targets: no noise to learn from; noise precision capped"
    )
    GROUPS_COLLAPSED = (
        "alone the group would explain the targets too, but another one does, and which of them is "
        "left says little; α left large (one α for both does not collapse)"
    )
    STRENGTHS_UNCERTAIN = (
        "random probes leave α or the noise precision more uncertain than the targets do "
        "(alpha_errors, noise_scale_errors): draw more samples, use Exact, or give the noise"
    )
    NOTHING_OBSERVED = "no observation carries information about this hyperparameter; left alone"


class Flag(NamedTuple):
    """A degenerate hyperparameter: what happened, and to which group or output."""

    kind: FlagKind
    where: int

    def __str__(self) -> str:
        return f"{self.kind.name.lower()}[{self.where}]: {self.kind.value}"
