"""Learning α and β from one Krylov space against expectation maximisation by solves.

    python benchmarks/evidence_path.py

W is a diagonal times a cosine transform, so that the evidence is known exactly. Steps of EM with
MacKay's update, each a solve by block-CG with 16 samples, start from α = 1 and the variance of the
targets, and end where two have left α within 5 % of the exact one, told by an oracle.
"""

from typing import NamedTuple

import _report as report
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from block_cg import SPECTRA
from jax.scipy.fft import dct

import linmodels as lm
from linmodels.methods import EvidencePath

SIZE = 5_000
SAMPLES = 16
PROBES = 64
STEPS = 60
KEYS = 5


class Strengths(NamedTuple):
    """α, β, and log det(I + WᵀW) there, with the vector-passes that they took."""

    alpha: float
    beta: float
    log_determinant: float
    cost: int


def data(spectrum: np.ndarray, alpha: float, beta: float) -> tuple[lm.Observations, EvidencePath]:
    """Targets drawn from the model, and their exact evidence path."""
    rng = np.random.default_rng(0)
    scale = np.sqrt(spectrum)
    t = scale * rng.standard_normal(SIZE) / np.sqrt(alpha)
    t += rng.standard_normal(SIZE) / np.sqrt(beta)
    multiplier = jnp.asarray(scale, jnp.float32)
    operator = lx.FunctionLinearOperator(
        lambda x: multiplier * dct(x, norm="ortho"), jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    )
    exact = EvidencePath(spectrum, t**2, 0.0, 0, 0.0, float(SIZE), 0.0)
    return lm.Observations(operator, jnp.asarray(t, jnp.float32)), exact


def log_determinant(path: EvidencePath, alpha: float, beta: float) -> float:
    """Σ log(1 + βλ/α), over the mean of the probes where there are any."""
    logs = np.log1p(beta / alpha * path.eigenvalues)
    many = path.multiplicities
    return float(logs.sum() if many is None else logs @ many.mean(0))


def maximum(path: EvidencePath) -> tuple[float, float]:
    """MacKay's updates on a path until they stand still."""
    alpha, beta = 1.0, 1.0
    for _ in range(1_000):
        point = path.at(alpha, beta)
        gamma = float(point.effective_dimension[0])
        alpha, beta = (
            gamma / float(point.norm[0]) * alpha,
            (path.rank - gamma) / float(point.residual[0]),
        )
    return alpha, beta


def by_path(problem: lm.Observations, key: jax.Array) -> Strengths:
    """One space of 17 vectors, and for a small γ another one of up to 65."""
    by = lambda count: lm.evidence_path(
        problem, lm.GaussianPrior(), method=lm.BlockCG(), num_samples=count, key=key
    )
    first, path = by(SAMPLES), by(PROBES)
    alpha, beta = maximum(path)
    assert path.multiplicities is not None
    cost = first.passes * (SAMPLES + 1)
    cost += (path.passes - first.passes) * (len(path.multiplicities) + 1)
    return Strengths(alpha, beta, log_determinant(path, alpha, beta), cost)


def by_solves(problem: lm.Observations, wanted: float, key: jax.Array) -> list[Strengths]:
    """Steps of EM with the same draws; the last two are within 5 % of `wanted`, if any are."""
    alpha, beta, cost, steps = 1.0, 1 / float(jnp.var(problem.targets)), 0, []
    for _ in range(STEPS):
        known = lm.Observations(problem.design, problem.targets, lm.Gaussian(beta))
        fit = lm.infer(
            known,
            lm.GaussianPrior(alpha),
            method=lm.BlockCG(),
            num_samples=SAMPLES,
            key=key,
            throw=False,
        )
        assert fit.solver is not None
        cost += fit.solver.passes * (SAMPLES + 1)
        gamma, mean = float(fit.effective_dimension), fit.posterior.mean
        left = problem.targets - problem.design.mv(mean)
        alpha, beta = gamma / float(mean @ mean), (SIZE - gamma) / float(left @ left)
        steps.append(Strengths(alpha, beta, np.nan, cost))
        if len(steps) > 1 and all(abs(s.alpha / wanted - 1) <= 0.05 for s in steps[-2:]):
            break
    return steps


def solves(problem: lm.Observations, key: jax.Array) -> tuple[int, int]:
    """Passes for samples at the maximum of a path, behind it and alone."""
    about = {"method": lm.BlockCG(), "num_samples": SAMPLES, "key": key}
    behind = lm.maximise_evidence(problem, lm.GaussianPrior(), **about)
    known = lm.Observations(problem.design, problem.targets, behind.likelihood)
    alone = lm.infer(known, behind.prior, **about)
    assert behind.solver is not None
    assert alone.solver is not None
    return behind.solver.passes, alone.solver.passes


def row(name: str, spectrum: np.ndarray) -> list[str]:
    """One line of the table: medians over keys."""
    problem, exact = data(spectrum, alpha=10.0, beta=4.0)
    alpha, beta = maximum(exact)
    keys = [jax.random.key(i) for i in range(KEYS)]
    ours = [by_path(problem, key) for key in keys]
    theirs = [by_solves(problem, alpha, key) for key in keys[:1]]
    truth = log_determinant(exact, alpha, beta)
    off = [abs(s.alpha / alpha - 1) for s in ours]
    off_logs = [abs(s.log_determinant / truth - 1) for s in ours]
    cost, their_cost = np.median([s.cost for s in ours]), theirs[0][-1].cost
    reached = abs(theirs[0][-1].alpha / alpha - 1) <= 0.05
    behind, alone = solves(problem, keys[0])
    return [
        name,
        f"{alpha:.2f}",
        f"{float(exact.at(alpha, beta).effective_dimension[0]):.0f}",
        f"{100 * np.median(off):.1f} % (worst {100 * max(off):.1f})",
        f"{100 * np.median(off_logs):.1f} % (worst {100 * max(off_logs):.1f})",
        f"{cost:.0f}",
        f"{their_cost} in {len(theirs[0])} steps" + ("" if reached else ", not reached"),
        f"{cost / their_cost:.3f}",
        f"{behind} / {alone}",
    ]


NOTES = """
α and log det(I + WᵀW) at the maximum of a path from one Krylov space with 16 probes, and for a γ
below 100 another one with up to 64, medians of 5 keys, against the exact ones; vector-passes:
products with WᵀW times vectors. EM: steps by solves of 16 samples and the mean until two steps
leave α within 5 % of the exact one, which only an oracle knows; it starts a decade below. What is
left is the noise of the probes, √(2/(probes γ)) of γ. Passes of a solve: for 16 samples at the
maximum, behind the path, whose Ritz pairs precondition it, and alone.
"""


def main() -> None:
    """Four spectra of 5,000, scaled to a largest eigenvalue of 1,000."""
    header = ["W", "α", "γ", "α off by", "log det off by"]
    header += ["vector-passes, path", "vector-passes, EM", "ratio", "passes of a solve"]
    rows = []
    for name in ("1e5/i", "1e5/i²", "log-flat"):
        values = SPECTRA[name](SIZE)
        rows.append(row(name.replace("1e5", "1e3"), 1e-2 * values))
        print(rows[-1], flush=True)
    report.save("evidence_path", "The evidence from one Krylov space", header, rows, NOTES)


if __name__ == "__main__":
    main()
