"""(b) How close approximate predictives are to the one of the full covariance."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

import linmodels as lm
from benchmarks import _report
from benchmarks.paper._digits import Digits
from benchmarks.paper.mnist import dense, torch_laplace
from benchmarks.paper.mnist.claims import Claim
from benchmarks.paper.mnist.distances import DRAWS, Logits, divergence, wasserstein
from benchmarks.paper.mnist.problem import Problem, jacobians

SAMPLES = 64
SKETCH = lm.krylov.Nystrom(300)
"""What preconditions them, from one pass."""
PASSES = 10
"""Over the data, in which samples are claimed to be good enough."""


class Row(NamedTuple):
    """One approximation on one network."""

    network: str
    method: str
    alpha: float
    probit: float
    """symmetrised KL between probit probabilities"""
    averaged: float
    """the same between mean softmax probabilities"""
    wasserstein: float
    passes: int | None = None
    error: float | None = None
    """ε² of the samples, as estimated, over the 1/(8k) that it was to reach"""


def exact_logits(problem: Problem, held: dense.DensePosterior, test: Digits) -> Logits:
    """The predictive of the full covariance, centred on the network's outputs."""
    parts = jacobians(problem.linearised, test.inputs)
    covariance = jnp.concatenate([held.covariance(rows) for rows in parts])
    return Logits(problem.linearised.outputs(test.inputs), covariance)


def compared(
    name: str, problem: Problem, gram: Array, alpha: float, test: Digits, *, key: Array
) -> list[Row]:
    """Every approximation at one α of an isotropic prior."""
    sample_key, other_key, draw_key = jax.random.split(key, 3)
    held = dense.posterior(gram, jnp.full(problem.size, alpha**-0.5, jnp.float32))
    exact = exact_logits(problem, held, test)
    targets = exact.probit(), exact.averaged(key=draw_key)

    def row(method: str, logits: Logits, average: Array | None = None, **about) -> Row:
        average = logits.averaged(key=draw_key) if average is None else average
        apart = divergence(logits.probit(), targets[0]), divergence(average, targets[1])
        return Row(name, method, alpha, *apart, wasserstein(logits, exact), **about)

    def sampled(method: str, deviations, **about) -> Row:
        predicted = problem.linearised.predict(_posterior(deviations), test.inputs)
        logits = Logits.of_deviations(predicted.mean, predicted.deviations)
        return row(method, logits, predicted.probabilities(), **about)

    prior, method = lm.GaussianPrior(alpha), lm.BlockCG("primal", preconditioner=SKETCH)
    fit = problem.sampled(prior, method=method, num_samples=SAMPLES, key=sample_key)
    report = fit.solver
    solved = {"passes": report.passes, "error": report.estimate / report.tolerance}
    direct = problem.shaped(held.deviations(SAMPLES, key=other_key))
    rows = [
        row("MAP", Logits(exact.mean, jnp.zeros_like(exact.covariance))),
        sampled(f"{SAMPLES} samples", fit.posterior.deviations, **solved),
        sampled(f"{SAMPLES} exact samples", direct),
    ]
    kinds = torch_laplace.DIAGONAL, torch_laplace.KFAC
    for kind in kinds if torch_laplace.available() else ():
        theirs = torch_laplace.fitted(problem, kind).at(alpha)
        rows.append(row(kind.name, Logits(exact.mean, theirs.covariance(test.inputs))))
    return rows


def _posterior(deviations) -> lm.Posterior:
    """Deviations as a posterior, for the predictions of a linearised network."""
    mean = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), deviations)
    return lm.Posterior(mean, deviations, None, lm.Categorical())


def claims(rows: list[Row]) -> list[Claim]:
    """Samples are closer to the full covariance than KFAC, and take few passes."""
    found, samples = [], f"{SAMPLES} samples"
    for network in dict.fromkeys(row.network for row in rows):
        of = {row.method: row for row in rows if row.network == network}
        ours, theirs = of[samples], of.get("KFAC")
        if theirs is not None:
            for field, name, aim in (("probit", "sym. KL", 5), ("wasserstein", "W2", 1)):
                own, other = getattr(ours, field), getattr(theirs, field)
                text = f"{network}: {SAMPLES} samples closer than KFAC in {name}"
                text += f" (aim: {aim} times)" * (aim > 1)
                measured = f"{own:.1e} against {other:.1e}"
                if own > 0:
                    measured += f": {other / own:.2g} times"
                found.append(Claim(text, measured, other > aim * own))
        met = bool(ours.passes <= PASSES and ours.error <= 1)
        text = f"{network}: samples within {PASSES} passes, solver error below Monte Carlo error"
        measured = f"{ours.passes} passes, ε² {ours.error:.2g} of 1/(8k)"
        found.append(Claim(text, measured, met))
    return found


HEADER = ["network", "method", "α", "sym. KL, probit", "sym. KL, averaged", "W2", "passes", "ε² 8k"]
NOTES = f"""
Distance of predictives on the test digits from the one of the full covariance, all at one α of an
isotropic prior, that of the full covariance's evidence, and all centred on the network's outputs.
Sym. KL is of classes, in nats: between probit probabilities, and between softmax probabilities
averaged over samples ({SAMPLES} where there are as many, else {DRAWS:,} from the covariance of the
logits). W2 is of the logits of an image. "{SAMPLES} samples" are by block-CG, preconditioned by
`krylov.Nystrom({SKETCH.rank})`, whose pass is among those counted, though it is of
{SKETCH.rank + 10} vectors in place of {SAMPLES + 1}; "exact samples", by the Cholesky factor, show
what is left to the number of samples.
Diagonal and KFAC are those of laplace-torch, of the generalised Gauss-Newton matrix. The full
covariance is dense, in float32; a test compares it with `linmodels.Exact`, which is float64.
"""


def described(row: Row) -> list[str]:
    """A row of the table."""
    apart = (f"{value:.2e}" for value in (row.probit, row.averaged, row.wasserstein))
    solved = ["", ""] if row.passes is None else [f"{row.passes}", f"{row.error:.2g}"]
    return [row.network, row.method, f"{row.alpha:.3g}", *apart, *solved]


def drawn(name: str, rows: list[Row]) -> None:
    """Distances by method, a colour a network."""
    made, axes = _report.figure(1, 3, (14, 4), sharey=True)
    methods = list(dict.fromkeys(row.method for row in rows))
    networks = list(dict.fromkeys(row.network for row in rows))
    fields = "probit", "averaged", "wasserstein"
    titles = "symmetrised KL, probit", "symmetrised KL, averaged softmax", "Wasserstein-2 of logits"
    for axis, field, title in zip(axes[0], fields, titles, strict=True):
        for row in rows:
            place = methods.index(row.method) + 0.15 * networks.index(row.network)
            first = row.network if row.method == methods[0] else None
            colour = f"C{networks.index(row.network)}"
            axis.plot(getattr(row, field), place, "o", color=colour, label=first)
        axis.set(xscale="log", title=title, yticks=range(len(methods)), yticklabels=methods)
        axis.grid(axis="y", alpha=0.3)
    axes[0, 0].invert_yaxis()
    axes[0, 0].legend(fontsize=8)
    _report.save_figure(name, made)
