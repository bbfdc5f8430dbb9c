"""`maximise_evidence` with 64 samples against scikit-learn's BayesianRidge, in one run.

    python benchmarks/exact_against_scikit_learn.py [--repeats 5]

Both learn one α and one noise precision on the same data without an intercept; scikit-learn's
hyperpriors are switched off so that both maximise the same evidence.
"""

import argparse
import json
import subprocess
import sys

import _report as report
import numpy as np

CASES = [(5_000, 1_000), (200_000, 500)]


def measure(n: int, d: int, dtype: str, repeats: int) -> dict:
    """Times and answers of both, in this process."""
    import jax

    jax.config.update("jax_enable_x64", dtype == "float64")
    import jax.numpy as jnp
    import lineax as lx
    from sklearn.linear_model import BayesianRidge

    import linmodels as lm

    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d), dtype=np.float32).astype(dtype)
    y = x @ rng.standard_normal(d).astype(dtype) + rng.standard_normal(n).astype(dtype)
    design, targets, key = jnp.asarray(x), jnp.asarray(y), jax.random.key(0)

    def ours() -> lm.Fit:
        data = lm.Observations(lx.MatrixLinearOperator(design), targets)
        fit = lm.maximise_evidence(data, lm.GaussianPrior(), num_samples=64, key=key)
        return jax.block_until_ready(fit)

    first = report.seconds(ours, 1)[0]
    before = report.reset_peak()
    fit, ours_times, theirs_times, bare_times = ours(), [], [], []
    extra, wide = report.peak() - before, x.astype(np.float64)
    ridge = BayesianRidge(fit_intercept=False, alpha_1=0, alpha_2=0, lambda_1=0, lambda_2=0)
    for _ in range(repeats):
        ours_times += report.seconds(ours, 1)
        theirs_times += report.seconds(lambda: ridge.fit(x, y), 1)
        bare_times += report.seconds(lambda: np.linalg.eigh(wide.T @ wide), 1)
    ridge.set_params(compute_score=True).fit(x, y)
    return {
        "case": [n, d, dtype],
        "ours": ours_times,
        "theirs": theirs_times,
        "bare": bare_times,
        "compilation": first - report.median(ours_times),
        "extra": extra / x.nbytes,
        "alpha": [float(fit.prior.alpha), float(ridge.lambda_)],
        "noise": [float(fit.likelihood.noise_precision), float(ridge.alpha_)],
        "evidence": [float(fit.log_evidence), float(ridge.scores_[-1])],
    }


def row(result: dict) -> list[str]:
    """One line of the table."""
    n, d, dtype = result["case"]
    ours, theirs, bare = (report.median(result[name]) for name in ("ours", "theirs", "bare"))
    pair = lambda name, form: " / ".join(format(v, form) for v in result[name])
    return [
        f"{n:,} × {d:,} {dtype}",
        f"{ours:.3f} s",
        f"{theirs:.3f} s",
        f"{theirs / ours:.1f}×",
        f"{bare:.3f} s = {bare / ours:.0%}, {theirs / bare:.1f}×",
        f"{result['compilation']:.2f} s",
        f"{result['extra']:.2f}×",
        pair("alpha", ".6f"),
        pair("noise", ".6f"),
        pair("evidence", ".2f"),
    ]


NOTES = """
Medians; ratio is scikit-learn's time over ours; compilation is what the first call took beyond
that; memory is the peak above the data, as a multiple of the data. Answers are ours / theirs.

Bare is NumPy's XᵀX and its eigh alone, in float64 from data that already are: its time, the share
of ours that it is, and the ratio that it would have. Every noise precision and α is read off
these two, whose sums are float64 because the small eigenvalues of a float32 Gram matrix are
rounding: but for the machine's noise, no ratio beyond the bare one can be had this way. For many
rows the rest is mostly the 64 noise draws a row and their product with X.

scikit-learn stops when Σ|Δcoefficient| < 1e-3, which depends on the units of y and x; its evidence
with an intercept counts n observations although the intercept has used one up, and its predictive
deviations leave the intercept's uncertainty out. It gives no joint samples.
"""


def main() -> None:
    """Every case in a process of its own, so that x64 and memory are clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", nargs=3, metavar=("N", "D", "DTYPE"))
    arguments = parser.parse_args()
    if arguments.case:
        n, d, dtype = arguments.case
        print(json.dumps(measure(int(n), int(d), dtype, arguments.repeats)))
        return
    rows = []
    for n, d in CASES:
        for dtype in ("float32", "float64"):
            command = [sys.executable, __file__, "--repeats", str(arguments.repeats)]
            command += ["--case", str(n), str(d), dtype]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rows.append(row(json.loads(done.stdout.splitlines()[-1])))
    header = ["case", "linmodels", "scikit-learn", "ratio", "bare", "compilation"]
    header += ["extra memory", "α", "noise precision", "log evidence"]
    report.save("exact_against_scikit_learn", "Evidence maximisation, exact", header, rows, NOTES)


if __name__ == "__main__":
    main()
