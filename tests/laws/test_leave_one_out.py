"""Leave-one-out in closed form is what refits without each observation say."""

import lineax as lx
import numpy as np
import pytest
from hypothesis import assume, given

import linmodels as lm
from laws import dense
from laws.problems import SHAPES, observations, parts, prior, problems, well_posed
from laws.tolerances import tolerance

TWO = {"tall": SHAPES["tall"], "outputs": SHAPES["outputs"]}


def refit(problem, left_out):
    """Residual and log-density of one observation from the oracle without it."""
    given_parts, m = parts(problem), problem.layout.m
    entries = np.arange(len(given_parts.targets)) // m == left_out
    keep = ~entries
    noise = given_parts.noise[np.ix_(keep, keep)]
    truth = dense.solve(
        given_parts.design[keep], given_parts.targets[keep], noise, given_parts.prior, 0.0
    )
    rows = given_parts.design[entries]
    residual = given_parts.targets[entries] - rows @ truth.mean
    return residual, log_density(problem, entries, rows @ truth.covariance @ rows.T, residual)


def log_density(problem, entries, covariance, residual):
    """Of the entries that B_i observes, unweighted: along its eigenvectors."""
    arrays = problem.arrays._replace(weights=np.ones_like(problem.arrays.weights))
    precision = parts(problem._replace(arrays=arrays)).noise[np.ix_(entries, entries)]
    values, vectors = np.linalg.eigh(precision)
    seen = values > 1e-9 * max(values.max(), 1e-300)
    basis = vectors[:, seen]
    predictive = basis.T @ covariance @ basis + np.diag(1 / values[seen])
    return dense.log_normal(basis.T @ residual, predictive) if seen.any() else 0.0


@given(problem=problems(TWO, ("everything",), ("entries", "singular"), extremes=(None,)))
def test_equals_refits(problem):
    assume(well_posed(problem))
    arrays = problem.arrays
    problem = problem._replace(arrays=arrays._replace(beta=np.ones_like(arrays.beta)))
    data = observations(*problem, learn=False)
    got = lm.leave_one_out(data, lm.infer(data, prior(*problem), num_samples=0))
    residuals = np.asarray(got.residuals).reshape(problem.layout.n, -1)
    given_parts = parts(problem)
    truth = dense.solve(*given_parts[:4], given_parts.log_noise)
    dual = problem.layout.d > len(given_parts.targets)
    bound = tolerance(given_parts, truth, dual=dual, traced=True).relative
    for i in range(problem.layout.n):
        residual, log_prob = refit(problem, i)
        # Errors of f_i and of its covariance are divided by 1 − h, h the largest leverage.
        block = slice(i * problem.layout.m, (i + 1) * problem.layout.m)
        half = given_parts.root[block] @ given_parts.design
        kept = 1 - np.linalg.eigvalsh(half @ truth.covariance @ half.T)[-1]
        size = 1 + np.abs(given_parts.targets).max() + np.abs(residual).max()
        error = 4 * bound * size * (1 + np.linalg.norm(given_parts.design, axis=1).max()) / kept**2
        np.testing.assert_allclose(residuals[i], residual, rtol=0, atol=error)
        slope = (1 + np.abs(residual).max()) ** 2 * (1 + np.abs(given_parts.noise).max())
        np.testing.assert_allclose(got.log_prob[i], log_prob, rtol=0, atol=error * slope)


def test_names_what_cannot_be_left_out():
    """An indicator column without a prior, seen by one observation only."""
    design = np.ones((9, 4), np.float32)
    design[:, 0] = np.arange(9) == 3
    data = lm.Observations(
        lx.MatrixLinearOperator(design), np.arange(9, dtype=np.float32), lm.Gaussian(1.0)
    )
    fit = lm.infer(data, lm.GaussianPrior(1.0, flat=np.arange(4) == 0), num_samples=0)
    with pytest.raises(ValueError, match="Observation 3 alone"):
        lm.leave_one_out(data, fit)
