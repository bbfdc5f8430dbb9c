"""Faults that software learning α and the noise has had elsewhere: none of their kind is here.

Every value comes from dense arithmetic or from a closed form that the test states.
"""

from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

SIDES = pytest.mark.parametrize("side", ["primal", "dual"])
M_STEPS = pytest.mark.parametrize(
    "m_step",
    [lm.m_steps.mackay, lm.m_steps.evidence_bound, lm.m_steps.em_elbo],
    ids=lambda step: step.__name__,
)
TOLERANCE = {np.float32: 2e-5, np.float64: 1e-9}
ALPHA_INFINITE = lm.FlagKind.PRIOR_PRECISION_INFINITE
NOISELESS = lm.FlagKind.NOISE_PRECISION_INFINITE


CASES = [
    (np.float32, "primal"),
    (np.float32, "dual"),
    (np.float64, "primal"),
    (np.float64, "dual"),
    (np.float32, "primal under jit"),
    (np.float32, "dual under jit"),
]


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request) -> Iterator[Any]:
    with jax.enable_x64(request.param is np.float64):
        yield request.param


@pytest.fixture(params=CASES, ids=lambda case: f"{case[1]} {case[0].__name__}")
def case(request) -> Iterator[tuple[Any, str]]:
    """A precision, and a way to infer: by either side, eagerly or traced."""
    with jax.enable_x64(request.param[0] is np.float64):
        yield request.param


def observe(x: Any, y: Any, dtype: Any, noise: Any = None, **rest: Any) -> lm.Observations:
    design = lx.MatrixLinearOperator(jnp.asarray(x, dtype))
    return lm.Observations(design, y, lm.Gaussian() if noise is None else noise, **rest)


def learn(data: Any, prior: Any = None, side: str | None = None, **rest: Any) -> lm.Fit:
    return lm.maximise_evidence(data, prior, method=lm.Exact(side), num_samples=0, **rest)


def covariance(fit: lm.Fit) -> np.ndarray:
    factor = fit.posterior.covariance_factor
    assert factor is not None
    root = np.asarray(factor.as_matrix(), np.float64)
    return root @ root.T


def kinds(fit: lm.Fit) -> set[lm.FlagKind]:
    return {flag.kind for flag in fit.flags}


def require_sound(fit: lm.Fit) -> None:
    """Finite everywhere, no negative variance, γ within its bounds."""
    std = np.asarray(fit.posterior.std())
    numbers = [fit.posterior.mean, std, fit.log_evidence, fit.prior.alpha]
    numbers.append(fit.likelihood.noise_precision)
    assert all(np.isfinite(np.asarray(x)).all() for x in numbers)
    assert (std >= 0).all()
    assert -1e-6 <= fit.effective_dimension <= std.size * (1 + 1e-6)


# Wide and tall designs.


@pytest.mark.parametrize(
    ("case", "shape"),
    [*((c, (20, 10)) for c in CASES[:3]), *((c, (10, 20)) for c in CASES[3:])],
    indirect=["case"],
)
def test_wide_and_tall_covariances(case, shape):
    """The covariance of a 10 × 20 or 20 × 10 design is (αI + βXᵀX)⁻¹, by either side."""
    dtype, way = case
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape), rng.normal(size=shape[0])
    prior, method = lm.GaussianPrior(0.5), lm.Exact(way.split(maxsplit=1)[0])
    fit = lambda data: lm.infer(data, prior, method=method, num_samples=0)
    found = (eqx.filter_jit(fit) if "jit" in way else fit)(observe(x, y, dtype, lm.Gaussian(4.0)))
    expected = np.linalg.inv(0.5 * np.eye(shape[1]) + 4 * x.T @ x)
    close = {"rtol": 10 * TOLERANCE[dtype], "atol": 10 * TOLERANCE[dtype]}
    np.testing.assert_allclose(covariance(found), expected, **close)
    np.testing.assert_allclose(found.posterior.mean, expected @ (4 * x.T @ y), **close)
    dimension = shape[1] - 0.5 * np.trace(expected)
    np.testing.assert_allclose(found.effective_dimension, dimension, **close)


@pytest.mark.parametrize(
    ("case", "variance", "expected"),
    [*((c, 1.0, -2.983757) for c in CASES), *((c, 2.0, -3.335977) for c in CASES[:3])],
    indirect=["case"],
)
def test_two_observations_by_hand(case, variance, expected):
    """X = [1, 2]ᵀ, y = [1, 1], α = 1: evidence, mean, variance and γ from pen and paper."""
    dtype, way = case
    prior, method = lm.GaussianPrior(1.0), lm.Exact(way.split(maxsplit=1)[0])
    noise = lm.Gaussian(1 / variance)
    fit = lambda data: lm.infer(data, prior, method=method, num_samples=0)
    found = (eqx.filter_jit(fit) if "jit" in way else fit)(
        observe([[1.0], [2.0]], np.ones(2), dtype, noise)
    )
    precision = 1 + 5 / variance
    np.testing.assert_allclose(found.log_evidence, expected, atol=2e-6)
    np.testing.assert_allclose(found.posterior.mean, 3 / variance / precision, TOLERANCE[dtype])
    np.testing.assert_allclose(covariance(found), 1 / precision, TOLERANCE[dtype])
    np.testing.assert_allclose(found.effective_dimension, 1 - 1 / precision, TOLERANCE[dtype])


# Columns far from zero; units.


@SIDES
@pytest.mark.parametrize("centre", [1e3, 1e5])
@pytest.mark.parametrize("kind", ["isotropic", "g-prior"])
def test_an_intercept_beside_a_column_far_from_zero(side, centre, kind, dtype):
    """Predictive std is smallest at the mean of x, and there it is √((1 + 1/n)/β)."""
    rng = np.random.default_rng(1)
    x = (centre + rng.normal(size=12)).astype(dtype).astype(np.float64)
    y = 3 + 2 * (x - centre) + 0.5 * rng.normal(size=12)
    flat = np.array([True, False])
    make = lm.GaussianPrior if kind == "isotropic" else lm.GaussianPrior.g_prior
    prior = make(flat=flat)
    fit = learn(observe(np.c_[np.ones(12), x], y, dtype), prior, side)
    at = x.mean() + np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    new = lx.MatrixLinearOperator(jnp.asarray(np.c_[np.ones(5), at], dtype))
    std = np.asarray(fit.posterior.predict(new).std(noise=True))
    assert std.argmin() == 2
    expected = np.sqrt((1 + 1 / 12) / float(fit.likelihood.noise_precision))
    np.testing.assert_allclose(std[2], expected, rtol={np.float32: 1e-3, np.float64: 1e-9}[dtype])
    assert 0.2 < expected < 1.0


@SIDES
@pytest.mark.parametrize("units", [1e-6, 1e12])
def test_learning_does_not_depend_on_units_of_the_targets(side, units, dtype):
    """y in other units: the mean scales with them, precisions with 1/units²."""
    x, y = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]), np.array([2.0, 3.0, 4.5])
    one, other = (learn(observe(x, s * y, dtype), side=side) for s in (1.0, units))
    close = {"rtol": 1e-4}
    np.testing.assert_allclose(other.posterior.mean, units * one.posterior.mean, **close)
    np.testing.assert_allclose(covariance(other), units**2 * covariance(one), **close)
    scaled = float(other.likelihood.noise_precision) * units**2
    np.testing.assert_allclose(scaled, one.likelihood.noise_precision, **close)
    shift = 3 * np.log(units)
    np.testing.assert_allclose(other.log_evidence + shift, one.log_evidence, **close)
    assert other.flags == one.flags


@SIDES
@pytest.mark.parametrize("units", [1e-6, 1.0, 1e6])
def test_a_model_that_interpolates(side, units, dtype):
    """Two points, a line: mean (1, 1) in any units, noise precision capped and flagged."""
    x, y = np.array([[1.0, 1.0], [1.0, 2.0]]), units * np.array([2.0, 3.0])
    fit = learn(observe(x, y, dtype), side=side)
    np.testing.assert_allclose(fit.posterior.mean, units * np.ones(2), rtol=1e-5)
    assert kinds(fit) == {NOISELESS}
    require_sound(fit)


@pytest.mark.parametrize(
    ("side", "m_step"),
    [
        ("primal", lm.m_steps.mackay),
        ("dual", lm.m_steps.evidence_bound),
        ("primal", lm.m_steps.em_elbo),
    ],
    ids=["mackay", "evidence_bound", "em_elbo"],
)
def test_groups_under_the_g_prior_ignore_the_units_of_a_column(side, m_step, dtype):
    """One α a column: a column in units of 1e-3 changes neither support nor predictions."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(12, 6))
    y = x @ np.array([2.0, 0.0, -1.0, 0.0, 1.0, 0.0]) + 0.3 * rng.normal(size=12)
    units = np.array([1.0, 1.0, 1.0, 1e3, 1e3, 1e3])
    prior = lm.GaussianPrior.g_prior(groups=np.arange(6))
    one, other = (
        learn(observe(x * s, y, dtype), prior, side, m_step=m_step) for s in (np.ones(6), units)
    )
    assert one.flags == other.flags
    assert {flag.kind for flag in one.flags} == {ALPHA_INFINITE}
    # Where there is no maximum only the order of magnitude of α is the same.
    needed = ~np.isin(np.arange(6), [flag.where for flag in one.flags])
    alphas = np.asarray(one.prior.alpha), np.asarray(other.prior.alpha)
    np.testing.assert_allclose(alphas[1][needed], alphas[0][needed], rtol=1e-3)
    assert abs(np.log(alphas[1] / alphas[0])).max() < 1
    predict = lambda fit, s: fit.posterior.predict(
        lx.MatrixLinearOperator(jnp.asarray(x * s, dtype))
    )
    for read in (lambda p: p.mean, lambda p: p.std(noise=True)):
        expected = np.asarray(read(predict(one, 1.0)))
        np.testing.assert_allclose(read(predict(other, units)), expected, rtol=1e-4, atol=1e-6)


# Degenerate data.

# All of one shape where they can be: every other one is compiled anew.
_BASE = np.random.default_rng(3).normal(size=(12, 6))
_ZEROS = np.zeros((12, 3))
DEGENERATE = {
    "constant columns": np.c_[_BASE[:, :3], np.ones(12), np.full((12, 2), 3.0)],
    "duplicated columns": np.c_[_BASE[:, :3], _BASE[:, :3]],
    "columns of zeros": np.c_[_BASE[:, :3], _ZEROS],
    "only zeros": np.c_[_ZEROS, _ZEROS],
    "one observation": _BASE[:1],
    "fewer observations than parameters": _BASE[:3],
    "constant targets": _BASE,
}


@SIDES
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_data_stay_finite(side, intercept, name, dtype):
    """Whatever is missing from the data, answers are finite and variances not negative."""
    x, flat = DEGENERATE[name].copy(), np.arange(6) == (0 if intercept else -1)
    y = 7.0 + (name != "constant targets") * np.random.default_rng(4).normal(size=len(x))
    x[:, flat] = 1.0
    fit = learn(observe(x, y, dtype), lm.GaussianPrior.g_prior(flat=flat), side)
    require_sound(fit)
    if name == "only zeros":
        assert lm.FlagKind.NOTHING_OBSERVED in kinds(fit)
    if intercept and name == "constant targets":
        assert NOISELESS in kinds(fit)
        np.testing.assert_allclose(fit.posterior.mean, 7.0 * flat, rtol=1e-5, atol=1e-5)


@SIDES
def test_duplicated_and_empty_columns_at_known_noise(side, dtype):
    """Twins share their effect and keep the prior's doubt about their difference; an empty column
    stays as the prior has it."""
    x = np.c_[_BASE[:, :2], _BASE[:, :2], _ZEROS[:, :2]]
    y = np.random.default_rng(5).normal(size=12)
    data = observe(x, y, dtype, lm.Gaussian(4.0))
    fit = lm.infer(data, lm.GaussianPrior(0.25), method=lm.Exact(side), num_samples=0)
    expected = np.linalg.inv(0.25 * np.eye(6) + 4 * x.T @ x)
    close = {"rtol": 100 * TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(fit.posterior.mean, expected @ (4 * x.T @ y), **close)
    np.testing.assert_allclose(covariance(fit), expected, **close)
    difference = fit.posterior.contrast(np.array([1.0, 0.0, -1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(difference.std(), np.sqrt(2 / 0.25), **close)
    assert (fit.posterior.mean[4:] == 0).all()


def test_twins_under_a_signal_without_noise(dtype):
    """Duplicated columns, exact targets: γ is the rank, twins agree, rounding stays out."""
    x, effects = _BASE[:, :3], np.array([1.0, -2.0, 0.5])
    x, y = np.c_[x, x], x @ effects
    fit = learn(observe(x, y, dtype))
    require_sound(fit)
    assert NOISELESS in kinds(fit)
    np.testing.assert_allclose(fit.effective_dimension, 3.0, rtol=1e-4)
    first, second = np.asarray(fit.posterior.mean).reshape(2, 3)
    np.testing.assert_allclose(first, second, rtol=1e-3)
    np.testing.assert_allclose(first + second, effects, rtol=1e-4)


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e12])
def test_signals_beyond_float64(scale, dtype):
    """Columns 1e6 … 1e12 times the noise, twins among them: right, or refused; never rubbish."""
    x, y = scale * np.c_[_BASE[:, :5], _BASE[:, 0]], _BASE[:, 5]
    data = observe(x, y, dtype, lm.Gaussian(1.0))
    fit = lm.infer(data, lm.GaussianPrior(1.0), method=lm.Exact("primal"), num_samples=0)
    np.testing.assert_allclose(fit.effective_dimension, 5.0, rtol=1e-2)
    held = x.astype(dtype).astype(float)
    ols = np.linalg.pinv(held) @ y
    np.testing.assert_allclose(fit.posterior.mean, ols, atol=1e-3 * np.abs(ols).max())
    if scale > 1e6:
        with pytest.raises(RuntimeError, match="on the observations' side"):
            lm.infer(data, lm.GaussianPrior(1.0), method=lm.Exact("dual"), num_samples=0)


# Weights.


@SIDES
@pytest.mark.parametrize("learned", [False, True])
def test_weights_are_repeated_rows(side, learned, dtype):
    """Integer weights equal duplicated rows: mean, covariance, evidence, γ, α and noise."""
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(12, 6)), rng.normal(size=12)
    weights = np.array([1, 2, 0, 1, 3, 1, 0, 2, 0, 0, 1, 1])
    rows = np.repeat(np.arange(12), weights)
    noise, prior = (None, None) if learned else (lm.Gaussian(2.0), lm.GaussianPrior(0.7))
    solve = learn if learned else _infer
    weighted = solve(observe(x, y, dtype, noise, weights=weights), prior, side)
    repeated = solve(observe(x[rows], y[rows], dtype, noise), prior, side)
    close = {"rtol": 1e-4, "atol": 1e-6} if dtype is np.float32 else {"rtol": 1e-7, "atol": 1e-10}
    np.testing.assert_allclose(weighted.posterior.mean, repeated.posterior.mean, **close)
    np.testing.assert_allclose(covariance(weighted), covariance(repeated), **close)
    for name in ("log_evidence", "effective_dimension"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), **close)
    np.testing.assert_allclose(weighted.prior.alpha, repeated.prior.alpha, **close)
    ours, theirs = weighted.likelihood.noise_precision, repeated.likelihood.noise_precision
    np.testing.assert_allclose(ours, theirs, **close)


def _infer(data: Any, prior: Any, side: str) -> lm.Fit:
    return lm.infer(data, prior, method=lm.Exact(side), num_samples=0)


# The evidence's maximum in closed form, or at infinity.


@SIDES
@M_STEPS
def test_alpha_of_the_identity_design(side, m_step, dtype):
    """Φ = I₅₀, noise variance ¼: α = 1/(mean y² − ¼), and ∞ (capped, flagged) below that."""
    y = np.random.default_rng(9).normal(size=50)
    for size, finite in ((1.0, True), (0.2, False)):
        targets = size * y / np.sqrt(np.mean(y**2))
        data = observe(np.eye(50), targets, dtype, lm.Gaussian(4.0))
        fit = learn(data, lm.GaussianPrior(), side, m_step=m_step)
        require_sound(fit)
        assert (kinds(fit) == set()) == finite
        if finite:
            np.testing.assert_allclose(fit.prior.alpha, 1 / (size**2 - 0.25), rtol=1e-4)
        else:
            assert kinds(fit) == {ALPHA_INFINITE}
            np.testing.assert_allclose(fit.posterior.mean, 0, atol=1e-2)
            assert fit.prior.alpha > 1e2


@SIDES
@M_STEPS
@pytest.mark.parametrize(
    ("estimate", "variance", "alpha", "dimension"),
    [(1.0, 1.0, 4 / 3, 1.5), (0.3, 1.0, np.inf, 0.0), (1e-3, 1e-6, 4e6 / 3, 1.5)],
)
def test_alpha_of_an_orthogonal_design(side, m_step, estimate, variance, alpha, dimension, dtype):
    """XᵀX = 4I₂ with least squares θ: α* from θ and the noise; small numbers are no zeros."""
    data = observe(2 * np.eye(2), np.full(2, 2 * estimate), dtype, lm.Gaussian(1 / variance))
    fit = learn(data, lm.GaussianPrior(), side, m_step=m_step)
    np.testing.assert_allclose(fit.effective_dimension, dimension, rtol=1e-4, atol=1e-2)
    if np.isfinite(alpha):
        assert fit.flags == ()
        np.testing.assert_allclose(fit.prior.alpha, alpha, rtol=1e-4)
    else:
        assert kinds(fit) == {ALPHA_INFINITE}
        assert np.isfinite(fit.prior.alpha)


@pytest.mark.parametrize("way", ["primal", "dual under jit"])
def test_a_nearly_dependent_design_in_float64(way):
    """X = [[1, 1], [e, 0], [0, e]], e = 1e-5, α = 1e-12: log det(XᵀX + αI) = −22.32275, and no
    leaf falls back to float32."""
    with jax.enable_x64(True):
        small, alpha = 1e-5, 1e-12
        x = np.array([[1.0, 1.0], [small, 0.0], [0.0, small]])
        prior, method = lm.GaussianPrior(alpha), lm.Exact(way.split(maxsplit=1)[0])
        fit = lambda data: lm.infer(
            data, prior, method=method, num_samples=3, key=jax.random.key(0)
        )
        data = observe(x, np.zeros(3), np.float64, lm.Gaussian(1.0))
        found = (eqx.filter_jit(fit) if "jit" in way else fit)(data)
        log_det = -2 * float(found.log_evidence) - 3 * np.log(2 * np.pi) + 2 * np.log(alpha)
        np.testing.assert_allclose(log_det, -22.32275, atol=1e-5)
        for leaf in jax.tree.leaves(eqx.filter(found, eqx.is_inexact_array)):
            assert leaf.dtype == np.float64
