"""Classification and counts as people use them: bad data, predictions, files, other software."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax

import linmodels as lm
from laws.test_laplace import KEY, D, M, N, batched, observations, prior_of, random_arrays
from laws.tolerances import working_epsilon
from linmodels.operators import from_matrix, multi_output


def posterior_of(likelihood):
    normal = np.random.default_rng(0).standard_normal
    mean, deviations = normal(D), 0.5 * normal((5, D))
    return lm.Posterior(jnp.asarray(mean, float), jnp.asarray(deviations, float), None, likelihood)


def predicted(likelihood):
    """A prediction, and its samples in float64."""
    design = observations("poisson", random_arrays("poisson", 0)).design
    prediction = posterior_of(likelihood).predict(design)
    return prediction, np.asarray(prediction.samples(), np.float64)


def test_predictions_are_means_over_samples():
    prediction, draws = predicted(lm.Categorical())
    close = {"rtol": 0, "atol": 64 * working_epsilon()}
    np.testing.assert_allclose(prediction.probabilities(), softmax(draws, axis=2).mean(0), **close)
    labels = np.arange(N) % M
    log_prob = draws - logsumexp(draws, axis=2, keepdims=True)
    chosen = log_prob[:, np.arange(N), labels]
    expected = logsumexp(chosen, axis=0) - np.log(5)
    np.testing.assert_allclose(prediction.log_prob(labels), expected, **close)
    assert prediction.std().shape == (N, M)
    for wrong in (prediction.rate, lambda: prediction.std(noise=True)):
        with pytest.raises(ValueError, match="Categorical"):
            wrong()
    with pytest.raises(ValueError, match="has the class 3"):
        prediction.log_prob(np.full(N, 3))


def test_other_links():
    prediction, draws = predicted(lm.Poisson())
    np.testing.assert_allclose(prediction.rate(), np.exp(draws).mean(0), rtol=1e-4)
    with pytest.raises(ValueError, match="Poisson"):
        prediction.probabilities()
    two = predicted(lm.Bernoulli())[0].probabilities()
    np.testing.assert_allclose(two, expit(draws).mean(0), atol=64 * working_epsilon())


@pytest.mark.slow
def test_extreme_samples_have_a_finite_density():
    """Logits of ±1e4: log-sum-exp of −1e4 and 0 over two samples is −log 2."""
    design = lx.MatrixLinearOperator(jnp.ones((1, 1)))
    deviations = jnp.asarray([[1e4], [-1e4]])
    posterior = lm.Posterior(jnp.zeros(1), deviations, None, lm.Bernoulli())
    log_prob = posterior.predict(design).log_prob(np.ones(1))
    np.testing.assert_allclose(log_prob, -np.log(2), rtol=1e-6)


def test_files(tmp_path):
    for likelihood in (lm.Categorical(), lm.Bernoulli(), lm.Poisson()):
        posterior_of(likelihood).save(tmp_path / "posterior")
        loaded = lm.Posterior.load(tmp_path / "posterior")
        assert type(loaded.likelihood) is type(likelihood)
        np.testing.assert_array_equal(loaded.mean, posterior_of(likelihood).mean)


def test_what_needs_gaussian_noise_says_so():
    arrays = random_arrays("categorical", 0)
    data = observations("categorical", arrays)
    fit = lm.infer(data, prior_of(arrays), num_samples=0)
    with pytest.raises(ValueError, match=r"leave_one_out.*Categorical"):
        lm.leave_one_out(data, fit)
    with pytest.raises(ValueError, match=r"evidence path.*Categorical"):
        lm.evidence_path(data, num_samples=0)
    with pytest.raises(ValueError, match="Gaussian noise, not Categorical"):
        lm.Exact().prepare(data, fit.prior, num_samples=0, key=None)
    gaussian = lm.Observations(data.design, np.zeros((N, M)), lm.Gaussian(1.0))
    with pytest.raises(ValueError, match="curvature"):
        lm.infer(gaussian, fit.prior, num_samples=0, curvature_at=fit.posterior.mean)
    with pytest.raises(ValueError, match=r"curvature_at has shape \[\(7,\)\], θ \[\(4,\)\]"):
        lm.infer(data, fit.prior, num_samples=0, curvature_at=jnp.zeros(7))


def test_bad_targets_in_a_batch_are_named():
    arrays = random_arrays("categorical", 0)
    arrays.targets[5] = 0.5
    with pytest.raises(ValueError, match=r"batch 1: .* observation 1 sum to 1.5"):
        lm.infer(batched("categorical", arrays, 4), prior_of(arrays), num_samples=0)


def test_a_bad_entry_of_the_design_is_named():
    arrays = random_arrays("categorical", 0)
    arrays.design[5, 1, 2] = np.nan
    message = "the design must be finite; row {}, column 2"
    with pytest.raises(ValueError, match=message.format(16)):
        lm.infer(observations("categorical", arrays), prior_of(arrays), num_samples=0)
    with pytest.raises(ValueError, match="batch 1: " + message.format(4)):
        lm.infer(batched("categorical", arrays, 4), prior_of(arrays), num_samples=0)


def rows(seed, count, size):
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((count, size)).astype(np.float32)
    return x, lx.MatrixLinearOperator(jnp.asarray(x)), generator


@pytest.mark.slow
def test_coefficients_of_scikit_learn():
    """Logistic, multinomial and Poisson regression at matching penalties.

    Both solve to a gradient of 1e-6 an observation, or float32 rounding of theirs and ours; with
    H ≥ α = 1/2 coefficients differ by less than 1e-3.
    """
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    x, design, generator = rows(0, 60, 3)
    alpha, close = 0.5, {"rtol": 0, "atol": 1e-3}
    prior = lm.GaussianPrior(alpha)
    theirs = {"C": 1 / alpha, "fit_intercept": False, "tol": 1e-8, "max_iter": 1_000}
    labels = (generator.uniform(size=60) < expit(x @ [1.0, -1.0, 0.5])).astype(int)
    fit = lm.infer(lm.Observations(design, labels, lm.Bernoulli()), prior, num_samples=0)
    reference = LogisticRegression(**theirs).fit(x, labels).coef_[0]
    np.testing.assert_allclose(fit.posterior.mean, reference, **close)

    labels = generator.integers(0, 3, 60)
    data = lm.Observations(multi_output(design, 3), labels, lm.Categorical())
    fit = lm.infer(data, prior, num_samples=0)
    reference = LogisticRegression(**theirs).fit(x, labels).coef_.T
    np.testing.assert_allclose(np.reshape(fit.posterior.mean, (3, 3)), reference, **close)

    counts = generator.poisson(np.exp(x @ [0.5, -0.5, 0.2]))
    fit = lm.infer(lm.Observations(design, counts, lm.Poisson()), prior, num_samples=0)
    reference = PoissonRegressor(alpha=alpha / 60, fit_intercept=False, tol=1e-8).fit(x, counts)
    np.testing.assert_allclose(fit.posterior.mean, reference.coef_, **close)


def weighted_rows():
    """Columns, weights and a signal with an intercept."""
    x, _, generator = rows(2, 60, 3)
    weights = generator.choice([0.0, 0.5, 1.0, 3.0], 60)
    return x, weights, 1 + x @ [1.0, -1.0, 0.5], generator


def weighted_mode(design, targets, likelihood, weights, flat):
    data = lm.Observations(design, targets, likelihood, weights=weights)
    prior = lm.GaussianPrior(0.5, flat=flat)
    return np.asarray(lm.infer(data, prior, num_samples=0).posterior.mean)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bernoulli", "poisson"])
def test_intercepts_and_weights_of_scikit_learn(kind):
    """A flat intercept and weighted rows.

    Theirs is as close as above; ours to ‖e‖²_H ≤ 2e-10 γ and float32 rounding. H is at least 1/2 on
    coefficients; on an intercept it is Σ w p(1 − p) or a sum of rates, above 1 here.
    """
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    x, weights, signal, generator = weighted_rows()
    if kind == "bernoulli":
        targets = (generator.uniform(size=60) < expit(signal)).astype(int)
        theirs = LogisticRegression(C=2.0, tol=1e-8, max_iter=1_000)
    else:
        targets = generator.poisson(np.exp(signal / 2))
        theirs = PoissonRegressor(alpha=0.5 / weights.sum(), tol=1e-8, max_iter=1_000)
    reference = theirs.fit(x, targets, weights)
    design = lx.MatrixLinearOperator(jnp.asarray(np.c_[np.ones(60), x], jnp.float32))
    likelihood = {"bernoulli": lm.Bernoulli(), "poisson": lm.Poisson()}[kind]
    found = weighted_mode(design, targets, likelihood, weights, np.arange(4) == 0)
    expected = np.append(reference.intercept_, reference.coef_)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_multinomial_intercepts_of_scikit_learn():
    """Flat intercepts of all classes but the first: theirs less that one. Else as above."""
    from sklearn.linear_model import LogisticRegression

    x, weights, signal, generator = weighted_rows()
    labels = np.digitize(signal + generator.standard_normal(60), [0.0, 2.0])
    reference = LogisticRegression(C=2.0, tol=1e-8, max_iter=1_000).fit(x, labels, weights)
    matrix = np.c_[np.tile(np.eye(3)[:, 1:], (60, 1)), np.kron(x, np.eye(3))]
    shape = jax.ShapeDtypeStruct((60, 3), jnp.float32)
    design = from_matrix(jnp.asarray(matrix, jnp.float32), out_structure=shape)
    found = weighted_mode(design, labels, lm.Categorical(), weights, np.arange(11) < 2)
    intercepts = reference.intercept_[1:] - reference.intercept_[0]
    np.testing.assert_allclose(found[:2], intercepts, rtol=0, atol=1e-3)
    np.testing.assert_allclose(found[2:].reshape(3, 3), reference.coef_.T, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_g_prior_predicts_the_same_in_other_units():
    """A column in units a thousand times smaller: its coefficient follows."""
    x, _, generator = rows(1, 60, 3)
    labels = (generator.uniform(size=60) < expit(x @ [1.0, -1.0, 0.5])).astype(int)

    means = []
    for scale in (np.ones(3), np.array([1.0, 1e3, 1.0])):
        design = lx.MatrixLinearOperator(jnp.asarray(x * scale, jnp.float32))
        data = lm.Observations(design, labels, lm.Bernoulli())
        fit = lm.maximise_evidence(data, num_samples=0, tolerance=1e-4)
        means.append(np.asarray(fit.posterior.mean) * scale)
    np.testing.assert_allclose(*means, atol=1e-3)


@pytest.mark.slow
def test_effective_dimension_from_samples():
    """The estimator on deviations of a Laplace posterior, against the exact γ."""
    arrays = random_arrays("categorical", 0)
    data = observations("categorical", arrays)
    fit = lm.infer(data, prior_of(arrays), num_samples=4, key=KEY)
    norms = lm.effective_dimension.sample_norms(data, fit.prior, fit.posterior)
    estimate = lm.effective_dimension.combined(norms)
    gap = abs(float(estimate.value - fit.effective_dimension))
    assert gap <= 5 * float(estimate.standard_error)


def test_plan_looks_at_the_expansion():
    """A probe needs Gaussian noise, which the expansion at the prior mean has."""
    arrays = random_arrays("categorical", 0)
    chosen = lm.plan(observations("categorical", arrays), num_samples=4, key=jax.random.key(0))
    assert isinstance(chosen.method, lm.Exact)
