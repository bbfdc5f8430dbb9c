"""Estimators of γ: unbiased, with the variances that theory gives and the errors they state."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linmodels as lm
from laws.problems import Layout, cast, observations, prior, random_arrays
from linmodels.effective_dimension import SampleNorms

SHRINKAGE = np.array([0.95, 0.9, 0.6, 0.3, 0.1, 0.05, 0.02])
SIZE = len(SHRINKAGE)
GAMMA = SHRINKAGE.sum()
K, REPEATS = 32, 4000

ESTIMATORS = {
    "function space": lm.effective_dimension.function_space,
    "weight space": lm.effective_dimension.weight_space,
    "combined": lm.effective_dimension.combined,
}
VARIANCES = {
    "function space": 2 * np.sum(SHRINKAGE**2) / K,
    "weight space": 2 * np.sum((1 - SHRINKAGE) ** 2) / K,
    "combined": 2 * (np.sum(SHRINKAGE**2) - GAMMA**2 / SIZE) / K,
}


def norms(seed, k):
    """‖Wx‖² = Σ s g² and ‖x‖² = Σ (1 − s) g² in the eigenvectors' coordinates, without a limit."""
    squares = np.random.default_rng(seed).standard_normal((k, SIZE)) ** 2
    in_data, in_parameters = (jnp.asarray(squares @ s) for s in (SHRINKAGE, 1 - SHRINKAGE))
    return SampleNorms(in_data, in_parameters, SIZE, np.inf)


@functools.cache
def repeated(k):
    """R times the norms of k samples."""
    in_data, in_parameters, *_ = norms(0, REPEATS * k)
    return in_data.reshape(REPEATS, k), in_parameters.reshape(REPEATS, k)


def variance(name, k):
    """What theory says, with the noise of leave-one-out coefficients.

    With c = (d' − ‖x‖² − ‖Wx‖²)/d' of variance 2/d' and covariance −2γ/d' with ‖Wx‖², the mean of
    b_j c_j, b_j the mean of the others' ‖Wx‖², has beside γc the variance
    (2Σs²/(k−1))(2/d')/k + (2γ/d')²/(k(k−1)).
    """
    extra = 4 * np.sum(SHRINKAGE**2) / SIZE + 4 * GAMMA**2 / SIZE**2
    return VARIANCES[name] * K / k + (name == "combined") * extra / (k * (k - 1))


@pytest.mark.parametrize("k", [6, K])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_unbiased_with_the_variance_of_theory(name, k):
    """Over R repeats the mean is within 5 √(V/R), the variance within 25 % of V.

    An estimate is a mean of k squares, of kurtosis at most 3 + 12/k = 5; the relative standard
    error of its variance is at most √(4/R) = 3 %, and 8 of them are 25 %. Stated squared errors
    average k R squares, and add a term that differs by (k/(k−1)) from its exact value, 20 % of
    little at k = 6. Values are not clipped, which would bias them.
    """
    draw = lambda *pair: ESTIMATORS[name](SampleNorms(*pair, SIZE, np.inf, -np.inf))
    estimate = jax.jit(jax.vmap(draw))(*repeated(k))
    values, errors = (np.asarray(leaf, np.float64) for leaf in estimate)
    expected = variance(name, k)
    assert abs(values.mean() - GAMMA) <= 5 * np.sqrt(expected / REPEATS)
    assert abs(values.var() - expected) <= 0.25 * expected
    assert abs(np.mean(errors**2) - expected) <= 0.25 * expected


def test_one_sample_states_a_bound():
    """√(2γ) ≥ √(2 Σ s²), and √(2(d' − γ)) ≥ √(2 Σ (1 − s)²)."""
    samples = norms(2, 1)
    for name in ("function space", "combined"):
        estimate = ESTIMATORS[name](samples)
        assert estimate.standard_error == jnp.sqrt(2 * estimate.value)
    in_weights = ESTIMATORS["weight space"](samples)
    assert in_weights.standard_error == jnp.sqrt(2 * samples.parameters[0])


def test_limits():
    samples = SampleNorms(jnp.array([5.0, 7.0]), jnp.array([5.0, 7.0]), 4, 3.0)
    assert ESTIMATORS["function space"](samples).value == 3.0
    assert ESTIMATORS["weight space"](samples).value == 0.0


@pytest.mark.parametrize("kind", ["isotropic", "everything", "dense"])
def test_deviations_estimate_the_exact_value(kind):
    """Within 5 stated standard errors, k = 4096, of what the method says itself."""
    k = 4096
    layout = Layout(9, 1, 4, "entries", kind)
    arrays = cast(random_arrays(layout, "full", np.random.default_rng(7)))
    data = observations(layout, arrays, learn=False)
    fit = lm.infer(data, prior(layout, arrays), num_samples=k, key=jax.random.key(3))
    samples = lm.effective_dimension.sample_norms(data, fit.prior, fit.posterior)
    assert samples.num_parameters == layout.d - layout.flat.sum()
    for estimator in ESTIMATORS.values():
        estimate = estimator(samples)
        assert abs(estimate.value - fit.effective_dimension) <= 5 * estimate.standard_error
        assert estimate.standard_error < 0.1


@pytest.mark.parametrize("relative_error", [0.05, 0.2])
def test_enough_samples(relative_error):
    """The k that is said to be enough is: √(2Σs²/k) ≤ ε γ; half of it is not where s = 1."""
    k = lm.effective_dimension.num_samples_for(relative_error, GAMMA)
    assert np.sqrt(2 * np.sum(SHRINKAGE**2) / k) <= relative_error * GAMMA
    assert np.sqrt(2 * GAMMA / (k / 2)) > relative_error * GAMMA
    with pytest.raises(ValueError, match="relative_error must be positive"):
        lm.effective_dimension.num_samples_for(0.0, 1.0)
