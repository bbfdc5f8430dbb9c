"""What is said of strengths that run away, from noisy estimates and before they have settled."""

import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

import linmodels as lm
from linmodels._degeneracy import flags
from linmodels._em import EvidenceState, _step
from linmodels.m_steps import mackay
from linmodels.methods import AbstractSystem, Evaluation, EvidenceTerms, Hyperparameters, Scales

SCALES = Scales(*(np.array(v) for v in ([1.0, 1.0], [1.0], [1e6, 1e6], [100, 500], [1e9], [1e3])))


def terms_of(dimension, norm, error):
    one = np.array([50.0, dimension])
    return EvidenceTerms(
        -100.0, one, np.array([50.0, norm]), one[:1], np.ones(1), 0.1, 0.1, np.array([0.1, error])
    )


class Found(AbstractSystem):
    """Finds the same wherever it looks."""

    terms: EvidenceTerms
    noise: float
    prior: lm.GaussianPrior = lm.GaussianPrior()
    reason: str = ""

    def scales(self):
        return SCALES

    def evaluate(self, alpha, beta, start=None):
        return Evaluation(self.terms, alpha_noise=np.array([1e-3, self.noise]))

    def solve(self, alpha, beta, start=None):
        raise NotImplementedError

    @property
    def path(self):
        raise NotImplementedError


def updated(terms, noise):
    """After one update from α = (1, 10⁴)."""
    state = EvidenceState(
        3,
        np.array([1.0, 1e4]),
        np.ones(1),
        -101.0,
        50.0,
        1.0,
        np.zeros(3, bool),
        lm.RESULTS.successful,
    )
    return _step(Found(terms, noise), SCALES, False, mackay, state)


def test_noise_sends_no_runaway_back():
    """γ_l estimated at 0, to where a standard error is above ‖x̄_l‖²: α stays and is flagged."""
    after = updated(terms_of(0.0, 0.005, 0.02), 1e300)
    assert after.alpha[1] == 1e4
    assert after.runaway.tolist() == [False, True, False]
    assert after.settled(1e-3)


def test_a_signal_does():
    """‖x̄_l‖² many standard errors above γ_l: the group is needed, and α was too large."""
    after = updated(terms_of(0.02, 0.5, 0.02), 0.1)
    np.testing.assert_allclose(after.alpha[1], 1e4 * 0.02 / 0.5)
    assert not after.runaway.any()
    assert not after.settled(1e-3)


@pytest.mark.parametrize(
    ("information", "dimension", "norm", "error", "flagged"),
    [
        (9e3, 0.8, 0.5, 0.3, True),  # growing on, with little left
        (9e3, 0.8, 0.79, 0.3, False),  # within noise of its maximum
        (9e3, 0.8, 1.2, 0.3, False),  # coming back
        (1e6, 20.0, 10.0, 0.3, False),  # growing on, and much is left
        (1e6, 0.99, 0.5, 0.3, False),  # growing on, of rank one, and needed
    ],
)
def test_groups_on_their_way(information, dimension, norm, error, flagged):
    """As good as none is left of one whose evidence still rises, though nothing has settled."""
    terms = terms_of(dimension, norm, error)
    system = Found(terms._replace(log_evidence=-1e6), 1e-3)
    state = updated(terms, error / dimension / 10)
    at = Hyperparameters(state.alpha, state.noise_precision)
    scales = SCALES._replace(information=np.array([1e6, information]))
    found = flags(at, state.runaway, -100.0, terms, False, 0.0, system, scales, False)
    assert [flag.where for flag in found] == ([1] if flagged else [])


def test_a_needed_group_of_rank_one_is_not_fading():
    """200 equal columns with a signal: γ_l is near 1 whatever α_l, whose maximum is finite."""
    generator = np.random.default_rng(0)
    own, other = generator.standard_normal((60, 5)), generator.standard_normal((60, 1))
    targets = own @ [1, 1, -1, 2, 1] + other[:, 0] + 0.3 * generator.standard_normal(60)
    matrix = np.concatenate([own, np.repeat(other, 200, 1)], 1)
    data = lm.Observations(
        lx.MatrixLinearOperator(jnp.asarray(matrix, float)),
        jnp.asarray(targets, float),
        lm.Gaussian(1 / 0.09),
    )
    prior = lm.GaussianPrior(groups=np.repeat([0, 1], [5, 200]))
    for steps in (1, 2, 4):
        about = {"num_samples": 0, "throw": False, "max_steps": steps}
        assert lm.maximise_evidence(data, prior, m_step=lm.m_steps.em_elbo, **about).flags == ()


@pytest.mark.parametrize(("needed", "steps", "flagged"), [(False, 8, [1]), (True, 3, [])])
def test_learning_cut_short(needed, steps, flagged):
    """200 columns that say nothing new, or that are needed, after a few updates by MacKay."""
    generator = np.random.default_rng(0)
    own, other = generator.standard_normal((60, 5)), generator.standard_normal((60, 200))
    targets = own @ [1, 1, -1, 2, 1] + 0.3 * generator.standard_normal(60)
    targets += 0.3 * needed * (other @ generator.standard_normal(200))
    design = lx.MatrixLinearOperator(jnp.asarray(np.concatenate([own, other], 1), float))
    prior = lm.GaussianPrior(groups=np.repeat([0, 1], [5, 200]))
    data = lm.Observations(design, jnp.asarray(targets, float), lm.Gaussian(1 / 0.09))
    about = {"num_samples": 0, "throw": False, "max_steps": steps}
    fit = lm.maximise_evidence(data, prior, **about)
    assert fit.result == lm.RESULTS.max_steps_reached
    assert [flag.where for flag in fit.flags] == flagged
