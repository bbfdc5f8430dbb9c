"""Figures of predictions; needs matplotlib (the extra `plots`)."""

import os
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Shaped

_DATA, _HELD_OUT, _MODEL = "#8a8f98", "#c0392b", "#1f5fa8"


def plot_forecast(
    time: Shaped[np.ndarray, " n"],
    observed: Float[np.ndarray, " n"],
    held_out: Bool[np.ndarray, " n"],
    mean: Float[np.ndarray, " n"],
    lower: Float[np.ndarray, " n"],
    upper: Float[np.ndarray, " n"],
    *,
    path: str | os.PathLike[str],
    title: str = "",
    label: str = "",
    level: float = 0.9,
) -> None:
    """Draws a forecast with its band over the held-out truth, and the errors below, to a file.

    Args:
        time: dates or numbers, in order.
        observed: targets; NaN where there is none.
        held_out: True for targets that the fit has not seen.
        mean: of the prediction at every time.
        lower: end of the band.
        upper: end of the band.
        path: the picture; its suffix says the format.
        title: above the picture.
        label: of the vertical axis.
        level: probability of the band, for the legend.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
    band = f"{level:.0%} band for a new measurement"
    top.fill_between(time, lower, upper, color=_MODEL, alpha=0.22, lw=0, label=band)
    top.plot(time, mean, color=_MODEL, lw=1.0, label="predictive mean")
    _points(top, time, observed, held_out)
    bottom.fill_between(time, lower - mean, upper - mean, color=_MODEL, alpha=0.22, lw=0)
    bottom.axhline(0, color=_MODEL, lw=1.0)
    _points(bottom, time, observed - mean, held_out)
    top.set(ylabel=label)
    top.set_title(title, loc="left", fontsize=12)
    bottom.set(ylabel="observed − mean")
    top.legend(loc="upper left", frameon=False)
    for axes in (top, bottom):
        axes.axvline(time[held_out][0], color="0.4", lw=0.8, ls=(0, (4, 3)))
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    figure.savefig(path, dpi=160)


def _points(axes: Any, time: np.ndarray, values: np.ndarray, held_out: np.ndarray) -> None:
    style = {"ls": "", "marker": "o", "ms": 2.0, "mew": 0}
    axes.plot(time[~held_out], values[~held_out], color=_DATA, label="fitted weeks", **style)
    axes.plot(time[held_out], values[held_out], color=_HELD_OUT, label="held-out weeks", **style)
