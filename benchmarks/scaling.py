"""Products of W against what the machine can do; time and memory against rows and samples.

    python benchmarks/scaling.py

Time is that of a solve by `BlockCG` stopped after the same number of passes, whose cost is what
grows; memory is the peak of the process beside what it held before, after a first solve.
"""

import ctypes
import gc
import tempfile
import time
from collections.abc import Callable, Sequence

import _report as report
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np

import linmodels as lm
from linmodels._batches import batches
from linmodels._products import Factor, normal, unit_design

ROWS, SIZE, PASSES = 2_048, 4_500, 5
KEY = jax.random.key(0)


class Repeated(Sequence):
    """The same rows of a file again and again, so that data of any length take no memory."""

    def __init__(self, number: int):
        rng = np.random.default_rng(0)
        scale = np.arange(1, SIZE + 1) ** -0.5
        x = (rng.standard_normal((ROWS, SIZE)) * scale).astype(np.float32)
        self.y = (x.sum(1) + rng.standard_normal(ROWS)).astype(np.float32)
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            np.save(file.name, x)
            self.x = np.load(file.name, mmap_mode="r")
        self.number = number

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int):
        if not -self.number <= index < self.number:
            raise IndexError(index)
        return self.x, self.y


def observe(x, y) -> lm.Observations:
    """One batch."""
    return lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(1.0))


def product_rate(k: int) -> float:
    """Operations a second of WᵀW on a block of k vectors."""
    batch = next(iter(batches(lm.Batched(Repeated(1), observe))))
    design = unit_design(Factor(None, jax.ShapeDtypeStruct((SIZE,), jnp.float32)), np.ones(1), "f4")
    block = jnp.ones((k, SIZE), jnp.float32)
    return _rate(lambda: jax.block_until_ready(normal(batch, design, block)), k)


def numpy_rate(k: int) -> float:
    """Operations a second of the same two products in NumPy."""
    x, plain = np.array(Repeated(1).x), np.ones((SIZE, k), np.float32)
    return _rate(lambda: x.T @ (x @ plain), k)


def _rate(run: Callable[[], object], k: int) -> float:
    run()
    return 4 * ROWS * SIZE * k / report.median(report.seconds(run, 31))


def bandwidth() -> float:
    """Bytes a second of a product with one vector, which reads a matrix once."""
    x, v = np.ones((8 * ROWS, SIZE), np.float32), np.ones(SIZE, np.float32)
    return x.nbytes / report.median(report.seconds(lambda: x @ v, 9))


def solve_cost(count: int, num_samples: int) -> tuple[float, int]:
    """Seconds and extra bytes of a solve of fixed passes."""
    data, prior = lm.Batched(Repeated(count), observe), lm.GaussianPrior(1.0)
    method = lm.BlockCG("primal", tolerance=1e-9, max_passes=PASSES)
    arguments = {"method": method, "num_samples": num_samples, "key": KEY, "throw": False}
    run = lambda: jax.block_until_ready(lm.infer(data, prior, **arguments).posterior.deviations)
    run()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = report.reset_peak()
    seconds = report.median(report.seconds(run, 3))
    return seconds, report.peak() - before


def products() -> None:
    """The table of rates."""
    counts = (1, 2, 4, 8, 16, 32, 64)
    bare, read, largest = [numpy_rate(k) for k in counts], bandwidth(), numpy_rate(256)
    time.sleep(1)  # NumPy's threads wait busily for more to do, on the cores that XLA's need
    rows, largest = [], max(largest, product_rate(256))
    for k, plain in zip(counts, bare, strict=True):
        # Both halves of WᵀWx read the matrix: 4 operations an entry and vector for 8 bytes.
        ours, limit = product_rate(k), min(largest, read / 8 * 4 * k)
        cells = [f"{rate / 1e9:.1f}" for rate in (ours, plain, limit)]
        rows.append([str(k), *cells, f"{limit / ours:.2f}"])
    header = ["k", "WᵀW, GF/s", "NumPy twice, GF/s", "limit, GF/s", "limit / ours"]
    report.save("products", "Fused products of a batch", header, rows, PRODUCT_NOTES)


def scaling() -> None:
    """The table of time and memory."""
    rows = []
    for count, k in ((4, 16), (8, 16), (16, 16), (32, 16), (8, 32), (8, 64), (8, 128)):
        seconds, extra = solve_cost(count, k)
        each = seconds / (count * ROWS * (k + 1)) * 1e9
        cells = [f"{count * ROWS:,}", str(k), f"{seconds:.2f}", f"{each:.0f}", f"{extra / 1e6:.0f}"]
        rows.append([*cells, f"{extra / (4 * SIZE * (k + 1)):.0f}"])
    header = ["rows", "k", "seconds", "ns a row and vector", "extra memory, MB", "in blocks"]
    report.save("scaling", "Block-CG against rows and samples", header, rows, SCALING_NOTES)


PRODUCT_NOTES = f"""
One batch of {ROWS:,} × {SIZE:,} float32, a block of k vectors. The limit is the smaller of a large
product's rate, the larger of NumPy's and XLA's, and the rate at which the matrix can be read twice.
The batch is memory-mapped from an .npy file, whose rows start at multiples of 64 bytes,
and so is not copied.
"""
SCALING_NOTES = f"""
{PASSES} passes of block-CG over batches of {ROWS:,} × {SIZE:,} float32, with the look at the data
before and the estimates after; medians of 3. Extra memory in blocks of k + 1 vectors of parameters;
a batch is {ROWS * SIZE * 4 / 1e6:.0f} MB of a memory-mapped file.
"""

if __name__ == "__main__":
    products()
    scaling()
