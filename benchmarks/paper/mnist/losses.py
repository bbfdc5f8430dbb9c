"""(a) Samples by stochastic gradients on L and L′, and by block-CG, per pass over the digits."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import linmodels as lm
from benchmarks import _report
from benchmarks.paper._digits import Digits
from benchmarks.paper.mnist import dense
from benchmarks.paper.mnist.distances import Logits, divergence, wasserstein
from benchmarks.paper.mnist.fidelity import exact_logits
from benchmarks.paper.mnist.problem import Problem, flat_deviations

SAMPLES, PASSES = 16, 20
RACE = 2
"""Passes that a descent of the others takes to choose its steps."""
MARKS = (1, 2, 3, 5, 7, 10, 15, 20)
"""Passes at which block-CG is asked for its samples."""
ROUNDING = 1e-9
"""ε² of the block-CG that stands for exact samples where `lm.Exact` is out of reach."""


class Point(NamedTuple):
    """What samples are worth after some passes."""

    passes: int
    error: float
    """‖J e‖²_B over ‖J ζ‖²_B, e the distance from the exact samples of the same draws"""
    divergence: float
    """of their predictive from the one of the full covariance: symmetrised KL, probit"""
    wasserstein: float


class Judge(NamedTuple):
    """What deviations are compared with."""

    problem: Problem
    gram: Array
    exact: Float[np.ndarray, "k d"]
    logits: Logits
    """of the full covariance"""
    test: Digits

    def point(self, passes: int, deviations: Array) -> Point:
        """Judges deviations (k, d')."""
        left = jnp.asarray(deviations) - self.exact
        square = lambda v: float(jnp.sum(v * jnp.matmul(v, self.gram, precision="highest")))
        linearised = self.problem.linearised
        jacobian = linearised.jacobian(self.test.inputs)
        spread = jax.vmap(jacobian.mv)(self.problem.shaped(deviations))
        found = Logits.of_deviations(self.logits.mean, spread)
        error = square(left) / square(jnp.asarray(self.exact))
        apart = divergence(found.probit(), self.logits.probit())
        return Point(passes, error, apart, wasserstein(found, self.logits))


def study(
    problem: Problem,
    gram: Array,
    alpha: float,
    test: Digits,
    sizes: tuple[int, ...],
    *,
    on_host: bool,
    key: Array,
) -> tuple[dict[str, list[Point]], Point]:
    """Curves by their names, and the point of the exact samples.

    Args:
        problem: the linear model.
        gram: M.
        alpha: of its g-prior.
        test: images whose predictions are judged.
        sizes: images a minibatch has.
        on_host: exact samples are those of `lm.Exact`.
        key: of the draws, the same for all.
    """
    factor = dense.g_prior_scale(gram)
    prior = dense.as_prior(problem, factor, np.array([alpha]))
    scale = factor / np.sqrt(np.float32(alpha))
    about = {"num_samples": SAMPLES, "key": key}
    reference = lm.Exact() if on_host else lm.BlockCG("primal", ROUNDING, 500)
    exact = flat_deviations(problem.sampled(prior, method=reference, **about))
    logits = exact_logits(problem, dense.posterior(gram, scale), test)
    judge = Judge(problem, gram, exact, logits, test)
    curves = {}
    for size in sizes:
        small = problem._replace(batch_size=size)
        for noise, name in (("regulariser", "L′"), ("fit", "L")):
            curve: list[Point] = []
            keep = _keeper(judge, scale, curve)
            method = lm.SampleThenOptimise(noise, PASSES - RACE, callback=keep)
            small.sampled(prior, method=method, **about)
            curves[f"{name}, {size} a step"] = curve
            print(name, size, curve[-1], flush=True)
    curves["block-CG"] = []
    for passes in MARKS:
        fit = problem.sampled(prior, method=lm.BlockCG("primal", 1e-12, passes), **about)
        curves["block-CG"].append(judge.point(passes, flat_deviations(fit)))
        print("block-CG", curves["block-CG"][-1], flush=True)
    return curves, judge.point(0, jnp.asarray(exact))


def _keeper(judge: Judge, scale: Array, curve: list[Point]) -> Callable:
    """Judges whitened iterates after every pass, those of the race counted first."""

    def keep(passes, state) -> None:
        if passes + RACE > (curve[-1].passes if curve else 0):
            curve.append(judge.point(passes + RACE, scale * state.answer[:SAMPLES]))

    return keep


SHOWN = (3, 5, 10, PASSES)
HEADER = [
    "method",
    *(f"error, {passes} passes" for passes in SHOWN),
    *(f"sym. KL, {passes} passes" for passes in SHOWN),
    *(f"W2, {passes} passes" for passes in SHOWN),
]


def described(name: str, curve: list[Point], exact: Point) -> list[str]:
    """A row of the table; predictives of the exact samples of the same draws in its last line."""
    at = {point.passes: point for point in curve}
    points = [at.get(passes) for passes in SHOWN] if curve else [exact] * len(SHOWN)
    cells = lambda field: ["" if p is None else f"{getattr(p, field):.1e}" for p in points]
    return [name, *cells("error"), *cells("divergence"), *cells("wasserstein")]


def drawn(name: str, curves: dict[str, list[Point]], exact: Point) -> None:
    """Error by pass, and what predictions make of it."""
    made, axes = _report.figure(1, 3, (14, 4))
    for label, curve in curves.items():
        style = "o-" if label == "block-CG" else "-"
        points = np.array(curve)
        for axis, column in zip(axes[0], (1, 2, 3), strict=True):
            axis.plot(points[:, 0], points[:, column], style, label=label, markersize=3)
    axes[0, 1].axhline(exact.divergence, color="grey", linestyle=":", label="exact samples")
    axes[0, 2].axhline(exact.wasserstein, color="grey", linestyle=":", label="exact samples")
    titles = "squared relative error of samples", "symmetrised KL (nats)", "Wasserstein-2 of logits"
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set(yscale="log", xlabel="passes over the digits", title=title)
        axis.legend(fontsize=8)
    _report.save_figure(name, made)


def notes(alpha: float, *, on_host: bool) -> str:
    """What stands below the table."""
    exact = "`linmodels.Exact`" if on_host else f"block-CG to ε² = {ROUNDING:g}"
    return f"""
{SAMPLES} samples at α = {alpha:.3g} of the g-prior, as the full covariance learns it. Error: ‖J e‖²
over ‖J ζ‖² in the norm of B, e the distance from the exact samples of the same draws, by {exact}.
L′ has the noise in the regulariser, L in the fit; both by `SampleThenOptimise` at automatic steps,
{PASSES} passes with the race, without the block-CG passes that follow. Sym. KL (probit, in nats)
and W2 (of logits) are the predictive's distances from the one of the full covariance on the test
digits; those of the exact samples are what {SAMPLES} samples can give.
"""
