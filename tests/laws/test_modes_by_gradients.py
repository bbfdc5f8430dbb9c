"""Modes of other likelihoods approached by stochastic gradients, against dense Newton steps."""

import numpy as np
import pytest

import linmodels as lm
from laws.test_laplace import (
    KEY,
    D,
    M,
    N,
    batched,
    oracle,
    prior_of,
    random_arrays,
    require_products,
)
from laws.tolerances import working_epsilon


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["categorical", "poisson"])
def test_stochastic_gradients_approach_the_mode(kind):
    """With exact gradients, one batch: 600 steps at a rate of ¼/L/(1 − μ) or more, ½ on average.

    They contract by e^{-600·1.25 λ/L}; λ/L ≥ 1/100 here. What is left is rounding of gradients,
    as for the exact method.
    """
    arrays = random_arrays(kind, 0, flat=True)
    truth = oracle(kind, arrays, flat=True)
    precision = np.where(np.arange(D) == 0, 0, arrays.alpha)
    data, prior = batched(kind, arrays, N), prior_of(arrays, flat=True)
    method = lm.SampleThenOptimise(passes=600)
    found = method.approach_mode(data, prior, precision, np.zeros(D), KEY)
    units = np.where(np.arange(D) == 0, 1, arrays.root)
    scaled = truth.precision * units * units[:, None] / np.where(precision > 0, precision, 1)
    values = np.linalg.eigvalsh(scaled)
    assert values[-1] / values[0] < 100
    left = (arrays.mean + units * found - truth.mean) @ np.linalg.cholesky(truth.precision)
    assert np.linalg.norm(left) <= 80 * N * M * working_epsilon() / 0.07 + np.exp(-7.5) * 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["categorical"])
def test_stochastic_gradients_on_minibatches(kind):
    """The mode to the tolerance of the last Newton steps, samples to theirs."""
    arrays = random_arrays(kind, 0)
    truth, data, prior = oracle(kind, arrays), batched(kind, arrays, 4), prior_of(arrays)
    fit = lm.infer(data, prior, method=lm.SampleThenOptimise(), num_samples=8, key=KEY)
    exact = lm.infer(data, prior, method=lm.Exact(), num_samples=8, key=KEY)
    require_products(fit, exact, truth, 8)
