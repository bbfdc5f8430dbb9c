"""A regression on a memory-mapped design of four times the memory that the process may have.

RLIMIT_DATA holds a process of its own, programs included, to 768 MiB; the design has 3 GiB.
"""

import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from _report import median, peak, save, seconds

LIMIT = 768 * 2**20
SIZE, BATCH, SAMPLES = 512, 4_096, 16
ROWS = 4 * LIMIT // (4 * SIZE)
REPEATS = 3


def write(folder):
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (ROWS, SIZE))
    rng = np.random.default_rng(0)
    y = np.empty(ROWS, np.float32)
    weights = rng.standard_normal(SIZE, np.float32) / np.sqrt(SIZE)
    scale = np.arange(1, SIZE + 1, dtype=np.float32) ** -0.5
    for start in range(0, ROWS, BATCH):
        rows = slice(start, start + BATCH)
        x[rows] = scale * rng.standard_normal((BATCH, SIZE), np.float32)
        y[rows] = x[rows] @ weights + rng.standard_normal(BATCH, np.float32)
    x.flush()
    np.save(folder / "y.npy", y)


def read(folder):
    x = np.load(folder / "x.npy", mmap_mode="r")
    return sum(float(x[start : start + BATCH].sum()) for start in range(0, ROWS, BATCH))


def fitted(folder, name, limited):
    """Seconds, passes, peak of resident memory and the coefficients."""
    if limited:
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    import jax
    import lineax as lx

    import linmodels as lm

    mode = "r" if limited else None
    rows = lm.RowSlices(
        *(np.load(folder / f"{part}.npy", mmap_mode=mode) for part in "xy"), batch_size=BATCH
    )
    data = lm.Batched(
        rows, lambda x, y: lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(1.0))
    )
    method = {"block-CG": lm.BlockCG("primal"), "stochastic gradients": lm.SampleThenOptimise()}
    arguments = {"method": method[name], "num_samples": SAMPLES, "key": jax.random.key(0)}
    start = time.perf_counter()
    fit = lm.infer(data, lm.GaussianPrior(1.0), **arguments)
    took = time.perf_counter() - start
    status = Path("/proc/self/status").read_text()
    held = 1024 * int(status.split("VmData:")[1].split()[0])
    draws = np.concatenate([fit.posterior.deviations, fit.posterior.mean[None]])
    return took, fit.solver.passes, held, peak(), draws


def main():
    spawn, table = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        once = median(seconds(lambda: read(folder), REPEATS))
        for method in ("block-CG", "stochastic gradients"):
            answers = []
            for limited in (True, False):
                with ProcessPoolExecutor(1, spawn) as pool:
                    answers.append(pool.submit(fitted, folder, method, limited).result())
            (took, passes, held, _, found), (alone, *_, draws) = answers
            table.append(
                [
                    method,
                    f"{took:.1f} s",
                    f"{alone:.1f} s",
                    f"{passes}",
                    f"{took / passes / once:.1f}",
                    f"{held / 2**20:.0f} MiB",
                    "the same bits" if np.array_equal(found, draws) else "other numbers",
                ]
            )
    header = [
        "method",
        "within the limit",
        "in memory",
        "passes of the solve",
        "time of a pass / of reading",
        "data of the process",
        "answer",
    ]
    gibibytes = 4 * ROWS * SIZE / 2**30
    notes = f"""
{ROWS:,} × {SIZE} float32, {gibibytes:.1f} GiB, in batches of {BATCH:,} rows; {SAMPLES} deviations
and the mean. RLIMIT_DATA of {LIMIT / 2**20:.0f} MiB counts what the process allocates, compiled
programs included, and not the pages of the file, which the kernel keeps and drops as it likes.
Times are with compilation; reading is the sum of all entries by NumPy, {once:.2f} s.
"""
    save("out_of_core", "A design of four times the memory", header, table, notes)


if __name__ == "__main__":
    main()
