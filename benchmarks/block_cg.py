"""Block conjugate gradients against vmapped `lineax.CG`: passes and time at equal true error.

    python benchmarks/block_cg.py [--quick]

Deviations of a posterior, H x = z + Wᵀu with H = I + WᵀW, k = 64 and the mean. W is a diagonal
times a cosine transform, so that the truth is known; or a sparse matrix of 1 % entries. An error is
E‖W(x − x*)‖² / E‖Wx*‖².
"""

import argparse
import statistics
from collections.abc import Callable

import _report as report
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.experimental.sparse import BCOO
from jax.scipy.fft import dct, idct

import linmodels as lm
from linmodels.krylov import AbstractStoppingRule, block_cg
from linmodels.methods.stopping import PrimalRule

K = 64
SPECTRA = {
    "1e5/i": lambda d: 1e5 / np.arange(1, d + 1),
    "1e5/i²": lambda d: 1e5 / np.arange(1.0, d + 1) ** 2,
    "log-flat": lambda d: np.logspace(5, -5, d),
    "constant": lambda d: np.full(d, 1e5),
}


class Problem(eqx.Module):
    """W by products, right-hand sides (k + 1, d) and their solutions."""

    operator: lx.AbstractLinearOperator
    rhs: jax.Array
    truth: jax.Array

    def product(self, x):
        """H x of every vector."""
        forward = jax.vmap(self.operator.mv)
        return x + jax.vmap(self.operator.T.mv)(forward(x))


class TrueError(AbstractStoppingRule):
    """Stops where the true error is below the tolerance: an oracle's rule, for comparison."""

    problem: Problem
    tolerance: float

    def measure(self, iterate, residual, rhs):
        """‖W(x − x*)‖²."""
        return jnp.sum(jax.vmap(self.problem.operator.mv)(iterate - self.problem.truth) ** 2, 1)

    def met(self, progress):
        """The mean over all columns, relative to the truth's."""
        return bool(progress.measure.sum() <= self.tolerance * size(self.problem))


class Told(AbstractStoppingRule):
    """Stops after so many passes."""

    passes: int = eqx.field(static=True)

    def measure(self, iterate, residual, rhs):
        """Nothing is needed."""
        return ()

    def met(self, progress):
        """Whether that many are done."""
        return progress.passes >= self.passes


def size(problem: Problem) -> float:
    """Σ‖Wx*‖²."""
    return float(jnp.sum(jax.vmap(problem.operator.mv)(problem.truth) ** 2))


def cosine(values: np.ndarray) -> Problem:
    """W = diag(√λ) · DCT."""
    scale = jnp.asarray(np.sqrt(values), jnp.float32)
    shape = jax.ShapeDtypeStruct((len(values),), jnp.float32)
    operator = lx.FunctionLinearOperator(lambda x: scale * dct(x, norm="ortho"), shape)
    z, u = np.random.default_rng(0).standard_normal((2, K + 1, len(values)))
    z[-1] = 0
    rotated = z + np.sqrt(values) * u
    back = lambda v: idct(jnp.asarray(v, jnp.float32), norm="ortho")
    return Problem(operator, back(rotated), back(rotated / (1 + values)))


def sparse(n: int, d: int) -> Problem:
    """One entry in a hundred is standard normal."""
    rng = np.random.default_rng(0)
    count = n * d // 100
    places = np.unique(rng.integers(0, n * d, count))
    indices = np.stack([places // d, places % d], axis=1)
    entries = jnp.asarray(rng.standard_normal(len(places)), jnp.float32)
    matrix = BCOO((entries, jnp.asarray(indices)), shape=(n, d), indices_sorted=True)
    dense = np.asarray(matrix.todense(), np.float64)
    z, u = rng.standard_normal((K + 1, d)), rng.standard_normal((K + 1, n))
    rhs = z + u @ dense
    truth = np.linalg.solve(np.eye(d) + dense.T @ dense, rhs.T).T
    arrays = (jnp.asarray(v, jnp.float32) for v in (rhs, truth))
    return Problem(lm.operators.Sparse(matrix), *arrays)


@eqx.filter_jit
def conjugate_gradients(problem: Problem, steps: int):
    """`lineax.CG` for every column; steps of a loop whose every step is a pass."""
    operator = lx.FunctionLinearOperator(
        lambda x: problem.product(x[None])[0],
        jax.ShapeDtypeStruct(problem.rhs.shape[1:], jnp.float32),
        lx.positive_semidefinite_tag,
    )
    solver = lx.CG(rtol=1e-12, atol=0.0, max_steps=steps, stabilise_every=None)
    solve = lambda b: lx.linear_solve(operator, b, solver, throw=False).value
    return jax.vmap(solve)(problem.rhs)


def error(problem: Problem, value) -> float:
    """The true error, relative."""
    left = jax.vmap(problem.operator.mv)(value - problem.truth)
    return float(jnp.sum(left**2)) / size(problem)


def fewest_steps(problem: Problem, tolerance: float, limit: int = 2_000) -> int | None:
    """Steps that `lineax.CG` needs, by doubling and bisection to 5 %."""
    few, many = 0, 4
    while error(problem, conjugate_gradients(problem, many)) > tolerance:
        few, many = many, 2 * many
        if few >= limit:
            return None
    while many - few > max(1, 0.05 * many):
        middle = (few + many) // 2
        reached = error(problem, conjugate_gradients(problem, middle)) <= tolerance
        few, many = (few, middle) if reached else (middle, many)
    return many


def timed(run: Callable[[], object]) -> float:
    """Median of three after a first call that compiles."""
    run()
    return statistics.median(report.seconds(lambda: jax.block_until_ready(run()), 3))


def row(name: str, problem: Problem, tolerance: float) -> list[str]:
    """One line of the table."""
    product = eqx.filter_jit(lambda p, x: p.product(x))
    solve = lambda rule: block_cg(
        lambda x: product(problem, x), problem.rhs, rule, max_passes=2_000
    )
    oracle, own = TrueError(problem, tolerance), PrimalRule(tolerance)
    ours, ruled, theirs = solve(oracle), solve(own), fewest_steps(problem, tolerance)
    own_time = timed(lambda: solve(own).value)
    flag = "" if ruled.result == lm.RESULTS.successful else " (flagged)"
    own_cells = [f"{ruled.progress.passes}{flag}", f"{error(problem, ruled.value):.1e}"]
    if theirs is None or ours.result != lm.RESULTS.successful:
        passes = ["not reached", "> 2000" if theirs is None else str(theirs), "–"]
        return [name, f"{tolerance:.0e}", *passes, "–", "–", "–", *own_cells, f"{own_time:.2f} s"]
    needed = ours.progress.passes - 1
    our_time = timed(lambda: solve(Told(needed)).value)
    their_time = timed(lambda: conjugate_gradients(problem, theirs))
    passes = [str(needed), str(theirs), f"{theirs / needed:.1f}×"]
    times = [f"{our_time:.2f} s", f"{their_time:.2f} s", f"{their_time / our_time:.1f}×"]
    return [name, f"{tolerance:.0e}", *passes, *times, *own_cells, f"{own_time:.2f} s"]


NOTES = """
Passes: products of all 65 vectors with H until the true error is at most the tolerance, told by an
oracle; for `lineax.CG` steps until then, to 5 %. Times: both told how many passes to make, block-CG
with its last check of the true residual, which is a pass more. Own rule: where `BlockCG` stops by
its own estimate, without an oracle; passes with the last check, the true error there, and its time.
Medians of 3 without compilation, float32.
"""


def main() -> None:
    """All spectra, or those of 5,000 with `--quick`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    problems = [("sparse 1 %, 4,000 × 2,000", lambda: sparse(4_000, 2_000), (1e-3, 1e-6))]
    for d in (5_000,) if arguments.quick else (5_000, 50_000):
        for name, values in SPECTRA.items():
            build = lambda d=d, values=values: cosine(values(d))
            # Thousands of steps of either solver: at 5,000 and 1e-3 only.
            tolerances = (1e-3, 1e-6) if name != "log-flat" else (1e-3,) * (d == 5_000)
            problems.append((f"{name}, d' = {d:,}", build, tolerances))
    header = ["W", "tolerance", "block passes", "lineax.CG passes", "ratio"]
    header += ["block time", "lineax time", "ratio", "own rule: passes", "error", "time"]
    rows = []
    for name, build, tolerances in problems:
        problem = build()
        rows += [row(name, problem, tolerance) for tolerance in tolerances]
        print(rows[-1], flush=True)
    report.save("block_cg", "Block conjugate gradients, 65 right-hand sides", header, rows, NOTES)


if __name__ == "__main__":
    main()
