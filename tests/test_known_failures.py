"""Faults that software for linear models has had elsewhere: none of their kind may exist here.

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

TOLERANCE = {np.float32: 2e-5, np.float64: 1e-11}


WAYS = ["primal", "dual", "primal under jit", "dual under jit"]
CASES = [(np.float32, way) for way in WAYS] + [(np.float64, way) for way in WAYS[:2]]


@pytest.fixture
def dtype() -> Iterator[Any]:
    """float32, where a fault of precision would show; float64 is among the cases."""
    with jax.enable_x64(False):
        yield np.float32


@pytest.fixture
def case(request) -> Iterator[tuple[Any, str]]:
    """A precision, and a way to infer: by either side, eagerly or traced."""
    with jax.enable_x64(request.param[0] is np.float64):
        yield request.param


def matrix(array: Any, dtype: Any) -> lx.MatrixLinearOperator:
    return lx.MatrixLinearOperator(jnp.asarray(array, dtype))


def per_output(x: Any, outputs: int, dtype: Any) -> lx.AbstractLinearOperator:
    """f_ic = Σ_j x_ij θ_jc: the same design for every output, θ of shape (d, outputs)."""
    x = jnp.asarray(x, dtype)
    return lx.FunctionLinearOperator(
        lambda w: x @ w, jax.ShapeDtypeStruct((x.shape[1], outputs), dtype)
    )


def infer(way: str, design: Any, targets: Any, noise: Any, prior: Any, **rest: Any) -> lm.Fit:
    """The fit in one of the four ways: by either side, eagerly or traced."""
    method = lm.Exact(way.split(maxsplit=1)[0])
    targets = jnp.asarray(targets, design.out_structure().dtype)

    def fit(design, targets):
        data = lm.Observations(design, targets, noise)
        return lm.infer(data, prior, method=method, **{"num_samples": 0, **rest})

    return (eqx.filter_jit(fit) if "jit" in way else fit)(design, targets)


def covariance(fit: lm.Fit) -> np.ndarray:
    factor = fit.posterior.covariance_factor
    assert factor is not None
    root = np.asarray(factor.as_matrix(), np.float64)
    return root @ root.T


def require_moments(draws: Any, expected: np.ndarray) -> None:
    """Draws (k, d) have this covariance within 5 standard errors, √((c_ii c_jj + c_ij²)/k)."""
    draws = np.asarray(draws, np.float64)
    found, variances = draws.T @ draws / len(draws), np.diag(expected)
    error = np.sqrt((variances * variances[:, None] + expected**2) / len(draws))
    assert (np.abs(found - expected) < 5 * error).all(), found


# A factor of a covariance used the wrong way round.


@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[3]], indirect=True, ids=str)
def test_deviations_come_from_the_factor_and_not_its_transpose(case):
    """H = [[2, 1], [1, 3]]: draws scatter as H⁻¹; with a transposed factor they do not."""
    dtype, way = case
    design = matrix([[1.0, 1.0], [0.0, 1.0]], dtype)
    key = jax.random.key(0)
    rest = {"num_samples": 20_000, "key": key}
    fit = infer(way, design, [1.0, 1.0], lm.Gaussian(1.0), lm.GaussianPrior(1.0), **rest)
    expected = np.array([[0.6, -0.2], [-0.2, 0.4]])
    np.testing.assert_allclose(covariance(fit), expected, rtol=TOLERANCE[dtype])
    require_moments(fit.posterior.deviations, expected)


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_draws_of_a_dense_prior(side, dtype):
    """A prior precision [[2, 1], [1, 3]] and no data: the posterior is the prior, draws too."""
    prior = lm.GaussianPrior.from_precision(np.array([[2.0, 1.0], [1.0, 3.0]]))
    data = lm.Observations(
        matrix(np.eye(2), dtype), np.ones(2), lm.Gaussian(1.0), weights=np.zeros(2)
    )
    method, key = lm.Exact(side), jax.random.key(1)
    fit = lm.infer(data, prior, method=method, num_samples=20_000, key=key)
    expected = np.array([[0.6, -0.2], [-0.2, 0.4]])
    np.testing.assert_allclose(covariance(fit), expected, rtol=TOLERANCE[dtype])
    require_moments(fit.posterior.deviations, expected)


def test_draws_of_correlated_noise(dtype):
    """Noise of precision [[2, 1], [1, 3]] between outputs, as an operator and by its factor."""
    precision = np.array([[2.0, 1.0], [1.0, 3.0]])
    upper = np.linalg.cholesky(precision).T
    expected = np.array([[0.6, -0.2], [-0.2, 0.4]])
    design, nothing = per_output([[0.0]], 2, dtype), np.zeros((1, 2))
    for noise in (
        lm.Gaussian(matrix(precision, dtype)),
        lm.Gaussian(factor=matrix(upper, dtype)),
    ):
        data = lm.Observations(design, nothing, noise)
        key = jax.random.key(2)
        fit = lm.infer(data, lm.GaussianPrior(1.0), num_samples=20_000, key=key)
        prediction = fit.posterior.predict(design)
        np.testing.assert_allclose(
            prediction.covariance(noise=True), expected, rtol=TOLERANCE[dtype]
        )
        require_moments(prediction.samples(noise=True, key=key).reshape(-1, 2), expected)


# Noise of very different strengths; noise written in different forms.


@pytest.mark.parametrize(
    ("case", "columns"),
    [*((c, 8) for c in CASES), *((c, 80) for c in CASES[:2])],
    indirect=["case"],
)
def test_noise_precisions_over_six_decades(case, columns):
    """Precisions 1 … 1e6: predictive variances equal dense ones, and none is negative."""
    dtype, way = case
    rng = np.random.default_rng(columns)
    x, y = rng.normal(size=(50, columns)), rng.normal(size=50)
    precision = np.logspace(0, 6, 50)
    fit = infer(way, matrix(x, dtype), y, lm.Gaussian(precision), lm.GaussianPrior(1.0))
    new = rng.normal(size=(7, columns))
    expected = np.linalg.inv(np.eye(columns) + x.T @ (precision[:, None] * x))
    predicted = np.asarray(fit.posterior.predict(matrix(new, dtype)).std()) ** 2
    assert (predicted > 0).all()
    # By the dual in float32, C = I − … is stored to the spacing of I, the prior's deviation.
    spacing = np.finfo(dtype).eps * np.sum(new**2, 1) if "dual" in way else 0
    tolerance = {np.float32: 2e-3 if "jit" in way else 1e-4, np.float64: 1e-9}[dtype]
    expected = np.einsum("ij,jk,ik->i", new, expected, new)
    assert (np.abs(predicted - expected) <= tolerance * expected + spacing).all()


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_noise_as_an_array_and_as_an_operator_over_six_decades(side, dtype):
    """A small precision beside a large one is not rounded away where it comes in a matrix."""
    rng = np.random.default_rng(3)
    design, y = matrix(rng.normal(size=(50, 8)), dtype), rng.normal(size=50)
    precision = np.logspace(0, 6, 50)
    forms = [
        lm.Gaussian(precision),
        lm.Gaussian(lx.DiagonalLinearOperator(jnp.asarray(precision, dtype))),
        lm.Gaussian(matrix(np.diag(precision), dtype)),
        lm.Gaussian(factor=lx.DiagonalLinearOperator(jnp.asarray(precision**0.5, dtype))),
    ]
    fits = [infer(side, design, y, noise, lm.GaussianPrior(1.0)) for noise in forms]
    for other in fits[1:]:
        np.testing.assert_allclose(other.log_evidence, fits[0].log_evidence, 2e-6)
        np.testing.assert_allclose(covariance(other), covariance(fits[0]), 1e-4, 1e-10)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], indirect=True, ids=str)
def test_a_precision_an_observation(case):
    """φ(x) = x at x = 1, 2 with σ = (1, 2): M = 1 + 4/4 = 2."""
    dtype, way = case
    noise = lm.Gaussian(np.array([1.0, 0.25]))
    fit = infer(way, matrix([[1.0], [2.0]], dtype), [1.0, 1.0], noise, lm.GaussianPrior(1.0))
    np.testing.assert_allclose(covariance(fit), [[1 / 3]], TOLERANCE[dtype])
    np.testing.assert_allclose(fit.effective_dimension, 2 / 3, TOLERANCE[dtype])


@pytest.mark.parametrize("case", [CASES[1], CASES[2]], indirect=True, ids=str)
def test_a_precision_an_output(case):
    """φ(x) = x I₂ at x = 1, 2 with σ = (1, 2): M = diag(5, 1.25)."""
    dtype, way = case
    design = per_output([[1.0], [2.0]], 2, dtype)
    noise = lm.Gaussian(np.array([1.0, 0.25]))
    fit = infer(way, design, np.ones((2, 2)), noise, lm.GaussianPrior(1.0))
    np.testing.assert_allclose(
        covariance(fit), np.diag([1 / 6, 1 / 2.25]), TOLERANCE[dtype], TOLERANCE[dtype]
    )


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_forms_of_the_same_noise(side, dtype):
    """Scalar, vector, full and matrix precisions that mean the same give the same answer."""
    rng = np.random.default_rng(4)
    design, y = per_output(rng.normal(size=(5, 3)), 2, dtype), rng.normal(size=(5, 2))
    eye = np.eye(2)
    same = [4.0, np.full(2, 4.0), np.full((5, 1), 4.0), np.full((5, 2), 4.0)]
    forms = [lm.Gaussian(b) for b in same]
    forms += [lm.Gaussian(matrix(4 * eye, dtype)), lm.Gaussian(matrix(4 * np.eye(10), dtype))]
    forms += [lm.Gaussian(factor=matrix(2 * eye, dtype))]
    fits = [infer(side, design, y, noise, lm.GaussianPrior(1.0)) for noise in forms]
    for other in fits[1:]:
        np.testing.assert_allclose(other.log_evidence, fits[0].log_evidence, TOLERANCE[dtype])
        np.testing.assert_allclose(
            other.posterior.mean, fits[0].posterior.mean, TOLERANCE[dtype], TOLERANCE[dtype]
        )


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_singular_noise_in_any_units(side, dtype):
    """B of rank 1 between two outputs, its rows 1e3 apart: log pdet and rank as they are."""
    rng = np.random.default_rng(5)
    x, y, direction = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), np.array([1.0, 1e-3])
    design = per_output(x, 2, dtype)
    seen = lm.Observations(matrix(np.kron(x, direction), dtype), y @ direction, lm.Gaussian(1.0))
    expected = lm.infer(seen, lm.GaussianPrior(1.0), num_samples=0)
    log_pdet = 5 * np.log(direction @ direction) / 2
    for noise in (
        lm.Gaussian(matrix(np.outer(direction, direction), dtype)),
        lm.Gaussian(factor=matrix(direction[None], dtype)),
        lm.Gaussian(factor=matrix([direction, 0 * direction], dtype)),
    ):
        fit = infer(side, design, y, noise, lm.GaussianPrior(1.0))
        np.testing.assert_allclose(
            fit.log_evidence, expected.log_evidence + log_pdet, 10 * TOLERANCE[dtype]
        )
        np.testing.assert_allclose(
            fit.posterior.mean.ravel(), expected.posterior.mean, 1e-4, 10 * TOLERANCE[dtype]
        )


# Shapes that broadcast.


@pytest.mark.parametrize("side", ["primal", "dual"])
def test_one_output_as_a_column(side, dtype):
    """Targets (N, 1) of a design with outputs (N, 1) are what (N,) are to one with (N,)."""
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(5, 3)), rng.normal(size=5)
    prior, noise = lm.GaussianPrior(1.0), lm.Gaussian(2.0)
    flat = infer(side, matrix(x, dtype), y, noise, prior)
    column = infer(side, per_output(x, 1, dtype), y[:, None], noise, prior)
    assert column.posterior.mean.shape == (3, 1)
    np.testing.assert_allclose(column.posterior.mean[:, 0], flat.posterior.mean, TOLERANCE[dtype])
    np.testing.assert_allclose(column.log_evidence, flat.log_evidence, TOLERANCE[dtype])
    prediction = column.posterior.predict(per_output(x, 1, dtype))
    assert prediction.std(noise=True).shape == prediction.mean.shape == (5, 1)
    with pytest.raises(ValueError, match="targets has shape"):
        lm.Observations(matrix(x, dtype), jnp.asarray(y[:, None], dtype))
    with pytest.raises(ValueError, match="targets has shape"):
        lm.Observations(per_output(x, 1, dtype), jnp.asarray(y, dtype))
