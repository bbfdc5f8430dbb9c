"""Gaussian noise: a factor and its adjoint, densities and their gradient."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linmodels as lm
from laws import dense
from laws.tolerances import working_epsilon

N, M = 5, 2


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def positive(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).uniform(0.5, 2.0, shape))


def block(seed):
    root = normal(seed, M, M + 1)
    return root @ root.T


def as_operator(matrix):
    return lx.MatrixLinearOperator(matrix)


LIKELIHOODS = {
    "scalar": lambda s: (lm.Gaussian(positive(s)), positive(s) * jnp.eye(N * M)),
    "per output": lambda s: (
        lm.Gaussian(positive(s, M)),
        jnp.diag(jnp.tile(positive(s, M), N)),
    ),
    "per observation": lambda s: (
        lm.Gaussian(positive(s, N, 1)),
        jnp.diag(jnp.repeat(positive(s, N), M)),
    ),
    "block": lambda s: (
        lm.Gaussian(as_operator(block(s))),
        jnp.kron(jnp.eye(N), block(s)),
    ),
    "block factor": lambda s: (
        lm.Gaussian(factor=as_operator(normal(s, M, M))),
        jnp.kron(jnp.eye(N), normal(s, M, M).T @ normal(s, M, M)),
    ),
    "whole": lambda s: (
        lm.Gaussian(as_operator(whole(s))),
        whole(s),
    ),
}


def whole(seed):
    root = normal(seed, N * M, N * M + 3)
    return root @ root.T / (N * M)


def check_close(got, wanted, size=1.0):
    """Sums of at most N M M² products of numbers below `size`, each rounded a few times."""
    atol = 16 * N * M * M * working_epsilon() * max(float(np.max(np.abs(wanted))), size)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("name", LIKELIHOODS)
@given(seed=st.integers(0, 2**31))
def test_factor_and_score(name, seed):
    likelihood, precision = LIKELIHOODS[name](seed)
    outputs, targets, u, v = (normal(seed + i, N, M) for i in range(1, 5))
    forward, backward = likelihood.root_product(outputs, v), None
    backward = likelihood.root_transpose_product(outputs, u)
    scale = float(jnp.abs(precision).max() + 1) * 10
    check_close(jnp.vdot(u, forward), jnp.vdot(backward, v), scale)
    curved = likelihood.root_transpose_product(outputs, forward)
    check_close(jnp.ravel(curved), precision @ jnp.ravel(v), scale)
    residual = jnp.ravel(targets - outputs)
    score = likelihood.score(outputs, targets)
    check_close(jnp.ravel(score), precision @ residual, scale)


@pytest.mark.parametrize("name", LIKELIHOODS)
@given(seed=st.integers(0, 2**31))
def test_density(name, seed):
    likelihood, precision = LIKELIHOODS[name](seed)
    outputs, targets = normal(seed + 1, N, M), normal(seed + 2, N, M)
    total = likelihood.log_prob(outputs, targets).sum()
    precision = np.asarray(precision, np.float64)
    condition = np.linalg.cond(precision)
    residual = np.ravel(np.asarray(targets - outputs, np.float64))
    expected = dense.log_normal(residual, np.linalg.inv(precision))
    sizes = N * M * (2 + np.abs(precision).max()) * (1 + residual @ residual)
    # log det of the factor is known to 2 N M ε √cond(B): singular values of R.
    bound = 16 * working_epsilon() * (sizes + N * M * np.sqrt(condition))
    assert abs(float(total) - expected) <= bound


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_score_is_the_gradient(name):
    likelihood, _ = LIKELIHOODS[name](3)
    outputs, targets = normal(1, N, M), normal(2, N, M)
    gradient = jax.grad(lambda f: likelihood.log_prob(f, targets).sum())(outputs)
    check_close(gradient, likelihood.score(outputs, targets), 10.0)


@pytest.mark.parametrize("name", ["scalar", "per output", "block", "block factor"])
@given(seed=st.integers(0, 2**31))
def test_noise_of_new_outputs(name, seed):
    likelihood, precision = LIKELIHOODS[name](seed)
    outputs = normal(seed + 1, N, M)
    expected = np.linalg.inv(np.asarray(precision, np.float64))
    # Inverting an (m, m) block errs by its condition.
    bound = 64 * working_epsilon() * np.linalg.cond(expected) * np.abs(expected).max()
    covariance = likelihood.noise_covariance(outputs)
    np.testing.assert_allclose(covariance, expected, rtol=0, atol=bound)
    variance = jnp.ravel(likelihood.noise_variance(outputs))
    np.testing.assert_allclose(variance, np.diag(expected), rtol=0, atol=bound)


def test_singular_noise_counts_its_rank():
    """log N of a rank-1 precision: one log-determinant term and one log 2π an observation."""
    root = normal(0, 1, M)
    direction, size = root[0] / jnp.linalg.norm(root), jnp.sum(root**2)
    likelihood = lm.Gaussian(as_operator(root.T @ root))
    outputs, targets = normal(1, N, M), normal(2, N, M)
    along = (targets - outputs) @ direction
    expected = 0.5 * (N * jnp.log(size / (2 * jnp.pi)) - size * jnp.sum(along**2))
    check_close(likelihood.log_prob(outputs, targets).sum(), expected, 10.0)
