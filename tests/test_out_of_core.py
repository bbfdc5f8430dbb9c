"""Data larger than memory, killed runs and readers that fail."""

import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import jax
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

ROOM = 64 * 2**20
"""Bytes of memory that a fit may take beside the programs compiled before."""
SIZE, BATCH = 256, 4_096
ROWS = 4 * ROOM // (4 * SIZE)
METHODS = {"block-CG": lm.BlockCG("primal"), "stochastic gradients": lm.SampleThenOptimise()}
KEY = jax.random.key(0)
SPAWN = multiprocessing.get_context("spawn")


def observe(x, y):
    return lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(1.0))


def observe_unknown(x, y):
    return lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian())


def posterior(x, y, name):
    data = lm.Batched(lm.RowSlices(x, y, batch_size=BATCH), observe)
    arguments = {"method": METHODS[name], "num_samples": 4, "key": KEY}
    fit = lm.infer(data, lm.GaussianPrior(1.0), **arguments)
    return np.concatenate([fit.posterior.deviations, fit.posterior.mean[None]])


def posterior_within_limit(folder, name):
    """With RLIMIT_DATA set to what the process has after a fit of two batches, and the room."""
    x, y = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in "xy")
    posterior(x[: 2 * BATCH], y[: 2 * BATCH], name)
    limit = 1024 * int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with pytest.raises(MemoryError):
        np.ones(4 * ROOM // 8)
    return posterior(x, y, name)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_design_of_four_times_the_memory(tmp_path):
    """The same bits as from arrays in memory."""
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.float32, (ROWS, SIZE))
    rng, weights = np.random.default_rng(0), np.linspace(-1, 1, SIZE, dtype=np.float32)
    for start in range(0, ROWS, BATCH):
        x[start : start + BATCH] = rng.standard_normal((BATCH, SIZE), np.float32)
    y = x @ weights + rng.standard_normal(ROWS, np.float32)
    np.save(tmp_path / "y.npy", y)
    x.flush()
    for name in METHODS:
        with ProcessPoolExecutor(1, SPAWN) as pool:
            found = pool.submit(posterior_within_limit, str(tmp_path), name).result()
        np.testing.assert_array_equal(found, posterior(np.asarray(x), y, name))


def small_rows():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((200, 12), np.float32)
    y = x @ np.linspace(-1, 1, 12, dtype=np.float32) + rng.standard_normal(200, np.float32)
    return lm.RowSlices(x, y, batch_size=40)


def learned(name, rows, callback=None, state=None):
    """Two groups of parameters, so that every step is a solve."""
    prior = lm.GaussianPrior.g_prior(groups=np.arange(12) // 6)
    data = lm.Batched(rows, observe_unknown)
    arguments = {"method": METHODS[name], "num_samples": 4, "key": KEY}
    return lm.maximise_evidence(data, prior, callback=callback, state=state, **arguments)


def learn_slowly(name, path):
    def keep(state):
        lm.save(state, path)
        time.sleep(0.5)

    learned(name, small_rows(), keep)


def require_equal(fit, straight):
    assert fit.steps == straight.steps
    assert (fit.prior.alpha == straight.prior.alpha).all()
    np.testing.assert_array_equal(fit.posterior.mean, straight.posterior.mean)
    np.testing.assert_array_equal(fit.posterior.deviations, straight.posterior.deviations)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_killed_and_resumed(name, tmp_path):
    """At any moment after a step: the file is that of a whole step, and the rest is the same."""
    states = []
    straight = learned(name, small_rows(), states.append)
    assert len(states) > 1
    path = tmp_path / "state"
    process = SPAWN.Process(target=learn_slowly, args=(name, path))
    process.start()
    while not path.exists():
        assert process.is_alive()
        time.sleep(0.01)
    time.sleep(np.random.default_rng(0).uniform(0, 0.5))
    process.kill()
    process.join()
    state = lm.load(path, lm.EvidenceState)
    assert state.step in [kept.step for kept in states]
    require_equal(learned(name, small_rows(), state=state), straight)


class Failing(lm.RowSlices):
    """Rows on a disk that fails once."""

    def __init__(self, rows, reads):
        super().__init__(*rows.arrays, batch_size=rows.batch_size)
        self.left = reads

    def __getitem__(self, index):
        self.left -= 1
        if self.left == 0:
            raise OSError(5, "Input/output error")
        return super().__getitem__(index)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_reader_that_fails_once(name):
    """The error says which batch it was, and the run goes on from the last step."""
    states, reads, rows = [], [], Failing(small_rows(), 10**9)

    def keep(state):
        states.append(state)
        reads.append(10**9 - rows.left)

    straight = learned(name, rows, keep)
    rows.left, kept = reads[0] + 7, []
    with pytest.raises(OSError, match="Input/output error") as caught:
        learned(name, rows, kept.append)
    assert "while reading batch" in caught.value.__notes__[0]
    assert kept[-1].step == states[0].step
    require_equal(learned(name, rows, state=kept[-1]), straight)
