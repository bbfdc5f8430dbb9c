"""What the command prints about a fit."""

from collections.abc import Iterable, Sequence

import equinox as eqx
import numpy as np

import linmodels as lm


class HeldOut(eqx.Module):
    """How well held-out rows are predicted, in the target's own units.

    Attributes:
        rows: how many.
        log_prob: mean log-density of a row, in nats.
        coverage: share of rows inside their 90 % interval.
        rmse: root mean squared error of the predictive mean.
    """

    rows: int
    log_prob: float
    coverage: float
    rmse: float


class HeldOutSums:
    """Sums `HeldOut` up over batches, in float64."""

    def __init__(self) -> None:
        self._sums = np.zeros(4)

    def add(self, log_prob: np.ndarray, inside: np.ndarray, error: np.ndarray) -> None:
        """Takes in one batch of rows."""
        values = (np.ones(len(error)), log_prob, inside, np.square(error, dtype=np.float64))
        self._sums += [np.sum(value, dtype=np.float64) for value in values]

    def result(self) -> HeldOut:
        """The means over all rows taken in."""
        rows, log_prob, inside, square = self._sums
        return HeldOut(int(rows), log_prob / rows, inside / rows, (square / rows) ** 0.5)


class Effect(eqx.Module):
    """One coefficient in the data's own units, with its 90 % interval."""

    name: str
    mean: float
    lower: float
    upper: float


def settings(
    fit: lm.Fit, target: str, target_scale: float, rows: int, parameters: int
) -> list[tuple[str, str]]:
    """Lines about method, hyperparameters and evidence.

    Args:
        fit: to targets divided by `target_scale`.
        target: its name.
        target_scale: units of the target in a unit of the fit's targets.
        rows: that were trained on.
        parameters: that the prior holds in check, the flat ones left out.
    """
    assert isinstance(fit.likelihood, lm.Gaussian)
    noise = float(np.asarray(fit.likelihood.noise_precision).ravel()[0]) ** -0.5 * target_scale
    evidence = float(fit.log_evidence) - rows * np.log(target_scale)
    lines = [
        ("method", fit.reason),
        ("noise std", f"{noise:.4g} (in units of {target})"),
        ("effective dimension", f"{float(fit.effective_dimension):,.1f} of {parameters:,}"),
        ("log evidence", f"{evidence:,.1f} (found in {fit.steps} steps)"),
    ]
    if fit.plan is not None:
        lines.insert(1, ("expected", fit.plan.cost))
    return lines + [("note", str(flag)) for flag in fit.flags]


def held_out_lines(held_out: HeldOut, target: str) -> list[tuple[str, str]]:
    """Lines about held-out rows."""
    return [
        ("held-out log-likelihood", f"{held_out.log_prob:.4f} a row, over {held_out.rows:,} rows"),
        ("held-out 90 % coverage", f"{held_out.coverage:.1%}"),
        ("held-out error (rms)", f"{held_out.rmse:.4g} (in units of {target})"),
    ]


def print_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Prints name and value, the values below each other."""
    for name, value in lines:
        print(f"{name:<26}{value}")


def print_effects(title: str, effects: Sequence[Effect]) -> None:
    """Prints coefficients and their intervals."""
    width = max([26, *(len(effect.name) + 2 for effect in effects)])
    print(f"\n{title:<{width}}{'mean':>12}{'5 %':>12}{'95 %':>12}")
    for effect in effects:
        numbers = "".join(f"{value:>12.4g}" for value in (effect.mean, effect.lower, effect.upper))
        print(f"{effect.name:<{width}}{numbers}")
