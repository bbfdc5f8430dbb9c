"""What a plan says of memory, against the kernel's own count."""

import ctypes
import gc
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc"),
]


def dense(n, d):
    """A matrix of signs."""
    rng = np.random.default_rng(0)
    return lx.MatrixLinearOperator(jnp.asarray(rng.choice([-1.0, 1.0], (n, d)), jnp.float32))


def repeated(n, d):
    """The parameters again and again, or sums of them: eigenvalues near one another."""
    shape, times = jax.ShapeDtypeStruct((d,), jnp.float32), max(n // d, d // n)
    tall = lambda x: jnp.tile(x, times)
    wide = lambda x: x.reshape(times, n).sum(0)
    return lx.FunctionLinearOperator(tall if n > d else wide, shape)


def peak_of(operator, n, d, num_samples):
    """Planned and measured bytes of a second fit, whose programs the first has compiled."""
    targets = jnp.asarray(np.random.default_rng(1).standard_normal(n), jnp.float32)
    data, prior = lm.Observations(operator(n, d), targets, lm.Gaussian(1.0)), lm.GaussianPrior(1.0)
    for _ in range(2):
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        fit = lm.infer(data, prior, num_samples=num_samples, key=jax.random.key(0))
        jax.block_until_ready(fit.posterior.deviations)
        measured = resident("VmHWM") - before
        del fit
    plan = lm.plan(data, prior, num_samples)
    return plan.memory, measured, type(plan.method).__name__


def resident(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(field + ":")[1].split()[0])


@pytest.fixture(scope="module")
def process():
    """One that gives large arrays back as they are freed: what is measured is what is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**18))
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield pool


@pytest.mark.parametrize(
    ("method", "operator", "n", "d", "num_samples"),
    [
        ("Exact", dense, 4_000, 2_000, 8),
        ("Exact", dense, 1_500, 4_500, 8),
        ("BlockCG", repeated, 500_000, 250_000, 8),
        ("BlockCG", repeated, 200_000, 600_000, 8),
        ("BlockCG", repeated, 140_000, 70_000, 32),
    ],
)
def test_memory_within_a_quarter(method, operator, n, d, num_samples, process):
    planned, measured, chosen = process.submit(peak_of, operator, n, d, num_samples).result()
    assert chosen == method
    assert 0.75 * planned <= measured <= 1.25 * planned
