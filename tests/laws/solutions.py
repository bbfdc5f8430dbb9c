"""What a method of inference answers to a random problem, and how far that is from `Exact`."""

import jax
import numpy as np

import linmodels as lm
from laws.problems import answer, observations, parts, prior
from laws.tolerances import working_epsilon

NUM_SAMPLES = 8
KEY = jax.random.key(5)


def solve(method, problem):
    data, believed = observations(*problem), prior(*problem)
    system = method.prepare(data, believed, num_samples=NUM_SAMPLES, key=KEY)
    return system.solve(problem.arrays.alpha, problem.arrays.beta)


def stacked(posterior):
    """Deviations and, last, the mean."""
    return np.concatenate([posterior.deviations, posterior.mean[None]]).astype(np.float64)


def errors(problem, method):
    """The solution, ‖e‖²_H of every column, and how much of ‖e‖_H rounding may be.

    A product with H, of N + d terms, is known to (N + d) ε ‖H‖‖x‖ in the working dtype, and so is
    a residual; three of them make a deviation. ‖e‖_H ≤ ‖r‖.
    """
    solution = solve(method, problem)
    exact = solve(lm.Exact(), problem).posterior
    given_parts, truth = parts(problem), answer(problem)
    root = np.linalg.cholesky(truth.precision)
    left = (stacked(solution.posterior) - stacked(exact)) @ root
    size = np.linalg.norm(stacked(exact) @ root, axis=1) + np.sqrt(sum(given_parts.design.shape))
    largest = 1 + np.linalg.norm(given_parts.root @ given_parts.design @ given_parts.spread, 2) ** 2
    rounding = 3 * sum(given_parts.design.shape) * working_epsilon() * largest * size
    return solution, np.sum(left**2, axis=1), rounding


def require_terms(terms, exact):
    """Estimates lie within 5 standard errors of the exact terms; quadratic ones are exact."""
    close = {"rtol": 1e-3, "atol": 1e-3}
    np.testing.assert_allclose(terms.group_norm, exact.group_norm, **close)
    np.testing.assert_allclose(terms.residual, exact.residual, **close)
    slack = 5 * terms.log_evidence_error + 1e-3 * abs(exact.log_evidence)
    assert abs(terms.log_evidence - exact.log_evidence) <= slack
    gap = abs(terms.group_dimension.sum() - exact.group_dimension.sum())
    assert gap <= 5 * terms.dimension_error + 1e-3
