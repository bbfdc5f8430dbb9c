"""`maximise_evidence` finds stationary points of the dense evidence, in any units."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linmodels as lm
from laws.problems import Arrays, Layout, Problem, answer, cast, observations, prior

TOLERANCE = 1e-6
N, D = 30, 4
LAYOUTS = [
    Layout(N, 1, D, "scalar", "g"),
    Layout(N, 1, D, "scalar", "isotropic"),
    Layout(N, 1, D, "scalar", "everything"),
    Layout(N // 2, 2, D, "per output", "flat"),
    Layout(N // 2, 2, D, "singular", "groups"),
]


def arrays_with_signal(layout, seed):
    """Targets that a model explains in part, so that every hyperparameter has a maximum."""
    generator = np.random.default_rng(seed)
    rows = layout.n * layout.m
    design = generator.standard_normal((rows, layout.d))
    design[:, layout.flat] = 1.0
    signal = design @ generator.choice([-1.5, 1.5], layout.d)
    factor = generator.standard_normal((1, layout.m))
    return cast(
        Arrays(
            design=design,
            targets=signal + generator.standard_normal(rows),
            offset=generator.standard_normal(rows) * 0.1,
            weights=generator.choice([0.0, 1.0, 2.0], layout.n),
            precision=factor if layout.noise == "singular" else np.array(1.0),
            mean=np.zeros(layout.d),
            root=np.ones(layout.d),
            alpha=np.ones(layout.groups.max() + 1),
            beta=np.ones(layout.output.max() + 1),
        )
    )


def learn(problem, **arguments):
    believed = prior(*problem).with_alpha(None)
    return lm.maximise_evidence(
        observations(*problem), believed, num_samples=0, tolerance=TOLERANCE, **arguments
    )


def learned(problem, **arguments):
    """The fit, and the last state: its hyperparameters in float64."""
    states = []
    fit = learn(problem, callback=states.append, **arguments)
    return fit, states[-1]


def dense_evidence(problem, alpha, beta):
    arrays = problem.arrays._replace(alpha=alpha, beta=beta)
    return answer(problem._replace(arrays=arrays)).log_evidence


def steps_and_layouts():
    """MacKay's with every layout; the others with one."""
    for layout in LAYOUTS:
        yield pytest.param(layout, lm.m_steps.mackay, id=f"mackay-{layout.noise}-{layout.prior}")
    everything = next(layout for layout in LAYOUTS if layout.prior == "everything")
    yield pytest.param(everything, lm.m_steps.em_elbo, id="em-everything")
    yield pytest.param(
        everything, lm.m_steps.evidence_bound, id="bound-everything", marks=pytest.mark.slow
    )


@pytest.mark.parametrize(("layout", "m_step"), [*steps_and_layouts()])
@given(seed=st.integers(0, 2**31))
def test_stationary(layout, m_step, seed):
    """Moving a settled hyperparameter by 1 % raises the dense evidence by rounding at most.

    At most, because MacKay's update being of relative size δ = 1e-6 at the last a slope of at most
    ½ N δ per unit of log α or log β is left, whatever the M-step, and 1 % of it; for targets,
    designs and their roots rounded to ε in the working dtype, the evidence that was maximised has
    slopes within 8 ε N √d of the oracle's.
    """
    problem = Problem(layout, arrays_with_signal(layout, seed))
    fit, state = learned(problem, m_step=m_step)
    if fit.flags:  # the evidence has no maximum
        return
    best = dense_evidence(problem, state.alpha, state.noise_precision)
    count = 2 * problem.arrays.weights.sum() * layout.m
    epsilon = np.finfo(problem.arrays.design.dtype).eps
    slack = 0.01 * count * (TOLERANCE + 8 * epsilon * np.sqrt(D)) + 1e-13 * abs(best)
    for factor in (0.99, 1.01):
        for i in range(len(state.alpha)):
            alpha = np.where(np.arange(len(state.alpha)) == i, factor, 1.0) * state.alpha
            assert dense_evidence(problem, alpha, state.noise_precision) <= best + slack
        for i in range(len(state.noise_precision)):
            beta = np.where(np.arange(len(state.noise_precision)) == i, factor, 1.0)
            moved = dense_evidence(problem, state.alpha, beta * state.noise_precision)
            assert moved <= best + slack
    rounding = 1e2 * epsilon * (count + abs(best))  # terms of a nat or so a row, which cancel
    np.testing.assert_allclose(fit.log_evidence, best, rtol=0, atol=rounding)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: f"{layout.noise}-{layout.prior}")
def test_resumes_bit_for_bit(layout):
    problem = Problem(layout, arrays_with_signal(layout, 1))
    states = []
    straight = learn(problem, callback=states.append)
    assert len(states) > 1
    for state in states[:-1]:
        resumed = learn(problem, state=state)
        assert resumed.steps == straight.steps
        for name in ("log_evidence", "effective_dimension", "noise_scale"):
            assert (getattr(resumed, name) == getattr(straight, name)).all(), name
        assert (resumed.prior.alpha == straight.prior.alpha).all()
        assert (resumed.posterior.mean == straight.posterior.mean).all()


@functools.cache
def reference(layout):
    problem = Problem(layout, arrays_with_signal(layout, 1))
    return problem, *learned(problem)


POWERS = st.integers(-30, 30).map(lambda exponent: 2.0**exponent)
"""from 1e-9 to 1e9; scaling by them commutes with rounding, so that only logarithms differ"""
SETTLED = 1e-5


@pytest.mark.parametrize("layout", LAYOUTS[3:], ids=lambda layout: f"{layout.noise}-{layout.prior}")
@given(scale=POWERS)
def test_units_of_the_targets(layout, scale):
    """y → cy: β → β/c², α → α/c², θ → cθ, log p → log p − Σ w rank log c."""
    problem, fit, state = reference(layout)
    arrays = problem.arrays
    factor = np.asarray(scale, arrays.design.dtype)
    moved = arrays._replace(targets=arrays.targets * factor, offset=arrays.offset * factor)
    other, other_state = learned(problem._replace(arrays=moved))
    np.testing.assert_allclose(other_state.alpha * scale**2, state.alpha, rtol=SETTLED)
    beta = other_state.noise_precision * scale**2
    np.testing.assert_allclose(beta, state.noise_precision, rtol=SETTLED)
    size = float(jnp.abs(fit.posterior.mean).max())
    np.testing.assert_allclose(
        np.asarray(other.posterior.mean) / factor, fit.posterior.mean, rtol=0, atol=SETTLED * size
    )
    observed = arrays.weights.sum() * (1 if layout.noise == "singular" else layout.m)
    # One flat parameter is integrated with density 1 in units that have changed too.
    expected = state.log_evidence - (observed - layout.flat.sum()) * np.log(scale)
    np.testing.assert_allclose(other_state.log_evidence, expected, rtol=SETTLED, atol=SETTLED)


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[2]], ids=lambda layout: layout.prior)
@given(scales=st.lists(POWERS, min_size=D, max_size=D))
def test_units_of_the_columns(layout, scales):
    """Under the g-prior Φ → ΦC, θ → C⁻¹θ, and nothing else changes."""
    problem, fit, state = reference(layout)
    arrays, scales = problem.arrays, np.asarray(scales, problem.arrays.design.dtype)
    scales = np.where(layout.flat, 1, scales).astype(scales.dtype)
    moved = arrays._replace(design=arrays.design * scales)
    other, other_state = learned(problem._replace(arrays=moved))
    np.testing.assert_allclose(other_state.alpha, state.alpha, rtol=SETTLED)
    np.testing.assert_allclose(other_state.noise_precision, state.noise_precision, rtol=SETTLED)
    np.testing.assert_allclose(other_state.log_evidence, state.log_evidence, rtol=SETTLED)
    size = float(jnp.abs(fit.posterior.mean).max())
    np.testing.assert_allclose(
        np.asarray(other.posterior.mean) * scales, fit.posterior.mean, rtol=0, atol=SETTLED * size
    )
    np.testing.assert_allclose(
        np.asarray(other.posterior.std()) * scales, fit.posterior.std(), rtol=SETTLED
    )
