"""Prior and posterior functions before and after the prior's strength is learned.

    python -m benchmarks.paper.prior_illustration

The linearised toy network with weights of unit variance (α = 1), and at the α that maximises the
evidence; half a minute. The first figure of Antorán, Padhy et al. (2023), on data of our own.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import linmodels as lm
from benchmarks import _report as report
from benchmarks.paper import _toy

NAME = "paper/prior_illustration"
DRAWS = 12
LEVEL = 0.9
BLUE, GREY, RED, INK = "#1f5fa8", "#8a8f98", "#c0392b", "#22262b"
LIMITS = (-22.0, 22.0), (-4.2, 4.2)
"""Of y, for functions from the prior and from the posterior."""


class Case(NamedTuple):
    """A fit, what to call it, and whether predictions have the linear model's own mean."""

    name: str
    fit: lm.Fit
    own_mean: bool = False

    def predict(self, network: _toy.Linearised, x: np.ndarray) -> lm.Prediction:
        """At x, by default around the network's output."""
        if self.own_mean:
            return self.fit.posterior.predict(*network.rows(x))
        return network.predict(self.fit.posterior, x)


class Functions(NamedTuple):
    """A mean, its standard deviation and draws, on a grid."""

    mean: np.ndarray
    std: np.ndarray
    draws: np.ndarray


def fits(data: lm.Observations) -> list[Case]:
    """α = 1 and learned; then learned with the linear model's mean, and with a g-prior."""
    arguments = {"num_samples": DRAWS, "key": jax.random.key(0)}
    before = lm.infer(data, lm.GaussianPrior(1.0), **arguments)
    after = lm.maximise_evidence(data, lm.GaussianPrior(), **arguments)
    g_prior = lm.maximise_evidence(data, lm.GaussianPrior.g_prior(), **arguments)
    return [
        Case("before learning", before),
        Case("after learning", after),
        Case("… around the mean of the linear model", after, own_mean=True),
        Case("after learning, g-prior", g_prior),
        Case("… around the mean of the linear model", g_prior, own_mean=True),
    ]


def prior_functions(network: _toy.Linearised, alpha: float, x: np.ndarray) -> Functions:
    """o + Φθ⁰ with independent weights of variance 1/α."""
    design, offset = network.rows(x)
    phi = np.asarray(design.matrix, np.float64)
    white = np.random.default_rng(0).standard_normal((phi.shape[1], DRAWS))
    std = np.sqrt(np.sum(phi**2, axis=1) / alpha)
    return Functions(offset, std, offset + (phi @ white / np.sqrt(alpha)).T)


def posterior_functions(network: _toy.Linearised, fit: lm.Fit, x: np.ndarray) -> Functions:
    """The network's output and the deviations of the linear model."""
    prediction = network.predict(fit.posterior, x)
    values = prediction.mean, prediction.std(), prediction.samples()
    return Functions(*map(np.asarray, values))


def draw(axes, functions: Functions, toy: _toy.Toy, limits: tuple[float, float]) -> None:
    """Draws, a band of two standard deviations, and the data."""
    x = toy.curve.x
    band = functions.mean - 2 * functions.std, functions.mean + 2 * functions.std
    axes.fill_between(x, *band, color=BLUE, alpha=0.13, lw=0, label="± 2 standard deviations")
    lines = axes.plot(x, functions.draws.T, color=BLUE, lw=0.7, alpha=0.75)
    lines[0].set_label(f"{len(functions.draws)} draws")
    axes.plot(x, functions.mean, color=INK, lw=1.6, label="mean")
    axes.plot(*toy.curve, color=RED, lw=1.2, ls=(0, (4, 2)), label="the truth")
    axes.plot(*toy.train, ls="", marker="o", ms=2.2, mew=0, color=GREY, label="data")
    axes.set(xlim=x[[0, -1]], ylim=limits)


def picture(network: _toy.Linearised, cases: list[Case], toy: _toy.Toy) -> None:
    """Two by two: before and after, prior and posterior."""
    figure, axes = report.figure(2, 2, (10.5, 7.2), sharex=True)
    for (left, right), (name, fit, _) in zip(axes, cases, strict=True):
        alpha = float(fit.prior.alpha)
        draw(left, prior_functions(network, alpha, toy.curve.x), toy, LIMITS[0])
        draw(right, posterior_functions(network, fit, toy.curve.x), toy, LIMITS[1])
        left.set_title(f"{name}: prior, α = {alpha:.3g}", loc="left")
        right.set_title(f"{name}: posterior", loc="left")
        left.set_ylabel("y")
    for panel in axes[1]:
        panel.set_xlabel("x")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    report.save_figure(NAME, figure)


def scores(prediction: lm.Prediction, targets: np.ndarray) -> list[str]:
    """Log-likelihood a target, coverage, and the median width of the interval."""
    y = jnp.asarray(targets)
    lower, upper = prediction.interval(LEVEL)
    covered = lm.metrics.coverage(y, lower, upper)
    width = float(jnp.median(upper - lower))
    likelihood = float(jnp.mean(prediction.log_prob(y)))
    return [f"{likelihood:.3f}", f"{100 * float(covered):.1f} %", f"{width:.2f}"]


def table_row(network: _toy.Linearised, case: Case, toy: _toy.Toy) -> list[str]:
    """What is learned, and how well held-out targets are predicted."""
    fit = case.fit
    row = [case.name, f"{float(fit.prior.alpha):.3g}", f"{float(fit.effective_dimension):.1f}"]
    row.append(f"{float(fit.log_evidence):.1f}")
    for data in (toy.held_out, toy.gap):
        row += scores(case.predict(network, data.x), data.y)
    return row


NOTES = f"""
Evidence in nats. Held-out: 200 new targets where there are data, and 100 in the gap; the mean
log-likelihood of one (nats), the share inside the {100 * LEVEL:.0f} % intervals, and the median
width of those, in the units of y: the targets' standard deviation is {{deviation:.2f}}, the
noise's {_toy.NOISE}. The noise is known. Deviations are exact, and around the network's own
output where the table does not say otherwise.

With α = 1 functions from the prior have a standard deviation of {{before:.1f}} (root mean square
over the data), with the learned α of {{after:.1f}}; the evidence decides without a look at
held-out data. Where there are data the prior hardly matters. In the gap intervals covered the
truth before by being wider than any target; learned ones are of the targets' own size, and cover
much less than they say: the network's output there is a guess that no linearisation around it
corrects. The linear model's own mean is the better guess here.
"""


def main() -> None:
    """Fits, table and picture."""
    toy = _toy.make()
    network = _toy.train(toy.train)
    cases = fits(network.observations(toy.train))
    header = ["prior", "α", "γ", "log evidence"]
    for place in ("held-out", "gap"):
        header += [f"{place}: log-likelihood", f"{LEVEL:.0%} coverage", "width"]
    spread = lambda case: np.sqrt(
        np.mean(prior_functions(network, float(case.fit.prior.alpha), toy.train.x).std ** 2)
    )
    notes = NOTES.format(
        deviation=toy.train.y.std(), before=spread(cases[0]), after=spread(cases[1])
    )
    rows = [table_row(network, case, toy) for case in cases]
    report.save(NAME, "A prior before and after learning", header, rows, notes)
    picture(network, cases[:2], toy)


if __name__ == "__main__":
    main()
