"""Ten years of atmospheric CO2, forecast from the weeks before."""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.special import ndtri

import linmodels as lm
from linmodels import plots
from linmodels.cli._errors import InputError
from linmodels.cli._progress import Progress
from linmodels.cli._report import HeldOutSums, held_out_lines, print_lines, settings
from linmodels.data import WeeklyCO2, load_co2

HELD_OUT_YEARS = 10
BEND_SPACING = 0.1
"""Years between places where the trend may bend."""
WAVES = 200


class Features(NamedTuple):
    """Columns of the design and how the prior treats them."""

    columns: Float[np.ndarray, "n d"]
    flat: Bool[np.ndarray, " d"]
    groups: Int[np.ndarray, " d"]


def features(years: Float[np.ndarray, " n"], span: tuple[float, float]) -> Features:
    """Trend, seasons and smooth curves over time, each part with a strength of its own.

    Flat: level, slope, and the first two harmonics of the year. Penalised, one group each: bends of
    the trend (an integrated random walk: its forecast goes straight on, and its band widens as the
    bends to come add up), smooth curves at scales of 0.1, 0.5 and 2 years, two further harmonics,
    and a slow change of the season's shape.

    Args:
        years: calendar years with fractions.
        span: first and last year in which the trend may bend.
    """
    age = years - span[0]
    angles = 2 * np.pi * years[:, None] * np.arange(1, 5)
    harmonics = np.concatenate([np.cos(angles[:, :2]), np.sin(angles[:, :2])], axis=1)
    flat = np.column_stack([np.ones_like(age), age, harmonics])
    bends = np.maximum(0, years[:, None] - np.arange(*span, BEND_SPACING)) * BEND_SPACING**0.5
    smooth = [_smooth(age, scale) for scale in (0.1, 0.5, 2.0)]
    higher = np.concatenate([np.cos(angles[:, 2:]), np.sin(angles[:, 2:])], axis=1)
    slow = _smooth(age, 20.0)
    changing = np.concatenate([slow * wave[:, None] for wave in harmonics.T], axis=1)
    parts = [flat, bends, *smooth, higher, changing]
    labels = np.repeat(np.arange(len(parts)), [part.shape[1] for part in parts])
    return Features(np.concatenate(parts, axis=1), labels == 0, np.maximum(labels - 1, 0))


def _smooth(age: Float[np.ndarray, " n"], scale: float) -> Float[np.ndarray, "n waves"]:
    """Waves whose random mixture is a Gaussian process with a squared-exponential kernel.

    Frequencies are quantiles of the kernel's spectral density (Rahimi & Recht, 2007, without the
    randomness); `scale` is the kernel's length scale in years.
    """
    frequencies = ndtri(0.5 + (np.arange(WAVES) + 0.5) / (2 * WAVES)) / scale
    angles = age[:, None] * frequencies
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / WAVES**0.5


def run(arguments: argparse.Namespace) -> None:
    """Carries out `linmodels demo`: fits, prints the table and draws the picture.

    Raises:
        InputError: the picture cannot be written.
    """
    started = time.perf_counter()
    if not arguments.out.parent.is_dir():
        raise InputError(f"--out {arguments.out}: there is no folder {arguments.out.parent}.")
    weeks = load_co2()
    years = 1970 + weeks.date.astype("datetime64[D]").astype(float) / 365.2425
    seen = ~np.isnan(weeks.co2)
    held_out = years > years[seen][-1] - HELD_OUT_YEARS
    train = seen & ~held_out
    made = features(years, (years[0], years[-1]))
    prior = lm.GaussianPrior(flat=made.flat, groups=made.groups)
    data = lm.Observations(_operator(made, train), jnp.asarray(weeks.co2[train]), lm.Gaussian())
    print(f"{train.sum():,} weeks of CO2 at Mauna Loa, {made.columns.shape[1]:,} features")
    fit = _learn(data, prior, jax.random.key(arguments.seed))
    print_lines(settings(fit, "ppm", 1.0, int(train.sum()), int((~made.flat).sum())))
    strengths = ", ".join(f"{alpha:.3g}" for alpha in np.asarray(fit.prior.alpha))
    print_lines([("prior precisions α", f"{strengths} (bends, curves of 0.1, 0.5 and 2 years, …)")])
    _score(fit, made, weeks.co2, seen & held_out)
    _draw(fit, made, weeks, held_out, arguments.out)
    print_lines(
        [("picture", str(arguments.out)), ("time", f"{time.perf_counter() - started:.0f} s")]
    )


def _learn(data: lm.Observations, prior: lm.GaussianPrior, key: Array) -> lm.Fit:
    progress = Progress("learning")
    report = lambda state: progress.show(
        f"step {state.step}, log evidence {state.log_evidence:,.1f}"
    )
    try:
        return lm.maximise_evidence(data, prior, tolerance=1e-4, key=key, callback=report)
    finally:
        progress.close()


def _operator(made: Features, rows: Bool[np.ndarray, " n"]) -> lx.AbstractLinearOperator:
    return lx.MatrixLinearOperator(jnp.asarray(made.columns[rows]))


def _score(fit: lm.Fit, made: Features, co2: np.ndarray, rows: Bool[np.ndarray, " n"]) -> None:
    """Prints how the held-out weeks were predicted."""
    prediction = fit.posterior.predict(_operator(made, rows))
    targets = jnp.asarray(co2[rows])
    lower, upper = prediction.interval(0.9)
    sums = HeldOutSums()
    sums.add(
        np.asarray(prediction.log_prob(targets)),
        np.asarray((targets >= lower) & (targets <= upper)),
        np.asarray(targets - prediction.mean),
    )
    print_lines(held_out_lines(sums.result(), "ppm"))


def _draw(fit: lm.Fit, made: Features, weeks: WeeklyCO2, held_out: np.ndarray, out: Path) -> None:
    """Draws the weeks since 1975 and the forecast."""
    shown = weeks.date >= np.datetime64("1975")
    prediction = fit.posterior.predict(_operator(made, shown))
    lower, upper = prediction.interval(0.9)
    draw = partial(
        plots.plot_forecast,
        weeks.date[shown],
        weeks.co2[shown],
        held_out[shown],
        np.asarray(prediction.mean),
        np.asarray(lower),
        np.asarray(upper),
        title="Atmospheric CO₂ at Mauna Loa: ten years forecast from the weeks before",
        label="CO₂ (ppm)",
    )
    try:
        draw(path=out)
    except (OSError, ValueError) as error:
        raise InputError(f"--out {out}: cannot be written: {error}") from error
