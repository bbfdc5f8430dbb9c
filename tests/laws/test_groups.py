"""Strengths of groups learned step by step without a matrix."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from linmodels.methods import BlockCG, Exact

pytestmark = pytest.mark.slow
SIZE, K = 400, 16
GROUPS = np.arange(SIZE) % 3


def observed(beta=None):
    """Eigenvalues 1e5/i², and a group whose parameters are a tenth as large as the next's."""
    rng = np.random.default_rng(0)
    root = np.sqrt(1e5) / np.arange(1.0, SIZE + 1)
    parameters = rng.standard_normal(SIZE) * np.array([1.0, 0.1, 3.0])[GROUPS]
    targets = root * parameters + rng.standard_normal(SIZE)
    design = lx.DiagonalLinearOperator(jnp.asarray(root, jnp.float32))
    return lm.Observations(design, jnp.asarray(targets, jnp.float32), lm.Gaussian(beta))


@pytest.fixture(scope="module", params=["primal", "dual"])
def fits(request):
    """By block-CG and exactly, and the states on the way."""
    states, key, prior = [], jax.random.key(0), lm.GaussianPrior(groups=GROUPS)
    arguments = {"method": BlockCG(request.param), "num_samples": K, "key": key}
    learned = lm.maximise_evidence(observed(), prior, callback=states.append, **arguments)
    exact = lm.maximise_evidence(observed(), prior, method=Exact(), num_samples=0)
    return learned, exact, states, arguments


def test_the_weakest_group_is_learned(fits):
    """Scores from k draws have 1/k of the information: 2k times what is lost is χ² of 4 degrees.

    Solver error would add to a weak group's γ_l, and so send its α to infinity.
    """
    learned, exact, *_ = fits
    prior = lm.GaussianPrior(learned.prior.alpha, groups=GROUPS)
    there = lm.log_evidence(observed(learned.noise_scale[0]), prior, method=Exact())
    assert 0 <= 2 * K * (float(exact.log_evidence) - float(there)) + 0.05 < 30
    assert not learned.flags


@pytest.mark.parametrize(
    ("fits", "m_step"),
    [("primal", lm.m_steps.evidence_bound), ("dual", lm.m_steps.em_elbo)],
    indirect=["fits"],
)
def test_other_steps_end_there_too(fits, m_step):
    """Within what passes for noise: a tenth of γ_l's standard error, and solver error."""
    learned, _, _, arguments = fits
    prior = lm.GaussianPrior(groups=GROUPS)
    other = lm.maximise_evidence(observed(), prior, m_step=m_step, **arguments)
    error = learned.group_dimension_errors
    gap = np.abs(other.group_dimensions - learned.group_dimensions)
    assert (gap <= 3 * error).all()
    assert not other.flags


def test_dimension_of_every_group(fits):
    """At the strengths learned, within 5 standard errors of the exact ones."""
    learned, *_ = fits
    data = observed(float(learned.noise_scale[0]))
    prior = lm.GaussianPrior(learned.prior.alpha, groups=GROUPS)
    exact = lm.infer(data, prior, method=Exact(), num_samples=0)
    gap = np.abs(learned.group_dimensions - exact.group_dimensions)
    assert (gap <= 5 * learned.group_dimension_errors).all()
    assert (learned.group_dimension_errors > 0).all()


def test_log_evidence_along_the_way(fits):
    """By its slopes from one state to the next, it stays that of solves from 0, but for noise."""
    learned, _, states, _ = fits
    assert abs(states[-1].log_evidence - float(learned.log_evidence)) < learned.log_evidence_error


def test_goes_on_from_a_state_bit_for_bit(fits):
    learned, _, states, arguments = fits
    prior = lm.GaussianPrior(groups=GROUPS)
    resumed = lm.maximise_evidence(observed(), prior, state=states[-2], **arguments)
    assert (resumed.prior.alpha == learned.prior.alpha).all()
    assert resumed.log_evidence == learned.log_evidence
    with pytest.raises(ValueError, match=r"\(17, 400\).*another fit"):
        lm.maximise_evidence(observed(), prior, state=states[-2], **{**arguments, "num_samples": 8})


def test_starts_save_passes():
    """A solve at strengths near by begins where the last one ended: where nothing else helps it."""
    prior, alpha, beta = lm.GaussianPrior(groups=GROUPS), np.array([1.0, 100.0, 0.1]), np.ones(1)
    counted = []
    method = BlockCG("dual", callback=counted.append)
    system = method.prepare(observed(1.0), prior, num_samples=K, key=jax.random.key(0))
    start = system.evaluate(alpha, beta).start
    passes = []
    for begin in (None, start):
        counted.clear()
        terms = system.evaluate(1.02 * alpha, beta, begin).terms
        passes.append(len(counted))
    assert passes[1] <= passes[0] / 2
    cold = system.evaluate(1.02 * alpha, beta).terms
    np.testing.assert_allclose(terms.group_dimension, cold.group_dimension, rtol=0.02)
    assert abs(terms.log_evidence - cold.log_evidence) < 0.5 * cold.log_evidence_error
