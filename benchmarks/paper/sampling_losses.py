"""Error of posterior samples per pass: both losses of stochastic gradients, and block-CG.

Softmax regression of MNIST digits (`LINMODELS_DATA`) on their central 20 × 20 pixels and an
intercept: 4,010 parameters, curvature held at the mode. Deviations by every method are compared
with the exact ones of the same draws.

    PYTHONPATH=benchmarks python benchmarks/paper/sampling_losses.py
"""

import gzip
import os
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import lineax as lx
import numpy as np
import optax

import _report
import linmodels as lm
from linmodels._expansion import Point, expanded
from linmodels.operators import multi_output

ROWS, CLASSES, PASSES = 5_000, 10, 20
GRID = 2.0 ** np.arange(-4, 3)
"""Learning rates, times the largest curvature of a minibatch, that are tried."""
KEY = jax.random.key(0)
MOMENTUM = 0.9


def digits():
    folder = Path(os.environ["LINMODELS_DATA"]) / "mnist"
    read = lambda name: gzip.decompress((folder / name).read_bytes())
    images = np.frombuffer(read("train-images-idx3-ubyte.gz"), np.uint8, offset=16)
    images = images.reshape(-1, 28, 28)[:ROWS, 4:24, 4:24].reshape(ROWS, -1)
    labels = np.frombuffer(read("train-labels-idx1-ubyte.gz"), np.uint8, offset=8)[:ROWS]
    ones = np.ones((ROWS, 1), np.float32)
    return np.concatenate([images / np.float32(255), ones], 1), labels.astype(np.int32)


def observe(x, labels):
    return lm.Observations(
        multi_output(lx.MatrixLinearOperator(x), CLASSES), labels, lm.Categorical()
    )


class Problem(NamedTuple):
    prior: lm.GaussianPrior
    mode: jax.Array
    information: np.ndarray
    """M, dense"""
    exact: np.ndarray
    """deviations for the largest number of samples"""
    dimension: float

    def data(self, batch_size):
        rows = lm.RowSlices(*digits(), batch_size=batch_size)
        return expanded(lm.Batched(rows, observe), Point(self.mode))

    def error(self, deviations):
        """Mean of ‖Φe‖²_B over the mean of ‖Φζ‖²_B, for as many deviations as are given."""
        exact = self.exact[: len(deviations)]
        square = lambda v: np.einsum("kd,kd->", v @ self.information, v)
        left = np.asarray(deviations, np.float64).reshape(len(deviations), -1) - exact
        return square(left) / square(exact)


def information_of(x, outputs):
    """Σ (p_c δ_cc' − p_c p_c') x xᵀ, in the order of θ raveled from (pixels, classes)."""
    p = np.exp(outputs - outputs.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True)
    x, size = x.astype(np.float64), x.shape[1]
    result = np.zeros((size, CLASSES, size, CLASSES))
    for a in range(CLASSES):
        for b in range(a, CLASSES):
            weights = p[:, a] * ((a == b) - p[:, b])
            result[:, a, :, b] = result[:, b, :, a] = (x * weights[:, None]).T @ x
    return result.reshape(size * CLASSES, -1)


def problem(alpha, num_samples):
    x, labels = digits()
    data = lm.Batched(lm.RowSlices(x, labels, batch_size=1_000), observe)
    prior = lm.GaussianPrior(alpha)
    arguments = {"num_samples": num_samples, "key": KEY}
    mode = lm.infer(data, prior, method=lm.BlockCG(), num_samples=1, key=KEY).posterior.mean
    information = information_of(x, x @ np.asarray(mode))
    fit = lm.infer(expanded(data, Point(mode)), prior, method=lm.Exact(), **arguments)
    exact = np.asarray(fit.posterior.deviations, np.float64).reshape(num_samples, -1)
    dimension = np.trace(
        np.linalg.solve(information + alpha * np.eye(len(information)), information)
    )
    return Problem(prior, mode, information, exact, float(dimension))


def of(problem, batch_size, method, num_samples, curve=None):
    """Error after every pass, or after the last, of a descent or of block-CG."""
    data, alpha = problem.data(batch_size), float(problem.prior.alpha)
    seen = []

    def keep(passes, state):
        x = np.asarray(state.answer[:num_samples], np.float64) / np.sqrt(alpha)
        seen.append((passes, problem.error(x)))

    method = method(callback=keep) if curve else method()
    arguments = {"num_samples": num_samples, "key": KEY, "throw": False}
    start = time.perf_counter()
    fit = lm.infer(data, problem.prior, method=method, **arguments)
    return seen, fit, time.perf_counter() - start


def tuned(problem, batch_size, noise, num_samples, largest):
    """The best of the grid for the recipe of the paper, and its learning rate."""
    steps = PASSES * -(-ROWS // batch_size)
    best = None
    for scale in GRID:
        rate = optax.linear_schedule(scale / largest, 0.0, steps)
        optimiser = optax.sgd(rate, MOMENTUM, nesterov=True)
        recipe = partial(lm.SampleThenOptimise, noise, PASSES, optimiser)
        seen, *_ = of(problem, batch_size, recipe, num_samples, curve=True)
        if seen and (best is None or seen[-1][1] < best[0][-1][1]):
            best = seen, scale
    return best


def main():
    for alpha in (3.0, 0.1):
        held = problem(alpha, 16)
        print(alpha, held.dimension)
        for batch in (500, 50):
            for noise in ("regulariser", "fit"):
                auto = partial(lm.SampleThenOptimise, noise, PASSES - 1)
                seen, fit, took = of(held, batch, auto, 16, curve=True)
                print(
                    "auto",
                    batch,
                    noise,
                    seen[-1],
                    seen[::4],
                    fit.solver.descent[:2],
                    fit.solver.descent.variances,
                    took,
                    flush=True,
                )
                best = tuned(held, batch, noise, 16, fit.solver.descent.curvature)
                print("grid", best[1], best[0][-1], flush=True)
        cg = lm.infer(
            held.data(500),
            held.prior,
            method=lm.BlockCG("primal", 1e-9, PASSES),
            num_samples=16,
            key=KEY,
            throw=False,
        )
        print("cg", held.error(cg.posterior.deviations), flush=True)


main()
