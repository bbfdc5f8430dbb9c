"""Faults that software for linear models has had elsewhere, where no matrix is formed.

Values come from dense arithmetic or closed forms. Means are exact to the solver's tolerance, here
1e-8 in ε²; what is estimated from k samples is known to a stated standard error.
"""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm

SIDES = pytest.mark.parametrize(
    "side",
    ["primal", pytest.param("dual", marks=pytest.mark.slow)],  # compiles for seconds each
)
KEY = jax.random.key(0)


def infer(side, design, targets, noise, prior, *, num_samples=64, **rest):
    data = lm.Observations(design, jnp.asarray(targets, jnp.float32), noise, **rest)
    method = lm.BlockCG(side, tolerance=1e-8)
    return lm.infer(data, prior, method=method, num_samples=num_samples, key=KEY, throw=False)


def matrix(array):
    return lx.MatrixLinearOperator(jnp.asarray(array, jnp.float32))


@SIDES
def test_the_zero_operator(side):
    """γ = 0, log det = 0, and the samples are the prior's."""
    zero = matrix(np.zeros((5, 3)))
    fit = infer(side, zero, np.ones(5), lm.Gaussian(1.0), lm.GaussianPrior(4.0))
    assert fit.result == lm.RESULTS.successful
    assert fit.effective_dimension == 0
    np.testing.assert_allclose(fit.log_evidence, 5 * -0.5 * (np.log(2 * np.pi) + 1), rtol=1e-6)
    z = jax.random.normal(jax.random.split(KEY)[1], (64, 3), jnp.float32)
    np.testing.assert_allclose(fit.posterior.deviations, z / 2, rtol=1e-6)
    assert (fit.posterior.mean == 0).all()


@pytest.mark.slow
@SIDES
def test_samples_scatter_as_the_inverse(side):
    """H = [[2, 1], [1, 3]]: covariance [[.6, −.2], [−.2, .4]] within 5 √((c_ii c_jj + c_ij²)/k)."""
    design, k = matrix([[1.0, 1.0], [0.0, 1.0]]), 4_000
    fit = infer(side, design, [1.0, 1.0], lm.Gaussian(1.0), lm.GaussianPrior(1.0), num_samples=k)
    draws = np.asarray(fit.posterior.deviations, np.float64)
    expected = np.array([[0.6, -0.2], [-0.2, 0.4]])
    error = np.sqrt((np.outer(np.diag(expected), np.diag(expected)) + expected**2) / k)
    assert (abs(draws.T @ draws / k - expected) <= 5 * error).all()


@pytest.mark.slow
@SIDES
def test_noise_precisions_over_six_decades(side):
    """Variances from 4,096 samples are within 5 √(2/k) = 11 % of dense ones, and positive."""
    rng = np.random.default_rng(8)
    x, y = rng.standard_normal((50, 8)), rng.standard_normal(50)
    precision = np.logspace(0, 6, 50)
    noise = lm.Gaussian(precision)
    fit = infer(side, matrix(x), y, noise, lm.GaussianPrior(1.0), num_samples=4_096)
    covariance = np.linalg.inv(np.eye(8) + x.T @ (precision[:, None] * x))
    new = rng.standard_normal((7, 8))
    variance = np.asarray(fit.posterior.predict(matrix(new)).std()) ** 2
    expected = np.einsum("ij,jk,ik->i", new, covariance, new)
    assert (abs(variance / expected - 1) <= 5 * np.sqrt(2 / 4_096)).all()


@pytest.mark.slow
@SIDES
def test_an_intercept_beside_a_column_far_from_zero(side):
    """x ~ 1000 + N(0, 1), float32: slope and level as in float64, to 1000² ε of their spread."""
    rng = np.random.default_rng(0)
    x = (1_000 + rng.standard_normal(50)).astype(np.float32)
    y = (3 * (x - 1_000) + rng.standard_normal(50)).astype(np.float32)
    design = matrix(np.stack([np.ones(50), x], 1))
    prior = lm.GaussianPrior(1e-2, flat=np.array([True, False]))
    fit = infer(side, design, y, lm.Gaussian(1.0), prior)
    data = lm.Observations(design, jnp.asarray(y), lm.Gaussian(1.0))
    exact = lm.infer(data, prior, num_samples=64, key=KEY)
    np.testing.assert_allclose(fit.posterior.mean[1], exact.posterior.mean[1], atol=0.14 * 0.12)
    at_mean = design.mv(fit.posterior.mean).mean()
    np.testing.assert_allclose(at_mean, y.mean(dtype=np.float64), atol=0.14 * 0.12)


@pytest.mark.slow
@pytest.mark.parametrize(("side", "units"), [("primal", 1e-6), ("dual", 1e6)])
def test_learning_does_not_depend_on_the_units_of_the_targets(side, units):
    """α and β follow the units' square, means the units; float32 rounding apart."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 5)).astype(np.float32)
    y = (x @ rng.standard_normal(5) + rng.standard_normal(60)).astype(np.float32)
    learn = lambda scale: lm.maximise_evidence(
        lm.Observations(matrix(x), jnp.asarray(np.float32(scale) * y)),
        method=lm.BlockCG(side),
        num_samples=8,
        key=KEY,
    )
    base, other = learn(1.0), learn(units)
    np.testing.assert_allclose(other.prior.alpha * units**2, base.prior.alpha, rtol=1e-3)
    np.testing.assert_allclose(other.noise_scale * units**2, base.noise_scale, rtol=1e-3)
    np.testing.assert_allclose(other.posterior.mean / units, base.posterior.mean, rtol=1e-2)


DEGENERATE = {
    "constant targets": (np.arange(12.0).reshape(6, 2), np.ones(6)),
    "constant columns": (np.ones((6, 2)), np.arange(6.0)),
    "duplicated columns": (np.repeat(np.arange(6.0)[:, None], 2, 1), np.arange(6.0) ** 2),
    "a zero column": (np.stack([np.arange(6.0), np.zeros(6)], 1), np.arange(6.0) ** 2),
    "one observation": (np.ones((1, 2)), np.ones(1)),
    "zero targets": (np.arange(12.0).reshape(6, 2), np.zeros(6)),
}

QUICK = ("one observation",)


@SIDES
@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in DEGENERATE],
)
def test_degenerate_data_stay_finite(side, name):
    x, y = DEGENERATE[name]
    data = lm.Observations(matrix(x), jnp.asarray(y, jnp.float32))
    method = lm.BlockCG(side)
    fit = lm.maximise_evidence(data, method=method, num_samples=4, key=KEY, throw=False)
    leaves = jax.tree.leaves((fit.posterior.mean, fit.posterior.deviations, fit.log_evidence))
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert fit.result == lm.RESULTS.successful or fit.flags


@pytest.mark.slow
@SIDES
def test_weights_are_repeated_rows(side):
    """Weights 2 and 0 are the row twice and not at all: mean, norms and rank."""
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((6, 3)), rng.standard_normal(6)
    weights = np.array([2.0, 0.0, 1.0, 1.0, 2.0, 1.0])
    prior, noise = lm.GaussianPrior(1.0), lm.Gaussian(2.0)
    weighted = infer(side, matrix(x), y, noise, prior, weights=jnp.asarray(weights, jnp.float32))
    count = weights.astype(int)
    repeated = infer(side, matrix(np.repeat(x, count, 0)), np.repeat(y, count), noise, prior)
    np.testing.assert_allclose(weighted.posterior.mean, repeated.posterior.mean, rtol=1e-4)
    gap = abs(float(weighted.log_evidence - repeated.log_evidence))
    error = float(np.hypot(weighted.log_evidence_error, repeated.log_evidence_error))
    assert gap <= 5 * error


@SIDES
def test_two_observations_by_hand(side):
    """X = (1, 2), y = (1, 1), α = σ² = 1: mean 1/2, γ = 5/6, log evidence −2.983757."""
    fit = infer(side, matrix([[1.0], [2.0]]), [1.0, 1.0], lm.Gaussian(1.0), lm.GaussianPrior(1.0))
    np.testing.assert_allclose(fit.posterior.mean, [0.5], rtol=1e-5)
    gap = abs(float(fit.effective_dimension) - 5 / 6)
    assert gap <= 5 * float(fit.effective_dimension_error) + 1e-5
    assert abs(float(fit.log_evidence) + 2.983757) <= 5 * float(fit.log_evidence_error) + 1e-5


@pytest.mark.slow
@SIDES
def test_alpha_where_there_is_nothing_to_learn(side):
    """Φ = I₅₀ at noise variance ¼ and mean y² below it: α = ∞, flagged, the mean near 0."""
    y = np.full(50, 0.4)
    data = lm.Observations(
        lx.IdentityLinearOperator(jax.ShapeDtypeStruct((50,), jnp.float32)), y, lm.Gaussian(4.0)
    )
    fit = lm.maximise_evidence(
        data, lm.GaussianPrior(), method=lm.BlockCG(side), num_samples=8, key=KEY
    )
    assert [flag.kind for flag in fit.flags] == [lm.FlagKind.PRIOR_PRECISION_INFINITE]
    assert abs(fit.posterior.mean).max() < 1e-2


@pytest.mark.slow
@SIDES
def test_alpha_of_the_identity_design(side):
    """1/(mean y² − ¼) = 0.5714 for mean y² = 2; every probe sees the one eigenvalue exactly."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal(50)
    y *= np.sqrt(2 / np.mean(y**2))
    shape = jax.ShapeDtypeStruct((50,), jnp.float32)
    data = lm.Observations(
        lx.IdentityLinearOperator(shape), jnp.asarray(y, jnp.float32), lm.Gaussian(4.0)
    )
    fit = lm.maximise_evidence(
        data, lm.GaussianPrior(), method=lm.BlockCG(side), num_samples=64, key=KEY
    )
    # γ is a mean of 16 sums of 50 squares: known to √(2/800) = 5 %, log α to about twice that.
    assert abs(np.log(float(fit.prior.alpha) * 1.75)) <= 5 * 2 * np.sqrt(2 / 800)


@pytest.mark.slow
@SIDES
def test_the_g_prior_ignores_the_units_of_a_column(side):
    rng = np.random.default_rng(4)
    x, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    scale = np.array([1.0, 1e3, 1.0, 1.0])
    fits = [
        infer(side, matrix(x * s), y, lm.Gaussian(1.0), lm.GaussianPrior.g_prior(2.0))
        for s in (1.0, scale)
    ]
    np.testing.assert_allclose(fits[1].posterior.mean * scale, fits[0].posterior.mean, rtol=1e-3)
    np.testing.assert_allclose(
        fits[1].posterior.deviations * scale.astype(np.float32),
        fits[0].posterior.deviations,
        rtol=1e-2,
        atol=1e-4,
    )


def test_misuse(unchecked):
    data = lm.Observations(matrix(np.ones((3, 2))), jnp.ones(3), lm.Gaussian(1.0))
    prior = lm.GaussianPrior(1.0)
    with pytest.raises(ValueError, match="give num_samples of at least 1 and a key"):
        lm.infer(data, prior, method=lm.BlockCG(), num_samples=0)
    for arguments in ({"side": "both"}, {"tolerance": 1.0}, {"max_passes": 0}):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            lm.BlockCG(**arguments)
    with pytest.raises(ValueError, match="BlockCG is a Python loop"):
        jax.jit(
            lambda y: (
                lm.infer(
                    lm.Observations(matrix(np.ones((3, 2))), y, lm.Gaussian(1.0)),
                    prior,
                    method=lm.BlockCG(),
                    key=KEY,
                ).log_evidence
            )
        )(jnp.ones(3))


@pytest.mark.slow
def test_too_few_passes_raise_with_the_fit():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((300, 60)) * np.logspace(0, 3, 60)
    data = lm.Observations(matrix(x), jnp.ones(300), lm.Gaussian(1.0))
    method = lm.BlockCG("primal", max_passes=2)
    with pytest.raises(lm.FitError, match="within `max_passes`") as caught:
        lm.infer(data, lm.GaussianPrior(1.0), method=method, num_samples=2, key=KEY)
    assert np.isfinite(caught.value.fit.posterior.mean).all()
    assert caught.value.fit.solver.passes == 3


@pytest.mark.slow
def test_batches_draw_the_same():
    """10 rows, the last batch half full: the noise follows the row, and padding changes nothing."""
    rng = np.random.default_rng(6)
    x, y = rng.standard_normal((10, 3)).astype(np.float32), np.ones(10, np.float32)
    observe = lambda x, y: lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(2.0))
    whole = lm.Observations(matrix(x), jnp.asarray(y), lm.Gaussian(2.0))
    batched = lm.Batched(lm.RowSlices(x, y, batch_size=4), observe)
    for side in ("primal", "dual"):
        method = lm.BlockCG(side, tolerance=1e-8)
        fits = [
            lm.infer(data, lm.GaussianPrior(1.0), method=method, num_samples=5, key=KEY)
            for data in (whole, batched)
        ]
        for name in ("mean", "deviations"):
            one, other = (getattr(fit.posterior, name) for fit in fits)
            np.testing.assert_allclose(other, one, rtol=0, atol=1e-5)


def test_a_batch_that_is_not_finite_is_named():
    x, y = np.ones((10, 3), np.float32), np.ones(10, np.float32)
    x[7, 1] = np.nan
    observe = lambda x, y: lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(2.0))
    data = lm.Batched(lm.RowSlices(x, y, batch_size=4), observe)
    with pytest.raises(ValueError, match="batch 1: the design must be finite; row 3, column 1"):
        lm.infer(data, lm.GaussianPrior(1.0), method=lm.BlockCG(), num_samples=2, key=KEY)


@pytest.mark.slow
def test_solver_bias_is_below_half_the_monte_carlo_error():
    """On 200 random problems, in at least 95 %: ‖e‖²_H ≤ γ k/(8k) over k = 8 deviations."""
    within = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        decay = np.exp(-rng.uniform(0, 8) * np.arange(30) / 30)
        x = (rng.standard_normal((40, 30)) * decay * 10 ** rng.uniform(-1, 1.5)).astype(np.float32)
        data = lm.Observations(matrix(x), jnp.asarray(rng.standard_normal(40)), lm.Gaussian(1.0))
        prior, key = lm.GaussianPrior(1.0), jax.random.key(seed)
        draws = [
            np.asarray(lm.infer(data, prior, method=m, num_samples=8, key=key).posterior.deviations)
            for m in (lm.Exact(), lm.BlockCG("primal"))
        ]
        precision = np.eye(30) + np.float64(x).T @ np.float64(x)
        gamma = 30 - np.trace(np.linalg.inv(precision))
        error = (draws[1] - draws[0]).astype(np.float64)
        within += np.einsum("ki,ij,kj->", error, precision, error) <= gamma / 8
    assert within >= 190
