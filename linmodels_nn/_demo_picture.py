"""The picture of the demonstration; needs matplotlib (the extra `plots`)."""

import os
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

_CLASSES = "#1f5fa8", "#c0392b", "#2e8b57"
_MAP, _LAPLACE = "#8a8f98", "#1f5fa8"
_THUMBNAILS = 7


class Picture(NamedTuple):
    """What is drawn.

    Attributes:
        turns: one image at every angle.
        angles: in degrees.
        own: probabilities of the network itself at every angle.
        samples: probabilities of every posterior sample there.
        scored_angles: at which all held-out images were scored.
        own_scores: log-likelihood and calibration error of the network itself there.
        scores: the same with error bars.
    """

    turns: Float[np.ndarray, "a 8 8"]
    angles: Int[np.ndarray, " a"]
    own: Float[np.ndarray, "a 10"]
    samples: Float[np.ndarray, "k a 10"]
    scored_angles: Int[np.ndarray, " s"]
    own_scores: Float[np.ndarray, "s 2"]
    scores: Float[np.ndarray, "s 2"]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Draws it to a file, whose suffix says the format."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(13, 6), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.5, 1])[0]
        self._draw_turning(left)
        self._draw_scores(right)
        figure.savefig(path, dpi=160)

    def _draw_turning(self, figure: Any) -> None:
        """The image at some angles, and how probable its likeliest classes are at all."""
        layout = [[f"image {i}" for i in range(_THUMBNAILS)], ["curves"] * _THUMBNAILS]
        axes = figure.subplot_mosaic(layout, height_ratios=[1, 4])
        places = np.linspace(0, len(self.turns) - 1, _THUMBNAILS).round().astype(int)
        for i, place in enumerate(places):
            axes[f"image {i}"].imshow(self.turns[place], cmap="gray_r", vmin=0, vmax=1)
            axes[f"image {i}"].set(xticks=[], yticks=[])
        curves = axes["curves"]
        likeliest = np.argsort(-self.own.max(0) - self.own.mean(0))[: len(_CLASSES)]
        for digit, color in zip(likeliest, _CLASSES, strict=True):
            drawn = self.samples[:, :, digit]
            band = np.quantile(drawn, [0.25, 0.75], axis=0)
            curves.fill_between(self.angles, *band, color=color, alpha=0.18, lw=0)
            curves.plot(self.angles, drawn.mean(0), color=color, lw=2, label=f"“{digit}”, Laplace")
            curves.plot(
                self.angles,
                self.own[:, digit],
                color=color,
                lw=1.2,
                ls="--",
                label=f"“{digit}”, MAP",
            )
        curves.set(
            xlabel="turned by (degrees)", ylabel="probability of the class", ylim=(-0.02, 1.02)
        )
        curves.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
        self._finish(curves)
        figure.suptitle(
            "A digit turned; bands hold the middle half of the posterior samples", fontsize=12
        )

    def _draw_scores(self, figure: Any) -> None:
        """Of all held-out images, against the angle."""
        names = "log-likelihood of a label (nats)", "expected calibration error"
        panels = figure.subplots(2, 1, sharex=True)
        for i, (axes, name) in enumerate(zip(panels, names, strict=True)):
            axes.plot(
                self.scored_angles, self.own_scores[:, i], color=_MAP, marker="o", ms=4, label="MAP"
            )
            axes.plot(
                self.scored_angles,
                self.scores[:, i],
                color=_LAPLACE,
                marker="o",
                ms=4,
                label="Laplace",
            )
            axes.set(ylabel=name)
            self._finish(axes)
        panels[0].legend(frameon=False)
        panels[1].set(xlabel="held-out images turned by (degrees)")
        figure.suptitle("All held-out digits", fontsize=12)

    @staticmethod
    def _finish(axes: Any) -> None:
        axes.set_xticks(np.arange(0, 181, 30))
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
