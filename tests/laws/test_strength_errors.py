"""What the noise of random probes leaves uncertain about α and the noise precision."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
from jax.scipy.fft import dct

import linmodels as lm
from linmodels import FlagKind
from linmodels.methods import EvidencePath

SIZE, ALPHA, BETA = 500, 10.0, 4.0
FALLING = 1e3 / np.arange(1, SIZE + 1) ** 1.5
ALIKE = 1e3 / np.arange(1, SIZE + 1) ** 0.5
"""All far above the noise, and none much above another: noise could as well be signal."""


def targets(spectrum):
    """Along the eigenvectors, drawn from the model."""
    variance = spectrum / ALPHA + 1 / BETA
    return np.sqrt(variance) * np.random.default_rng(0).standard_normal(len(spectrum))


def path(spectrum, rng=None, probes=16):
    """Exact, or with probes in the eigenvectors' own basis."""
    many = None if rng is None else rng.standard_normal((probes, len(spectrum))) ** 2
    if many is not None:
        many *= len(spectrum) / many.sum(1, keepdims=True)
    rest = 0.0, 0, 0.0, float(len(spectrum)), 0.0
    return EvidencePath(spectrum, targets(spectrum) ** 2, *rest, multiplicities=many)


@pytest.mark.law
@pytest.mark.parametrize("probes", [2, 16])
@pytest.mark.parametrize("noise", [None, BETA], ids=["learned", "known"])
def test_as_large_as_errors_are(noise, probes):
    """Errors of 200 draws over their standard errors have the size 1, ± 4 √(1/400) = 20 %; the
    offsets that are tried lie 10 % apart, so that standard errors may be that much smaller."""
    exact, rng = np.log(path(FALLING).maximum(noise)), np.random.default_rng(1)
    scores = []
    for _ in range(200):
        drawn = path(FALLING, rng, probes)
        alpha, beta = drawn.maximum(noise)
        found = drawn.strength_errors(alpha, beta, noise_known=noise is not None)
        scores.append((np.log([alpha, beta]) - exact) / (found.alpha, found.noise_precision or 1))
        assert found.lost < 2 or probes == 2
    size = np.sqrt(np.mean(np.square(scores), axis=0))
    assert 0.8 <= size[0] <= 1.2 * 1.1
    assert size[1] == 0 if noise else 0.8 <= size[1] <= 1.2 * 1.1


def test_of_an_exact_path_there_are_none():
    assert path(FALLING).strength_errors(ALPHA, BETA, noise_known=False) == (0, 0, 0)


def observed(spectrum):
    scale = jnp.asarray(np.sqrt(spectrum), jnp.float32)
    operator = lx.FunctionLinearOperator(
        lambda x: scale * dct(x, norm="ortho"), jax.ShapeDtypeStruct(scale.shape, jnp.float32)
    )
    return lm.Observations(operator, jnp.asarray(targets(spectrum), jnp.float32))


def learned(data, prior=None, method=None, num_samples=16):
    about = {"method": method or lm.BlockCG(), "num_samples": num_samples, "key": jax.random.key(0)}
    return lm.maximise_evidence(data, prior or lm.GaussianPrior(), **about)


@pytest.mark.parametrize(("spectrum", "probes"), [(FALLING, 16), (ALIKE, 16), (ALIKE, 1)])
def test_a_fit_says_how_well_it_knows_its_strengths(spectrum, probes):
    """Within 4 of its standard errors of the exact ones, and flagged where those say nothing."""
    fit, exact = learned(observed(spectrum), num_samples=probes), path(spectrum).maximum(None)
    moved = np.log([float(fit.prior.alpha), float(fit.noise_scale[0])]) - np.log(exact)
    errors = np.concatenate([fit.alpha_errors, fit.noise_scale_errors])
    assert (abs(moved) <= 4 * errors).all()
    uncertain = [flag.kind for flag in fit.flags] == [FlagKind.STRENGTHS_UNCERTAIN]
    assert uncertain == (probes == 1)
    assert uncertain or (errors < 0.4).all()


def test_errors_are_none_of_exact_methods_and_unknown_of_groups_by_samples():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 8)).astype(np.float32)
    y = (x @ rng.standard_normal(8) + rng.standard_normal(60)).astype(np.float32)
    data = lm.Observations(lx.MatrixLinearOperator(jnp.asarray(x)), jnp.asarray(y))
    groups = lm.GaussianPrior(groups=np.repeat([0, 1], 4))
    fit = learned(data, groups, lm.Exact())
    assert (fit.alpha_errors == 0).all()
    assert (fit.noise_scale_errors == 0).all()
    fit = learned(data, groups)
    assert fit.alpha_errors.shape == (2,)
    assert np.isnan(fit.alpha_errors).all()
    assert np.isnan(fit.noise_scale_errors).all()
