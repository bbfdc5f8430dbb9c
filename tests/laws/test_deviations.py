"""Deviations: the same draws on both sides, with the moments of the posterior."""

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
from laws.tolerances import tolerance, working_epsilon

TWO = {"tall": SHAPES["tall"], "wide": SHAPES["wide"]}
"""Drawing normals compiles for seconds a shape."""
PRIORS = ("dense", "groups", "everything")
K = 3
KEY = jax.random.key(5)


def posterior(problem, side, num_samples, key=KEY):
    data, believed = observations(*problem), prior(*problem)
    system = lm.Exact(side).prepare(data, believed, num_samples=num_samples, key=key)
    return system.solve(problem.arrays.alpha, problem.arrays.beta)[1]


@given(problem=problems(TWO, PRIORS, ("entries",), extremes=(None, "targets")))
def test_sides_draw_the_same(problem):
    """As for means with targets u ~ N(0, I): ‖u‖² + ‖z‖² < (N + d)(1 + 5) but for 1 in 10⁷."""
    assume(well_posed(problem))
    primal, dual = (posterior(problem, s, K) for s in ("primal", "dual"))
    given_parts, truth = parts(problem), answer(problem)
    bound = tolerance(given_parts, truth, dual=True, traced=False).relative
    spread = np.linalg.inv(given_parts.spread)
    left, right = (np.asarray(p.deviations, np.float64) @ spread.T for p in (primal, dual))
    noise = np.sqrt(6 * sum(given_parts.design.shape))
    rounding = working_epsilon() * np.linalg.norm(abs(left) @ abs(spread @ given_parts.spread))
    assert np.linalg.norm(left - right, axis=1).max() <= 2 * bound * noise + 4 * rounding
    assert np.linalg.norm(left) > 0


@given(problem=problems(TWO, PRIORS, ("entries",), extremes=(None,)))
def test_draws_do_not_depend_on_how_they_are_used(problem):
    """Deviations do not see the targets or the prior's mean."""
    arrays = problem.arrays
    moved = arrays._replace(targets=arrays.targets + 1, mean=arrays.mean - 2)
    first, second = (posterior(problem._replace(arrays=a), "primal", K) for a in (arrays, moved))
    scale = np.abs(first.deviations).max()
    # With the same rows only the order of float64 operations could differ.
    np.testing.assert_allclose(
        first.deviations, second.deviations, rtol=0, atol=8 * working_epsilon() * scale
    )


@pytest.mark.parametrize(
    ("shape", "kind", "side"),
    [
        *(("tall", "dense", side) for side in ("primal", "dual")),
        *(("wide", "everything", side) for side in ("primal", "dual", "traced")),
    ],
)
def test_moments(shape, kind, side):
    """Whitened with the oracle's H, k deviations are k standard normals in each coordinate.

    Mean and covariance are then within t standard errors of 0 and I: entries of the mean have
    standard error 1/√k, of the covariance √2/√k on the diagonal and 1/√k off it. For a chi-square
    with k = 4096 degrees of freedom t = 6 standard errors have a probability below 10⁻⁸
    (Laurent & Massart, 2000), for all 100 entries and 5 cases below 10⁻⁵.
    """
    k = 4096
    layout = Layout(*TWO[shape], "entries", kind)
    arrays = cast(random_arrays(layout, "full", np.random.default_rng(7)))
    problem = Problem(layout, arrays)
    if side == "traced":
        draws = jax.jit(lambda y: traced_deviations(problem, y, k))(arrays.targets)
    else:
        draws = posterior(problem, side, k).deviations
    white = np.asarray(draws, np.float64) @ np.linalg.cholesky(answer(problem).precision)
    standard_error = (np.ones((layout.d, layout.d)) + np.eye(layout.d)) ** 0.5 / np.sqrt(k)
    covariance = white.T @ white / k
    assert (abs(white.mean(0)) <= 6 / np.sqrt(k)).all()
    assert (abs(covariance - np.eye(layout.d)) <= 6 * standard_error).all()


def traced_deviations(problem, targets, num_samples):
    arrays = problem.arrays._replace(targets=targets)
    return posterior(problem._replace(arrays=arrays), None, num_samples).deviations


def test_draws_differ():
    """Columns, keys and sides of the noise are not the same numbers twice."""
    layout = Layout(9, 1, 4, "entries", "isotropic")
    problem = Problem(layout, cast(random_arrays(layout, "full", np.random.default_rng(0))))
    first = posterior(problem, "primal", K).deviations
    again = posterior(problem, "primal", K).deviations
    other = posterior(problem, "primal", K, jax.random.key(6)).deviations
    assert (first == again).all()
    assert not jnp.isclose(first, other, rtol=1e-3).any()
    assert len(np.unique(np.round(np.ravel(first), 4))) == first.size


def test_draws_do_not_depend_on_the_precision():
    """The same key gives the same deviations in 32 and in 64 bit, to float32's rounding."""
    layout = Layout(*TWO["tall"], "entries", "dense")
    arrays = random_arrays(layout, "full", np.random.default_rng(3))

    def draws(*, x64):
        with jax.enable_x64(x64):
            return np.asarray(posterior(Problem(layout, cast(arrays)), "primal", K).deviations)

    single, double = draws(x64=False), draws(x64=True)
    assert (single.dtype, double.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(single, double, rtol=0, atol=1e-5 * np.abs(double).max())
