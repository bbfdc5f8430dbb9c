"""Posteriors of small networks against laplace-torch's and dense arithmetic.

`laplace_torch_reference.py` wrote down what laplace-torch says.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linmodels as lm
from linmodels_nn import linearise
from nn.laplace_torch_reference import ALPHA, PATH, SAMPLES, SIGMA, SIZES


@pytest.fixture(scope="module")
def reference():
    with np.load(PATH) as file:
        return dict(file)


def network(weights, x):
    return weights["w2"] @ jnp.tanh(weights["w1"] @ x + weights["b1"]) + weights["b2"]


def posterior(arrays, num_samples=4):
    """Of the network linearised at its weights, the curvature of classes held there."""
    arrays = {name: jnp.asarray(value, "float32") for name, value in arrays.items()}
    linearised = linearise(network, {name: arrays[name] for name in ("w1", "b1", "w2", "b2")})
    classes = arrays["y"].ndim == 1
    likelihood = lm.Categorical() if classes else lm.Gaussian(SIGMA**-2)
    targets = arrays["y"].astype(int) if classes else arrays["y"]
    data = linearised.observations(arrays["x"], targets, likelihood)
    about = {"curvature_at": linearised.parameters} if classes else {}
    found = {"method": lm.Exact(), "num_samples": num_samples, "key": jax.random.key(0)}
    fit = lm.infer(data, lm.GaussianPrior(ALPHA), **found, **about)
    return linearised, fit.posterior, arrays["new"]


def of(reference, name):
    return {key.split("/")[1]: value for key, value in reference.items() if key.startswith(name)}


def dense_joint(arrays):
    """J (αI + ΣJᵀBJ)⁻¹ Jᵀ over all new inputs, in float64."""
    w1, b1, w2, b2 = (arrays[name] for name in ("w1", "b1", "w2", "b2"))

    def jacobian(x):
        hidden = np.tanh(x @ w1.T + b1)
        slope = w2 * (1 - hidden**2)[:, None]
        eye = np.eye(len(b2))
        parts = (
            slope[..., None] * x[:, None, None],
            slope,
            eye[:, :, None] * hidden[:, None, None],
            np.broadcast_to(eye, (len(x), *eye.shape)),
        )
        flat = [part.reshape(len(x), len(b2), -1) for part in parts]
        return np.concatenate(flat, 2), hidden @ w2.T + b2

    rows, outputs = jacobian(arrays["x"])
    curvature = np.tile(SIGMA**-2 * np.eye(len(b2)), (len(rows), 1, 1))
    if arrays["y"].ndim == 1:
        p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
        curvature = np.eye(len(b2)) * p[:, None] - p[:, :, None] * p[:, None]
    precision = np.einsum("nai,nab,nbj->ij", rows, curvature, rows)
    precision += ALPHA * np.eye(len(precision))
    new = jacobian(arrays["new"])[0].reshape(-1, len(precision))
    return new @ np.linalg.solve(precision, new.T)


def blocks_of(joint, size):
    """The covariance of every input's own outputs."""
    return np.stack([joint[i : i + size, i : i + size] for i in range(0, len(joint), size)])


@pytest.mark.parametrize("name", SIZES)
def test_predictive_covariances_are_equal(name, reference):
    """Of every input's outputs, and jointly, to 1e-4; theirs and ours to dense arithmetic, too."""
    arrays = of(reference, name)
    linearised, found, new = posterior(arrays)
    size = SIZES[name][-1]
    design, offset = linearised.jacobian(new), linearised.offset(new)
    ours = np.asarray(found.predict(design, offset).covariance(), np.float64)
    ours = ours.reshape(7 * size, 7 * size)
    dense = dense_joint(arrays)
    scale = np.abs(dense).max()
    np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-4 * scale)
    np.testing.assert_allclose(np.diag(ours), np.diag(dense), rtol=1e-4)
    np.testing.assert_allclose(arrays["covariance"], blocks_of(dense, size), atol=1e-6 * scale)
    if "joint" in arrays:
        np.testing.assert_allclose(arrays["joint"], dense, atol=1e-6 * scale)
    np.testing.assert_allclose(linearised.outputs(new), arrays["mean"], atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["one output", "two outputs"])
def test_samples_are_joint_over_inputs(name, reference):
    """laplace-torch's share their noise: another input's same output is fully correlated.

    Ours have the covariance of dense arithmetic, within 5 standard errors of a mean of products.
    """
    arrays = of(reference, name)
    dense, size = dense_joint(arrays), SIZES[name][-1]
    spread = np.sqrt(np.diag(dense))
    standard_error = np.sqrt(2 / SAMPLES) * np.outer(spread, spread)
    linearised, found, new = posterior(arrays, SAMPLES)
    drawn = found.predict(linearised.jacobian(new), linearised.offset(new)).samples()
    ours = np.cov(np.asarray(drawn, np.float64).reshape(SAMPLES, -1).T)
    assert (abs(ours - dense) <= 5 * standard_error).all()
    theirs = arrays["of samples"] / np.sqrt(np.outer(*2 * [np.diag(arrays["of samples"])]))
    assert (theirs[::size, ::size] > 0.999).all()
    assert abs(dense[::size, ::size] / np.outer(spread, spread)[::size, ::size]).min() < 0.1
