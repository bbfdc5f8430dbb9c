"""Learning α and β from one Krylov space against expectation maximisation by solves.

    python benchmarks/evidence_path.py

W is a diagonal times a cosine transform, so that the evidence is known exactly. Steps of EM are
those that `maximise_evidence` takes where it has no path: a solve each from where the last one
ended, with the same draws, and MacKay's update, until steps are a tenth of their standard error.
"""

from dataclasses import fields
from typing import NamedTuple

import _report as report
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from block_cg import SPECTRA
from jax.scipy.fft import dct

import linmodels as lm
from linmodels.methods import AbstractSystem, EvidencePath
from linmodels.methods.block_system import BlockSystem

SIZE = 5_000
SAMPLES = 16
PROBES = 64
KEYS = 5
CLOSE = 0.05
"""What α may be off."""


class Strengths(NamedTuple):
    """α, β, and log det(I + WᵀW) there, with the vector-passes that they took."""

    alpha: float
    beta: float
    log_determinant: float
    cost: int
    alpha_error: float = 0.0
    """standard error of log α"""


class StepByStep(BlockSystem):
    """Without a path."""

    @property
    def has_path(self) -> bool:
        """No."""
        return False


class Stepping(lm.BlockCG):
    """Block-CG that learns by solves."""

    def prepare(self, data, prior, *, num_samples, key) -> AbstractSystem:
        """As block-CG does, without a path."""
        made = super().prepare(data, prior, num_samples=num_samples, key=key)
        return StepByStep(**{field.name: getattr(made, field.name) for field in fields(made)})


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
    """One space of 12 vectors, and for a small γ another one of up to 65."""
    by = lambda count: lm.evidence_path(
        problem, lm.GaussianPrior(), method=lm.BlockCG(), num_samples=count, key=key
    )
    first, path = by(SAMPLES), by(PROBES)
    alpha, beta = maximum(path)
    assert path.multiplicities is not None
    assert first.multiplicities is not None
    cost = first.passes * (len(first.multiplicities) + 1)
    cost += (path.passes - first.passes) * (len(path.multiplicities) + 1)
    error = path.strength_errors(alpha, beta, noise_known=False).alpha
    return Strengths(alpha, beta, log_determinant(path, alpha, beta), cost, error)


def by_solves(problem: lm.Observations, samples: int, key: jax.Array) -> Strengths:
    """Steps of EM until they say that they have settled."""
    passes = []
    fit = lm.maximise_evidence(
        problem,
        lm.GaussianPrior(),
        method=Stepping(callback=passes.append),
        num_samples=samples,
        key=key,
    )
    cost = len(passes) * (samples + 1)
    return Strengths(float(fit.prior.alpha), float(fit.noise_scale[0]), np.nan, cost)


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
    off = lambda found: [abs(s.alpha / alpha - 1) for s in found]
    ours = [by_path(problem, key) for key in keys]
    for samples in (SAMPLES, PROBES):
        theirs = [by_solves(problem, samples, key) for key in keys]
        if np.median(off(theirs)) <= CLOSE:
            break
    truth = log_determinant(exact, alpha, beta)
    off_logs = [abs(s.log_determinant / truth - 1) for s in ours]
    cost, their_cost = (np.median([s.cost for s in found]) for found in (ours, theirs))
    behind, alone = solves(problem, keys[0])
    percent = lambda values: f"{100 * np.median(values):.1f} % (worst {100 * max(values):.1f})"
    return [
        name,
        f"{alpha:.2f}",
        f"{float(exact.at(alpha, beta).effective_dimension[0]):.0f}",
        f"{percent(off(ours))}, ± {100 * np.median([s.alpha_error for s in ours]):.1f}",
        percent(off_logs),
        f"{cost:.0f}",
        f"{their_cost:.0f} with {samples} samples",
        percent(off(theirs)),
        f"{cost / their_cost:.2f}",
        f"{behind} / {alone}",
    ]


NOTES = """
α and log det(I + WᵀW) at the maximum of a path from one Krylov space with 11 probes, and where the
standard error of log α is above 5 % another one with up to 64, medians of 5 keys, against the exact
ones; ±: the standard error of log α that the path states. Vector-passes: products with WᵀW times
vectors. EM: steps by solves, each from the one before, until `maximise_evidence` takes them for
settled; with 16 samples, or with 64 where those leave α more than 5 % off. Passes of a solve: for
16 samples at the maximum, behind the path, whose Ritz pairs precondition it, and alone.
"""


def main() -> None:
    """Three spectra of 5,000, scaled to a largest eigenvalue of 1,000."""
    header = ["W", "α", "γ", "α off by", "log det off by", "vector-passes, path"]
    header += ["vector-passes, EM", "α off by, EM", "ratio", "passes of a solve"]
    rows = []
    for name in ("1e5/i", "1e5/i²", "log-flat"):
        values = SPECTRA[name](SIZE)
        rows.append(row(name.replace("1e5", "1e3"), 1e-2 * values))
        print(rows[-1], flush=True)
    report.save("evidence_path", "The evidence from one Krylov space", header, rows, NOTES)


if __name__ == "__main__":
    main()
