"""M-steps on the linearised toy network: the curves that they maximise, and how many they take.

    python -m benchmarks.paper.m_steps

From α = 5 and α = 500, with and without the library's acceleration; a minute. Curves are dense
arithmetic in float64, from an eigendecomposition of the kernel.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.optimize

import linmodels as lm
from benchmarks import _report as report
from benchmarks.paper import _toy

NAME = "paper/m_steps"
STARTS = 500.0, 5.0
PRIORS = {"isotropic": lm.GaussianPrior, "g-prior": lm.GaussianPrior.g_prior}
STEPS = {
    "MacKay": lm.m_steps.mackay,
    "evidence bound": lm.m_steps.evidence_bound,
    "ELBO (EM)": lm.m_steps.em_elbo,
}
COLOURS = dict(zip(STEPS, ("#1f5fa8", "#3b8f5a", "#c0392b"), strict=True))
CLOSE = 0.01, 1e-6
"""|log(α/α*)| at which the optimum counts as reached."""
MOST = 50_000
GRID = np.geomspace(1.0, 2_000.0, 1_501)


class Dense(NamedTuple):
    """The model of one α and known noise by its spectrum; all curves in nats."""

    eigenvalues: np.ndarray
    """λ_i at α = 1, (n,)"""
    squares: np.ndarray
    """of the whitened targets along the eigenvectors, (n,)"""
    size: int
    """d'"""
    constant: float
    """log det(B/2π)/2"""

    def parts(self, alpha: np.ndarray) -> tuple[np.ndarray, ...]:
        """Misfit, ‖x̄‖², log det(I + WᵀW) and γ at every α (g,)."""
        signal = self.eigenvalues / np.atleast_1d(alpha)[:, None]
        kept = 1 / (1 + signal)
        norm = (signal * kept**2) @ self.squares
        return kept**2 @ self.squares, norm, np.log1p(signal).sum(1), (signal * kept).sum(1)

    def evidence(self, alpha: np.ndarray) -> np.ndarray:
        """log p(y | α)."""
        misfit, norm, log_determinant, _ = self.parts(alpha)
        return self.constant - 0.5 * (misfit + norm + log_determinant)

    def bound(self, alpha: np.ndarray, start: float) -> np.ndarray:
        """𝓜 with the posterior mean of `start`."""
        misfit, norm, _, _ = self.parts(start)
        log_determinant = self.parts(alpha)[2]
        return self.constant - 0.5 * (misfit + norm * alpha / start + log_determinant)

    def elbo(self, alpha: np.ndarray, start: float) -> np.ndarray:
        """Expected log-likelihood less divergence from the prior, by the posterior of the start."""
        misfit, norm, log_determinant, dimension = self.parts(start)
        ratio = alpha / start
        divergence = ratio * (norm + self.size - dimension) - self.size
        divergence += log_determinant - self.size * np.log(ratio)
        return self.constant - 0.5 * (misfit + dimension + divergence)

    def optimum(self) -> float:
        """α of the largest evidence."""
        return maximum(self.evidence)


class Runs(NamedTuple):
    """α after every update from one start, of one M-step."""

    plain: np.ndarray
    accelerated: list[tuple[int, float]]
    """updates so far, and α, whenever the library looks"""
    settled: int
    """updates when the library is done"""


def dense(data: lm.Observations, prior: lm.GaussianPrior) -> Dense:
    """The spectrum in NumPy; the g-prior's factor recomputed."""
    double = lambda values: np.asarray(values, np.float64)
    phi = double(data.design.as_matrix()) / _toy.NOISE
    if prior.normalised:
        phi = phi / np.linalg.norm(phi, axis=0)
    values, vectors = np.linalg.eigh(phi @ phi.T)
    residual = (double(data.targets) - double(data.offset)) / _toy.NOISE
    constant = -len(residual) * np.log(np.sqrt(2 * np.pi) * _toy.NOISE)
    squares = (vectors.T @ residual) ** 2
    return Dense(np.maximum(values, 0), squares, phi.shape[1], constant)


def maximum(curve: Callable[[np.ndarray], np.ndarray]) -> float:
    """α where a curve with one maximum is largest."""
    found = scipy.optimize.minimize_scalar(
        lambda log: -float(curve(np.exp(log)).item()),
        bounds=(-12.0, 12.0),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(np.exp(found.x))


def plain_run(system, m_step: lm.m_steps.MStep, start: float, optimum: float) -> np.ndarray:
    """Updates one after the other until the tighter bound is reached."""
    scales, alphas = system.scales(), [start]
    terms = lambda alpha, beta: system.evaluate(alpha, beta).terms
    while abs(np.log(alphas[-1] / optimum)) > CLOSE[1] and len(alphas) < MOST:
        at = lm.m_steps.Hyperparameters(np.array(alphas[-1:]), np.ones(1))
        held = lm.m_steps.Expectation(at, terms(*at), scales, False, terms)
        alphas.append(float(m_step(held).alpha[0]))
    return np.array(alphas)


def runs(data: lm.Observations, make, m_step, start: float, optimum: float) -> Runs:
    """Without and with acceleration."""
    system = lm.Exact().prepare(data, make(start), num_samples=0, key=None)
    seen: list[tuple[int, float]] = []
    fit = lm.maximise_evidence(
        data,
        make(start),
        m_step=m_step,
        num_samples=0,
        max_steps=MOST,
        callback=lambda state: seen.append((state.step, float(state.alpha[0]))),
    )
    return Runs(plain_run(system, m_step, start, optimum), seen, fit.steps)


def reached(steps, optimum: float, close: float) -> str:
    """The first of the updates (number, α) that is close."""
    near = [number for number, alpha in steps if abs(np.log(alpha / optimum)) <= close]
    return f"{near[0]:,}" if near else "–"


def table_row(names: list[str], found: Runs, optimum: float) -> list[str]:
    """Numbers of updates."""
    ways = list(enumerate(found.plain)), found.accelerated
    counts = [reached(steps, optimum, close) for steps in ways for close in CLOSE]
    return [*names, f"{found.plain[1]:.4g}", *counts, f"{found.settled:,}"]


def gap(model: Dense, found: dict[str, Runs], start: float) -> float:
    """Largest |log ratio| of a first update to the maximum of its curve."""
    curves = {"evidence bound": model.bound, "ELBO (EM)": model.elbo}
    peaks = {name: maximum(lambda a, c=curve: c(a, start)) for name, curve in curves.items()}
    return max(abs(np.log(found[name].plain[1] / peak)) for name, peak in peaks.items())


def draw_curves(axes, model: Dense, found: dict[str, Runs], start: float) -> None:
    """The evidence and what bounds it from below at the start, with their maxima."""
    evidence, optimum = model.evidence(GRID), model.optimum()
    axes.plot(GRID, evidence, color="0.2", lw=2.2, label="evidence")
    axes.plot(optimum, model.evidence(optimum), "o", color="0.2", ms=7)
    for name, curve in (("evidence bound", model.bound), ("ELBO (EM)", model.elbo)):
        axes.plot(GRID, curve(GRID, start), color=COLOURS[name], lw=1.8, label=name)
        peak = found[name].plain[1]
        axes.plot(peak, curve(peak, start), "o", color=COLOURS[name], ms=6)
    axes.axvline(found["MacKay"].plain[1], color=COLOURS["MacKay"], lw=1.4, ls=(0, (4, 3)))
    axes.plot([], [], color=COLOURS["MacKay"], ls=(0, (4, 3)), label="MacKay's update")
    axes.plot(start, model.evidence(start), "D", color="0.55", ms=7, label="start")
    height = np.ptp(evidence)
    axes.set(xscale="log", xlim=GRID[[0, -1]])
    axes.set_ylim(evidence.min() - 0.25 * height, evidence.max() + 0.1 * height)
    axes.set(xlabel="prior precision α", ylabel="nats", title=f"curves at α = {start:g}")


def draw_runs(axes, found: dict[str, Runs], optimum: float) -> None:
    """α after every update, as it is and accelerated."""
    axes.axhline(optimum, color="0.2", lw=1.4, label="maximum of the evidence")
    for name, run in found.items():
        # The start at 1, so that a logarithmic axis has it.
        axes.plot(1 + np.arange(len(run.plain)), run.plain, color=COLOURS[name], lw=1.8, label=name)
        steps, alphas = zip(*run.accelerated, strict=True)
        axes.plot(1 + np.array(steps), alphas, ls="", marker="+", color=COLOURS[name], ms=7)
    axes.plot([], [], ls="", marker="+", color="0.4", ms=7, label="accelerated")
    axes.set(xscale="log", yscale="log", xlabel="1 + updates", ylabel="prior precision α")
    ticks = [tick for tick in (5, 10, 20, 50, 100, 200, 500) if _within(tick, axes.get_ylim())]
    axes.set_yticks(ticks, map(str, ticks))
    axes.set_yticks([], minor=True)


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


NOTES = """
{about}. Updates until |log(α/α*)| is at most {first:g} and {second:g}, the optimum α* being that
of the dense evidence; "first" is α after one. Accelerated: in cycles of three updates, the third
from where the first two point, looked at after every cycle; "settled" is when `maximise_evidence`
itself is done (tolerance 1e-6 in MacKay's update). Every update needs a posterior; what the
evidence bound 𝓜 needs besides, the effective dimension at other α, costs nothing here, where the
spectrum is known. The first updates of the bound and of the ELBO are at the maxima of the dense
curves to {gap:.0e} (log ratio).

On their toy data and network Antorán, Padhy et al. (2023) see 2 updates (MacKay), 5 (𝓜) and about
100 (ELBO); when an update counts as the last is not said. EM moves log α by about γ/d' of what is
left.
"""


def main() -> None:
    """Table and picture; the picture has the isotropic prior."""
    toy = _toy.make()
    data = _toy.train(toy.train).observations(toy.train)
    rows, about, gaps = [], [], []
    figure, axes = report.figure(2, 2, (11, 7.6))
    for prior, make in PRIORS.items():
        model = dense(data, make())
        optimum = model.optimum()
        about.append(
            f"{prior}: α* = {optimum:.4g}, γ = {float(model.parts(optimum)[3].item()):.2f}"
        )
        for line, start in zip(axes, STARTS, strict=True):
            found = {name: runs(data, make, step, start, optimum) for name, step in STEPS.items()}
            rows += [table_row([prior, f"{start:g}", n], r, optimum) for n, r in found.items()]
            gaps.append(gap(model, found, start))
            if prior == "isotropic":
                draw_curves(line[0], model, found, start)
                draw_runs(line[1], found, optimum)
    for panel in axes[0]:
        panel.legend(fontsize=9.5)
    header = ["prior", "start", "M-step", "first", *(f"to {c:g}" for c in CLOSE)]
    header += [*(f"accelerated, to {c:g}" for c in CLOSE), "settled"]
    notes = NOTES.format(about="; ".join(about), first=CLOSE[0], second=CLOSE[1], gap=max(gaps))
    report.save(NAME, "M-steps", header, rows, notes)
    report.save_figure(NAME, figure)


if __name__ == "__main__":
    main()
