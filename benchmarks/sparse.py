"""A sparse real regression: delays of flights by day, hour, airports and their pairs.

    LINMODELS_DATA=folder python benchmarks/sparse.py [--rows 200000]

Every row has eight ones. One prior and one noise precision are learned by `BlockCG`; the reference
is a dense Cholesky factorisation in float64 at the learned strengths.
"""

import argparse
import os
import time
from pathlib import Path

import _report as report
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.linalg
import scipy.sparse
from jax.experimental.sparse import BCOO

import linmodels as lm
from linmodels.operators import Sparse

ROWS_AT_ONCE, SAMPLES = 20_000, 32
KEY = jax.random.key(0)


def table(rows: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Columns of the ones of every row, standardised arcsinh(delay / 10 minutes), and d'."""
    path = Path(os.environ["LINMODELS_DATA"]) / "tables" / "flights-3m.parquet"
    frame = pd.read_parquet(path).sample(rows, random_state=0)
    date, origin = frame["date"].dt, frame["origin"].astype(str)
    destination = frame["destination"].astype(str)
    hour, weekday = date.hour.astype(str), date.day_of_week.astype(str)
    parts = [date.day_of_year, hour, weekday, origin, destination, origin + destination]
    parts += [origin + weekday, destination + hour]
    columns, size = [], 0
    for part in parts:
        codes, values = pd.factorize(part)
        columns.append(codes + size)
        size += len(values)
    delay = np.arcsinh(frame["delay"].to_numpy() / 10)
    y = (delay - delay.mean()) / delay.std()
    return np.stack(columns, 1).astype(np.int32), y.astype(np.float32), size


def operator(columns: jax.Array, size: int) -> Sparse:
    """Φ of some rows."""
    rows = jnp.repeat(jnp.arange(len(columns)), columns.shape[1])
    entries = jnp.stack([rows, columns.reshape(-1)], 1)
    ones = jnp.ones(len(entries), jnp.float32)
    return Sparse(BCOO((ones, entries), shape=(len(columns), size)))


def score(fit: lm.Fit, columns: np.ndarray, y: np.ndarray, size: int) -> tuple[float, float]:
    """Held-out log-likelihood a row, and share of targets in the 90 % interval."""
    total, inside = 0.0, 0
    for start in range(0, len(y), 2_000):
        rows = slice(start, start + 2_000)
        prediction = fit.posterior.predict(operator(jnp.asarray(columns[rows]), size))
        total += float(jnp.sum(prediction.log_prob(jnp.asarray(y[rows]))))
        lower, upper = prediction.interval(0.9)
        inside += int(((y[rows] >= lower) & (y[rows] <= upper)).sum())
    return total / len(y), inside / len(y)


def reference(fit: lm.Fit, columns: np.ndarray, y: np.ndarray, size: int) -> tuple[str, str]:
    """Its largest gap to the mean over the largest coefficient, and its log evidence."""
    rows = np.repeat(np.arange(len(y)), columns.shape[1])
    ones = np.ones(columns.size)
    x = scipy.sparse.csr_matrix((ones, (rows, columns.reshape(-1))), (len(y), size))
    alpha, beta = float(np.asarray(fit.prior.alpha)), float(fit.noise_scale[0])
    precision = beta * (x.T @ x).toarray() + alpha * np.eye(size)
    factor = scipy.linalg.cho_factor(precision, lower=True)
    mean = scipy.linalg.cho_solve(factor, beta * (x.T @ y))
    gap = np.abs(np.asarray(fit.posterior.mean) - mean).max() / np.abs(mean).max()
    residual, count = y - x @ mean, len(y)
    log_evidence = 0.5 * (count * np.log(beta / (2 * np.pi)) + size * np.log(alpha))
    log_evidence -= 0.5 * (beta * residual @ residual + alpha * mean @ mean)
    log_evidence -= np.log(np.diag(factor[0])).sum()
    return f"{gap:.1e}", f"{log_evidence:.0f}"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    columns, y, size = table(parser.parse_args().rows)
    held = len(y) // 10
    rows = lm.RowSlices(columns[held:], y[held:], batch_size=ROWS_AT_ONCE)
    observe = lambda c, t: lm.Observations(operator(c, size), t, lm.Gaussian())
    data = lm.Batched(rows, observe)
    start = time.perf_counter()
    fit = lm.maximise_evidence(data, lm.GaussianPrior(), num_samples=SAMPLES, key=KEY)
    jax.block_until_ready(fit)
    seconds = time.perf_counter() - start
    likelihood, coverage = score(fit, columns[:held], y[:held], size)
    gap, log_evidence = reference(fit, columns[held:], y[held:], size)
    assert fit.solver is not None
    cells = [f"{len(y) - held:,} × {size:,}", fit.reason.split(":")[0], str(fit.solver.passes)]
    cells += [f"{seconds:.0f} s", f"{float(fit.effective_dimension):.0f}"]
    cells += [f"{float(fit.log_evidence):.0f} ± {float(fit.log_evidence_error):.0f}", log_evidence]
    cells += [gap, f"{likelihood:.3f}", f"{100 * coverage:.1f} %"]
    header = ["rows × parameters", "method", "passes", "time", "γ", "log evidence", "reference"]
    header += ["gap of the mean", "held-out log-likelihood", "90 % coverage"]
    report.save("sparse", "Sparse flights", header, [cells], NOTES)


NOTES = """
Ones for day, hour, weekday, origin, destination, both, origin and weekday, destination and hour;
the target is arcsinh(delay / 10 min),
standardised; a tenth held out. The reference is dense, in float64, at the learned strengths; the
gap is relative to the largest coefficient. Delays are heavy-tailed: a Gaussian's 90 % interval
need not cover 90 %.
"""

if __name__ == "__main__":
    main()
