"""Priors: what was learned is the next prior; columns' units and origins do not matter."""

import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linmodels as lm
from laws import dense
from laws.problems import Layout, Problem, answer, cast, observations, parts, prior, random_arrays
from laws.tolerances import tolerance, working_epsilon

LAYOUT = Layout(9, 1, 4, "entries", "dense")
FIRST = 4


def problem(seed, layout=LAYOUT, kind="full"):
    arrays = random_arrays(layout, kind, np.random.default_rng(seed))
    return Problem(layout, cast(arrays._replace(beta=np.ones(1))))


def rows_of(arrays, rows):
    names = ("design", "targets", "offset", "weights", "precision")
    return arrays._replace(**{name: getattr(arrays, name)[rows] for name in names})


@given(seed=st.integers(0, 2**31))
def test_posterior_is_the_next_prior(seed):
    """Means, covariances and evidences of two halves in turn are those of all at once.

    The second fit starts from a covariance factor in the working dtype: an error of the first
    fit's size, in its own posterior's units, which are not smaller than the second's... by more
    than the condition of either, hence the square.
    """
    given_problem = problem(seed)
    layout, arrays = given_problem
    halves = [slice(0, FIRST), slice(FIRST, None)]
    first, second = (
        observations(layout._replace(n=len(arrays.targets[rows])), rows_of(arrays, rows), False)
        for rows in halves
    )
    one = lm.infer(first, prior(*given_problem), num_samples=0)
    two = lm.infer(second, one.posterior.as_prior(), num_samples=0)
    truth, given_parts = answer(given_problem), parts(given_problem)
    bound = tolerance(given_parts, truth, dual=True, traced=True)
    condition = np.linalg.cond(given_parts.units.T @ truth.precision @ given_parts.units)
    units = np.linalg.cholesky(truth.precision).T
    error = units @ (np.asarray(two.posterior.mean, np.float64) - truth.mean - arrays.mean)
    size = given_parts.magnitude + np.linalg.norm(units @ (abs(truth.mean) + abs(arrays.mean)))
    assert np.linalg.norm(error) <= condition * bound.relative * size
    root = units @ np.asarray(two.posterior.covariance_factor.as_matrix(), np.float64)
    assert np.linalg.norm(root @ root.T - np.eye(layout.d)) <= condition * bound.relative
    total = float(one.log_evidence) + float(two.log_evidence)
    assert abs(total - truth.log_evidence) <= condition * bound.log_evidence


def fitted(design, targets, believed):
    data = lm.Observations(lx.MatrixLinearOperator(design), targets, lm.Gaussian(2.0))
    return lm.infer(data, believed, num_samples=0)


@pytest.mark.parametrize("side", ["tall", "wide"])
@given(scales=st.lists(st.integers(-9, 9).map(lambda e: 10.0**e), min_size=4, max_size=4))
def test_g_prior_ignores_units(side, scales):
    """Rescaled columns are rounded once more: ε in each, and 32 √d ε/σ for the answer, σ > 0.1."""
    generator = np.random.default_rng(4)
    shape = (9, 4) if side == "tall" else (3, 4)
    dtype = np.dtype(jnp.result_type(float))
    design = generator.standard_normal(shape).astype(dtype)
    targets = generator.standard_normal(shape[0]).astype(dtype)
    scales = np.asarray(scales, dtype)
    reference = fitted(design, targets, lm.GaussianPrior.g_prior(0.5))
    fit = fitted(design * scales, targets, lm.GaussianPrior.g_prior(0.5))
    bound = {"rtol": 0, "atol": 640 * working_epsilon()}
    units = np.linalg.norm(design, axis=0)
    means = (fit.posterior.mean * scales * units, reference.posterior.mean * units)
    np.testing.assert_allclose(*means, **bound)
    stds = (fit.posterior.std() * scales * units, reference.posterior.std() * units)
    np.testing.assert_allclose(*stds, **bound)
    np.testing.assert_allclose(
        fit.log_evidence, reference.log_evidence, atol=0.1 * bound["atol"] * 100
    )


@given(origin=st.integers(-6, 3).map(lambda e: 10.0**e))
def test_g_prior_ignores_origins_beside_an_intercept(origin):
    """Columns moved by c are rounded to c ε, which is what they keep of themselves."""
    generator = np.random.default_rng(4)
    dtype = np.dtype(jnp.result_type(float))
    columns = generator.standard_normal((9, 3))
    targets = generator.standard_normal(9).astype(dtype)
    believed = lm.GaussianPrior.g_prior(0.5, flat=np.array([True, False, False, False]))
    with_intercept = lambda x: np.concatenate([np.ones((9, 1)), x], 1).astype(dtype)
    reference = fitted(with_intercept(columns), targets, believed)
    fit = fitted(with_intercept(columns + origin), targets, believed)
    atol = 640 * working_epsilon() * (1 + origin)
    np.testing.assert_allclose(fit.posterior.mean[1:], reference.posterior.mean[1:], atol=atol)
    np.testing.assert_allclose(fit.posterior.std()[1:], reference.posterior.std()[1:], atol=atol)
    np.testing.assert_allclose(fit.log_evidence, reference.log_evidence, rtol=0, atol=10 * atol)


@pytest.mark.parametrize("as_operator", [False, True])
@given(seed=st.integers(0, 2**31))
def test_dense_precision(as_operator, seed):
    """`from_precision` is the prior of that precision, times α."""
    given_problem = problem(seed)
    given_parts, alpha = parts(given_problem), given_problem.arrays.alpha[0]
    dtype = given_problem.arrays.design.dtype
    matrix = (given_parts.prior / np.float64(alpha)).astype(dtype)
    matrix = (matrix + matrix.T) / 2
    argument = lx.MatrixLinearOperator(jnp.asarray(matrix)) if as_operator else matrix
    believed = lm.GaussianPrior.from_precision(argument, alpha, mean=given_problem.arrays.mean)
    fit = lm.infer(observations(*given_problem, learn=False), believed, num_samples=0)
    truth = answer(given_problem)
    bound = tolerance(given_parts, truth, dual=False, traced=False)
    error = np.linalg.cholesky(truth.precision).T @ (
        np.asarray(fit.posterior.mean, np.float64) - truth.mean - given_problem.arrays.mean
    )
    # The precision is rounded to ε, its factor again; both are well conditioned.
    size = (
        given_parts.magnitude
        + np.linalg.norm(truth.mean)
        + np.linalg.norm(given_problem.arrays.mean)
    )
    assert np.linalg.norm(error) <= 2 * bound.relative * size
    assert abs(float(fit.log_evidence) - truth.log_evidence) <= 2 * bound.log_evidence


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_singular_prior(side):
    """F of shape (d, r), r < d: θ stays in the range of F, where the oracle has parameters x."""
    generator = np.random.default_rng(3)
    dtype = np.dtype(jnp.result_type(float))
    design, factor = generator.standard_normal((9, 4)), generator.standard_normal((4, 2))
    design, factor = design.astype(dtype), factor.astype(dtype)
    targets = generator.standard_normal(9).astype(dtype)
    believed = lm.GaussianPrior(0.5, lx.MatrixLinearOperator(jnp.asarray(factor)))
    data = lm.Observations(lx.MatrixLinearOperator(design), targets, lm.Gaussian(2.0))
    fit = lm.infer(data, believed, method=lm.Exact(side), num_samples=0)
    wide = np.float64(design) @ np.float64(factor)
    log_noise = 4.5 * np.log(2.0 / (2 * np.pi))
    truth = dense.solve(wide, np.float64(targets), 2 * np.eye(9), 0.5 * np.eye(2), log_noise)
    # 32 √d ε/σ with σ > 0.1, beside numbers of order one.
    bound = {"rtol": 0, "atol": 640 * working_epsilon()}
    np.testing.assert_allclose(fit.posterior.mean, factor @ truth.mean, **bound)
    root = np.asarray(fit.posterior.covariance_factor.as_matrix())
    np.testing.assert_allclose(root @ root.T, factor @ truth.covariance @ factor.T, **bound)
    np.testing.assert_allclose(
        fit.log_evidence, truth.log_evidence, rtol=0, atol=10 * bound["atol"]
    )
