"""Regularisers give the deviations of `infer` by dense least squares."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from scipy.special import softmax

import linmodels as lm
from linmodels.operators import multi_output

KEY = jax.random.key(3)
N, D, M, K = 12, 3, 2, 4


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def gaussian():
    """Data, Φ and B."""
    x, precision = normal(N, D * M), np.linspace(0.5, 4, N)
    noise = lm.Gaussian(jnp.asarray(precision, float))
    design = lx.MatrixLinearOperator(jnp.asarray(x, float))
    return lm.Observations(design, jnp.zeros(N), noise), x, np.diag(precision), None


def classes():
    """With the curvature at a point of ours."""
    x, at = normal(N, D), normal(D, M)
    design = multi_output(lx.MatrixLinearOperator(jnp.asarray(x, float)), M)
    p = softmax(x @ at, axis=1)
    blocks = np.einsum("nc,cd->ncd", p, np.eye(M)) - np.einsum("nc,nd->ncd", p, p)
    curvature = np.einsum("ncd,nm->ncmd", blocks, np.eye(N)).reshape(N * M, N * M)
    data = lm.Observations(design, np.arange(N) % M, lm.Categorical())
    return data, np.kron(x, np.eye(M)), curvature, jnp.asarray(at, float)


@pytest.mark.parametrize("build", [gaussian, classes])
@pytest.mark.parametrize("g_prior", [False, True])
def test_least_squares_with_them_are_deviations(build, g_prior):
    """H⁻¹Aθⁿ by dense float64, with the key of `infer`."""
    data, matrix, precision, at = build()
    information = matrix.T @ precision @ matrix
    prior = lm.GaussianPrior.g_prior(2.0) if g_prior else lm.GaussianPrior(2.0)
    drawn = lm.regularisers(data, prior, num_samples=K, key=KEY, curvature_at=at)
    scale = np.diag(information) if g_prior else np.ones(len(information))
    if g_prior:
        root = np.asarray(lx.diagonal(drawn.prior.factor))
        np.testing.assert_allclose(root**-2, scale, rtol=1e-4)
    a = 2.0 * np.diag(scale)
    targets = np.asarray(drawn.targets, np.float64).reshape(K, -1)
    expected = np.linalg.solve(information + a, a @ targets.T).T
    assert np.abs(np.asarray(drawn.draws).reshape(K, -1) - targets).max() > 0
    arguments = {"num_samples": K, "key": KEY, "curvature_at": at}
    fit = lm.infer(data, prior, method=lm.Exact("primal"), **arguments)
    deviations = np.asarray(fit.posterior.deviations).reshape(K, -1)
    np.testing.assert_allclose(deviations, expected, atol=1e-4 * np.abs(expected).max())
    norm = np.asarray(fit.posterior.mean, np.float64).ravel()
    np.testing.assert_allclose(fit.group_norms, norm @ a @ norm, rtol=1e-4)


@pytest.mark.parametrize(
    ("prior", "noise", "message"),
    [
        (lm.GaussianPrior(), lm.Gaussian(1.0), "alpha and the noise precision must be known"),
        (lm.GaussianPrior(1.0), lm.Gaussian(), "alpha and the noise precision must be known"),
        (lm.GaussianPrior(1.0, flat=np.arange(6) == 0), lm.Gaussian(1.0), "Flat parameters"),
    ],
)
def test_what_has_none(prior, noise, message):
    data = lm.Observations(gaussian()[0].design, jnp.zeros(N), noise)
    with pytest.raises(ValueError, match=message):
        lm.regularisers(data, prior, key=KEY)
