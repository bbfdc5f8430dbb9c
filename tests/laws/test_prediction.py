"""Predictions, contrasts and intervals from the posterior's dense moments."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given

import linmodels as lm
from laws import dense
from laws.problems import (
    SHAPES,
    Layout,
    answer,
    cast,
    observations,
    parts,
    prior,
    problems,
    random_arrays,
    well_posed,
)
from laws.tolerances import EPSILON64, tolerance, working_epsilon
from linmodels.operators import from_matrix

TWO = {"wide": SHAPES["wide"], "outputs": SHAPES["outputs"]}
PRIORS = ("everything",)
"""Each compiles for seconds; the shapes have one kind of covariance factor each."""
NEW = 3
"""new points"""
LEVEL = 0.8


def fitted(problem):
    """A fit at the problem's α with β = 1 known, and the oracle's answer."""
    arrays = problem.arrays
    problem = problem._replace(arrays=arrays._replace(beta=np.ones_like(arrays.beta)))
    fit = lm.infer(observations(*problem, learn=False), prior(*problem), num_samples=0)
    return problem, fit


def new_points(problem, m):
    generator = np.random.default_rng(11)
    dtype = problem.arrays.design.dtype
    shape = (NEW,) if m == 1 else (NEW, m)
    design = generator.standard_normal((NEW * m, problem.layout.d)).astype(dtype)
    operator = from_matrix(design, out_structure=jax.ShapeDtypeStruct(shape, dtype))
    offset, targets = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
    return design.astype(np.float64), operator, offset, targets


def check_rounding(problem, design):
    """Error of a prediction's mean and covariance: those of θ, in θ's norm, times the rows'."""
    given_parts, truth = parts(problem), answer(problem)
    dual = problem.layout.d > problem.layout.n * problem.layout.m
    bound = tolerance(given_parts, truth, dual=dual, traced=False)
    spread = given_parts.spread if dual else np.linalg.inv(np.linalg.cholesky(truth.precision)).T
    rows = np.linalg.norm(design @ spread, axis=1).max()
    sizes = (abs(design) @ (abs(truth.mean) + abs(problem.arrays.mean))).max()
    rounding = 4 * len(spread) * working_epsilon()
    return truth, bound.mean * rows + rounding * sizes, (bound.relative + rounding) * rows**2


@given(problem=problems(TWO, PRIORS, ("scalar",), (None, "targets", "alpha")))
def test_moments_and_densities(problem):
    assume(well_posed(problem))
    problem, fit = fitted(problem)
    design, operator, offset, targets = new_points(problem, problem.layout.m)
    truth, mean_error, covariance_error = check_rounding(problem, design)
    got = fit.posterior.predict(operator, jnp.asarray(offset))
    mean = design @ (truth.mean + problem.arrays.mean) + np.ravel(offset)
    covariance = design @ truth.covariance @ design.T
    noisy = covariance + np.eye(len(covariance)) / float(problem.arrays.precision)
    assert (abs(np.ravel(got.mean) - mean) <= mean_error + 4 * working_epsilon()).all()
    assert (abs(got.covariance() - covariance) <= covariance_error).all()
    assert (abs(np.ravel(got.std()) ** 2 - np.diag(covariance)) <= covariance_error).all()
    slack = covariance_error + 4 * working_epsilon() * noisy.max()
    assert (abs(got.covariance(noise=True) - noisy) <= slack).all()
    residual = np.ravel(targets) - mean
    check_densities(got, targets, residual, noisy, mean_error, slack)


def check_densities(got, targets, residual, noisy, mean_error, covariance_error):
    """d log N = −(½ C⁻¹ − ½ ggᵀ)·dC + g·dr, g = C⁻¹r; and Cholesky of C in the working dtype."""
    inverse, size = np.linalg.inv(noisy), len(noisy)
    slope = inverse @ residual
    relative = 8 * size**2 * working_epsilon() * np.linalg.cond(noisy)
    bound = size * covariance_error * (np.linalg.norm(inverse) + slope @ slope)
    bound += 2 * np.linalg.norm(slope) * np.sqrt(size) * mean_error
    bound += relative * (1 + residual @ slope) + 8 * working_epsilon() * size
    bound += np.linalg.norm(inverse) * size * mean_error**2
    joint = float(got.joint_log_prob(jnp.asarray(targets)))
    expected = dense.log_normal(residual, noisy)
    assert abs(joint - expected) <= bound + 8 * working_epsilon() * abs(expected)
    marginal = scipy.stats.norm.logpdf(residual, scale=np.sqrt(np.diag(noisy)))
    got_marginal = np.ravel(got.log_prob(jnp.asarray(targets)))
    worst = np.abs(marginal).max() * 8 * working_epsilon()
    slope = np.abs(residual / np.diag(noisy)).max()
    bound = covariance_error * (slope**2 + (1 / np.diag(noisy)).max())
    bound += (slope + mean_error / np.diag(noisy).min()) * mean_error * 2
    assert (abs(got_marginal - marginal) <= bound + worst + 8 * working_epsilon()).all()


@pytest.mark.slow
@given(problem=problems(TWO, PRIORS, ("scalar",), (None,)))
def test_summary_and_contrasts(problem):
    assume(well_posed(problem))
    problem, fit = fitted(problem)
    combinations = np.stack([np.ones(problem.layout.d), np.eye(problem.layout.d)[0]])
    truth, mean_error, covariance_error = check_rounding(problem, combinations)
    contrast = fit.posterior.contrast(combinations)
    mean = combinations @ (truth.mean + problem.arrays.mean)
    covariance = combinations @ truth.covariance @ combinations.T
    assert (abs(contrast.mean - mean) <= mean_error).all()
    assert (abs(contrast.covariance() - covariance) <= covariance_error).all()
    summary = fit.posterior.summary(LEVEL)
    _, _, entry_error = check_rounding(problem, np.eye(problem.layout.d))
    assert (abs(summary.std**2 - np.diag(truth.covariance)) <= entry_error).all()
    width = scipy.stats.norm.ppf((1 + LEVEL) / 2)
    check_interval(summary.lower, summary.upper, summary.mean, width * summary.std)
    lower, upper = contrast.interval(LEVEL)
    check_interval(lower, upper, contrast.mean, width * contrast.std())


def check_interval(lower, upper, mean, half_width):
    atol = 8 * working_epsilon() * float(jnp.max(jnp.abs(mean) + half_width))
    np.testing.assert_allclose(lower, mean - half_width, rtol=0, atol=atol)
    np.testing.assert_allclose(upper, mean + half_width, rtol=0, atol=atol)


def test_interval_level_with_estimated_variance():
    """Without a factor, intervals are Student's t with k degrees of freedom: exact coverage.

    Coverage of R = 4000 intervals has standard error √(0.8·0.2/R) = 0.006; 5 of them are 0.032.
    A normal quantile would cover 0.8 − 0.045 at k = 5, and fail.
    """
    k, repeats = 5, 4000
    deviations = jax.random.normal(jax.random.key(0), (k, repeats))
    truth = jax.random.normal(jax.random.key(1), (repeats,))
    posterior = lm.Posterior(jnp.zeros(repeats), deviations, None, lm.Gaussian(1.0))
    summary = posterior.summary(LEVEL)
    inside = float(lm.metrics.coverage(truth, summary.lower, summary.upper))
    assert abs(inside - LEVEL) <= 0.032


@pytest.mark.parametrize("noise", [False, True])
def test_samples_have_the_predictive_covariance(noise):
    """Entries of the covariance of k draws within 6 standard errors, √(C_iiC_jj + C_ij²)/√k."""
    k = 4096
    layout = Layout(9, 1, 4, "entries", "isotropic")
    arrays = cast(random_arrays(layout, "full", np.random.default_rng(7)))
    data = observations(layout, arrays, learn=False)
    fit = lm.infer(data, prior(layout, arrays), num_samples=k, key=jax.random.key(2))
    rows = lx.MatrixLinearOperator(jnp.asarray(arrays.design[:NEW]))
    prediction = fit.posterior.predict(rows, likelihood=lm.Gaussian(3.0))
    draws = prediction.samples(noise=noise, key=jax.random.key(4))
    residual = np.asarray(draws - prediction.mean, np.float64)
    expected = np.asarray(prediction.covariance(noise=noise), np.float64)
    variance = np.diag(expected)
    error = np.sqrt((np.outer(variance, variance) + expected**2) / k)
    assert (abs(residual.T @ residual / k - expected) <= 6 * error).all()


def test_joint_density_keeps_a_noise_small_beside_the_spread():
    """Two parameters of spread s seen by three points: in float32 their covariance has lost the 1.

    QR of the root errs by 8 N ε κ, κ = s ‖Φ‖, of 1 + ‖L⁻¹r‖² < 7; the oracle by 8 N ε₆₄ κ².
    """
    dtype, spread = np.dtype(jnp.result_type(float)), 1e4
    design = np.array([[1.0, 2.0], [-1.0, 3.0], [2.0, 1.0]], dtype)
    targets = np.asarray(design @ [spread, -0.5 * spread] + [1.0, -1.0, 0.5], dtype)
    factor = lx.MatrixLinearOperator(jnp.asarray(spread * np.eye(2), dtype))
    no_draws = jnp.zeros((0, 2), dtype)
    posterior = lm.Posterior(jnp.zeros(2, dtype), no_draws, factor, lm.Gaussian(1.0))
    got = posterior.predict(lx.MatrixLinearOperator(jnp.asarray(design))).joint_log_prob(targets)
    root = np.float64(design) * float(np.asarray(spread, dtype))
    expected = dense.log_normal(np.float64(targets), np.eye(3) + root @ root.T)
    condition = np.linalg.norm(root)
    relative = working_epsilon() * condition + EPSILON64 * condition**2
    assert abs(float(got) - expected) <= 8 * 3 * relative * 7


KINDS = {
    "per output": (lm.Gaussian(jnp.array([1.0, 4.0])), np.ones((4, 2))),
    "per observation": (lm.Gaussian(jnp.array([[1.0], [2.0], [3.0], [4.0]])), np.ones((4, 2))),
    "counts": (lm.Poisson(), np.ones((4, 2))),
    "classes": (lm.Categorical(), np.array([0, 1, 1, 0])),
}


def posterior_of(kind):
    likelihood, targets = KINDS[kind]
    design = lm.operators.multi_output(lx.MatrixLinearOperator(jnp.eye(4, 3)), 2)
    data = lm.Observations(design, jnp.asarray(targets), likelihood)
    arguments = {"num_samples": 8, "key": jax.random.key(0)}
    return lm.infer(data, lm.GaussianPrior(1.0), **arguments).posterior


@pytest.mark.parametrize("kind", KINDS)
def test_contrasts_have_no_noise(kind):
    """Whatever the likelihood: everything that would add it is of the combinations alone."""
    posterior = posterior_of(kind)
    contrast = posterior.contrast(np.eye(6)[:2])
    std = contrast.std()
    np.testing.assert_array_equal(contrast.std(noise=True), std)
    lower, upper = contrast.interval(LEVEL)
    width = scipy.stats.norm.ppf((1 + LEVEL) / 2) * std
    check_interval(lower, upper, contrast.mean, width)
    summary = jax.tree.map(lambda leaf: jnp.ravel(leaf)[:2], posterior.summary(LEVEL))
    np.testing.assert_allclose(lower, summary.lower, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(contrast.covariance(noise=True), contrast.covariance())
    np.testing.assert_array_equal(contrast.samples(noise=True), contrast.samples())


def test_densities_of_contrasts():
    """Of the combinations themselves, where the targets are classes."""
    posterior = posterior_of("classes")
    contrast, residual = posterior.contrast(np.eye(6)[:2]), np.array([0.5, -0.1])
    values = contrast.mean + jnp.asarray(residual)
    marginal = scipy.stats.norm.logpdf(residual, scale=contrast.std())
    np.testing.assert_allclose(contrast.log_prob(values), marginal, rtol=1e-5)
    joint = dense.log_normal(residual, np.float64(contrast.covariance()))
    np.testing.assert_allclose(contrast.joint_log_prob(values), joint, rtol=1e-4)
    with pytest.raises(ValueError, match=r"targets has shape \[\(3,\)\]"):
        contrast.log_prob(jnp.zeros(3))
    with pytest.raises(ValueError, match="targets, not for parameters"):
        contrast.probabilities()
    with pytest.raises(ValueError, match=r"7 combinations of parameters .* 6 directions"):
        posterior.contrast(np.ones((7, 6))).joint_log_prob(np.ones(7))
