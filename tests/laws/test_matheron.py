"""`Matheron` draws what `Exact` draws with any lineax solver, and true residuals have the say."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import linmodels as lm
from laws.problems import SHAPES, Layout, Problem, answer, cast, random_arrays, scaled, well_posed
from laws.solutions import NUM_SAMPLES, errors, require_terms, solve, stacked
from laws.test_block_cg import EXTREMES, arrays_of
from laws.tolerances import working_epsilon

WIDE = Layout(*SHAPES["wide"], "entries", "dense")
HARDEST = Layout(*SHAPES["outputs"], "singular", "everything")
METHODS = {
    "cg": lm.Matheron(),
    "preconditioned": lm.Matheron(preconditioner=lm.krylov.Nystrom(2)),
    "cholesky": lm.Matheron(lx.Cholesky()),
}
KEY = jax.random.key(5)


def fixed_problem(layout):
    return Problem(layout, cast(random_arrays(layout, "full", np.random.default_rng(3))))


def simple_data(count=40, size=50, signal=1):
    x, noise = np.split(np.random.default_rng(0).standard_normal((count, size + 1)), [size], 1)
    y = signal * x[:, 0] + noise[:, 0]
    return lm.Observations(lx.MatrixLinearOperator(jnp.asarray(x)), y, lm.Gaussian(1.0))


def fit(method, data, num_samples=4):
    return lm.infer(data, lm.GaussianPrior(1.0), method=method, num_samples=num_samples, key=KEY)


@pytest.mark.slow
@given(source=st.data())
def test_no_false_success(source):
    """With one extreme scale or none: finite, and within its certificate or said not to be.

    Beside the certificate stands the rounding of what the exact method stores, ε of every number.
    """
    extreme = source.draw(st.sampled_from(EXTREMES))
    problem = Problem(HARDEST, source.draw(arrays_of(HARDEST, extreme)))
    assume(well_posed(problem))
    solution, squares, rounding = errors(problem, METHODS["cg"])
    assert np.isfinite(stacked(solution.posterior)).all()
    if solution.result == lm.RESULTS.successful:
        truth = answer(problem)
        norms = abs(stacked(solution.posterior)) @ abs(np.linalg.cholesky(truth.precision))
        stored = (8 * working_epsilon()) * np.linalg.norm(norms, axis=1)
        bound = solution.report.residuals + np.minimum(rounding, stored)
        assert (np.sqrt(squares) <= bound + rounding).all()
        assert solution.report.certificate <= 1 / (8 * NUM_SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "name"),
    [(HARDEST, name) for name in METHODS] + [(WIDE, "cg")],
    ids=lambda case: case if isinstance(case, str) else case.prior,
)
def test_terms(layout, name):
    """Draws to the certificate; estimates within 5 standard errors; quadratic terms exact."""
    problem = fixed_problem(layout)
    solution, squares, rounding = errors(problem, METHODS[name])
    assert solution.result == lm.RESULTS.successful
    assert (np.sqrt(squares) <= solution.report.residuals + rounding).all()
    require_terms(solution.terms, solve(lm.Exact(), problem).terms)


@pytest.mark.slow
def test_learns():
    """The evidence path is the dual one of block conjugate gradients.

    With fewer columns than rows and a signal of three, so that 8 probes see the maximum.
    """
    data = simple_data(60, 20, signal=3)
    data = lm.Observations(data.design, data.targets)
    ours = lm.maximise_evidence(data, method=lm.Matheron(), num_samples=8, key=KEY)
    exact = lm.maximise_evidence(data, num_samples=0)
    error = float(ours.log_evidence_error)
    assert abs(float(ours.log_evidence - exact.log_evidence)) <= 5 * error + 0.5


@pytest.mark.parametrize(
    ("solver", "result"),
    [
        pytest.param(
            lx.CG(1e-5, 1e-5, stabilise_every=None, max_steps=1),
            "max_passes_reached",
            marks=pytest.mark.slow,
        ),
        (lx.CG(0.9, 0.9, stabilise_every=None), "stagnated"),
    ],
    ids=["too few steps", "too lax"],
)
def test_true_residuals_decide(solver, result):
    """A solver that gives up is believed, one that claims a success is not."""
    solution = solve(lm.Matheron(solver), fixed_problem(WIDE))
    assert solution.result == getattr(lm.RESULTS, result)
    assert solution.report.certificate > solution.report.tolerance
    assert np.isfinite(stacked(solution.posterior)).all()


def test_working_precision_at_its_limit_is_no_success():
    """Residuals of the recursion fall below what the dtype can tell; the true ones do not."""
    problem = fixed_problem(WIDE)
    hard = Problem(problem.layout, cast(scaled(problem.arrays, "alpha", 1e-8)))
    solver = METHODS["cg"].linear_solver
    solution = solve(lm.Matheron(solver, tolerance=working_epsilon() ** 2), hard)
    assert solution.result != lm.RESULTS.successful


def test_misuse():
    data = simple_data()
    rows = lm.RowSlices(np.ones((6, 2), np.float32), np.ones(6, np.float32), batch_size=3)
    batched = lm.Batched(
        rows, lambda x, y: lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(1.0))
    )
    with pytest.raises(ValueError, match="BlockCG"):
        fit(lm.Matheron(), batched)
    with pytest.raises(ValueError, match=r"num_samples of at least 1"):
        fit(lm.Matheron(), data, num_samples=0)
    with pytest.raises(ValueError, match="tolerance must be between 0 and 1"):
        lm.Matheron(tolerance=2.0)
    with pytest.raises(ValueError, match="batches=2 of a preconditioner"):
        fit(lm.Matheron(preconditioner=lm.krylov.Jacobi(batches=2)), data)


@pytest.mark.usefixtures("unchecked")
def test_solver_of_another_kind():
    with pytest.raises(ValueError, match="linear_solver must be one of lineax's"):
        lm.Matheron("cg")
