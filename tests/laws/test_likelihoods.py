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
from laws.tolerances import EPSILON64, working_epsilon

N, M = 5, 2


def rounded(array):
    """In the working dtype, on the host: references there compile nothing."""
    return np.asarray(array, jnp.result_type(float))


def normal(seed, *shape):
    return rounded(np.random.default_rng(seed).standard_normal(shape))


def positive(seed, *shape):
    return rounded(np.random.default_rng(seed).uniform(0.5, 2.0, shape))


def entries(seed, count):
    """Arrays of the outputs' shape, for the library."""
    return [jnp.asarray(normal(seed + i, N, M)) for i in range(1, count + 1)]


def block(seed):
    root = normal(seed, M, M + 1)
    return root @ root.T


def gram(seed):
    """RᵀR of the factor as it was rounded."""
    root = normal(seed, M, M).astype(np.float64)
    return root.T @ root


def as_operator(matrix):
    return lx.MatrixLinearOperator(jnp.asarray(matrix))


LIKELIHOODS = {
    "scalar": lambda s: (lm.Gaussian(positive(s)), positive(s) * np.eye(N * M)),
    "per output": lambda s: (
        lm.Gaussian(positive(s, M)),
        np.diag(np.tile(positive(s, M), N)),
    ),
    "per observation": lambda s: (
        lm.Gaussian(positive(s, N, 1)),
        np.diag(np.repeat(positive(s, N), M)),
    ),
    "block": lambda s: (
        lm.Gaussian(as_operator(block(s))),
        np.kron(np.eye(N), block(s)),
    ),
    "block factor": lambda s: (
        lm.Gaussian(factor=as_operator(normal(s, M, M))),
        np.kron(np.eye(N), gram(s)),
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
    outputs, targets, u, v = entries(seed, 4)
    forward = likelihood.root_product(outputs, v)
    backward = likelihood.root_transpose_product(outputs, u)
    scale = float(np.abs(precision).max() + 1) * 10
    check_close(np.vdot(u, forward), np.vdot(backward, v), scale)
    curved = likelihood.root_transpose_product(outputs, forward)
    check_close(np.ravel(curved), precision @ np.ravel(v), scale)
    residual = np.ravel(targets) - np.ravel(outputs)
    score = likelihood.score(outputs, targets)
    check_close(np.ravel(score), precision @ residual, scale)


@pytest.mark.parametrize("name", LIKELIHOODS)
@given(seed=st.integers(0, 2**31))
def test_density(name, seed):
    likelihood, precision = LIKELIHOODS[name](seed)
    outputs, targets = entries(seed, 2)
    total = likelihood.log_prob(outputs, targets).sum()
    precision = np.asarray(precision, np.float64)
    condition = np.linalg.cond(precision)
    residual = np.ravel(np.asarray(targets - outputs, np.float64))
    expected = dense.log_normal(residual, np.linalg.inv(precision))
    sizes = N * M * (2 + np.abs(precision).max()) * (1 + residual @ residual)
    # log det of the factor is known to 2 N M ε √cond(B): singular values of R.
    bound = 16 * working_epsilon() * (sizes + N * M * np.sqrt(condition))
    # The oracle's B is known to ε₆₄, its determinant to cond(B) times that.
    assert abs(float(total) - expected) <= bound + 16 * EPSILON64 * N * M * condition


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_score_is_the_gradient(name):
    likelihood, _ = LIKELIHOODS[name](3)
    outputs, targets = entries(0, 2)
    gradient = jax.grad(lambda f: likelihood.log_prob(f, targets).sum())(outputs)
    check_close(gradient, likelihood.score(outputs, targets), 10.0)


@pytest.mark.parametrize("name", ["scalar", "per output", "block", "block factor"])
@given(seed=st.integers(0, 2**31))
def test_noise_of_new_outputs(name, seed):
    likelihood, precision = LIKELIHOODS[name](seed)
    (outputs,) = entries(seed, 1)
    expected = np.linalg.inv(np.asarray(precision, np.float64))
    # Inverting an (m, m) block errs by its condition.
    bound = 64 * working_epsilon() * np.linalg.cond(expected) * np.abs(expected).max()
    covariance = likelihood.noise_covariance(outputs)
    np.testing.assert_allclose(covariance, expected, rtol=0, atol=bound)
    variance = np.ravel(likelihood.noise_variance(outputs))
    np.testing.assert_allclose(variance, np.diag(expected), rtol=0, atol=bound)


def test_singular_noise_counts_its_rank():
    """log N of a rank-1 precision: one log-determinant term and one log 2π an observation."""
    root = normal(0, 1, M)
    direction, size = root[0] / np.linalg.norm(root), np.sum(root**2)
    likelihood = lm.Gaussian(as_operator(root.T @ root))
    outputs, targets = entries(0, 2)
    along = (np.asarray(targets) - np.asarray(outputs)) @ direction
    expected = 0.5 * (N * np.log(size / (2 * np.pi)) - size * np.sum(along**2))
    check_close(likelihood.log_prob(outputs, targets).sum(), expected, 10.0)
