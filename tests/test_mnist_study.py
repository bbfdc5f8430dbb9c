"""What the study of MNIST in benchmarks/paper rests on: its dense arithmetic, and its networks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linmodels as lm
from benchmarks.paper._digits import Digits
from benchmarks.paper.mnist import dense, torch_laplace
from benchmarks.paper.mnist.distances import Logits, divergence, scored, wasserstein
from benchmarks.paper.mnist.lenet import (
    LENET,
    LENET_BIG,
    LENET_SMALL,
    Architecture,
    LeNet,
    Trained,
    normalisation,
)
from benchmarks.paper.mnist.problem import jacobians, made

DWARF = Architecture("dwarf", (2, 3, 3))
ALPHA = 3.0
KEY = jax.random.key(0)


def network(seed=0):
    """Never trained, its normalisations with statistics that change outputs."""
    made, state = eqx.nn.make_with_state(LeNet)(DWARF, 0.0, key=jax.random.key(seed))
    state = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.5).astype(leaf.dtype), state)
    return Trained(eqx.nn.inference_mode(made), state)


def some_digits(count):
    generator = np.random.default_rng(0)
    images = generator.random((count, 28, 28), np.float32)
    return Digits(images, generator.integers(0, 10, count).astype(np.int32))


def test_networks_have_as_many_parameters_as_the_papers():
    count = lambda architecture: jax.eval_shape(
        lambda: eqx.filter(
            eqx.nn.make_with_state(LeNet)(architecture, 0.0, key=KEY)[0], eqx.is_inexact_array
        )
    )
    sizes = [
        sum(leaf.size for leaf in jax.tree.leaves(eqx.nn.delete_init_state(count(architecture))))
        for architecture in (LENET_SMALL, LENET, LENET_BIG)
    ]
    assert sizes == [14_634, 29_226, 45_874]


@pytest.mark.slow
def test_statistics_are_those_the_normalisation_uses():
    trained = network()
    norm, x = trained.network.norms[1], jnp.linspace(-2, 3, 12).reshape(3, 2, 2)
    mean, variance = normalisation(norm, trained.state)
    expected = (x - mean[:, None, None]) / jnp.sqrt(variance + norm.eps)[:, None, None]
    np.testing.assert_allclose(norm(x, trained.state)[0], expected, rtol=1e-4, atol=1e-4)


def test_distances_of_gaussians_are_those_of_their_closed_forms():
    mean = jnp.array([[1.0, 0.0, -1.0]])
    one, wide = Logits(mean, jnp.eye(3)[None]), Logits(mean + 1, 4 * jnp.eye(3)[None])
    assert divergence(one.probit(), one.probit()) == 0
    # Means that differ by 1 in each of three logits, and deviations of 1 and 2 in each.
    np.testing.assert_allclose(wasserstein(one, wide), np.sqrt(3 + 3), rtol=1e-5)
    p, q = jnp.array([[0.8, 0.2]]), jnp.array([[0.5, 0.5]])
    np.testing.assert_allclose(divergence(p, q), 0.5 * 0.3 * np.log(4), rtol=1e-5)


@pytest.mark.slow
def test_scores_of_a_point_estimate_are_those_of_its_probabilities():
    labels = np.arange(20, dtype=np.int32) % 2
    logits = jnp.tile(jnp.array([np.log(3.0), 0.0]), (1, 20, 1))  # 3 : 1 for the first class
    scores = scored(logits, labels, key=KEY)
    np.testing.assert_allclose(scores.log_likelihood, np.log([0.75, 0.25]).mean(), rtol=1e-5)
    np.testing.assert_allclose(scores.accuracy, 0.5)
    np.testing.assert_allclose(scores.calibration, 0.25, rtol=1e-5)
    # Every draw has the log-likelihood of one image of either class.
    assert np.log(0.25) < scores.joint < np.log(0.75)


@pytest.mark.slow
def test_dense_arithmetic_is_that_of_exact():
    digits = some_digits(30)
    problem = made(network(), digits, 15, written_out=True)
    prior, about = lm.GaussianPrior.g_prior(ALPHA), {"num_samples": 1, "key": KEY}
    fit = problem.sampled(prior, method=lm.Exact(), **about)
    gram = dense.curvature(problem)
    scale = dense.g_prior_scale(gram)
    held = dense.posterior(gram, scale / np.sqrt(np.float32(ALPHA)))
    # Entries of the curvature are sums of 300 products in float32.
    tolerance = 300 * np.finfo(np.float32).eps
    root = np.asarray(fit.posterior.covariance_factor.as_matrix(), np.float64)
    rows = np.concatenate(list(jacobians(problem.linearised, digits.inputs[:5])))
    expected = np.einsum("ncd,nde->nce", rows @ root, np.swapaxes(rows @ root, 1, 2))
    found = np.asarray(held.covariance(jnp.asarray(rows)))
    # Errors of H, relative to it, are at most those of the curvature times its condition, which is
    # at most 1 + tr(S M S) = 1 + d'/α.
    bound = tolerance * (1 + problem.size / ALPHA)
    assert np.abs(found - expected).max() <= bound * np.abs(expected).max()
    np.testing.assert_allclose(held.shrinkage().sum(), fit.effective_dimension, rtol=bound)


@pytest.mark.slow
def test_dense_deviations_have_the_covariance():
    digits, count = some_digits(30), 4_000
    problem = made(network(), digits, 15, written_out=True)
    gram = dense.curvature(problem)
    held = dense.posterior(gram, dense.g_prior_scale(gram))
    rows = jnp.concatenate(list(jacobians(problem.linearised, digits.inputs[:1])))
    draws = held.deviations(count, key=KEY) @ rows[0].T
    expected = np.diagonal(np.asarray(held.covariance(rows))[0])
    # A variance of k draws is off by a standard error of √(2/k) of it.
    np.testing.assert_allclose((draws**2).mean(0), expected, rtol=5 * np.sqrt(2 / count))


def test_a_port_to_torch_has_the_same_logits():
    pytest.importorskip("torch", reason="torch is in the group benchmarks-networks alone")
    assert torch_laplace.ported(network(), some_digits(3).inputs) is not None
