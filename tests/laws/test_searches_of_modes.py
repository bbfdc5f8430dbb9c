"""How modes of other likelihoods are searched for, against dense Newton steps."""

import jax.numpy as jnp
import numpy as np
import pytest

import linmodels as lm
from laws import newton
from laws.test_laplace import (
    KEY,
    Arrays,
    D,
    M,
    N,
    batched,
    observations,
    observe,
    oracle,
    prior_of,
    random_arrays,
    require_exact,
    require_mode,
    require_products,
)
from laws.tolerances import working_epsilon
from linmodels.krylov import Known, LowRankRoot
from linmodels.methods import _dual, _equations, _primal
from linmodels.methods._mean import CLOSEST, mean_by_products


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["categorical", "poisson"])
def test_stochastic_gradients_approach_the_mode(kind):
    """With exact gradients, one batch: 600 steps at a rate of ¼/L/(1 − μ) or more, ½ on average.

    They contract by e^{-600·1.25 λ/L}; λ/L ≥ 1/100 here. What is left is rounding of gradients,
    as for the exact method.
    """
    arrays = random_arrays(kind, 0, flat=True)
    truth = oracle(kind, arrays, flat=True)
    precision = np.where(np.arange(D) == 0, 0, arrays.alpha)
    data, prior = batched(kind, arrays, N), prior_of(arrays, flat=True)
    method = lm.SampleThenOptimise(passes=600)
    found = method.approach_mode(data, prior, precision, np.zeros(D), KEY)
    units = np.where(np.arange(D) == 0, 1, arrays.root)
    scaled = truth.precision * units * units[:, None] / np.where(precision > 0, precision, 1)
    values = np.linalg.eigvalsh(scaled)
    assert values[-1] / values[0] < 100
    left = (arrays.mean + units * found - truth.mean) @ np.linalg.cholesky(truth.precision)
    assert np.linalg.norm(left) <= 80 * N * M * working_epsilon() / 0.07 + np.exp(-7.5) * 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["categorical"])
def test_stochastic_gradients_on_minibatches(kind):
    """The mode to the tolerance of the last Newton steps, samples to theirs."""
    arrays = random_arrays(kind, 0)
    truth, data, prior = oracle(kind, arrays), batched(kind, arrays, 4), prior_of(arrays)
    fit = lm.infer(data, prior, method=lm.SampleThenOptimise(), num_samples=8, key=KEY)
    exact = lm.infer(data, prior, method=lm.Exact(), num_samples=8, key=KEY)
    require_products(fit, exact, truth, 8)


class Recorder(lm.AbstractMethod):
    """`Exact`, and every expansion that it was asked to solve."""

    expansions: list

    def prepare(self, data, prior, *, num_samples, key):
        self.expansions.append(data)
        return lm.Exact("primal").prepare(data, prior, num_samples=num_samples, key=key)

    def mean(self, data, prior, alpha, near, closeness, similar):
        self.expansions.append(data)
        return lm.Exact("primal").mean(data, prior, alpha, near, closeness, similar)

    def approach_mode(self, data, prior, precision, start, key):
        return start


def test_the_objective_never_falls():
    """From a prior mean far off, where whole Newton steps would overshoot."""
    arrays = random_arrays("poisson", 0)
    arrays = arrays._replace(mean=arrays.mean + 3, alpha=0.01)
    recorder = Recorder([])
    lm.infer(observations("poisson", arrays), prior_of(arrays), method=recorder, num_samples=0)
    held = Arrays(*(np.asarray(a, np.float64) for a in arrays))
    values = []
    for data in recorder.expansions[1:]:  # the first is at the prior mean, for the g-prior
        outputs = np.asarray(data.targets, np.float64)
        theta = np.linalg.lstsq(
            held.design.reshape(-1, D), (outputs - held.offset).ravel(), rcond=None
        )[0]
        penalty = 0.5 * held.alpha * np.sum(((theta - held.mean) / held.root) ** 2)
        values.append(held.weights @ newton.log_prob("poisson", outputs, held.targets) - penalty)
    rounding = 8 * working_epsilon() * max(abs(values[-1]), 1)
    assert len(values) > 3
    assert (np.diff(values) >= -rounding).all()


def test_a_search_begins_where_the_curvature_is_held():
    """Without its weights a network's outputs are far from the likelihood's quadratic."""
    arrays = random_arrays("poisson", 0)
    arrays = arrays._replace(mean=arrays.mean + 3, alpha=0.01)
    data, prior = observations("poisson", arrays), prior_of(arrays)
    mode = lm.infer(data, prior, method=lm.Exact("primal"), num_samples=0).posterior.mean
    recorder = Recorder([])
    lm.infer(data, prior, method=recorder, num_samples=0, curvature_at=mode)
    outputs = np.tensordot(arrays.design, np.asarray(mode), 1) + arrays.offset
    for expanded in recorder.expansions:
        np.testing.assert_allclose(expanded.targets, outputs, rtol=1e-3, atol=1e-3)
    assert len(recorder.expansions) <= 4  # for the g-prior, a step or two, the posterior


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("closeness", [1e-2, 0.0])
def test_a_mean_by_products_is_as_close_as_asked(flat, closeness):
    """‖e‖²_H ≤ closeness ‖x̄‖², the error estimated to a factor of 4, and with a preconditioner."""
    arrays = random_arrays("poisson", 1, flat=flat)
    held = Arrays(*(np.asarray(a, np.float64) for a in arrays))
    precision = (held.alpha / held.root**2) * (np.arange(D) > 0 if flat else 1)
    rows = np.sqrt(held.weights)[:, None, None] * held.design
    information = np.einsum("nmd,nme->de", rows, rows)
    left = np.sqrt(held.weights)[:, None] * (held.targets - held.offset - held.design @ held.mean)
    hessian = information + np.diag(precision)
    truth = held.mean + np.linalg.solve(hessian, np.einsum("nmd,nm->d", rows, left))
    data = observe(lm.Gaussian(1.0), *arrays[:4])
    prior, size = prior_of(arrays, flat=flat), np.sum(precision * (truth - held.mean) ** 2)
    whitened = (
        held.root
        * information
        * held.root[:, None]
        / held.alpha
        * np.outer(precision > 0, precision > 0)
    )
    values, vectors = np.linalg.eigh(whitened)
    root = LowRankRoot(jnp.asarray(vectors.T, float), jnp.asarray(np.maximum(values, 0), float))
    for preconditioner in (None, Known(known=root)):
        near = np.linspace(-1, 1, D)
        found = mean_by_products(
            data, prior, np.array([held.alpha]), near, closeness, preconditioner
        )
        error = np.asarray(found.parameters, np.float64) - truth
        assert found.result == lm.RESULTS.successful
        assert found.finest == (closeness == 0)
        squared = 4 * max(closeness, CLOSEST)
        assert error @ hessian @ error <= squared * max(size, 1)
        unit = min(size, D - flat)  # γ or more
        np.testing.assert_allclose(found.size, unit, rtol=2 * np.sqrt(squared) + squared)


@pytest.mark.parametrize("side", ["primal", "dual"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_curvature_that_was_decomposed_preconditions_the_search(side, flat, monkeypatch):
    """The mode by conjugate gradients, to their closeness; covariance and evidence as ever.

    With the curvature of the mode itself the preconditioned system is the identity, and the last
    solve takes a pass or two.
    """
    monkeypatch.setattr({"primal": _primal, "dual": _dual}[side], "QUICK_SIDE", 0)
    arrays = random_arrays("categorical", 2, flat=flat)
    point = oracle("categorical", arrays, flat=flat).mean
    data, at = observations("categorical", arrays), jnp.asarray(point, arrays.design.dtype)
    passes, count = [], _equations.block_cg
    monkeypatch.setattr(_equations, "block_cg", lambda *a, **k: noted(passes, count(*a, **k)))
    arguments = {"method": lm.Exact(side), "num_samples": 0, "curvature_at": at}
    fit = lm.infer(data, prior_of(arrays, flat=flat), **arguments)
    truth = oracle("categorical", arrays, flat=flat, curvature_at=point)
    assert passes
    assert max(passes) <= 4
    dimension = np.trace(np.linalg.solve(truth.precision, truth.information)) - flat
    require_mode(fit, truth, 2 * np.sqrt(2e-6 * dimension))
    np.testing.assert_allclose(fit.log_evidence, truth.log_evidence, rtol=1e-4)
    np.testing.assert_allclose(fit.effective_dimension, dimension, rtol=1e-4)


def noted(passes, solution):
    passes.append(solution.progress.passes)
    return solution


def test_a_solve_that_fails_is_no_mode():
    """One pass from the prior mean gets nowhere near, and says so."""
    arrays = random_arrays("poisson", 0)
    arrays = arrays._replace(mean=arrays.mean + 1)
    method = lm.BlockCG("primal", max_passes=1)
    arguments = {"method": method, "num_samples": 1, "key": KEY, "throw": False}
    fit = lm.infer(observations("poisson", arrays), prior_of(arrays), **arguments)
    assert fit.result in (lm.RESULTS.max_passes_reached, lm.RESULTS.stagnated)


@pytest.mark.slow
def test_outcomes_that_the_held_point_thinks_impossible():
    """At logits of 70 against the label a Pearson residual is 1e15; only the curvature is asked."""
    arrays = random_arrays("bernoulli", 0)
    data, prior = observations("bernoulli", arrays), prior_of(arrays)
    direction = np.linalg.lstsq(
        np.asarray(arrays.design, np.float64).reshape(-1, D),
        (2 * arrays.targets - 1.0).ravel() - np.eye(N * M)[0] * 4 * (arrays.targets[0, 0] - 0.5),
        rcond=None,
    )[0]
    outputs = arrays.offset + arrays.design @ direction
    point = direction * 70 / np.abs(outputs).max()
    wrong = np.where(arrays.targets > 0.5, -1, 1) * (arrays.design @ point + arrays.offset)
    assert wrong.max() > 20
    held = jnp.asarray(point, arrays.design.dtype)
    arguments = {"num_samples": 16, "key": KEY, "curvature_at": held}
    states = []
    learned = lm.maximise_evidence(
        data,
        prior,
        method=lm.BlockCG("primal"),
        tolerance=1e-2,
        callback=states.append,
        **arguments,
    )
    at = arrays._replace(alpha=float(learned.prior.alpha))
    truth = oracle("bernoulli", at, curvature_at=np.asarray(held, np.float64))
    gap = abs(float(learned.log_evidence) - truth.log_evidence)
    assert gap <= 5 * float(learned.log_evidence_error) + 1e-3 * abs(truth.log_evidence)
    exact = lm.infer(data, prior, method=lm.Exact(), **arguments)
    require_exact(exact, oracle("bernoulli", arrays, curvature_at=np.asarray(held, np.float64)))
    resumed = lm.maximise_evidence(
        data, prior, method=lm.BlockCG("primal"), tolerance=1e-2, state=states[-1], **arguments
    )
    assert resumed.log_evidence == learned.log_evidence
