"""Faults that software has had elsewhere with classes and counts: none of their kind is here."""

from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from scipy.special import expit

import linmodels as lm
from linmodels.operators import from_matrix, multi_output

N, D, M = 12, 3, 3
SINGLE = {"bernoulli": lm.Bernoulli(), "poisson": lm.Poisson()}
PRIOR = lm.GaussianPrior(0.5)


def columns(seed: int) -> tuple[np.ndarray, np.random.Generator]:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((N, D)), generator


def matrix(x: Any) -> lx.MatrixLinearOperator:
    return lx.MatrixLinearOperator(jnp.asarray(x, jnp.float32))


def infer(design: lx.AbstractLinearOperator, targets: Any, likelihood: Any) -> lm.Fit:
    return lm.infer(lm.Observations(design, targets, likelihood), PRIOR, num_samples=0)


# Shapes that broadcast.


@pytest.mark.parametrize("kind", SINGLE)
def test_one_output_as_a_column(kind):
    """Targets (N, 1) of a design with outputs (N, 1) are what (N,) are to one with (N,)."""
    x, generator = columns(0)
    y, likelihood = generator.integers(0, 2, N), SINGLE[kind]
    shape = jax.ShapeDtypeStruct((N, 1), jnp.float32)
    column = from_matrix(jnp.asarray(x, jnp.float32), out_structure=shape)
    flat, wide = infer(matrix(x), y, likelihood), infer(column, y[:, None], likelihood)
    np.testing.assert_allclose(wide.posterior.mean, flat.posterior.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(wide.log_evidence, flat.log_evidence, rtol=1e-6)
    assert wide.posterior.predict(column).mean.shape == (N, 1)
    for design, targets in ((matrix(x), y[:, None]), (column, y)):
        with pytest.raises(ValueError, match="targets has shape"):
            lm.Observations(design, targets, likelihood)
        with pytest.raises(ValueError, match="targets has shape"):
            (flat if targets is not y else wide).posterior.predict(design).log_prob(targets)


def test_class_numbers_as_a_column():
    """Class numbers (N,) are one-hot rows (N, M); a column (N, 1) of them is refused."""
    x, generator = columns(0)
    labels, design = generator.integers(0, M, N), multi_output(matrix(x), M)
    numbers = infer(design, labels, lm.Categorical())
    one_hot = infer(design, np.eye(M)[labels], lm.Categorical())
    np.testing.assert_array_equal(numbers.posterior.mean, one_hot.posterior.mean)
    with pytest.raises(ValueError, match=r"shape \(12, 1\): give class numbers \(12,\)"):
        lm.Observations(design, labels[:, None], lm.Categorical())


# Units.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bernoulli", "categorical"])
def test_groups_under_the_g_prior_ignore_the_units_of_a_column(kind):
    """One α a column: a column in units of 1e-3 changes neither support nor predictions.

    Both take the same steps, so that they differ by rounding alone: 1e-4 is a thousand ε.
    """
    x, generator = columns(2)
    signal = x @ np.array([2.0, 0.0, -1.0])
    draw = {
        "bernoulli": lambda: generator.uniform(size=N) < expit(signal),
        "poisson": lambda: generator.poisson(np.exp(signal)),
        "categorical": lambda: np.digitize(signal, [-1.0, 1.0]),
    }
    targets, likelihood = draw[kind](), {**SINGLE, "categorical": lm.Categorical()}[kind]
    outputs = M if kind == "categorical" else None
    widened = lambda x: matrix(x) if outputs is None else multi_output(matrix(x), outputs)
    shape = widened(x).in_structure().shape
    groups = np.arange(D) if outputs is None else np.arange(D)[:, None] * np.ones(shape, int)
    fits = []
    for units in (np.ones(D), np.array([1.0, 1.0, 1e3])):
        data = lm.Observations(widened(x * units), targets, likelihood)
        prior = lm.GaussianPrior.g_prior(groups=groups)
        fit = lm.maximise_evidence(data, prior, num_samples=0, tolerance=1e-4)
        fits.append((fit, fit.posterior.predict(widened(x * units)).mean))
    (one, here), (other, there) = fits
    assert one.flags == other.flags
    settled = ~np.isin(np.arange(D), [flag.where for flag in one.flags])
    np.testing.assert_allclose(
        np.asarray(one.prior.alpha)[settled], np.asarray(other.prior.alpha)[settled], rtol=1e-4
    )
    np.testing.assert_allclose(here, there, atol=1e-4)


# Averages over the posterior.


def test_probabilities_average_over_logits():
    """A logit of mean 2 and variance 3: E σ(f) by quadrature, within 5 standard errors; not σ(2).

    The probit approximation, σ(2/√(1 + 3π/8)) = .79497, is .0015 from it.
    """
    k = 4_096
    deviations = np.sqrt(3) * np.random.default_rng(0).standard_normal((k, 1))
    posterior = lm.Posterior(
        jnp.full(1, 2.0), jnp.asarray(deviations, jnp.float32), None, lm.Bernoulli()
    )
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    values = expit(2 + np.sqrt(3) * nodes)
    mean, square = (weights @ values**power / weights.sum() for power in (1, 2))
    error = np.sqrt((square - mean**2) / k)
    found = float(posterior.predict(matrix([[1.0]])).probabilities()[0])
    assert abs(found - mean) <= 5 * error
    assert expit(2) - mean > 10 * error
    assert abs(mean - expit(2 / np.sqrt(1 + 3 * np.pi / 8))) < 0.002


def test_one_logit_is_not_a_softmax():
    """Its probability would be 1 whatever the data: refused."""
    design = multi_output(matrix(np.ones((N, D))), 1)
    with pytest.raises(ValueError, match="Bernoulli"):
        lm.Observations(design, np.zeros(N, int), lm.Categorical())


@pytest.mark.parametrize("kind", [*SINGLE, "categorical"])
def test_targets_as_expected_need_no_prior(kind):
    """Targets that are what f = 0 expects: the mode is 0 at every α, whose optimum is ∞; flagged.

    The evidence is then log p(y | f = 0).
    """
    x, _ = columns(1)
    likelihood = {**SINGLE, "categorical": lm.Categorical()}[kind]
    design = multi_output(matrix(x), M) if kind == "categorical" else matrix(x)
    targets = likelihood.expected_targets(jnp.zeros(design.out_structure().shape))
    data = lm.Observations(design, targets, likelihood)
    fit = lm.maximise_evidence(data, num_samples=0)
    assert {flag.kind for flag in fit.flags} == {lm.FlagKind.PRIOR_PRECISION_INFINITE}
    np.testing.assert_allclose(fit.posterior.mean, 0, atol=1e-6)
    expected = float(likelihood.log_prob(jnp.zeros(targets.shape), targets).sum())
    np.testing.assert_allclose(fit.log_evidence, expected, rtol=1e-5)
