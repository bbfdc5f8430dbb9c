"""Under vmap `infer` is a loop, and its evidence has the derivatives of the oracle's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given

import linmodels as lm
from laws.problems import (
    SHAPES,
    Layout,
    Problem,
    answer,
    cast,
    observations,
    parts,
    prior,
    problems,
    random_arrays,
    well_posed,
)
from laws.tolerances import tolerance

TWO = {"tall": SHAPES["tall"], "wide": SHAPES["wide"]}
KINDS = {"noises": ("scalar",), "priors": ("flat",), "extremes": (None,)}


@eqx.filter_jit
def evidence(layout, arrays):
    return lm.log_evidence(observations(layout, arrays, False), prior(layout, arrays))


@eqx.filter_jit
def gradient(layout, arrays):
    return jax.grad(lambda a: evidence(layout, a))(arrays)


@pytest.mark.slow
@given(problem=problems(TWO, **KINDS))
def test_gradient_of_the_evidence(problem):
    """∂y: −Br; ∂α: ½(γ − ‖x̄‖²)/α; ∂b: ½(N − γ − ‖r‖²_B)/b, γ of all parameters."""
    assume(well_posed(problem))
    problem = problem._replace(arrays=problem.arrays._replace(beta=np.ones(1, np.float32)))
    layout, arrays = problem
    slopes = gradient(layout, jax.tree.map(jnp.asarray, arrays))
    given_parts, truth = parts(problem), answer(problem)
    bound = tolerance(given_parts, truth, dual=layout.d > layout.n, traced=True)
    residual = given_parts.noise @ (given_parts.targets - given_parts.design @ truth.mean)
    # A derivative of the factorisation is known to as many digits as the factorisation, times
    # the condition once more.
    condition = 1 + np.linalg.norm(given_parts.root @ given_parts.design @ given_parts.units)
    error = 4 * bound.relative * condition * (1 + given_parts.magnitude) ** 2
    np.testing.assert_allclose(slopes.targets, -residual, rtol=0, atol=error)
    np.testing.assert_allclose(slopes.offset, residual, rtol=0, atol=error)
    penalised = truth.dimension[~layout.flat].sum()
    norm = truth.mean @ given_parts.prior @ truth.mean
    alpha = float(arrays.alpha[0])
    np.testing.assert_allclose(
        slopes.alpha[0] * alpha, 0.5 * (penalised - norm), rtol=0, atol=error
    )
    count = float(arrays.weights.sum())
    of_noise = 0.5 * (count - truth.leverage.sum() - truth.square.sum())
    got = slopes.precision * float(arrays.precision)
    np.testing.assert_allclose(got, of_noise, rtol=0, atol=error)


def solve(layout, side, arrays):
    data, believed = observations(layout, arrays, False), prior(layout, arrays)
    method, key = lm.Exact(side), jax.random.key(1)
    fit = lm.infer(data, believed, method=method, num_samples=3, key=key)
    posterior = fit.posterior
    return posterior.mean, posterior.deviations, fit.log_evidence, fit.effective_dimension


@pytest.mark.parametrize(
    ("side", "kind"),
    [pytest.param("primal", "everything", marks=pytest.mark.slow), ("dual", "dense")],
)
def test_vmap_is_a_loop(side, kind):
    """Over targets, weights, precisions and α at once."""
    layout = Layout(9, 1, 4, "scalar", kind)
    several = [cast(random_arrays(layout, "full", np.random.default_rng(i))) for i in range(3)]
    several = [a._replace(root=several[0].root, beta=np.ones_like(a.beta)) for a in several]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    vmapped = eqx.filter_jit(jax.vmap(lambda arrays: solve(layout, side, arrays)))(stacked)
    for i, arrays in enumerate(several):
        single = Problem(layout, arrays)
        given_parts, truth = parts(single), answer(single)
        bound = tolerance(given_parts, truth, dual=side == "dual", traced=True)
        mean, deviations, log_evidence, dimension = solve(layout, side, arrays)
        units = np.linalg.inv(given_parts.spread)
        error = units @ np.asarray(vmapped[0][i] - mean, np.float64)
        size = np.linalg.norm(abs(units) @ abs(np.asarray(mean, np.float64)))
        assert np.linalg.norm(error) <= 2 * bound.mean + bound.relative * size
        gap = np.asarray(vmapped[1][i] - deviations, np.float64) @ units.T
        assert np.linalg.norm(gap, axis=1).max() <= 2 * bound.relative * np.sqrt(6 * 13)
        assert abs(float(vmapped[2][i] - log_evidence)) <= 2 * bound.log_evidence
        assert abs(float(vmapped[3][i] - dimension)) <= 8 * bound.relative
