"""Probabilities in closed form, and how good probabilities are, by hand and by brute force."""

import itertools

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from linmodels import metrics, predictives

LOGITS = jnp.array([3.0, 1.0, 0.0])
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("variance", "expected"),
    [
        (0.0, [0.84379, 0.11420, 0.04201]),
        (1.0, [0.79217, 0.14548, 0.06234]),
        (1e12, [1 / 3, 1 / 3, 1 / 3]),
    ],
)
def test_probit_of_classes(variance, expected):
    found = predictives.categorical_probit(LOGITS, jnp.full(3, variance))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("variance", [0.0, 1e-3, 1.0, 1e12])
def test_probit_of_huge_logits(variance):
    """Rows sum to 1 to a rounding of each class, nothing overflows."""
    logits = jnp.array([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]])
    found = predictives.categorical_probit(logits, jnp.full((2, 3), variance))
    np.testing.assert_allclose(found.sum(1), 1, rtol=3 * 2.0**-23)
    np.testing.assert_allclose(found[1], 1 / 3, rtol=1e-6)
    both = predictives.bernoulli_probit(jnp.array([1e4, -1e4]), jnp.full(2, variance))
    np.testing.assert_allclose(both.sum(), 1, rtol=1e-6)


def test_probit_of_one_logit():
    found = predictives.bernoulli_probit(jnp.array([0.0, 2.0]), jnp.array([5.0, 3.0]))
    np.testing.assert_allclose(found, [0.5, 0.79497], atol=1e-5)


def classified(likelihood, labels, design):
    data = lm.Observations(design, labels, likelihood)
    fit = lm.infer(data, lm.GaussianPrior(1.0), num_samples=1_000, key=KEY)
    return fit.posterior.predict(design)


@pytest.mark.slow
def test_predictions_by_probit_are_near_those_by_samples():
    """Within 0.02, the known error of the approximation, and 4/√1000 · ½ of sampling."""
    design = lx.MatrixLinearOperator(jnp.linspace(-1, 1, 8)[:, None])
    labels = jnp.array([0.0, 0, 1, 0, 1, 1, 1, 1])
    prediction = classified(lm.Bernoulli(), labels, design)
    gap = prediction.probit_probabilities() - prediction.probabilities()
    assert jnp.abs(gap).max() < 0.02 + 2 / np.sqrt(1_000)
    classes = lm.operators.multi_output(design, 2)
    prediction = classified(lm.Categorical(), labels.astype(int), classes)
    np.testing.assert_allclose(prediction.probit_probabilities().sum(1), 1, rtol=1e-6)


def test_probit_of_other_targets():
    design = lx.MatrixLinearOperator(jnp.ones((3, 1)))
    prediction = classified(lm.Poisson(), jnp.array([1.0, 0, 2]), design)
    with pytest.raises(ValueError, match="for Categorical or Bernoulli targets, not for Poisson"):
        prediction.probit_probabilities()


def test_brier_score_by_hand():
    probabilities = jnp.array([[0.7, 0.2, 0.1], [0.0, 0.0, 1.0]])
    expected = (0.09 + 0.04 + 0.01 + 0 + 1 + 1) / 2
    assert abs(float(metrics.brier(probabilities, jnp.array([0, 1]))) - expected) < 1e-6


def test_reliability_by_hand():
    """Two of three at 0.9 are right, none of one at 0.6; 1 belongs to the last bin."""
    first = jnp.array([0.9, 0.9, 0.9, 0.6, 1.0])
    probabilities = jnp.stack([first, 1 - first], axis=1)
    found = metrics.reliability(probabilities, jnp.array([0, 0, 1, 1, 0]), bins=5)
    np.testing.assert_array_equal(found.count, [0, 0, 1, 0, 4])
    np.testing.assert_allclose(found.accuracy, [0, 0, 0, 0, 0.75])
    np.testing.assert_allclose(found.confidence, [0, 0, 0.6, 0, 0.925], rtol=1e-6)
    expected = (1 * 0.6 + 4 * 0.175) / 5
    assert abs(float(found.expected_error) - expected) < 1e-6


@pytest.mark.slow
def test_joint_log_prob_over_all_sets():
    """Of two in pairs with τ = 2, the mean over all draws: brute force, to 5 standard errors."""
    log_probs = jnp.log(jnp.array([[0.9, 0.2], [0.1, 0.6], [0.5, 0.5]]))
    values = []
    for draw in itertools.product(range(2), repeat=2):
        sums = sum(np.asarray(log_probs, np.float64)[:, place] for place in draw)
        values.append(np.log(np.mean(np.exp(sums))))
    found = metrics.resampled_joint_log_prob(log_probs, 2, 2, shuffles=4_000, key=KEY)
    assert abs(float(found) - np.mean(values)) <= 5 * np.std(values) / np.sqrt(4_000)


def test_joint_log_prob_of_single_observations_is_marginal():
    log_probs = jax.nn.log_sigmoid(jax.random.normal(KEY, (5, 7)))
    found = metrics.resampled_joint_log_prob(log_probs, 1, key=KEY)
    marginal = jnp.mean(jax.nn.logsumexp(log_probs, axis=0) - np.log(5))
    np.testing.assert_allclose(found, marginal, rtol=1e-5)


@pytest.mark.slow
def test_samples_that_know_what_goes_together_win():
    """One coin for all flips: 2τ log ½ apart, each alone; together log ½ and a bit."""
    together = jnp.log(jnp.where(jnp.arange(2)[:, None] == 0, 0.99, 0.01) * jnp.ones(8))
    apart = jnp.log(jnp.full((2, 8), 0.5))
    joint = metrics.resampled_joint_log_prob(together, 4, 8, key=KEY)
    assert joint > metrics.resampled_joint_log_prob(apart, 4, 8, key=KEY) + 4


def test_distances_by_hand():
    p, q = jnp.array([0.5, 0.5]), jnp.array([0.9, 0.1])
    expected = 0.5 * (0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1))
    expected += 0.5 * (0.9 * np.log(0.9 / 0.5) + 0.1 * np.log(0.1 / 0.5))
    assert abs(float(metrics.symmetric_kl(jnp.log(p), jnp.log(q))) - expected) < 1e-6
    assert float(metrics.symmetric_kl(jnp.log(p), jnp.log(p))) == 0


def test_classes_without_mass():
    """0 log 0 = 0; what one distribution rules out and the other does not is infinitely far."""
    sure, other, tiny = (jnp.log(jnp.array(p)) for p in ([0.0, 1], [1.0, 0], [0.5, 0.5]))
    tiny = tiny.at[0].set(-200.0)
    assert float(metrics.symmetric_kl(sure, sure)) == 0
    for there in (other, tiny):
        assert float(metrics.symmetric_kl(sure, there)) == float("inf")
        assert float(metrics.symmetric_kl(there, sure)) == float("inf")
    half = jnp.log(jnp.array([[0.0, 0.5, 0.5], [0.0, 0.9, 0.1]]))
    expected = metrics.symmetric_kl(half[0, 1:], half[1, 1:])
    np.testing.assert_allclose(metrics.symmetric_kl(*half), expected, rtol=1e-6)
    assert jnp.isfinite(jax.grad(lambda p: metrics.symmetric_kl(p, half[1]))(half[0])).all()


def test_impossible_observations_count_where_they_are_drawn():
    """One draw of two observations a set: the mean is finite unless the impossible one is drawn."""
    impossible = jnp.log(jnp.array([[0.5, 0.0], [0.5, 0.0]]))
    once = lambda key: metrics.resampled_joint_log_prob(impossible, 2, 1, shuffles=1, key=key)
    found = np.array([once(jax.random.key(seed)) for seed in range(8)])
    np.testing.assert_allclose(found, np.where(np.isinf(found), -np.inf, np.log(0.5)), rtol=1e-6)
    assert 0 < np.isinf(found).sum() < 8
    one_sample = jnp.log(jnp.array([[0.5, 0.0], [0.5, 0.5]]))
    found = metrics.resampled_joint_log_prob(one_sample, 2, 20, key=KEY)
    np.testing.assert_allclose(found, np.log(0.5) * 21, rtol=1e-6)


def test_density_without_spread():
    """A point mass: ∞ where it is, −∞ elsewhere, and no NaN."""
    zeros = jnp.zeros(3)
    found = metrics.gaussian_log_prob(jnp.array([0.0, 1.0, -1.0]), zeros, zeros)
    np.testing.assert_array_equal(found, [np.inf, -np.inf, -np.inf])


@pytest.mark.parametrize("rank", [1, 3])
def test_wasserstein_between_covariances_of_any_rank(rank):
    """Roots of eigenvalues that are rounding, √(ε ‖C‖²), are what is lost."""
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((2, 3, rank))
    first, second = (root @ root.T for root in roots)
    means = rng.standard_normal((2, 3))
    # The roots of the eigenvalues of C C′ are the singular values of Gᵀ G′.
    shared = np.linalg.svd(roots[0].T @ roots[1])[1].sum()
    squared = np.sum((means[0] - means[1]) ** 2) + np.trace(first + second) - 2 * shared
    arrays = [jnp.asarray(a, jnp.float32) for a in (means[0], first, means[1], second)]
    lost = 6 * np.sqrt(2.0**-23) * np.linalg.norm(first) ** 0.5 * np.linalg.norm(second) ** 0.5
    assert abs(float(metrics.gaussian_wasserstein(*arrays)) ** 2 - squared) <= lost


def test_misuse():
    probabilities = jnp.full((2, 3), 1 / 3)
    with pytest.raises(ValueError, match="labels must be classes from 0 to 2, but label 1 is 3"):
        metrics.brier(probabilities, jnp.array([0, 3]))
    with pytest.raises(ValueError, match="bins must be at least 1, got 0"):
        metrics.reliability(probabilities, jnp.array([0, 1]), bins=0)
    with pytest.raises(ValueError, match="distinct=9 must be from 1 to the 7 observations"):
        metrics.resampled_joint_log_prob(jnp.zeros((5, 7)), 9, key=KEY)
    with pytest.raises(ValueError, match="must be the same"):
        metrics.symmetric_kl.__wrapped__(jnp.zeros(3), jnp.zeros(2))
    with pytest.raises(ValueError, match=r"probabilities must be \(n, c\) and labels \(n,\)"):
        metrics.brier.__wrapped__(probabilities, jnp.array([0, 1, 2]))
