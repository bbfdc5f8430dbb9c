"""M-steps against the dense bounds that they maximise, and the evidence below which those lie."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import linmodels as lm
from laws import dense
from laws.problems import Problem, answer, observations, parts, prior
from laws.test_evidence import LAYOUTS, arrays_with_signal
from linmodels import m_steps
from linmodels._acceleration import extrapolated
from linmodels._hyperparameters import MAX_GROUP_RATIO, bounded
from linmodels.m_steps import Expectation, Hyperparameters
from linmodels.methods import Scales

SEEDS = st.integers(0, 2**31)
BY_LAYOUT = pytest.mark.parametrize("layout", LAYOUTS[2:], ids=lambda at: f"{at.noise}-{at.prior}")


def somewhere(layout, seed):
    """A problem away from the maximum, and what an M-step is told there."""
    arrays, generator = arrays_with_signal(layout, seed), np.random.default_rng(seed)
    dtype = arrays.alpha.dtype
    alpha, beta = (
        np.exp(generator.uniform(-3, 3, len(x))).astype(dtype) for x in (arrays.alpha, arrays.beta)
    )
    problem = Problem(layout, arrays._replace(alpha=alpha, beta=beta))
    data, believed = observations(*problem), prior(*problem)
    system = lm.Exact().prepare(data, believed, num_samples=0, key=None)
    current = Hyperparameters(alpha.astype(np.float64), beta.astype(np.float64))
    terms = system.evaluate(*current).terms
    return problem, Expectation(current, terms, system.scales(), True, system.nearby(None))


def at(problem, logs):
    """The problem at other hyperparameters, in float64."""
    values, count = np.exp(logs), len(problem.arrays.alpha)
    return problem._replace(
        arrays=problem.arrays._replace(alpha=values[:count], beta=values[count:])
    )


def elbo(problem, mean, covariance):
    """E log p(y, θ) + entropy under N(mean, covariance), a flat parameter's prior density 1."""
    given = parts(problem)
    residual = given.targets - given.design @ mean
    spread = np.trace(given.design.T @ given.noise @ given.design @ covariance)
    fit = given.log_noise - 0.5 * (residual @ given.noise @ residual + spread)
    penalty = mean @ given.prior @ mean + np.trace(given.prior @ covariance)
    believed = 0.5 * dense.log_pseudo_determinant(given.prior / (2 * np.pi)) - 0.5 * penalty
    entropy = 0.5 * dense.log_pseudo_determinant(2 * np.pi * np.e * covariance)
    return fit + believed + entropy


def held_elbo(problem):
    """Of log hyperparameters, mean and covariance held."""
    truth = answer(problem)
    return lambda logs: elbo(at(problem, logs), truth.mean, truth.covariance)


def evidence_bound(problem):
    """𝓜 of log hyperparameters, the mean held."""
    mean = answer(problem).mean
    return lambda logs: elbo(at(problem, logs), mean, answer(at(problem, logs)).covariance)


BOUNDS = pytest.mark.parametrize(
    ("step", "bound"),
    [
        pytest.param(m_steps.em_elbo, held_elbo, id="em_elbo"),
        pytest.param(
            m_steps.evidence_bound, evidence_bound, id="evidence_bound", marks=pytest.mark.slow
        ),
    ],
)


@pytest.mark.law
@BOUNDS
@BY_LAYOUT
@pytest.mark.parametrize("seed", range(3))
def test_maximises_its_bound(step, bound, layout, seed):
    """A numerical search finds the same maximum: both bounds are concave in the logarithms.

    It stops at slopes below 1e-5; the curvature is at least ½ γ_l, above 0.1. `evidence_bound`
    stops when an inner step is 1e-3 of the first, which is at most 3 times the distance from where
    it began: half of that may be left.
    """
    problem, expectation = somewhere(layout, seed)
    function = bound(problem)
    start = np.log(np.concatenate(expectation.current))
    found = np.log(np.concatenate(step(expectation)))
    search = minimize(lambda logs: -function(logs), start, method="BFGS", options={"gtol": 1e-5})
    slack = 1.5e-3 * np.abs(found - start).max() + 1e-4
    np.testing.assert_allclose(found, search.x, rtol=0, atol=slack)


@BOUNDS
@BY_LAYOUT
@given(seed=SEEDS)
def test_the_evidence_never_falls(step, bound, layout, seed):
    """The bound touches the evidence at the present hyperparameters and is below it elsewhere."""
    problem, expectation = somewhere(layout, seed)
    here = np.log(np.concatenate(expectation.current))
    there = np.log(np.concatenate(step(expectation)))
    evidence = lambda logs: answer(at(problem, logs)).log_evidence
    function = bound(problem)
    np.testing.assert_allclose(function(here), evidence(here), rtol=1e-9, atol=1e-9)
    rounding = 1e-10 * abs(evidence(there))
    assert evidence(there) >= function(there) - rounding
    assert function(there) >= function(here) - rounding


@BY_LAYOUT
@given(seed=SEEDS)
def test_dimension_of_every_group(layout, seed):
    """γ_l = tr (H⁻¹M)_ll, exact; they add up to the effective dimension."""
    problem = Problem(layout, arrays_with_signal(layout, seed))
    fit = lm.infer(observations(*problem, learn=False), prior(*problem), num_samples=0)
    shares = np.where(layout.flat, 0, answer(problem).dimension)
    expected = np.bincount(layout.groups, shares)
    np.testing.assert_allclose(fit.group_dimensions, expected, rtol=1e-5)
    np.testing.assert_allclose(fit.group_dimensions.sum(), fit.effective_dimension, rtol=1e-6)
    assert (fit.group_dimension_errors == np.zeros(len(expected))).all()


# The way there.


@given(st.floats(0.01, 0.99), st.floats(-5, 5), st.floats(0.1, 3))
def test_extrapolation_of_a_geometric_sequence(rate, limit, distance):
    """Its end, known to ε over the square of what the first steps tell of the rate."""
    logs = limit + distance * np.array([1, rate, rate**2])
    points = tuple(np.exp(np.array([log, 2 * log])) for log in logs)
    close = {"rtol": 1e-12 / (distance * (1 - rate) ** 2) ** 2 + 1e-9}
    ends = np.exp([limit, 2 * limit])
    for together in (False, True):
        found = extrapolated(points, together=together)
        np.testing.assert_allclose(found, ends, **close)


@pytest.mark.parametrize("time", [1e2, 1e5, 1e10])
@pytest.mark.parametrize("together", [False, True])
def test_extrapolation_of_a_slow_way_to_infinity(together, time):
    """t, t + 1, t + 2: log t grows by 1, while one that has settled stays where it is."""
    still = 1 + 1e-15 * np.array([0, 1, -1])
    points = tuple(np.array([time + i, still[i]]) for i in range(3))
    found = extrapolated(points, together=together)
    np.testing.assert_allclose(np.log(found / points[0]), [1, 0], atol=0.05)


# The whole of learning, by every step.

STEPS = pytest.mark.parametrize(
    "m_step", [m_steps.mackay, m_steps.evidence_bound, m_steps.em_elbo], ids=lambda s: s.__name__
)


def observe(x, y, noise=None):
    return lm.Observations(lx.MatrixLinearOperator(jnp.asarray(x)), y, lm.Gaussian(noise))


def test_small_steps_are_not_convergence():
    """True EM, d' = 2,000 and γ < 1: log α moves by less than 1e-5 where MacKay's moves by 1."""
    generator = np.random.default_rng(0)
    design = generator.standard_normal((20, 2_000)) / np.sqrt(2_000)
    data = observe(design, 3 * design @ generator.standard_normal(2_000), 0.25)
    states, prior = [], lm.GaussianPrior(1e3)
    arguments = {"num_samples": 0, "tolerance": 1e-3, "m_step": m_steps.em_elbo}
    fit = lm.maximise_evidence(data, prior, callback=states.append, **arguments)
    slow = lm.maximise_evidence(data, prior, **arguments, max_steps=1, throw=False)
    assert slow.result == lm.RESULTS.max_steps_reached
    best = lm.maximise_evidence(data, prior, num_samples=0)
    assert not best.flags
    np.testing.assert_allclose(fit.prior.alpha, best.prior.alpha, rtol=2e-3)


def relu_layers(seed):
    """Jacobians of x ↦ relu(x W) w: as f = J_W vec W = J_w w, either layer alone explains f."""
    generator = np.random.default_rng(seed)
    x, hidden, last = (generator.standard_normal(shape) for shape in ((40, 2), (2, 6), 6))
    active = x @ hidden > 0
    first = ((active * last)[:, None, :] * x[:, :, None]).reshape(40, 12)
    second = active * (x @ hidden)
    noise = 0.3 * generator.standard_normal(40)
    return np.concatenate([first, second], 1), second @ last + noise, np.repeat([0, 1], [12, 6])


@STEPS
def test_layers_that_collapse(m_step):
    """The evidence keeps the last layer; the first, which alone would do as well, is flagged."""
    design, targets, groups = relu_layers(2)
    data = observe(design, targets)
    fit = lm.maximise_evidence(
        data, lm.GaussianPrior.g_prior(groups=groups), num_samples=0, m_step=m_step
    )
    assert fit.flags == (lm.Flag(lm.FlagKind.GROUPS_COLLAPSED, 0),)
    assert np.isfinite(fit.prior.alpha).all()
    alone = [
        lm.maximise_evidence(observe(design[:, groups == group], targets), num_samples=0)
        for group in (0, 1)
    ]
    np.testing.assert_allclose(fit.log_evidence, alone[1].log_evidence, atol=1e-4)
    nothing = lm.maximise_evidence(observe(0 * design, targets), num_samples=0, throw=False)
    gains = [float(one.log_evidence - nothing.log_evidence) for one in alone]
    assert min(gains) > 0.5 * max(gains) > 3


@pytest.mark.slow
@pytest.mark.parametrize("side", ["primal", "dual"])
def test_layers_that_collapse_by_products(side):
    """From 16 samples γ_0 need not be smaller than their noise: that it is faint is enough."""
    design, targets, groups = relu_layers(2)
    fit = lm.maximise_evidence(
        observe(design, targets),
        lm.GaussianPrior(groups=groups),
        method=lm.BlockCG(side),
        num_samples=16,
        key=jax.random.key(0),
    )
    assert fit.flags == (lm.Flag(lm.FlagKind.GROUPS_COLLAPSED, 0),)
    assert fit.group_dimensions[0] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("m_step", [lm.m_steps.evidence_bound])
def test_layers_that_collapse_around_a_mode(m_step):
    """The same of two classes, with the evidence of Laplace's approximation."""
    design, targets, groups = relu_layers(2)
    likelihood, prior = lm.Bernoulli(), lm.GaussianPrior(groups=groups)
    operator = lx.MatrixLinearOperator(jnp.asarray(design))
    data = lm.Observations(operator, (targets > 0).astype(int), likelihood)
    fit = lm.maximise_evidence(data, prior, num_samples=0, m_step=m_step)
    assert fit.flags == (lm.Flag(lm.FlagKind.GROUPS_COLLAPSED, 0),)


def pairs_of_groups(seed):
    """Three columns that the targets come from, the same in other units and with errors, and
    three of noise."""
    generator = np.random.default_rng(seed)
    own, error, noise = generator.standard_normal((3, 40, 3))
    copies = 10 * (own + 0.3 * error)
    return own, copies, noise, own @ [1, 1, -1] + 0.3 * generator.standard_normal(40)


@STEPS
def test_collapse_and_its_likes(m_step):
    """A copy of the group that explains the targets collapses; noise is not needed; two groups that
    are both needed have no flag, whatever the ratio of their strengths."""
    own, copies, noise, targets = pairs_of_groups(10)
    prior = lm.GaussianPrior(groups=np.repeat([0, 1], 3))

    def learned(second, targets):
        data = observe(np.concatenate([own, second], 1), targets)
        return lm.maximise_evidence(data, prior, num_samples=0, m_step=m_step)

    collapsed, unneeded = learned(copies, targets), learned(noise, targets)
    healthy = learned(1e4 * noise, targets + noise @ [1, 2, 1])
    assert collapsed.flags == (lm.Flag(lm.FlagKind.GROUPS_COLLAPSED, 1),)
    assert unneeded.flags == (lm.Flag(lm.FlagKind.PRIOR_PRECISION_INFINITE, 1),)
    assert healthy.flags == ()
    np.testing.assert_allclose(collapsed.posterior.mean[3:], 0, atol=1e-5)
    assert healthy.prior.alpha[1] / healthy.prior.alpha[0] > 1e6


@given(st.lists(st.floats(-300, 300), min_size=3, max_size=3), st.floats(-8, 8))
def test_what_is_proposed_stays_within_bounds(exponents, noise):
    """Steps by at most 1e4, shares in the outputs within 1e12 of each other, whatever is asked."""
    current = Hyperparameters(np.array([1e-6, 1.0, 1e6]), np.array([10.0**noise]))
    ones = np.ones(1)
    scales = Scales(np.ones(3), ones, np.array([1.0, 1e3, 0.0]), np.ones(3), 1e9 * ones, 10 * ones)
    proposed = Hyperparameters(10.0 ** np.array(exponents), 10.0 ** np.array(exponents[:1]))
    alpha, beta = bounded(proposed, current, scales, learn_noise=True)
    for new, old in ((alpha[:2], current.alpha[:2]), (beta, current.beta)):
        ratios = new / old
        assert ((ratios > 0) & np.isfinite(ratios)).all()
    shares = scales.information[:2] / alpha[:2]
    assert shares.max() <= MAX_GROUP_RATIO * shares.min() * (1 + 1e-9)
    assert alpha[2] == current.alpha[2]  # which the data do not inform
    assert beta <= 1e9
    assert bounded(proposed, current, scales, learn_noise=False).beta == current.beta
