"""`BlockCG` draws what `Exact` draws, and knows how far it is off."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import linmodels as lm
from laws.problems import (
    DESIGNS,
    SHAPES,
    Layout,
    Problem,
    answer,
    cast,
    random_arrays,
    scaled,
    well_posed,
)
from laws.solutions import NUM_SAMPLES, errors, solve, stacked
from laws.tolerances import working_epsilon

LAYOUTS = [
    Layout(*SHAPES["tall"], "scalar", "dense"),
    Layout(*SHAPES["wide"], "entries", "everything"),
    Layout(*SHAPES["outputs"], "per output", "flat"),
    Layout(*SHAPES["outputs"], "singular", "g"),
]
SIDES = ["primal", "dual"]
TOLERANCE = 1e-4


@st.composite
def arrays_of(draw, layout, extremes):
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = random_arrays(layout, draw(st.sampled_from(DESIGNS)), generator)
    extreme = draw(st.sampled_from(extremes))
    return cast(scaled(arrays, extreme, 10.0 ** draw(st.integers(-9, 9)) if extreme else 1.0))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.noise}-{layout.prior}")
@given(source=st.data())
def test_certificate(layout, side, source):
    """‖e‖_H ≤ ‖r‖ for every deviation and the mean, and the tolerance is met."""
    problem = Problem(layout, source.draw(arrays_of(layout, (None,))))
    assume(well_posed(problem))
    solution, squares, rounding = errors(problem, lm.BlockCG(side, tolerance=TOLERANCE))
    report = solution.report
    assert solution.result == lm.RESULTS.successful
    assert (np.sqrt(squares) <= report.residuals + rounding).all()
    assert min(report.certificate, report.estimate) <= TOLERANCE


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.noise}-{layout.prior}")
@given(source=st.data())
def test_no_false_success(layout, side, source):
    """With one extreme scale: finite, and either as accurate as asked for or said not to be.

    As accurate: within 4 times the tolerance, which is met by an estimate, beside the rounding of
    what the exact method stores, ε of every number.
    """
    problem = Problem(
        layout, source.draw(arrays_of(layout, ("column", "targets", "alpha", "noise")))
    )
    assume(well_posed(problem))
    solution, squares, _ = errors(problem, lm.BlockCG(side, tolerance=TOLERANCE))
    assert np.isfinite(stacked(solution.posterior)).all()
    if solution.result == lm.RESULTS.successful:
        truth = answer(problem)
        norms = abs(stacked(solution.posterior)) @ abs(np.linalg.cholesky(truth.precision))
        stored = (8 * working_epsilon()) ** 2 * np.sum(norms**2, axis=1)
        signal = NUM_SAMPLES * max(truth.dimension.sum(), 0)
        assert squares[:-1].sum() <= 4 * TOLERANCE * signal + stored[:-1].sum()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.noise}-{layout.prior}")
def test_terms(layout, side):
    """Estimates lie within 5 standard errors of the exact terms; quadratic ones are exact."""
    arrays = cast(random_arrays(layout, "full", np.random.default_rng(3)))
    problem = Problem(layout, arrays)
    terms = solve(lm.BlockCG(side, tolerance=1e-6), problem).terms
    exact = solve(lm.Exact(), problem).terms
    close = {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(terms.group_norm, exact.group_norm, **close)
    np.testing.assert_allclose(terms.residual, exact.residual, **close)
    slack = 5 * terms.log_evidence_error + 1e-3 * abs(exact.log_evidence)
    assert abs(terms.log_evidence - exact.log_evidence) <= slack
    gap = abs(terms.group_dimension.sum() - exact.group_dimension.sum())
    assert gap <= 5 * terms.dimension_error + 1e-3
    assert terms.group_dimension.shape == exact.group_dimension.shape
    assert terms.output_dimension.shape == exact.output_dimension.shape
