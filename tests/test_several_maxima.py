"""Of several maxima of the evidence of one α the largest is found, from any start."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

METHODS = [lm.Exact("primal"), lm.Exact("dual"), lm.BlockCG()]


@pytest.mark.parametrize("method", METHODS, ids=["primal", "dual", "block-CG"])
@pytest.mark.parametrize("start", [None, 1.0, 1e-3])
def test_columns_of_other_units(method, start):
    """One of four columns in thousandths: with α for its units alone the evidence is −402.4."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) * [1, 1, 1, 1e3]
    y = x @ [1, 1, 1, 1e-3] + 0.3 * rng.normal(size=200)
    operator = lx.MatrixLinearOperator(jnp.asarray(x, jnp.float32))
    data, key = lm.Observations(operator, jnp.asarray(y, jnp.float32)), jax.random.key(0)
    fit = lm.maximise_evidence(data, lm.GaussianPrior(start), method=method, key=key)
    # A dense scan of α and the noise in float64: −40.8187 at α = 1.09.
    covariance = lambda a, b: x @ x.T / a + np.eye(200) / b
    alpha, beta = float(fit.prior.alpha), float(fit.noise_scale[0])
    values = np.linalg.eigvalsh(covariance(alpha, beta))
    square = y @ np.linalg.solve(covariance(alpha, beta), y)
    evidence = -0.5 * (np.log(2 * np.pi * values).sum() + square)
    assert evidence >= -40.9
    assert fit.flags == ()


@pytest.mark.slow
def test_a_resumed_search_ends_where_it_would_have():
    """From every state on the way, before the first maximum and behind it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)) * [1, 1, 1, 1e3]
    y = x @ [1, 1, 1, 1e-3] + 0.3 * rng.normal(size=200)
    operator = lx.MatrixLinearOperator(jnp.asarray(x, jnp.float32))
    data = lm.Observations(operator, jnp.asarray(y, jnp.float32))
    states = []
    learn = lambda **about: lm.maximise_evidence(data, lm.GaussianPrior(), num_samples=0, **about)
    fit = learn(callback=states.append)
    for state in states:
        again = learn(state=state)
        np.testing.assert_array_equal(again.prior.alpha, fit.prior.alpha)
        np.testing.assert_array_equal(again.log_evidence, fit.log_evidence)
