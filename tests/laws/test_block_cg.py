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
from laws.solutions import NUM_SAMPLES, errors, require_terms, solve, stacked
from laws.tolerances import working_epsilon

LAYOUTS = [
    Layout(*SHAPES["tall"], "scalar", "dense"),
    Layout(*SHAPES["wide"], "entries", "everything"),
    Layout(*SHAPES["outputs"], "per output", "flat"),
    Layout(*SHAPES["outputs"], "singular", "g"),
]
QUICK = [("scalar", "primal")]
SLOW = [
    ("entries", "primal"),
    ("entries", "dual"),
    ("per output", "dual"),
    ("singular", "primal"),
    ("singular", "dual"),
]
CASES = [
    pytest.param(
        layout,
        side,
        id=f"{layout.noise}-{layout.prior}-{side}",
        # Each compiles for ten seconds.
        marks=() if (layout.noise, side) in QUICK else pytest.mark.slow,
    )
    for layout in LAYOUTS
    for side in ("primal", "dual")
    if (layout.noise, side) in QUICK + SLOW
]
EXTREMES = (None, None, "column", "targets", "alpha", "noise")
TOLERANCE = 1e-4


@st.composite
def arrays_of(draw, layout, extreme):
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    arrays = random_arrays(layout, draw(st.sampled_from(DESIGNS)), generator)
    return cast(scaled(arrays, extreme, 10.0 ** draw(st.integers(-9, 9)) if extreme else 1.0))


@pytest.mark.parametrize(("layout", "side"), CASES)
@given(source=st.data())
def test_as_accurate_as_it_says(layout, side, source):
    """‖e‖_H ≤ ‖r‖ for every deviation and the mean, and the tolerance is met, or said not to be.

    With one extreme scale the residual's own rounding says nothing, so there a solution that is
    called successful has to be within 4 times the tolerance, which is met by an estimate, beside
    the rounding of what the exact method stores, ε of every number.
    """
    extreme = source.draw(st.sampled_from(EXTREMES))
    problem = Problem(layout, source.draw(arrays_of(layout, extreme)))
    assume(well_posed(problem))
    solution, squares, rounding = errors(problem, lm.BlockCG(side, tolerance=TOLERANCE))
    report = solution.report
    assert np.isfinite(stacked(solution.posterior)).all()
    assert (np.sqrt(squares) <= report.residuals + rounding).all()
    assert extreme or solution.result == lm.RESULTS.successful
    if solution.result == lm.RESULTS.successful:
        assert min(report.certificate, report.estimate) <= TOLERANCE
        truth = answer(problem)
        norms = abs(stacked(solution.posterior)) @ abs(np.linalg.cholesky(truth.precision))
        stored = (8 * working_epsilon()) ** 2 * np.sum(norms**2, axis=1)
        signal = NUM_SAMPLES * max(truth.dimension.sum(), 0)
        assert squares[:-1].sum() <= 4 * TOLERANCE * signal + stored[:-1].sum()


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "side"), CASES)
def test_terms(layout, side):
    """Estimates lie within 5 standard errors of the exact terms; quadratic ones are exact."""
    arrays = cast(random_arrays(layout, "full", np.random.default_rng(3)))
    problem = Problem(layout, arrays)
    terms = solve(lm.BlockCG(side, tolerance=1e-6), problem).terms
    exact = solve(lm.Exact(), problem).terms
    require_terms(terms, exact)
    assert terms.group_dimension.shape == exact.group_dimension.shape
    assert terms.output_dimension.shape == exact.output_dimension.shape
