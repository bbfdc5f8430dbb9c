"""`Exact` says what the oracle says: both sides, on the host and under jit."""

import contextlib

import equinox as eqx
import jax
import numpy as np
import pytest
from hypothesis import assume, given

import linmodels as lm
from laws import dense
from laws.problems import (
    COLUMN,
    PRIORS,
    SHAPES,
    answer,
    as_float64,
    observations,
    parts,
    prior,
    problems,
    well_posed,
)
from laws.tolerances import tolerance, working_epsilon


def solve(layout, side, arrays):
    """The evidence terms and the posterior at the problem's hyperparameters."""
    data, believed = observations(layout, arrays), prior(layout, arrays)
    system = lm.Exact(side).prepare(data, believed, num_samples=0, key=None)
    terms, posterior, *_ = system.solve(arrays.alpha, arrays.beta)
    return terms, posterior.mean, posterior.covariance_factor.as_matrix()


traced = eqx.filter_jit(solve)


COMPILED = {name: SHAPES[name] for name in ("wide", "outputs")}
"""Each shape, prior and side compiles for a second or two."""
REFUSED = 1e-3
"""Relative error beyond which the dual side may refuse an answer."""


def bounds(problem, side, *, is_traced):
    return tolerance(parts(problem), answer(problem), dual=side == "dual", traced=is_traced)


def check(problem, side, result, *, is_traced):
    terms, mean, root = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), result)
    given_parts, truth = parts(problem), answer(problem)
    bound = bounds(problem, side, is_traced=is_traced)
    check_posterior(problem, given_parts, truth, bound, mean, root, side)
    check_terms(problem, truth, bound, terms)


def check_posterior(problem, given_parts, truth, bound, mean, root, side):
    units = np.linalg.cholesky(truth.precision).T
    if side == "dual":
        units = np.linalg.inv(given_parts.spread)
    expected = truth.mean + problem.arrays.mean
    # The answer itself is rounded to the working dtype.
    rounding = (
        2 * working_epsilon() * np.linalg.norm(abs(units) @ (abs(expected) + abs(truth.mean)))
    )
    assert np.linalg.norm(units @ (mean - expected)) <= bound.mean + rounding
    got, wanted = (units @ c @ units.T for c in (root @ root.T, truth.covariance))
    assert np.linalg.norm(got - wanted, 2) <= bound.relative


def check_terms(problem, truth, bound, terms):
    layout, beta = problem.layout, np.asarray(problem.arrays.beta, np.float64)
    penalised = ~layout.flat
    sums = np.bincount
    dimension = sums(layout.groups, truth.dimension * penalised)
    np.testing.assert_allclose(
        terms.group_dimension, dimension, rtol=0, atol=bound.relative * layout.d
    )
    leverage = sums(layout.output, truth.leverage)
    np.testing.assert_allclose(
        terms.output_dimension, leverage, rtol=0, atol=bound.relative * layout.d
    )
    residual = sums(layout.output, truth.square) / beta
    np.testing.assert_array_less(abs(terms.residual - residual) * beta, bound.square + 1e-300)
    assert abs(terms.log_evidence - truth.log_evidence) <= bound.log_evidence


@pytest.mark.parametrize("side", ["primal", "dual"])
@given(problem=problems(SHAPES | COLUMN))
def test_host(side, problem):
    assume(well_posed(problem))
    if side == "dual" and bounds(problem, side, is_traced=False).relative > REFUSED:
        with contextlib.suppress(RuntimeError):
            check(problem, side, solve(problem.layout, side, problem.arrays), is_traced=False)
        return
    check(problem, side, solve(problem.layout, side, problem.arrays), is_traced=False)


@pytest.mark.slow
@pytest.mark.parametrize("side", ["primal", "dual"])
@given(problem=problems(COMPILED, ("dense", "everything"), ("per output",)))
def test_traced(side, problem):
    assume(well_posed(problem))
    check(problem, side, traced(problem.layout, side, problem.arrays), is_traced=True)


@pytest.mark.parametrize("side", ["primal", "dual"])
@given(problem=problems(noises=("scalar",), priors=PRIORS))
def test_evidence_for_every_hyperparameter(side, problem):
    """`evaluate`, from one decomposition, agrees with `solve`, from a factorisation."""
    assume(well_posed(problem))
    layout, arrays = problem
    data, believed = observations(layout, arrays), prior(layout, arrays)
    system = lm.Exact(side).prepare(data, believed, num_samples=0, key=None)
    bound, truth = bounds(problem, side, is_traced=False), answer(problem)
    assume(bound.relative < REFUSED)
    terms = system.evaluate(as_float64(arrays).alpha, arrays.beta).terms
    check_terms(problem, truth, bound, terms)


@given(problem=problems(noises=("scalar", "entries"), extremes=(None,)))
def test_evidence_is_the_density_of_the_targets(problem):
    """Without weights, flat parameters or unobserved entries: log N(y; o + Φμ, ΦA⁻¹Φᵀ + B⁻¹)."""
    assume(not problem.layout.flat.any())
    arrays = problem.arrays
    ones = {"weights": np.ones_like(arrays.weights), "beta": np.ones_like(arrays.beta)}
    precision = np.where(arrays.precision > 0, arrays.precision, 1).astype(arrays.design.dtype)
    problem = problem._replace(arrays=arrays._replace(precision=precision, **ones))
    given_parts = parts(problem)
    covariance = given_parts.design @ given_parts.units
    covariance = covariance @ covariance.T + np.linalg.inv(given_parts.noise)
    expected = dense.log_normal(given_parts.targets, covariance)
    fit = lm.infer(observations(*problem, learn=False), prior(*problem), num_samples=0)
    bound = bounds(problem, "dual", is_traced=False)
    assert abs(float(fit.log_evidence) - expected) <= bound.log_evidence
    assert fit.num_observations == problem.layout.n
