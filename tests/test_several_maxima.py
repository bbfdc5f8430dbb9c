"""Of several maxima of the evidence of one α the largest is found, from any start."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

METHODS = [lm.Exact("primal"), lm.Exact("dual"), lm.BlockCG()]
UNITS = np.array([1, 1, 1, 1e3])


def observed(units):
    """Targets that do not depend on the units of the columns."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4))
    y = x @ np.ones(4) + 0.3 * rng.normal(size=200)
    return x * units, y


def observations(units):
    x, y = observed(units)
    operator = lx.MatrixLinearOperator(jnp.asarray(x, jnp.float32))
    return lm.Observations(operator, jnp.asarray(y, jnp.float32))


def evidence(fit, units):
    """By dense arithmetic, at the strengths of a fit."""
    x, y = observed(units)
    alpha, beta = float(fit.prior.alpha), float(fit.noise_scale[0])
    covariance = x @ x.T / alpha + np.eye(len(y)) / beta
    values = np.linalg.eigvalsh(covariance)
    return -0.5 * (np.log(2 * np.pi * values).sum() + y @ np.linalg.solve(covariance, y))


@pytest.mark.parametrize("method", METHODS, ids=["primal", "dual", "block-CG"])
@pytest.mark.parametrize("start", [None, 1.0, 1e-3])
def test_columns_of_other_units(method, start):
    """One of four columns in thousandths: with α for its units alone the evidence is −402.4."""
    key = jax.random.key(0)
    fit = lm.maximise_evidence(observations(UNITS), lm.GaussianPrior(start), method=method, key=key)
    # A dense scan of α and the noise in float64: −40.8187 at α = 1.09.
    assert evidence(fit, UNITS) >= -40.9
    assert fit.flags == ()


@pytest.mark.parametrize("method", METHODS[:2], ids=["primal", "dual"])
def test_columns_of_units_five_decades_apart(method):
    """Eigenvalues far below 1e-9 of the largest are no rounding in double precision."""
    units = np.array([1, 1, 1, 1e5])
    fits = [
        lm.maximise_evidence(
            observations(units), lm.GaussianPrior(start), method=method, num_samples=0
        )
        for start in (None, 1.0)
    ]
    one, other = (evidence(fit, units) for fit in fits)
    assert abs(one - other) <= 0.1
    assert one >= -60


@pytest.mark.slow
def test_a_resumed_search_ends_where_it_would_have():
    """From every state on the way, before the first maximum and behind it."""
    data, states = observations(UNITS), []
    learn = lambda **about: lm.maximise_evidence(data, lm.GaussianPrior(), num_samples=0, **about)
    fit = learn(callback=states.append)
    for state in states:
        again = learn(state=state)
        np.testing.assert_array_equal(again.prior.alpha, fit.prior.alpha)
        np.testing.assert_array_equal(again.log_evidence, fit.log_evidence)
