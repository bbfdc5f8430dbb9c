"""Batches say what one batch says, whatever their size."""

import jax
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from laws.problems import Layout, Problem, answer, cast, observations, parts, prior, random_arrays
from laws.tolerances import tolerance

SIZES = [1, 4, 12]
"""of 9 rows: whole, padded and too large batches"""
LAYOUT = Layout(9, 1, 4, "entries", "everything")
KEY = jax.random.key(3)


def problem():
    arrays = random_arrays(LAYOUT, "full", np.random.default_rng(5))
    weights = np.array([2.0, 0.0, 1.0, 1.0, 0.5, 2.0, 1.0, 0.5, 2.0])
    return Problem(LAYOUT, cast(arrays._replace(weights=weights)))


def observe(design, targets, offset, weights, precision):
    likelihood = lm.Gaussian(precision)
    return lm.Observations(lx.MatrixLinearOperator(design), targets, likelihood, offset, weights)


def learned(design, targets, offset, weights, precision):
    likelihood = lm.Gaussian(precision, learn=True)
    return lm.Observations(lx.MatrixLinearOperator(design), targets, likelihood, offset, weights)


def batched(arrays, size, model=observe):
    fields = (arrays.design, arrays.targets, arrays.offset, arrays.weights, arrays.precision)
    return lm.Batched(lm.RowSlices(*fields, batch_size=size), model)


def compare(given, whole, split, side):
    """Both are within the bound of the oracle, on the same side; deviations as for 6 spreads."""
    ones = given.arrays._replace(beta=np.ones_like(given.arrays.beta))
    given = given._replace(arrays=ones)
    bound = tolerance(parts(given), answer(given), dual=side == "dual", traced=False)
    units = np.linalg.inv(parts(given).spread)
    error = np.asarray(whole.posterior.mean - split.posterior.mean, np.float64) @ units.T
    assert np.linalg.norm(error) <= 2 * bound.mean
    gap = np.asarray(whole.posterior.deviations - split.posterior.deviations, np.float64) @ units.T
    assert np.linalg.norm(gap, axis=1).max() <= 2 * bound.relative * np.sqrt(6 * 13)
    assert abs(float(whole.log_evidence - split.log_evidence)) <= 2 * bound.log_evidence
    assert abs(float(whole.effective_dimension - split.effective_dimension)) <= 8 * bound.relative
    assert whole.num_observations == split.num_observations == LAYOUT.n


@pytest.mark.parametrize("size", SIZES)
def test_every_batch_size(size):
    given = problem()
    believed = prior(*given)
    for side in ("primal", "dual"):
        arguments = {"method": lm.Exact(side), "num_samples": 3, "key": KEY}
        whole = lm.infer(observations(*given, learn=False), believed, **arguments)
        split = lm.infer(batched(given.arrays, size), believed, **arguments)
        compare(given, whole, split, side)


@pytest.mark.parametrize("size", [4, 9])
def test_learning(size):
    """Updates of 1e-6 and less separate hyperparameters that have settled; 1e-4 is ample."""
    given = problem()
    believed = lm.GaussianPrior.g_prior(flat=LAYOUT.flat)
    whole = lm.maximise_evidence(observations(*given), believed, num_samples=0)
    data = batched(given.arrays, size, learned)
    split = lm.maximise_evidence(data, believed, num_samples=0)
    np.testing.assert_allclose(split.prior.alpha, whole.prior.alpha, rtol=1e-4)
    np.testing.assert_allclose(split.noise_scale, whole.noise_scale, rtol=1e-4)
    np.testing.assert_allclose(split.log_evidence, whole.log_evidence, rtol=1e-5)


@pytest.mark.slow
def test_leave_one_out():
    """The same formula from the same fit, row by row: 64 ε beside numbers of order one."""
    given = problem()
    data = batched(given.arrays, 4)
    fit = lm.infer(data, prior(*given), num_samples=0)
    whole = lm.leave_one_out(observations(*given, learn=False), fit)
    split = lm.leave_one_out(data, fit)
    epsilon = np.finfo(given.arrays.design.dtype).eps
    np.testing.assert_allclose(split.residuals, whole.residuals, rtol=0, atol=64 * epsilon)
    np.testing.assert_allclose(split.log_prob, whole.log_prob, rtol=0, atol=256 * epsilon)
