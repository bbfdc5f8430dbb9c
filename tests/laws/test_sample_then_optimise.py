"""`SampleThenOptimise` draws what `Exact` draws by either loss, and knows how far it is off."""

import dataclasses
import gc
import warnings
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import linmodels as lm
from laws.problems import (
    SHAPES,
    Layout,
    Problem,
    answer,
    cast,
    random_arrays,
    well_posed,
)
from laws.solutions import NUM_SAMPLES, errors, require_terms, solve, stacked
from laws.test_batched import KEY
from laws.test_block_cg import EXTREMES, arrays_of
from laws.tolerances import working_epsilon
from linmodels._batches import shuffled_batches
from linmodels.descent._descend import Descended
from linmodels.krylov import IdentityRoot, block_cg
from linmodels.methods import Hyperparameters, sample_then_optimise
from linmodels.methods._equations import primal_equations
from linmodels.methods._samples import truncated_log_determinant
from linmodels.methods._sampling_losses import noise_in_fit
from linmodels.methods.stopping import PrimalRule

LAYOUTS = [
    Layout(*SHAPES["outputs"], "per output", "flat"),
    Layout(*SHAPES["wide"], "entries", "everything"),
    Layout(*SHAPES["outputs"], "singular", "g"),
]
CASES = [
    pytest.param(layout, noise, id=f"{layout.noise}-{layout.prior}-{noise}", marks=marks)
    for layout, noise, marks in [
        (LAYOUTS[0], "fit", pytest.mark.slow),
        (LAYOUTS[1], "regulariser", pytest.mark.slow),
    ]
]
TOLERANCE = 1e-3


PRIOR = lm.GaussianPrior(1.0)


def simple_data(batch_size=8, scale=0.5, size=12):
    x = scale * np.asarray(jax.random.normal(jax.random.key(0), (64, size)))
    y = x[:, 0] + np.asarray(jax.random.normal(jax.random.key(1), (64,)))
    return lm.Batched(lm.RowSlices(x, y, batch_size=batch_size), observe_known)


def observe_known(x, y):
    return lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian(1.0))


def whole(data):
    return tuple(np.asarray(array, np.float64) for array in data.batches.arrays)


@pytest.mark.parametrize(("layout", "noise"), CASES)
@given(source=st.data())
def test_as_accurate_as_it_says(layout, noise, source):
    """‖e‖_H ≤ ‖r‖ for every deviation and the mean, and the tolerance is met, or said not to be.

    Where it is said to be met the error is within 4 times it, as the estimate of a few passes is
    from below, beside the rounding of what the exact method stores.
    """
    extreme = source.draw(st.sampled_from(EXTREMES))
    problem = Problem(layout, source.draw(arrays_of(layout, extreme)))
    assume(well_posed(problem))
    method = lm.SampleThenOptimise(noise, tolerance=TOLERANCE, max_passes=60)
    solution, squares, rounding = errors(problem, method)
    report = solution.report
    assert np.isfinite(stacked(solution.posterior)).all()
    assert (np.sqrt(squares) <= report.residuals + rounding).all()
    if solution.result == lm.RESULTS.successful:
        assert min(report.certificate, report.estimate) <= TOLERANCE
        truth = answer(problem)
        norms = abs(stacked(solution.posterior)) @ abs(np.linalg.cholesky(truth.precision))
        stored = (8 * working_epsilon()) ** 2 * np.sum(norms**2, axis=1)
        signal = NUM_SAMPLES * max(truth.dimension.sum(), 0)
        assert squares[:-1].sum() <= 4 * TOLERANCE * signal + stored[:-1].sum()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.noise)
def test_terms(layout):
    """Estimates lie within 5 standard errors of the exact terms; quadratic ones are exact."""
    problem = Problem(layout, cast(random_arrays(layout, "full", np.random.default_rng(3))))
    terms = solve(lm.SampleThenOptimise(tolerance=1e-6), problem).terms
    require_terms(terms, solve(lm.Exact(), problem).terms)


RECIPES = {
    "fit": lm.SampleThenOptimise("fit"),
    "regulariser": lm.SampleThenOptimise("regulariser"),
    "polyak": lm.SampleThenOptimise(averaging=lm.descent.polyak),
    "geometric": lm.SampleThenOptimise("fit", averaging=lm.descent.geometric(0.01)),
}


class Trace:
    """Iterates of a descent at its end, deviations and mean, and what was said of them."""

    def __init__(self, recipe, data, passes):
        keep = lambda count, state: self.iterates.append(np.asarray(state.answer, np.float64))
        self.iterates = []
        method = dataclasses.replace(recipe, passes=passes, callback=keep)
        arguments = {"num_samples": 8, "key": KEY}
        fit = lm.infer(data, PRIOR, method=method, **arguments, throw=False)
        exact = stacked(lm.infer(data, PRIOR, method=lm.Exact(), **arguments).posterior)
        x, _ = whole(data)
        precision = np.eye(x.shape[1]) + x.T @ x
        left = (self.iterates[-1] - exact) @ np.linalg.cholesky(precision)
        self.squares, self.fit, self.descent = np.sum(left**2, 1), fit, fit.solver.descent
        self.spectrum = np.linalg.eigvalsh(precision)


QUICK_RECIPES = ("regulariser",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK_RECIPES else pytest.mark.slow)
        for name in RECIPES
    ],
)
def test_descents_alone_reach_the_draws_of_the_exact_method(name):
    """Before any conjugate gradients, as far as noise of minibatches lets them.

    With steps η(1 − t/T)/(1 − μ), in units of a smallest eigenvalue of H, what is left at the end
    is noise of the last relaxation time: half the gradient's variance times the step at its start,
    √(η/(λT(1 − μ))), η = rate/curvature. Averages leave less.
    """
    trace = Trace(RECIPES[name], simple_data(), 60)
    steps, descent = 60 * 8, trace.descent
    eta = 10 * descent.rate / descent.curvature
    variance = getattr(descent.variances, RECIPES[name].noise_in)
    floor = variance / 2 * np.sqrt(eta / (trace.spectrum[0] * steps))
    assert trace.squares[:-1].mean() <= 4 * floor
    assert trace.squares[-1] <= 4 * floor


@pytest.mark.slow
def test_any_optimiser():
    """Adam leaves a hundredth of the error that the prior draws have."""
    before = Trace(lm.SampleThenOptimise(optimiser=optax.sgd(0.0)), simple_data(), 1)
    after = Trace(lm.SampleThenOptimise(optimiser=optax.adam(0.02)), simple_data(), 60)
    assert after.squares.mean() <= before.squares.mean() / 100


@pytest.mark.slow
def test_descents_on_one_batch_reach_the_working_precision():
    """Exact gradients: 400 steps contract by e^{-2·400·η λ/L}, λ/L = 1/36 at the least."""
    trace = Trace(RECIPES["regulariser"], simple_data(batch_size=64), 400)
    assert trace.spectrum[-1] / trace.spectrum[0] < 36
    assert trace.squares.max() <= 64 * 8 * working_epsilon() ** 2 * trace.spectrum[-1] * 20**2


@pytest.mark.slow
def test_variances_of_gradients():
    """Of both losses as dense arithmetic has them at the fit's own deviations.

    Predicted and measured differences agree within 4 standard errors of a mean over 64 deviations.
    """
    data, count = simple_data(), 64
    arguments = {"num_samples": count, "key": KEY, "throw": False}
    fit = lm.infer(data, PRIOR, method=lm.SampleThenOptimise(passes=40), **arguments)
    found = fit.solver.descent.variances
    x, _ = whole(data)
    draws = np.asarray(fit.posterior.deviations, np.float64)
    rows = draws @ x.T  # of single rows; batches of 8 of 64 without replacement
    each = rows[:, :, None] * x
    share = 64 * (64 - 8) / 8  # n² (1 − b/n) / b, over n − 1 degrees of freedom
    spread = each.var(axis=1, ddof=1).sum(-1).mean()
    sizes = abs(found.predicted_difference - (found.fit - found.regulariser))
    assert abs(found.regulariser / (share * spread) - 1) <= 4 * np.sqrt(2 / 8)
    assert sizes <= 4 * np.sqrt(2 / count) * found.fit
    assert found.fit > found.regulariser


@pytest.mark.slow
def test_learns_the_strengths():
    """As the exact method within 5 standard errors of γ over γ, and again when resumed."""
    x, y = whole(simple_data())
    rows = lm.RowSlices(x.astype(np.float32), y.astype(np.float32), batch_size=8)
    data = lm.Batched(rows, observe_unknown)
    exact = lm.maximise_evidence(data, PRIOR, method=lm.Exact(), num_samples=8, key=KEY)
    states, method = [], lm.SampleThenOptimise()
    arguments = {"method": method, "num_samples": 8, "key": KEY}
    fit = lm.maximise_evidence(data, PRIOR, callback=states.append, **arguments)
    error = float(fit.effective_dimension_error / fit.effective_dimension)
    assert abs(np.log(fit.prior.alpha / exact.prior.alpha)) <= 5 * error
    gap = abs(float(fit.log_evidence - exact.log_evidence))
    assert gap <= 5 * float(fit.log_evidence_error)
    again = lm.maximise_evidence(data, PRIOR, state=states[0], **arguments)
    np.testing.assert_array_equal(again.posterior.deviations, fit.posterior.deviations)


def observe_unknown(x, y):
    return lm.Observations(lx.MatrixLinearOperator(x), y, lm.Gaussian())


@pytest.mark.slow
def test_too_long_steps_are_halved():
    """Plain steps of 24/L diverge, and so do those of 3/L; those of 1.5/L halve the error."""
    recipe = lm.SampleThenOptimise(optimiser=optax.sgd(24 / 28.5))
    trace = Trace(recipe, simple_data(batch_size=64), 400)
    assert abs(trace.spectrum[-1] - 28.5) < 0.1
    assert trace.descent.rate == 2**-4
    assert trace.squares.max() <= 64 * 8 * working_epsilon() ** 2 * trace.spectrum[-1] * 20**2


@pytest.mark.slow
def test_averages_count_no_undone_steps():
    """After halvings Polyak's average is that of the iterates since the start: at most 4/T of it.

    Errors contract by a half a step, so that their sum is below twice the first; its weight is 1/T.
    """
    diverging = {"optimiser": optax.sgd(24 / 28.5), "averaging": lm.descent.polyak}
    data = simple_data(batch_size=64)
    start = Trace(lm.SampleThenOptimise(optimiser=optax.sgd(0.0)), data, 1)
    trace = Trace(lm.SampleThenOptimise(**diverging), data, 400)
    assert trace.descent.rate == 2**-4
    assert trace.squares.max() <= (4 / 360) ** 2 * start.squares.max()


@pytest.mark.slow
def test_another_descent_never_makes_it_worse():
    """The best of all checks is kept, and conjugate gradients end what descents do not."""
    x = np.asarray(jax.random.normal(jax.random.key(0), (200, 60))) * np.logspace(0, 1.5, 60)
    rows = lm.RowSlices(x.astype(np.float32), x[:, 0].astype(np.float32), batch_size=20)
    data, errors = lm.Batched(rows, observe_known), []
    for limit in (30, 60, 240, 480):
        method = lm.SampleThenOptimise(tolerance=1e-9, max_passes=limit)
        fit = lm.infer(data, PRIOR, method=method, num_samples=4, key=KEY, throw=False)
        errors.append(fit.solver.estimate)
        assert fit.solver.passes <= limit + 1
    assert max(errors[2:]) <= 1e-9 < min(errors[:2])
    method = lm.SampleThenOptimise(tolerance=1e-9, max_passes=30)
    with pytest.raises(lm.FitError, match="did not reach its tolerance within"):
        lm.infer(data, PRIOR, method=method, num_samples=4, key=KEY)


def falling_spectrum(scale, size=200):
    """Eigenvalues of M fall like 600 scale/i; minibatches of 10 of 600 rows are noisy."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((600, size)) * np.sqrt(scale / np.arange(1, size + 1))
    y = x[:, 0] + rng.standard_normal(600)
    rows = lm.RowSlices(x.astype(np.float32), y.astype(np.float32), batch_size=10)
    return lm.Batched(rows, observe_known)


@pytest.mark.slow
def test_no_learning_rate_to_choose():
    """Within 3 times the error of the best of a grid after 20 passes, 1/8 over the curvature."""
    data = falling_spectrum(0.3)
    found = Trace(lm.SampleThenOptimise("fit"), data, 18)  # after a race of 2
    schedule = optax.linear_schedule(1 / 8 / found.descent.curvature, 0.0, 20 * 60)
    recipe = lm.SampleThenOptimise("fit", optimiser=optax.sgd(schedule, 0.9, nesterov=True))
    best = Trace(recipe, data, 20)
    assert found.squares[:-1].mean() <= 3 * best.squares[:-1].mean()


def test_noisy_descents_are_followed_by_shorter_steps(monkeypatch):
    """Where a descent of twice as many passes leaves more than a quarter of the error."""
    rates = []

    def idle(objective, data, start, *, passes, rate, **_):
        rates.append(rate)
        return Descended(
            start, rate or 1.0, 1.0, passes, np.zeros(len(start)), lm.RESULTS.successful
        )

    monkeypatch.setattr(sample_then_optimise, "descend", idle)
    method = lm.SampleThenOptimise(tolerance=1e-6, max_passes=160)
    arguments = {"method": method, "num_samples": 4, "key": KEY, "throw": False}
    lm.infer(falling_spectrum(30.0), PRIOR, **arguments)
    assert rates[:3] == [None, 1.0, 0.25]


@pytest.mark.slow
def test_every_vector_is_on_its_own():
    """Also with an optimiser that takes norms: the mean alone is the mean among others."""
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.01))
    data, ends = simple_data(), []
    for count in (1, 8):
        keep = lambda passes, state: ends.append(np.asarray(state.x[-1]))
        method = lm.SampleThenOptimise(passes=4, optimiser=optimiser, callback=keep)
        lm.infer(data, PRIOR, method=method, num_samples=count, key=KEY, throw=False)
    np.testing.assert_allclose(ends[1], ends[3], rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["fit", "regulariser"])
def test_nothing_compiles_anew_nor_is_kept(noise, caplog):
    """For other data of the same shapes."""
    method, alive = lm.SampleThenOptimise(noise, passes=2), []
    for _ in range(2):
        data = simple_data()
        alive.append(weakref.ref(data.batches))
        caplog.clear()
        with jax.log_compiles(), warnings.catch_warnings():
            lm.infer(data, PRIOR, method=method, num_samples=2, key=KEY, throw=False)
    assert not [r for r in caplog.records if r.message.startswith("Compiling")]
    del data
    gc.collect()
    assert not any(batches() for batches in alive)


_term = eqx.filter_jit(lambda objective, *arguments: objective.term(*arguments))


@pytest.mark.slow
def test_padding_has_no_loss():
    """Of 9 rows in batches of 4, in any order: the loss of all is that of one batch."""
    x, y = whole(simple_data())
    rows = lm.RowSlices(x[:9].astype(np.float32), y[:9].astype(np.float32), batch_size=4)
    losses = []
    for size in (4, 9):
        data = lm.Batched(lm.RowSlices(*rows.arrays, batch_size=size), observe_known)
        system = lm.SampleThenOptimise("fit").prepare(data, PRIOR, num_samples=2, key=KEY)
        design, one = system.model.design(np.ones(1), np.ones(1)), np.ones(1)
        equations = primal_equations(
            system.model, Hyperparameters(one, one), design, IdentityRoot(), tolerance=0.1
        )
        objective, drawn = noise_in_fit(equations)
        for seed in range(3):
            batches = shuffled_batches(data, np.random.default_rng(seed))
            terms = [
                _term(objective, batch, drawn(batch), objective.centre, objective.centre[:1])
                for batch in batches
            ]
            losses.append(sum(np.asarray(term.loss) for term in terms))
    np.testing.assert_allclose(losses, np.broadcast_to(losses[-1], (6, 3)), rtol=1e-5)


def test_misuse():
    data = simple_data()
    with pytest.raises(ValueError, match=r"num_samples of at least 1"):
        lm.infer(data, PRIOR, method=lm.SampleThenOptimise(), num_samples=0)
    with pytest.raises(ValueError, match="passes must be at least 1, or None, got 0"):
        lm.SampleThenOptimise(passes=0)
    with pytest.raises(ValueError, match=r"tolerance must be between 0 and 1, got 1\.0"):
        lm.SampleThenOptimise(tolerance=1.0)
    with pytest.raises(ValueError, match="max_passes must be at least 1, got 0"):
        lm.SampleThenOptimise(max_passes=0)
    with pytest.raises(ValueError, match="clip must be positive, got -1"):
        lm.SampleThenOptimise(clip=-1.0)
    with pytest.raises(ValueError, match="optimiser needs more than gradients and parameters"):
        lm.SampleThenOptimise(optimiser=optax.lbfgs())
    with pytest.raises(ValueError, match="rate must be between 0 and 1, got 2"):
        lm.descent.geometric(2.0)


@pytest.mark.usefixtures("unchecked")
def test_arguments_of_another_kind():
    with pytest.raises(ValueError, match=r"noise_in must be .* got 'both'"):
        lm.SampleThenOptimise("both")
    with pytest.raises(ValueError, match=r"optimiser must be one of optax's"):
        lm.SampleThenOptimise(optimiser=0.1)
    with pytest.raises(ValueError, match="averaging must be a function of the step"):
        lm.SampleThenOptimise(averaging=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("spectrum", "count"), [("flat", 8), ("power", 16), ("square", 16)])
def test_log_determinants_of_solves_that_were_cut_short(spectrum, count):
    """Eight passes are off by a fifth where eigenvalues spread evenly; within 5 standard errors."""
    order = jnp.arange(1, 301)
    values = {
        "flat": jnp.logspace(0, 4, 300),
        "power": 1 + 1e4 / order,
        "square": 1 + 1e4 / order**2,
    }[spectrum]
    rule, root = PrimalRule(1e-6), IdentityRoot()
    for seed in range(12):
        draws = jax.random.normal(jax.random.key(seed), (count + 1, 300)) * jnp.sqrt(values)
        recurrence = block_cg(lambda x: x * values, draws, rule, max_passes=8).recurrence
        found = truncated_log_determinant(recurrence, 300, root, 1e-7)
        gap = float(found.value) - float(jnp.sum(jnp.log(values)))
        assert abs(gap) <= 5 * float(found.standard_error)
