"""Conjugate gradients for all right-hand sides in one block."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from linmodels._blocks import safe_square_sums
from linmodels._results import RESULTS
from linmodels.krylov._preconditioners import AbstractRoot, IdentityRoot, Product
from linmodels.krylov._recursion import Problem, Recurrence, Run, divided, run
from linmodels.krylov._stopping_rule import AbstractStoppingRule, Progress

CONSISTENT = 4.0
"""Largest ratio of true to recursive squared residuals at which the recursion is believed."""
GAIN = 0.25
"""A restart that leaves more than this share of the squared error has gained nothing."""


class BlockSolution(NamedTuple):
    """Solutions of Hx = b for k right-hand sides, and how they were come by."""

    value: Float[Array, "k d"]
    result: RESULTS
    columns: Bool[np.ndarray, " k"]
    """the right-hand sides that `result` is about; none where it is successful"""
    progress: Progress
    """at the end, from true residuals"""
    recurrence: Recurrence
    """of the first run, for Gauss quadrature"""
    truncated: bool
    """whether that has ended before it has met the rule"""


class Residual(NamedTuple):
    """b − Hx, as far as it is known."""

    value: Float[Array, "k d"]
    rounding: Float[np.ndarray, " k"]
    """squared size of what rounding may have made of it in directions where H is 1"""


class _Found(NamedTuple):
    """The best iterates yet, with true residuals."""

    iterate: Float[Array, "k d"]
    residual: Residual
    squares: Float[np.ndarray, " k"]
    """‖P^{-½}(b − Hx)‖²"""
    error: Float[np.ndarray, " k"]
    passes: int
    doubted: bool = False
    """whether the recursion's estimates count no more: only errors that another run has measured"""


def block_cg(
    product: Product,
    rhs: Float[Array, "k d"],
    rule: AbstractStoppingRule,
    *,
    root: AbstractRoot | None = None,
    start: Float[Array, "k d"] | None = None,
    max_passes: int = 1_000,
    callback: Callable[[Progress], None] | None = None,
    residual: Callable[[Float[Array, "k d"]], Residual] | None = None,
    patience: Callable[[float], float] | None = None,
) -> BlockSolution:
    """Solves Hx = b for all right-hand sides together; H is symmetric positive definite.

    Orthonormalised block conjugate gradients (BCGrQ; Dubrulle 2001, "Retooling the method of block
    conjugate gradients"). The true residual decides: where it has parted from the recursive one,
    the recursion starts again from it, for as long as that gains anything. The best iterate of
    every column is kept, also where rounding drives the recursion away from it. Where rounding of
    a residual could hide more error than the rule allows, in directions of small eigenvalues,
    another run from the true residual has to measure that error, as the sum of its decreases.

    Args:
        product: H times every vector of a block; one call is one pass.
        rhs: b.
        rule: when to stop.
        root: P^{½} of a preconditioner P. The recursion is of P^{-½}HP^{-½}, and so are the
            recurrence and residuals in `Progress`; iterates are x, and rules measure x and b − Hx.
        start: first iterates; zeros where None.
        max_passes: products before giving up, beside the last check.
        callback: called with the `Progress` after every pass of the recursion.
        residual: b − Hx in one pass, where it can be had more exactly than from the product.
        patience: passes before giving up, where fewer, from the largest eigenvalue of P^{-½}HP^{-½}
            that a first one has shown, about λ₁.

    Raises:
        ValueError: max_passes below 1, or a start of another shape.

    >>> import jax.numpy as jnp
    >>> from linmodels.krylov import RelativeResidual
    >>> matrix = jnp.array([[2.0, 1.0], [1.0, 3.0]])
    >>> solution = block_cg(lambda x: x @ matrix, jnp.array([[1.0, -2.0]]), RelativeResidual(1e-5))
    >>> solution.value.round(3)
    Array([[ 1., -1.]], dtype=float32)
    """
    if max_passes < 1:
        raise ValueError(f"max_passes must be at least 1, got {max_passes}.")
    if start is not None and start.shape != rhs.shape:
        raise ValueError(f"start has shape {start.shape}, the right-hand sides {rhs.shape}.")
    callback = callback or (lambda progress: None)
    root = IdentityRoot() if root is None else root
    squares = safe_square_sums(divided(root, rhs))
    problem = Problem(product, rhs, squares, rule, root, max_passes, callback, patience)
    rounding, unknown = rounding_of(safe_square_sums(rhs), rhs.dtype), np.full(len(rhs), np.inf)
    true = residual or (lambda x: Residual(rhs - product(x), rounding))
    found = _Found(jnp.zeros_like(rhs), Residual(rhs, rounding), squares, unknown, 0)
    if start is not None:  # whose errors are where eigenvalues are large: a run tells little else
        begin = true(start)
        begin = begin._replace(rounding=np.maximum(begin.rounding, rounding))
        squares = safe_square_sums(divided(root, begin.value))
        found = _Found(start, begin, squares, unknown, 1)
    progress = _progress(problem, found)
    if not np.isfinite(progress.residual).all():
        return _solution(found, progress, None, RESULTS.non_finite)
    return _restarted_until_met(problem, true, found, progress)


def rounding_of(squares: Float[np.ndarray, " k"], dtype: Any) -> Float[np.ndarray, " k"]:
    """The squared size of the rounding of sums of these squares, twice ε of them."""
    return (2 * float(jnp.finfo(dtype).eps)) ** 2 * squares


def _restarted_until_met(
    problem: Problem, true: Callable[[Array], Residual], found: _Found, progress: Progress
) -> BlockSolution:
    previous, first, result, longest = np.inf, None, None, 0
    while not problem.rule.met(progress):
        if result is not None:
            return _solution(found, progress, first, result)
        begin = found.iterate, divided(problem.root, found.residual.value), found.passes
        latest = run(problem, *begin, longest if found.doubted else 0)
        problem = problem._replace(max_passes=latest.limit, patience=None)
        first, longest = first or latest, max(longest, len(latest.recurrence.diagonal))
        before = found
        found, gained = _verified(problem, before, latest, true(latest.iterate), previous)
        previous, progress = latest.total.sum(), _progress(problem, found)
        hidden = _hidden(before, latest, problem.rhs.dtype)
        if not found.doubted and _hides_an_error(problem, hidden, progress):
            more = found.passes < problem.max_passes
            error, gained = np.full_like(hidden, np.inf) if more else hidden, True
            found = found._replace(error=error, doubted=True)
            progress = progress._replace(error=error)
        if latest.failure is not None and not gained:
            result = latest.failure
        elif found.passes >= problem.max_passes:
            result = RESULTS.max_passes_reached
        elif not gained:
            result = RESULTS.stagnated
    return _solution(found, progress, first, RESULTS.successful)


def _hidden(start: _Found, latest: Run, dtype: Any) -> Float[np.ndarray, " k"]:
    """Squared rounding of the residual that a run has started from, and of every step's sums."""
    each = np.maximum(start.residual.rounding, rounding_of(latest.largest, dtype))
    return len(latest.recurrence.diagonal) * each


def _hides_an_error(problem: Problem, hidden: Float[np.ndarray, " k"], progress: Progress) -> bool:
    """Whether the rule is met, but would not be if all rounding were in small eigenvalues."""
    worse = progress._replace(error=np.maximum(progress.error, hidden))
    return problem.rule.met(progress) and not problem.rule.met(worse)


_NOTHING = Recurrence(np.zeros((0, 0)), [], [])


def _verified(
    problem: Problem, found: _Found, latest: Run, true: Residual, previous: float
) -> tuple[_Found, bool]:
    """The better of two iterates in every column by true residuals, and whether a run has gained.

    The recursion's estimates hold for its own iterates; where the true residual is another, what
    is known is the error that a run to its end started from, which its steps have not made larger;
    where all estimates are in doubt, as rounding makes it anew, not much larger.
    """
    old, new = found.squares, safe_square_sums(divided(problem.root, true.value))
    consistent = new <= CONSISTENT * latest.residual  # not where NaN
    better = consistent | (new <= old)  # steps that are sound lower the error, if not the residual
    doubted = (
        found.doubted
        or not consistent.all()
        or latest.failure is not None
        or (not latest.ended and latest.passes < problem.max_passes)
    )
    total = latest.total if latest.ended else np.full_like(latest.total, np.inf)
    error = np.where(consistent, np.minimum(latest.error, total), total)
    if doubted:  # no run has measured it yet where the doubt is new
        error = CONSISTENT * total if found.doubted else np.full_like(total, np.inf)
    error = error if latest.recurrence.diagonal else found.error
    gained = (new < GAIN * old).any() or 0 < total.sum() < GAIN * previous
    gained = gained or (doubted and not found.doubted and latest.failure is None)
    theirs = (found.iterate, found.residual.value)
    iterate, residual = _picked(better, (latest.iterate, true.value), theirs)
    rounding = np.where(better, true.rounding, found.residual.rounding)
    about = Residual(residual, rounding), np.where(better, new, old), error
    return _Found(iterate, *about, latest.passes + 1, doubted), bool(gained)


@jax.jit
def _picked(better: Any, new: tuple, old: tuple) -> tuple:
    return jax.tree.map(lambda a, b: jnp.where(better[:, None], a, b), new, old)


def _progress(problem: Problem, found: _Found) -> Progress:
    measure = _measured(problem.rule, found.iterate, found.residual.value, problem.rhs)
    measure = jax.tree.map(lambda x: np.asarray(x, np.float64), measure)
    return Progress(found.passes, problem.squares, found.squares, found.error, measure)


@eqx.filter_jit
def _measured(rule: AbstractStoppingRule, iterate: Array, residual: Array, rhs: Array) -> PyTree:
    return rule.measure(iterate, residual, rhs)


def _solution(
    found: _Found, progress: Progress, first: Run | None, result: RESULTS
) -> BlockSolution:
    columns = ~np.isfinite(progress.residual)
    value = found.iterate
    if columns.any():
        value = jnp.where(jnp.asarray(columns)[:, None], jnp.nan, value)
    if result not in (RESULTS.successful, RESULTS.non_finite):
        columns = progress.residual > 0
    recurrence, ended = (_NOTHING, True) if first is None else (first.recurrence, first.ended)
    return BlockSolution(value, result, columns, progress, recurrence, truncated=not ended)
