"""Error of posterior samples per pass: both losses of stochastic gradients, and block-CG.

Softmax regression of MNIST digits (`LINMODELS_DATA`) on their central 20 × 20 pixels and an
intercept: 4,010 parameters, curvature held at the mode. Deviations by every method are compared
with the exact ones of the same draws.

    python -m benchmarks.paper.sampling_losses
"""

from functools import partial
from typing import NamedTuple

import jax
import lineax as lx
import numpy as np
import optax

import linmodels as lm
from benchmarks import _report
from benchmarks.paper import _digits
from linmodels._expansion import expanded
from linmodels.operators import multi_output

ROWS, CLASSES, PASSES = 5_000, 10, 20
GRID = 2.0 ** np.arange(-3, 3)
"""Learning rates, times the largest curvature of a minibatch, that are tried."""
RACE = 2
"""Passes that a descent of the others takes to choose its steps."""
EARLY = 5
"""Passes after which errors are compared a first time."""
MARKS = (2, EARLY, 10, 15, PASSES)
"""Passes at which block-CG is asked for its error."""
PROBLEMS = (
    # α, k, sizes of minibatches
    (30.0, 16, (500, 50)),
    (3.0, 64, (500,)),
    (3.0, 16, (500, 50)),
)
KEY = jax.random.key(0)
MOMENTUM = 0.9


def digits():
    images, labels = _digits.digits("train", ROWS)
    pixels = images[:, 4:24, 4:24].reshape(ROWS, -1)
    return np.concatenate([pixels, np.ones((ROWS, 1), np.float32)], 1), labels


def observe(x, labels):
    return lm.Observations(
        multi_output(lx.MatrixLinearOperator(x), CLASSES), labels, lm.Categorical()
    )


class Problem(NamedTuple):
    prior: lm.GaussianPrior
    mode: jax.Array
    information: np.ndarray
    """M, dense"""
    exact: np.ndarray
    """deviations for the largest number of samples"""
    dimension: float

    def data(self, batch_size):
        rows = lm.RowSlices(*digits(), batch_size=batch_size)
        return expanded(lm.Batched(rows, observe), self.mode)

    def error(self, deviations):
        """Mean of ‖Φe‖²_B over the mean of ‖Φζ‖²_B, for as many deviations as are given."""
        exact = self.exact[: len(deviations)]
        square = lambda v: np.einsum("kd,kd->", v @ self.information, v)
        left = np.asarray(deviations, np.float64).reshape(len(deviations), -1) - exact
        return square(left) / square(exact)


def information_of(x, outputs):
    """Σ (p_c δ_cc' − p_c p_c') x xᵀ, in the order of θ raveled from (pixels, classes)."""
    p = np.exp(outputs - outputs.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    x, size = x.astype(np.float64), x.shape[1]
    result = np.zeros((size, CLASSES, size, CLASSES))
    for a in range(CLASSES):
        for b in range(a, CLASSES):
            weights = p[:, a] * ((a == b) - p[:, b])
            result[:, a, :, b] = result[:, b, :, a] = (x * weights[:, None]).T @ x
    return result.reshape(size * CLASSES, -1)


def problem(alpha, num_samples):
    x, labels = digits()
    data = lm.Batched(lm.RowSlices(x, labels, batch_size=1_000), observe)
    prior = lm.GaussianPrior(alpha)
    arguments = {"num_samples": num_samples, "key": KEY}
    mode = lm.infer(data, prior, method=lm.BlockCG(), num_samples=1, key=KEY).posterior.mean
    information = information_of(x, x @ np.asarray(mode))
    fit = lm.infer(expanded(data, mode), prior, method=lm.Exact(), **arguments)
    exact = np.asarray(fit.posterior.deviations, np.float64).reshape(num_samples, -1)
    dimension = np.trace(
        np.linalg.solve(information + alpha * np.eye(len(information)), information)
    )
    return Problem(prior, mode, information, exact, float(dimension))


def descent(problem, batch_size, method, num_samples):
    """Passes and error after each of them, and the fit."""
    scale, seen = np.sqrt(float(problem.prior.alpha)), []

    def keep(passes, state):
        x = np.asarray(state.answer[:num_samples], np.float64) / scale
        seen.append((passes, problem.error(x)))

    arguments = {"num_samples": num_samples, "key": KEY, "throw": False}
    fit = lm.infer(
        problem.data(batch_size), problem.prior, method=method(callback=keep), **arguments
    )
    return np.array(seen), fit


def tuned(problem, batch_size, noise, num_samples, largest):
    """The recipe of the paper at the learning rate of the grid that ends best."""
    steps = PASSES * -(-ROWS // batch_size)
    found = {}
    for scale in GRID:
        rate = optax.linear_schedule(scale / largest, 0.0, steps)
        optimiser = optax.sgd(rate, MOMENTUM, nesterov=True)
        recipe = partial(lm.SampleThenOptimise, noise, PASSES, optimiser)
        seen, fit = descent(problem, batch_size, recipe, num_samples)
        if len(seen) and seen[-1, 0] == PASSES and fit.solver.descent.rate == 1:
            found[scale] = seen
    best = min(found, key=lambda scale: found[scale][-1, 1])
    return found[best], best


def conjugate_gradients(problem, num_samples):
    """Error after some numbers of passes, without the last check of the residual."""
    errors = []
    for passes in MARKS:
        method = lm.BlockCG("primal", 1e-12, passes)
        arguments = {"num_samples": num_samples, "key": KEY, "throw": False}
        fit = lm.infer(problem.data(500), problem.prior, method=method, **arguments)
        errors.append((passes, problem.error(fit.posterior.deviations)))
    return np.array(errors)


def study(alpha, num_samples, sizes):
    """Rows of the table, and curves by their names."""
    held = problem(alpha, num_samples)
    curves = {"block-CG": conjugate_gradients(held, num_samples)}
    gamma = held.dimension
    about = [f"{alpha:g}", f"{num_samples}", f"{gamma:,.0f}", f"{gamma / num_samples:.0f}"]
    cg = [after(curves["block-CG"], passes) for passes in (EARLY, PASSES)]
    rows = [[*about, "block-CG", "all", *(f"{error:.1e}" for error in cg), "", "", "1", ""]]
    for size in sizes:
        for noise, name in (("regulariser", "L′"), ("fit", "L")):
            automatic = partial(lm.SampleThenOptimise, noise, PASSES - RACE)
            seen, fit = descent(held, size, automatic, num_samples)
            went = fit.solver.descent
            best, scale = tuned(held, size, noise, num_samples, went.curvature)
            seen = seen + np.array([RACE, 0])
            curves[f"{name}, {size} rows, automatic"] = seen
            curves[f"{name}, {size} rows, grid"] = best
            own, other = after(seen, PASSES), after(best, PASSES)
            measured = went.variances.fit - went.variances.regulariser
            rows.append(
                [
                    *about,
                    name,
                    f"{size}",
                    f"{after(best, EARLY):.1e}",
                    f"{own:.1e} ({went.rate:g})",
                    f"{other:.1e} ({scale:g})",
                    f"{own / other:.2f}",
                    f"{other / cg[1]:.0e}",
                    f"{measured:.2g} / {went.variances.predicted_difference:.2g}",
                ]
            )
            print(rows[-1], flush=True)
    return rows, curves, about


def after(curve, passes):
    """The error that a curve has after a number of passes."""
    return curve[curve[:, 0] == passes, 1][0]


def drawn(studies):
    """One panel a problem."""
    made, axes = _report.figure(1, len(studies), (13, 4.2), sharey=True)
    styles = {"automatic": "-", "grid": ":"}
    for axis, (_, curves, about) in zip(axes[0], studies, strict=True):
        colours = {}
        for name, curve in curves.items():
            family = name.rsplit(", ", 1)[0]
            colour = colours.setdefault(family, f"C{len(colours)}")
            style = styles.get(name.rsplit(", ", 1)[-1], "--")
            axis.plot(curve[:, 0], curve[:, 1], style, color=colour, label=name)
        alpha, count, dimension, _ = about
        ticks = range(0, PASSES + 1, 5)
        axis.set(yscale="log", xlabel="passes over the data", xlim=(0, PASSES), xticks=ticks)
        axis.set_title(f"α = {alpha}, k = {count}, γ = {dimension}", fontsize=11)
        axis.legend(fontsize=7.5, loc="lower left")
    axes[0, 0].set_ylabel("squared relative error of deviations")
    _report.save_figure("paper/sampling_losses", made)


HEADER = [
    "α",
    "k",
    "γ",
    "γ/k",
    "method",
    "rows a step",
    f"after {EARLY} passes (grid)",
    "automatic (c)",
    "grid (c)",
    "automatic / grid",
    "grid / block-CG",
    "Var L − Var L′, measured / predicted",
]
NOTES = f"""
Error: mean ‖W(x − x*)‖² over mean ‖Wx*‖² of k deviations after {PASSES} passes over {ROWS:,}
digits of MNIST, softmax regression with 4,010 parameters, isotropic prior, curvature held at the
mode. Automatic: `SampleThenOptimise`, its race of {RACE} passes counted, without block-CG passes
that follow. Grid: the recipe of the paper, Nesterov momentum {MOMENTUM} and linear decay, at the
best of the learning rates {", ".join(f"{c:g}" for c in GRID)} over the largest curvature of a
minibatch (c), chosen by the error after {PASSES} passes itself.
"""


def main():
    studies = [study(*about) for about in PROBLEMS]
    rows = [row for found, *_ in studies for row in found]
    _report.save("paper/sampling_losses", "Posterior samples per pass", HEADER, rows, NOTES)
    drawn(studies)


if __name__ == "__main__":
    main()
