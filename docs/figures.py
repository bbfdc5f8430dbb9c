"""Computes the figures of how-it-works.md and draws them: python docs/figures.py, a minute at most.

All but the seconds in `sides` come out the same again. Needs matplotlib (the extra `plots`).
"""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import linmodels as lm

FOLDER = Path(__file__).parent / "figures"
KEY = jax.random.key(0)
GREY, RED, BLUE = "#8a8f98", "#c0392b", "#1f5fa8"
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.hashsalt": "linmodels",
}


def regression(rows: int, columns: int, *, decay: float, strength: float) -> lm.Observations:
    """A random design whose columns shrink as strength · j^(−decay), at unit noise."""
    draw = np.random.default_rng(0).standard_normal
    x = draw((rows, columns)) * strength * np.arange(1.0, columns + 1) ** -decay
    y = x @ draw(columns) + draw(rows)
    return observations(x, y)


def observations(x: np.ndarray, y: np.ndarray) -> lm.Observations:
    """Targets of unit noise, in float32."""
    design = lx.MatrixLinearOperator(jnp.asarray(x, jnp.float32))
    return lm.Observations(design, jnp.asarray(y, jnp.float32), lm.Gaussian(1.0))


class Plane(NamedTuple):
    """A Gaussian of two parameters."""

    mean: np.ndarray
    root: np.ndarray
    """C with CCᵀ the covariance"""

    def seen_through(self, transform: np.ndarray) -> "Plane":
        """The Gaussian of the transformed parameters."""
        return Plane(transform @ self.mean, transform @ self.root)

    def draw(self, axes: Axes, color: str, opacity: float) -> None:
        """One and two standard deviations."""
        angle = np.linspace(0, 2 * np.pi, 91)
        circle = np.stack([np.cos(angle), np.sin(angle)])
        for radius in (2, 1):
            points = self.mean[:, None] + radius * self.root @ circle
            axes.fill(*points, facecolor=color, alpha=opacity, lw=0)
            axes.plot(*points, color=color, lw=1.4)

    def half_axes(self) -> list[np.ndarray]:
        """Of the ellipse of one standard deviation, pointing to the right."""
        directions, sizes, _ = np.linalg.svd(self.root)
        return [s * d * np.sign(d[0]) for s, d in zip(sizes, directions.T, strict=True)]


def whitening() -> Figure:
    """Prior and posterior of two parameters in their own units, and whitened."""
    prior, posterior = two_parameters()
    figure = Figure(figsize=(8, 4.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    white = np.linalg.inv(prior.root)
    for axes, transform in ((left, np.eye(2)), (right, white)):
        prior.seen_through(transform).draw(axes, GREY, 0.10)
        posterior.seen_through(transform).draw(axes, BLUE, 0.18)
        axes.set_aspect("equal")
    left.set(xlabel="θ₁ (mm/K)", ylabel="θ₂ (mm/kg)")
    right.set(xlabel="x₁", ylabel="x₂", xticks=range(-2, 3), yticks=range(-2, 3), xlim=(-2.2, 3.4))
    label_half_axes(right, posterior.seen_through(white))
    right.text(-1.5, 1.55, "prior", color="#5f646c", ha="right")
    right.text(0.95, 1.9, "posterior", color=BLUE)
    return figure


def two_parameters() -> tuple[Plane, Plane]:
    """Prior and posterior of how temperature and load change a length, from 12 measurements."""
    draw = np.random.default_rng(0).standard_normal
    x = draw((12, 2)) @ np.array([[1.0, 0.25], [0.0, 0.2]])
    data = observations(x, x @ np.array([0.2, 1.5]) + draw(12))
    fit = lm.infer(data, lm.GaussianPrior.g_prior(0.25), num_samples=0)
    scale = np.asarray(lx.diagonal(fit.prior.factor)) * float(fit.prior.alpha) ** -0.5
    root = np.asarray(fit.posterior.covariance_factor.as_matrix())
    return Plane(np.zeros(2), np.diag(scale)), Plane(np.asarray(fit.posterior.mean), root)


def label_half_axes(axes: Axes, whitened: Plane) -> None:
    """Draws the half-axes with the eigenvalues that their lengths stand for."""
    for axis in whitened.half_axes():
        points = np.stack([whitened.mean, whitened.mean + axis])
        axes.plot(*points.T, color=BLUE)
        text = f"1/√(1 + {1 / (axis @ axis) - 1:.1f})"
        end = whitened.mean + 2 * axis
        axes.annotate(text, end, (9, 0), textcoords="offset points", color=BLUE)


def sides() -> Figure:
    """Which matrix each side factorises, and how long that takes."""
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    shapes, times = figure.subplots(1, 2, width_ratios=[1, 1.2])
    draw_shapes(shapes, 0.4, 1.0, base=1.6, label="N < d′")
    draw_shapes(shapes, 1.0, 0.4, base=0.0, label="N > d′")
    shapes.text(1.25, 2.95, "primal", color=BLUE, weight="bold")
    shapes.text(2.5, 2.95, "dual", color=RED, weight="bold")
    shapes.set(xlim=(-0.05, 3.6), ylim=(-0.3, 3.15), aspect="equal")
    shapes.axis("off")
    draw_times(times, 512, [64, 128, 256, 512, 1024, 2048])
    return figure


def draw_shapes(axes: Axes, height: float, width: float, *, base: float, label: str) -> None:
    """W and the matrices of both sides to scale, the smaller filled."""
    whole = width, height, GREY, "W"
    primal, dual = (width, width, BLUE, "I + WᵀW"), (height, height, RED, "I + WWᵀ")
    for place, (across, up, color, name) in enumerate((whole, primal, dual)):
        corner = 1.25 * place, base
        face = color if up < 1 or name == "W" else "none"
        axes.add_patch(Rectangle(corner, across, up, facecolor=face, edgecolor=color, lw=1.6))
        axes.text(corner[0], base - 0.07, name, color=color, va="top")
    axes.text(0, base + height + 0.07, label, color="0.3")


def draw_times(axes: Axes, parameters: int, outputs: list[int]) -> None:
    """Seconds of an exact posterior on both sides."""
    data = [regression(n, parameters, decay=0.5, strength=1.0) for n in outputs]
    for side, color, below in (("primal", BLUE, 8), ("dual", RED, 0)):
        seconds = [exact_seconds(d, side) for d in data]
        axes.loglog(outputs, seconds, color=color, marker="o", ms=4)
        end = outputs[-1], seconds[-1]
        axes.annotate(side, end, (-8, below), textcoords="offset points", color=color, ha="right")
    axes.axvline(parameters, color=GREY, lw=1, ls=(0, (4, 3)))
    axes.text(0.93 * parameters, axes.get_ylim()[1], "N = d′", ha="right", va="top", color="0.4")
    axes.set(
        xlabel=f"outputs N, with d′ = {parameters} parameters",
        ylabel="time of an exact posterior (s)",
    )
    axes.set_xticks(outputs, [str(n) for n in outputs])
    axes.minorticks_off()


def exact_seconds(data: lm.Observations, side: str) -> float:
    """The shortest of three runs or more; the first compiles."""
    spent = []
    while len(spent) < 3 or sum(spent[1:]) < 0.4:
        start = time.perf_counter()
        lm.infer(data, lm.GaussianPrior(1.0), method=lm.Exact(side), num_samples=0)
        spent.append(time.perf_counter() - start)
    return min(spent)


class Solve(NamedTuple):
    """Σ‖e‖²_H over Σ‖Wx‖² of all deviations: the true one after every second pass."""

    true: list[float]
    estimate: list[float]
    certificate: list[float]


def stopping() -> Figure:
    """Error, estimate and certificate of block-CG, and where it stops."""
    samples, shown = 8, 44
    data = regression(1500, 800, decay=0.8, strength=4.0)
    solve, report = followed(data, samples, shown), solved(data, samples).solver
    figure = Figure(figsize=(8, 4.1), layout="constrained")
    axes = figure.subplots()
    passes = np.arange(1, shown + 1)
    axes.semilogy(passes, solve.certificate, color=RED, label="certificate ‖r‖²")
    axes.semilogy(passes, solve.estimate, color=BLUE, label="estimate")
    axes.semilogy(passes[1::2], solve.true, color="0.25", label="true error")
    axes.axhline(report.tolerance, color=GREY, lw=1, ls=(0, (4, 3)))
    place = {"ha": "left", "va": "bottom", "color": "0.4"}
    axes.text(1, 1.25 * report.tolerance, "tolerance 1/(8k)", **place)
    stop = report.passes - 1  # one more finds the true residual
    axes.axvline(stop, color=GREY, lw=1, ls=(0, (4, 3)))
    axes.text(stop + 0.5, axes.get_ylim()[0], f"stops after pass {stop}", **place)
    axes.set(xlabel="passes over the data", ylabel=r"squared error $\|e\|_H^2$, over $\gamma$")
    axes.minorticks_off()
    axes.margins(x=0.01)
    axes.legend()
    return figure


def solved(data: lm.Observations, samples: int, *, throw: bool = True, **options) -> lm.Fit:
    """A solve on the primal side."""
    method = lm.BlockCG("primal", **options)
    prior = lm.GaussianPrior(1.0)
    return lm.infer(data, prior, method=method, num_samples=samples, key=KEY, throw=throw)


def followed(data: lm.Observations, samples: int, shown: int) -> Solve:
    """What the solver says after every pass, and by how much its deviations are then off."""
    seen: list[lm.krylov.Progress] = []
    options = {"tolerance": 1e-9, "throw": False}
    solved(data, samples, max_passes=shown, callback=seen.append, **options)
    prior, exact = lm.GaussianPrior(1.0), lm.Exact("primal")
    right = lm.infer(data, prior, method=exact, num_samples=samples, key=KEY).posterior.deviations
    matrix, right = (np.asarray(a, np.float64) for a in (data.design.as_matrix(), right))
    signal = np.sum((right @ matrix.T) ** 2)
    true = []
    for passes in range(2, shown + 1, 2):
        found = solved(data, samples, max_passes=passes, **options).posterior.deviations
        error = np.asarray(found, np.float64) - right
        true.append((np.sum(error**2) + np.sum((error @ matrix.T) ** 2)) / signal)
    shares = [p.measure.signal[:-1].sum() for p in seen]
    estimate = [p.error[:-1].sum() / s for p, s in zip(seen, shares, strict=True)]
    squares = [np.sum(p.measure.residual[:-1] ** 2) for p in seen]
    return Solve(true, estimate, [r / s for r, s in zip(squares, shares, strict=True)])


def evidence_path() -> Figure:
    """Evidence and effective dimension at every α from one Krylov space, over the exact ones."""
    data = regression(600, 400, decay=1.0, strength=1.0)
    alpha = np.geomspace(5e-2, 1e3, 61)
    exact = lm.evidence_path(data, lm.GaussianPrior(), method=lm.Exact(), num_samples=0)
    path = lm.evidence_path(data, lm.GaussianPrior(), method=lm.BlockCG(), num_samples=16, key=KEY)
    right, found = exact.at(alpha, 1.0), path.at(alpha, 1.0)
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=[1.7, 1])
    best = np.argmax(found.log_evidence)
    names = {"log_evidence": "log evidence (nats)", "effective_dimension": "effective dimension γ"}
    for (top, bottom), (name, label) in zip(axes.T, names.items(), strict=True):
        values, error = getattr(found, name), getattr(found, f"{name}_error")
        truth = getattr(right, name)
        compare(top, alpha, values, error, truth)
        compare(bottom, alpha, values - truth, error, 0 * truth)
        top.set(ylabel=label)
        bottom.set(ylabel="minus exact", xlabel="prior precision α (noise precision 1)")
        bottom.set_ylim(-6 * error[best], 8 * error[best])
        for panel in (top, bottom):
            panel.axvline(alpha[best], color=GREY, lw=1, ls=(0, (4, 3)))
    place = 1.2 * alpha[best], axes[0, 0].get_ylim()[0]
    axes[0, 0].text(*place, "maximum", color="0.4", va="bottom")
    axes[0, 1].legend(frameon=True, framealpha=1, edgecolor="none")
    return figure


def compare(
    axes: Axes, alpha: np.ndarray, values: np.ndarray, error: np.ndarray, truth: np.ndarray
) -> None:
    """A curve with a band of two standard errors, over the exact one."""
    band = values - 2 * error, values + 2 * error
    axes.fill_between(alpha, *band, color=BLUE, alpha=0.22, lw=0, label="± 2 standard errors")
    axes.plot(alpha, truth, color="0.25", label="exact")
    axes.plot(alpha, values, color=BLUE, ls=(0, (4, 3)), label="one Krylov space")
    axes.set_xscale("log")
    axes.margins(x=0)


def save(figure: Figure, name: str) -> None:
    """Writes one figure, the same bytes for the same picture."""
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})


def main() -> None:
    """Draws all figures."""
    FOLDER.mkdir(exist_ok=True)
    figures = whitening, sides, stopping, evidence_path
    with mpl.rc_context(STYLE):
        for draw in figures:
            save(draw(), draw.__name__)


if __name__ == "__main__":
    main()
