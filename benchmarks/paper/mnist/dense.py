"""The full covariance, exactly: dense arithmetic on jax's default device, in its own precision.

`linmodels.Exact` works in float64 on the host and stops at 12,000 parameters unless told otherwise.
Here the curvature is streamed once, so that every α and every prior scale costs a Cholesky factor.
In float32 whitened eigenvalues up to λ are right to about 1e-7 λ, beside 1.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree

import linmodels as lm
from benchmarks.paper.mnist.lenet import CLASSES
from benchmarks.paper.mnist.problem import Problem, jacobians

MODE_STEPS = 200
"""Of the search of a mode."""
LONGEST = 1e3
"""Factor by which an α changes at most in a step."""
COLUMNS_AT_ONCE = 2_048
"""Of the identity, where an inverse is summed."""


def curvature(problem: Problem) -> Float[Array, "d d"]:
    """M = JᵀBJ, the softmax curvature at the network's own outputs, summed over all digits."""
    total = jnp.zeros((problem.size, problem.size))
    if problem.subject is problem.linearised:
        parts = jacobians(problem.linearised, problem.digits.inputs)
    else:
        parts = np.array_split(problem.inputs[1], -(-len(problem.digits.labels) // 250))
    outputs, start = problem.linearised.outputs(problem.digits.inputs), 0
    for rows in parts:
        f = outputs[start : start + len(rows)]
        total, start = _add(total, jnp.asarray(rows), f), start + len(rows)
    return total


@jax.jit
def _add(total: Array, rows: Array, outputs: Array) -> Array:
    columns = jax.vmap(jax.vmap(_root_product, (None, 1), 1))(outputs, rows)
    flat = columns.reshape(-1, columns.shape[-1])
    return total + jnp.matmul(flat.T, flat, precision="highest")


def _root_product(outputs: Array, vector: Array) -> Array:
    """R v = √p ⊙ (v − pᵀv)."""
    p = jax.nn.softmax(outputs)
    return jnp.sqrt(p) * (vector - p @ vector)


def g_prior_scale(gram: Float[Array, "d d"]) -> Float[Array, " d"]:
    """diag(M)^{-½}, exact zeros replaced by the median of the others."""
    diagonal = np.asarray(jnp.diag(gram), np.float64)
    typical = np.median(diagonal[diagonal > 0])
    return jnp.asarray(np.where(diagonal > 0, diagonal, typical) ** -0.5, gram.dtype)


class DensePosterior(NamedTuple):
    """H⁻¹ = S (I + S M S)⁻¹ S, S = diag(scale), the prior's standard deviations."""

    scale: Float[Array, " d"]
    lower: Float[Array, "d d"]
    """L with LLᵀ = I + S M S"""

    def covariance(self, rows: Float[Array, "n c d"]) -> Float[Array, "n c c"]:
        """Of the outputs of every example."""
        return _covariance(self, rows)

    def deviations(self, num_samples: int, *, key: Array) -> Float[Array, "k d"]:
        """ζ ~ N(0, H⁻¹)."""
        draws = jax.random.normal(key, (len(self.scale), num_samples))
        solved = solve_triangular(self.lower, draws, lower=True, trans="T")
        return (self.scale[:, None] * solved).T

    def shrinkage(self) -> Float[np.ndarray, " d"]:
        """1 − diag((I + S M S)⁻¹), which sums to γ over any group."""
        size = len(self.scale)
        starts = range(0, size, COLUMNS_AT_ONCE)
        parts = [np.asarray(_inverse_diagonal(self.lower, start)) for start in starts]
        return 1 - np.concatenate(parts).astype(np.float64)[:size]


@jax.jit
def posterior(gram: Float[Array, "d d"], scale: Float[Array, " d"]) -> DensePosterior:
    """At prior standard deviations `scale`, F/√α."""
    whitened = gram * scale * scale[:, None] + jnp.eye(len(scale))
    return DensePosterior(scale, jnp.linalg.cholesky(whitened))


@jax.jit
def _covariance(held: DensePosterior, rows: Array) -> Array:
    flat = rows.reshape(-1, rows.shape[-1])
    root = solve_triangular(held.lower, (flat * held.scale).T, lower=True)
    root = root.T.reshape(*rows.shape[:2], -1)
    return jnp.einsum("ncd,ned->nce", root, root, precision="highest")


@jax.jit
def _inverse_diagonal(lower: Array, start: int) -> Array:
    """Σ_j (L⁻¹)_ji² for some columns i; those beyond the last are zero."""
    places = start + jnp.arange(min(COLUMNS_AT_ONCE, len(lower)))
    unit = (jnp.arange(len(lower))[:, None] == places).astype(lower.dtype)
    return jnp.sum(solve_triangular(lower, unit, lower=True) ** 2, axis=0)


def mode(
    problem: Problem, held: DensePosterior, start: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """θ̄ of the linear model, by L-BFGS in coordinates in which the curvature at the start is 1.

    Args:
        problem: the linear model.
        held: at the prior whose mode it is.
        start: θ from which to go.
    """
    shaped = ravel_pytree(problem.linearised.parameters)[1]
    scale = np.asarray(held.scale, np.float64)

    def parameters(v: np.ndarray) -> np.ndarray:
        solved = solve_triangular(held.lower, jnp.asarray(v, jnp.float32), lower=True, trans="T")
        return scale * np.asarray(solved, np.float64)

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        theta = parameters(v)
        value, gradient = _log_likelihood(problem, shaped(jnp.asarray(theta, jnp.float32)))
        whitened = jnp.asarray(scale * gradient - theta / scale, jnp.float32)
        slope = solve_triangular(held.lower, whitened, lower=True)
        return 0.5 * np.sum((theta / scale) ** 2) - value, -np.asarray(slope, np.float64)

    begin = held.lower.T @ jnp.asarray(start / scale, jnp.float32)
    options = {"maxiter": MODE_STEPS, "gtol": 1e-2, "ftol": 1e-9}
    found = scipy.optimize.minimize(
        objective, np.asarray(begin, np.float64), jac=True, method="L-BFGS-B", options=options
    )
    return parameters(found.x)


def _log_likelihood(problem: Problem, theta: PyTree) -> tuple[float, np.ndarray]:
    """Σ log p(y|o + Jθ), summed in float64, and its gradient (d',)."""
    value, gradient = 0.0, np.zeros(problem.size)
    for start in range(0, len(problem.digits.labels), problem.batch_size):
        some = slice(start, start + problem.batch_size)
        inputs = jax.tree.map(lambda leaf, some=some: leaf[some], problem.inputs)
        found, slope = _scored(problem.subject, inputs, problem.digits.labels[some], theta)
        value += np.asarray(found, np.float64).sum()
        gradient += np.asarray(slope, np.float64)
    return value, gradient


@eqx.filter_jit
def _scored(subject: Any, inputs: PyTree, labels: Array, theta: PyTree) -> tuple[Array, Array]:
    data = subject.observations(inputs, jax.nn.one_hot(labels, CLASSES), lm.Categorical())
    outputs = data.offset + data.design.mv(theta)
    log_prob = data.likelihood.log_prob(outputs, data.targets)
    score = data.likelihood.score(outputs, data.targets)
    return log_prob, ravel_pytree(data.design.T.mv(score))[0]


class Step(NamedTuple):
    """One update of full-covariance MacKay."""

    alpha: Float[np.ndarray, " L"]
    """before it"""
    dimension: Float[np.ndarray, " L"]
    """γ of every group there"""


def maximised(
    problem: Problem,
    gram: Float[Array, "d d"],
    factor: Float[Array, " d"],
    groups: np.ndarray,
    start: Float[np.ndarray, " L"],
    *,
    max_steps: int,
    tolerance: float,
    cap: float,
) -> list[Step]:
    """α_l ← γ_l / ‖F⁻¹θ̄_l‖² with the full covariance; the last step's α is where it ended.

    One α goes on by the secant of what MacKay's updates change, for the same end in fewer steps.

    Args:
        problem: the linear model.
        gram: M.
        factor: F, a diagonal.
        groups: of every parameter, (d',).
        start: the first α.
        max_steps: updates before giving up.
        tolerance: largest |log ratio| that counts as settled.
        cap: largest α.
    """
    alpha, steps, before = np.asarray(start, np.float64), [], None
    mean = np.asarray(ravel_pytree(problem.linearised.parameters)[0], np.float64)
    total = lambda values: np.bincount(groups, values, minlength=len(alpha))
    for _ in range(max_steps):
        scale = factor / jnp.sqrt(jnp.asarray(alpha, jnp.float32))[groups]
        held = posterior(gram, scale)
        gamma = np.maximum(total(held.shrinkage()), 0)
        steps.append(Step(alpha, gamma))
        mean = mode(problem, held, mean)
        norm = total((mean / np.asarray(factor, np.float64)) ** 2)
        here = np.log(alpha)
        change = np.log(np.clip(gamma / norm, alpha / LONGEST, alpha * LONGEST)) - here
        ahead = change
        if before is not None and len(alpha) == 1:
            ahead = _secant(here, change, *before)
        before = here, change
        alpha = np.minimum(np.exp(here + ahead), cap)
        if np.abs(change).max() <= tolerance:
            break
    return [*steps, Step(alpha, steps[-1].dimension)]


def _secant(here: np.ndarray, change: np.ndarray, *before: np.ndarray) -> np.ndarray:
    """How far it is to where nothing would change, at most as far as a step may go."""
    slope = (change - before[1]) / (here - before[0])
    if not slope < 0:
        return change
    return np.clip(-change / slope, -np.log(LONGEST), np.log(LONGEST))


def as_prior(
    problem: Problem, factor: Float[Array, " d"], alpha: Float[np.ndarray, " L"]
) -> lm.GaussianPrior:
    """The same prior for `linmodels`, an α for every layer where there are several."""
    operator = lx.DiagonalLinearOperator(factor)
    if len(alpha) == 1:
        return lm.GaussianPrior(alpha[0], operator)
    return lm.GaussianPrior(alpha, operator, groups=problem.layers)
