"""Solves that fail on the way to the strengths, in float32, are never taken for an answer."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from linmodels.methods import _sketch
from linmodels.methods.stopping import Measured, within

KEY = jax.random.key(0)


def dense(matrix):
    return lx.MatrixLinearOperator(jnp.asarray(matrix, jnp.float32))


def test_errors_beside_an_infinite_signal_are_not_small():
    """Iterates that have run away: 1e30 of infinity is nothing."""
    measured = Measured(np.array([np.inf, 1.0, 1.0]), np.full(3, 1e15))
    assert not within(np.full(3, 1e30), measured, 0.01)


@pytest.mark.slow
def test_groups_of_which_every_one_is_needed():
    """Noise of 0.01 makes eigenvalues of 1e7 on the longer side, of which rounding misleads c."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 6))
    y = x @ np.array([1, -2, 0.5, 1, 1, 1]) + 0.01 * rng.normal(size=40)
    data, prior = lm.Observations(dense(x), y), lm.GaussianPrior(groups=np.arange(6) % 2)
    exact = lm.maximise_evidence(data, prior, key=KEY, method=lm.Exact())
    fit = lm.maximise_evidence(data, prior, key=KEY, method=lm.BlockCG("dual"))
    assert fit.flags == exact.flags == ()
    # γ = 6 is known to 1e-4, and so are the updates; the precision is read off a residual.
    np.testing.assert_allclose(fit.noise_scale, exact.noise_scale, rtol=1e-2)
    np.testing.assert_allclose(fit.prior.alpha, exact.prior.alpha, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, 6])
def test_an_output_of_little_noise(seed):
    """Two outputs of noise 1 and 0.003: flagged as failed, or as with dense arithmetic."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 5)) @ rng.normal(size=(5, 150))
    signal = x @ rng.normal(size=150) / 12
    y = np.stack([signal + rng.normal(size=60), signal + 0.003 * rng.normal(size=60)], 1)
    operator = lm.operators.multi_output(dense(x), 2)
    data = lm.Observations(operator, jnp.asarray(y, jnp.float32), lm.Gaussian(per_output=True))
    for key in jax.random.split(KEY, 2):
        fit = lm.maximise_evidence(data, key=key, method=lm.BlockCG(), throw=False)
        if fit.result == lm.RESULTS.successful:
            exact = lm.maximise_evidence(data, key=key, method=lm.Exact())
            np.testing.assert_allclose(fit.noise_scale, exact.noise_scale, rtol=0.1)
            assert fit.flags == exact.flags


@pytest.mark.slow
def test_an_output_without_noise():
    """One of two is exactly linear: flagged, its noise precision of 1e10 as with dense sums."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 3)).astype("f")
    y = np.stack([x @ [1, -2, 0.5] + 0.4 * rng.normal(size=40), x.sum(1)], 1)
    operator = lm.operators.multi_output(dense(np.c_[np.ones(40), x]), 2)
    flat = np.zeros((4, 2), bool)
    flat[0] = True
    data = lm.Observations(operator, jnp.asarray(y, jnp.float32), lm.Gaussian(per_output=True))
    prior = lm.GaussianPrior.g_prior(flat=flat)
    exact, fit = (
        lm.maximise_evidence(data, prior, key=KEY, method=method)
        for method in (lm.Exact(), lm.BlockCG("primal"))
    )
    assert fit.flags == exact.flags
    assert [flag.kind for flag in fit.flags] == [lm.FlagKind.NOISE_PRECISION_INFINITE]
    # γ = 6 is known to √(2γ/64) = 0.4 of the 40 rows of the other: three times that.
    np.testing.assert_allclose(fit.noise_scale, exact.noise_scale, rtol=0.03)
    np.testing.assert_allclose(fit.posterior.mean, exact.posterior.mean, atol=0.01)


@pytest.mark.slow
def test_counts_of_a_million():
    """Float32 holds no eigenvalues of 1e7, but the best iterates of every solve are good."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 4))
    y = rng.poisson(1e6 * np.exp(x @ [0.5, -0.5, 0.2, 0.1]))
    data = lm.Observations(dense(np.c_[np.ones(50), x]), y, lm.Poisson())
    prior = lm.GaussianPrior(flat=np.arange(5) == 0)
    key = jax.random.key(2)
    exact, fit = (
        lm.maximise_evidence(data, prior, key=key, method=method)
        for method in (lm.Exact(), lm.BlockCG())
    )
    assert 4 - 1e-3 <= fit.effective_dimension <= 4
    np.testing.assert_allclose(fit.prior.alpha, exact.prior.alpha, rtol=1e-3)
    np.testing.assert_allclose(fit.posterior.mean, exact.posterior.mean, rtol=1e-4)
    # Of 64 deviations, to four standard errors of a relative √(1/128).
    np.testing.assert_allclose(fit.posterior.std(), exact.posterior.std(), rtol=4 / 128**0.5)


@pytest.mark.parametrize(("precision", "seed"), [(3e2, 0), (1e3, 0), (1e4, 1), (1e5, 1), (1e7, 0)])
def test_no_false_success_where_rounding_hides_small_eigenvalues(precision, seed):
    """Eigenvalues up to 1e11 beside ones of 1, in float32: a run's residual is known to ε‖b‖, so
    that the error of the mean, where H is 1, may be far above what the recursion believes. Further
    runs from residuals by rows make it small."""
    rng, k = np.random.default_rng(seed), 8
    x = (rng.normal(size=(64, 24)) @ rng.normal(size=(24, 32))).astype(np.float32)
    y = (x @ rng.normal(size=32) + rng.normal(size=64) / precision**0.5).astype(np.float32)
    data = lm.Observations(dense(x), jnp.asarray(y), lm.Gaussian(precision))
    method = lm.BlockCG("primal", max_passes=400)
    about = {"num_samples": k, "key": jax.random.key(seed), "throw": False}
    fit = lm.infer(data, lm.GaussianPrior(1.0), method=method, **about)
    if fit.result == lm.RESULTS.successful:
        x, y = np.float64(x), np.float64(y)
        hessian = precision * x.T @ x + np.eye(32)
        error = np.float64(fit.posterior.mean) - np.linalg.solve(hessian, precision * x.T @ y)
        assert error @ hessian @ error <= 2 * 24 / (8 * k)  # γ is 24, the tolerance 1/(8k)
        unseen = np.float64(fit.posterior.deviations) @ np.linalg.svd(x)[2][24:].T
        assert abs(np.mean(unseen**2) - 1) <= 5 * np.sqrt(2 / unseen.size)
    if precision <= 1e3:  # beyond, it may
        assert fit.result == lm.RESULTS.successful


@pytest.mark.parametrize("seed", range(3))
def test_smooth_functions_of_little_noise(seed):
    """1 − R² = 1e-6 and features that are nearly dependent, in float32: eigenvalues of 1e9 beside
    many of 1, and a mean 1e5 times as long as the noise."""
    rng, k = np.random.default_rng(seed), 8
    x = rng.uniform(-1, 1, size=(300, 2))
    features = np.cos(x @ rng.normal(size=(2, 100)) * 1.5 + rng.uniform(0, 6.3, size=100)) / 50**0.5
    y = np.sin(3 * x[:, 0]) * np.cos(2 * x[:, 1]) + 1e-3 * rng.normal(size=300)
    features, y = np.float32(features), np.float32(y)
    fit = lm.maximise_evidence(
        lm.Observations(dense(features), jnp.asarray(y)),
        lm.GaussianPrior(),
        key=jax.random.key(seed),
        method=lm.BlockCG("primal"),
        num_samples=k,
    )
    features, beta = np.float64(features), float(fit.noise_scale[0])
    hessian = beta * features.T @ features + float(fit.prior.alpha) * np.eye(100)
    error = np.float64(fit.posterior.mean) - np.linalg.solve(hessian, beta * features.T @ y)
    assert error @ hessian @ error <= fit.effective_dimension / (8 * k)


def with_spectrum(n, d, values, seed=0, weight=1.0, noise=1.0):
    """A regression whose WWᵀ has these eigenvalues, at α = 1 and unit noise."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(m, len(values))))[0] for m in (n, d))
    x = np.float32((left * np.sqrt(values)) @ right.T)
    y = np.float32(x @ rng.normal(size=d) * weight + noise * rng.normal(size=n))
    return lm.Observations(dense(x), jnp.asarray(y), lm.Gaussian(1.0)), np.float64(x), np.float64(y)


STRONG = {
    "steep": 1e8 / np.arange(1.0, 121.0) ** 4,
    "half": np.repeat([1e8, 0.0], 60),
    "all": np.full(120, 1e6),
}


@pytest.mark.parametrize(
    ("name", "side", "shape"),
    [
        ("steep", "primal", (300, 120)),
        ("steep", "dual", (120, 300)),
        ("half", "primal", (300, 120)),
        ("half", "dual", (120, 300)),
        ("all", "dual", (300, 120)),
    ],
)
def test_strong_signals_at_given_strengths(name, side, shape):
    """Eigenvalues of 1e8 beside ones of 1, in float32: ε‖H‖ is 12, so that small ones are hidden,
    and c of the dual side, were it all that there is of x, would be wrong by λ₁ of its rounding.
    """
    data, x, y = with_spectrum(*shape, STRONG[name], seed=1)
    seen, k = [], 16
    method = lm.BlockCG(side, callback=lambda progress: seen.append(progress.passes))
    about = {"num_samples": k, "key": KEY}
    exact = lm.infer(data, lm.GaussianPrior(1.0), method=lm.Exact(), **about)
    fit = lm.infer(data, lm.GaussianPrior(1.0), method=method, **about)
    hessian = x.T @ x + np.eye(shape[1])
    errors = np.float64(fit.posterior.deviations) - np.float64(exact.posterior.deviations)
    mean = np.float64(fit.posterior.mean) - np.linalg.solve(hessian, x.T @ y)
    allowed = fit.effective_dimension / (8 * k)
    assert mean @ hessian @ mean <= allowed
    # Beside the rounding of `Exact`, ε²λ₁ in every direction at most.
    rounding = 4 * np.finfo(np.float32).eps ** 2 * STRONG[name].max() * 120
    assert np.mean(np.einsum("ki,ij,kj->k", errors, hessian, errors)) <= allowed + rounding
    difference = abs(fit.log_evidence - exact.log_evidence)
    assert difference <= 4 * fit.log_evidence_error
    assert seen == sorted(set(seen))
    assert seen[-1] <= fit.solver.passes <= 1_000 // 8  # of which all were in vain


@pytest.mark.parametrize(
    ("size", "shape", "rest"),
    [
        (1e6, (120, 300), {"weight": 1e4}),
        (1e8, (300, 120), {"noise": 300.0}),
        (1e4, (300, 120), {"noise": 1e4}),
    ],
)
def test_the_dual_side_certifies_x_as_it_is_kept(size, shape, rest):
    """Rounding of z + Wᵀc: seen by the residual of x in the first case, by none in the others, as
    it is outside the span of Wᵀ, where c is as long as a noise that was taken for less."""
    data, x, y = with_spectrum(*shape, np.repeat([size, 0.0], 60), **rest)
    about = {"num_samples": 16, "key": KEY, "throw": False}
    fit = lm.infer(data, lm.GaussianPrior(1.0), method=lm.BlockCG("dual"), **about)
    hessian = x.T @ x + np.eye(shape[1])
    error = np.float64(fit.posterior.mean) - np.linalg.solve(hessian, x.T @ y)
    assert error @ hessian @ error <= fit.effective_dimension * fit.solver.certificate
    assert fit.result == lm.RESULTS.stagnated  # before `max_passes`


def test_without_room_for_a_sketch_slow_solves_go_on(monkeypatch):
    """They fail as they would have, and say so."""
    monkeypatch.setattr(_sketch, "CARRIED_ENTRIES", 120 * 20)
    data, _, _ = with_spectrum(300, 120, STRONG["steep"])
    method = lm.BlockCG("primal", max_passes=60)
    with pytest.raises(lm.FitError, match=r"max_passes|tolerance") as caught:
        lm.infer(data, lm.GaussianPrior(1.0), method=method, num_samples=16, key=KEY)
    assert caught.value.fit.solver.passes >= 60
