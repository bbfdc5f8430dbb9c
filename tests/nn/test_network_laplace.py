"""`laplace`: strengths learned, kept and predicted with, for regression and classes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import linmodels as lm
import linmodels_nn as nn
from nn.networks import CASES, mlp, normal, trained_convolutional

KEY = jax.random.key(4)

pytestmark = pytest.mark.slow


def arrays():
    random = np.random.default_rng(1)
    x = random.standard_normal((12, 3)).astype("f")
    return x, np.asarray(jax.vmap(mlp())(x)) + 0.2 * random.standard_normal((12, 2)).astype("f")


@pytest.fixture(scope="module")
def regression():
    return nn.laplace(mlp(), arrays(), key=KEY, num_samples=3)


def test_it_is_evidence_maximised_for_the_linear_model(regression):
    linearised = nn.linearise(mlp())
    x, y = arrays()
    data = linearised.observations(x, y)
    fit = lm.maximise_evidence(data, num_samples=3, key=KEY, tolerance=1e-3)
    np.testing.assert_allclose(regression.fit.prior.alpha, fit.prior.alpha, rtol=1e-6)
    np.testing.assert_allclose(regression.log_evidence, fit.log_evidence, rtol=1e-6)
    new = normal(4, 3)
    prediction = regression.predict(new)
    np.testing.assert_array_equal(prediction.mean, linearised.outputs(new))
    expected = linearised.predict(fit.posterior, new).std(noise=True)
    np.testing.assert_allclose(prediction.std(noise=True), expected, rtol=1e-5)
    assert prediction.samples().shape == (3, 4, 2)
    np.testing.assert_array_equal(regression.sample(new), prediction.samples())


def test_batches_and_pairs_say_the_same():
    x, y = arrays()
    reports = []
    alone = nn.laplace(mlp(), (x, y), key=KEY, num_samples=3)
    pieces = nn.laplace(
        mlp(), (x, y), key=KEY, num_samples=3, batch_size=5, callback=reports.append
    )
    rows = lm.RowSlices(x, y, batch_size=7)
    given = nn.laplace(nn.linearise(mlp()), rows, key=KEY, num_samples=3)
    assert isinstance(reports[0], lm.Plan)
    assert all(isinstance(report, lm.EvidenceState) for report in reports[1:])
    assert reports[-1].step == pieces.fit.steps
    for other in (pieces, given):
        assert other.fit.num_observations == 12
        np.testing.assert_allclose(other.log_evidence, alone.log_evidence, rtol=1e-4)
        np.testing.assert_allclose(other.predict(x).std(), alone.predict(x).std(), rtol=1e-3)


def test_saved_and_loaded_it_predicts_the_same(regression, tmp_path):
    """Bit for bit; another structure, and other weights, are refused."""
    path, x = tmp_path / "network.linmodels", normal(4, 3)
    regression.save(path)
    loaded = nn.Laplace.load(path, mlp())
    for ours, theirs in zip(
        (regression.predict(x).std(), regression.predict(x).samples(), regression.log_evidence),
        (loaded.predict(x).std(), loaded.predict(x).samples(), loaded.log_evidence),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert eqx.tree_equal(regression.fit, loaded.fit)
    with pytest.raises(ValueError, match=r"parameters of shapes .*\(4, 3\).* the network's have"):
        nn.Laplace.load(path, CASES["(2, 2)"]().linearised)
    other = eqx.tree_at(lambda net: net.layers[0].bias, mlp(), jnp.ones(4))
    with pytest.raises(ValueError, match="fit was to other weights or another state"):
        nn.Laplace.load(path, other)


def test_two_posteriors_on_one_network_do_not_disturb_each_other(regression):
    before = np.asarray(regression.predict(normal(4, 3)).std())
    x, y = arrays()
    again = nn.laplace(mlp(), (x, 3 * y), key=KEY, num_samples=3)
    assert not np.allclose(again.log_evidence, regression.log_evidence)
    np.testing.assert_array_equal(regression.predict(normal(4, 3)).std(), before)


def test_classes_by_a_network_with_a_state(tmp_path):
    """The curvature is taken at the network's own outputs: H = A + Jᵀ(diag p − ppᵀ)J there."""
    network, state = trained_convolutional()
    network = eqx.nn.inference_mode(network)
    x, labels = normal(9, 1, 6, 6), np.arange(9) % 3
    prior = lm.GaussianPrior(2.0)
    fitted = nn.laplace(
        network, (x, labels), lm.Categorical(), key=KEY, state=state, prior=prior, num_samples=3
    )
    linearised = fitted.linearised
    p = np.asarray(jax.nn.softmax(linearised.outputs(x)), np.float64)
    jacobian = np.asarray(linearised.jacobian(x).as_matrix(), np.float64).reshape(9, 3, -1)
    curvature = np.einsum("nc,cd->ncd", p, np.eye(3)) - np.einsum("nc,nd->ncd", p, p)
    hessian = np.einsum("nca,ncd,ndb->ab", jacobian, curvature, jacobian)
    hessian += float(fitted.fit.prior.alpha) * np.eye(len(hessian))
    variance = np.einsum("nca,ab,ncb->nc", jacobian, np.linalg.inv(hessian), jacobian)
    np.testing.assert_allclose(fitted.predict(x).std() ** 2, variance, rtol=1e-3)
    mode = np.asarray(ravel_pytree(fitted.fit.posterior.mean)[0], np.float64)
    outputs = np.asarray(linearised.offset(x), np.float64) + jacobian @ mode
    at_mode = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    score = np.einsum("nca,nc->a", jacobian, np.eye(3)[labels] - at_mode)
    slope = float(fitted.fit.prior.alpha) * mode - score
    assert np.abs(slope).max() <= 1e-3 * np.abs(score).max() + 1e-3
    probabilities = fitted.predict(x).probabilities()
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    fitted.save(tmp_path / "file")
    loaded = nn.Laplace.load(tmp_path / "file", network, state=state)
    np.testing.assert_array_equal(loaded.predict(x).probabilities(), probabilities)


@pytest.mark.usefixtures("unchecked")
def test_a_linearised_network_has_its_own_state():
    _, state = trained_convolutional()
    with pytest.raises(ValueError, match="a linearised network has its own"):
        nn.laplace(nn.linearise(mlp()), arrays(), key=KEY, state=state)


def test_targets_in_trees_come_in_batches():
    """As all in one piece."""
    linearised = nn.linearise(lambda n, x: {"u": n(x)[0], "v": n(x)[1] ** 2}, mlp())
    x, y = arrays()
    data = x, {"u": y[:, 0], "v": y[:, 1]}
    about = {"key": KEY, "num_samples": 3}
    one, more = (nn.laplace(linearised, data, batch_size=size, **about) for size in (12, 5))
    np.testing.assert_allclose(more.log_evidence, one.log_evidence, rtol=1e-4)
    np.testing.assert_allclose(more.fit.prior.alpha, one.fit.prior.alpha, rtol=1e-3)


def test_inputs_that_are_not_finite_are_named_in_any_piece(regression):
    x = np.asarray(normal(7, 3)).copy()
    x[5, 0] = np.nan
    with pytest.raises(ValueError, match=r"output \(5, 0\) is nan: is its input finite"):
        regression.predict(x, batch_size=3)


def test_lists_are_refused():
    with pytest.raises(ValueError, match="must be arrays, or trees of arrays"):
        nn.laplace(mlp(), (arrays()[0].tolist(), arrays()[1]), key=KEY)


def test_evidence_where_rates_are_huge_says_what_rounding_leaves():
    """Of counts under f = 30 + 0.1 x at the weights: Σ eᶠ is 1e14, of which 4 ε is beyond 0.09."""
    function = lambda w, x: w["a"] * x[0] + w["b"]
    linearised = nn.linearise(function, {"a": jnp.array(0.1), "b": jnp.array(30.0)})
    data = jnp.linspace(-1, 1, 12)[:, None], np.arange(12) % 3
    fitted = nn.laplace(linearised, data, lm.Poisson(), key=KEY, num_samples=3)
    assert abs(fitted.log_evidence + 14.7726) <= fitted.fit.log_evidence_error  # α → ∞: f = 0
