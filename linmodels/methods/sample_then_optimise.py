"""Posterior samples and the mean by stochastic gradients."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from linmodels._batches import Data, example_batch, num_batches, num_outputs
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._results import RESULTS
from linmodels._whitening import explain_non_finite, gaussian
from linmodels.descent import DescentState, Recipe, descend
from linmodels.krylov import BlockSolution, Recurrence, block_cg
from linmodels.methods._equations import Equations
from linmodels.methods._look import look_once
from linmodels.methods._mean import mean_by_products
from linmodels.methods._method import (
    AbstractMethod,
    AbstractSystem,
    DescentReport,
    Mean,
    SolverReport,
    required_key,
)
from linmodels.methods._mode_loss import descended_mode
from linmodels.methods._sampling_losses import (
    Loss,
    gradient_variances,
    noise_in_fit,
    noise_in_regulariser,
)
from linmodels.methods._solver import AbstractSolver, Solved
from linmodels.methods.block_system import MAX_PROBES, BlockSystem

FIRST = 8
"""Passes of the first descent; each further one, where it is needed, has twice as many."""
NOISY, SHORTER = 1 / 4, 1 / 4
"""Where a descent of twice as many passes leaves more than this share of the error, that may be
noise of minibatches, which falls like √(step/passes) only: the next takes steps as much shorter.
Where it gains no more than the one before, they are as long again."""
CHECK = 5
"""Passes of conjugate gradients after a descent: as few as tell how far off it was."""
TOWARD_MODE = 16
"""Passes of the descent to a mode, before Newton steps."""
LOOK = 8
"""Passes of conjugate gradients from 0, for the log determinant."""
NO_RECURRENCE = Recurrence(np.zeros((0, 0)), [], [])


class SampleThenOptimise(AbstractMethod):
    """Posterior samples by stochastic gradients on minibatches, all of them side by side.

    Every deviation is the minimiser of a random quadratic loss. Minibatches are the batches of
    `Batched` data, in a fresh order each pass; rows of `RowSlices` are shuffled one by one. Steps
    follow from the curvature of the minibatches and a race; each descent ends with steps that fall
    to 0, or with an average. A few passes of block conjugate gradients then take out what noise of
    minibatches has left, and tell how large the error was. Where that is too large another descent
    of twice as many passes follows, and so on, in shorter steps where noise of minibatches seems to
    limit them; once one gains nothing, conjugate gradients go on alone.

    For many more parameters that matter (γ) than ten times the samples times the passes that can be
    paid for; with fewer, `BlockCG` is more accurate after as many passes.

    Args:
        noise_in: "regulariser" (L′, whose gradients vary less unless leverages are large) or "fit"
            (L); both have the same minimisers.
        passes: of the one descent; doubled from 8 as long as it takes where None.
        optimiser: any of optax's that needs but gradients and parameters, at its own learning rate;
            Nesterov's momentum of 0.9 at an automatic one where None. It begins anew with every
            descent: schedules go with a given number of `passes`.
        averaging: weight of every step's iterate in the average that a descent ends with, such as
            `linmodels.descent.polyak` or `linmodels.descent.geometric(0.01)`; where None, the last
            iterate counts, and steps of the automatic optimiser fall linearly to 0.
        clip: a vector's gradient is cut to this many times its own recent size.
        tolerance: ε², the mean squared error of a deviation in the H-norm over γ; 1/(8k) where
            None.
        max_passes: over the data before giving up, beside those of a first look and check.
        callback: called with the passes of a descent so far and its `DescentState`, whose iterates
            are whitened coordinates of the deviations and, last, of the mean.

    Raises:
        ValueError: unknown or non-positive arguments.

    ??? cite
        Antorán, Padhy et al. (ICLR 2023), "Sampling-based inference for large linear models", §3.2.
    """

    noise_in: Literal["regulariser", "fit"] = eqx.field(static=True, default="regulariser")
    passes: int | None = eqx.field(static=True, default=None)
    optimiser: Any = eqx.field(static=True, default=None)
    averaging: Callable[[int], float] | None = eqx.field(static=True, default=None)
    clip: float = eqx.field(static=True, default=10.0)
    tolerance: float | None = eqx.field(static=True, default=None)
    max_passes: int = eqx.field(static=True, default=1_000)
    callback: Callable[[int, DescentState], None] | None = eqx.field(static=True, default=None)

    def __check_init__(self):
        if self.noise_in not in ("regulariser", "fit"):
            raise ValueError(f'noise_in must be "regulariser" or "fit", got {self.noise_in!r}.')
        if self.passes is not None and self.passes < 1:
            raise ValueError(f"passes must be at least 1, or None, got {self.passes}.")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}.")
        if self.max_passes < 1:
            raise ValueError(f"max_passes must be at least 1, got {self.max_passes}.")
        Recipe(self.optimiser, self.averaging, self.clip)  # refuses what it refuses

    def prepare(
        self, data: Data, prior: GaussianPrior, *, num_samples: int, key: Array | None
    ) -> AbstractSystem:
        """Looks at the data in up to three passes; see `AbstractMethod.prepare`.

        Raises:
            ValueError: data that are not finite or not Gaussian, flat columns that are dependent,
                a prior that does not fit, no samples, or arguments that are traced.
        """
        key = required_key("SampleThenOptimise", data, prior, num_samples, key)
        example = example_batch(data)
        explain = lambda index: explain_non_finite(data, index)
        seen, _ = look_once(data, example, prior, num_samples, key, explain)
        tolerance = 1 / (8 * num_samples) if self.tolerance is None else self.tolerance
        recipe, key = Recipe(self.optimiser, self.averaging, self.clip), jax.random.fold_in(key, 4)
        loss = noise_in_fit if self.noise_in == "fit" else noise_in_regulariser
        solver = _Descent(loss, self.passes, recipe, self.callback, key)
        return BlockSystem(
            prior=seen.prior,
            reason=_reason(data, seen.factor.size, example),
            model=seen,
            side="primal",
            learn_noise=gaussian(example.likelihood).learn,
            tolerance=tolerance,
            max_passes=self.max_passes,
            solver=solver,
            preconditioner=None,
            key=key,
        )

    def mean(self, data, prior, alpha, near, closeness, similar) -> Mean:
        """By conjugate gradients, for the last steps to a mode."""
        return mean_by_products(data, prior, alpha, near, closeness, similar, self.max_passes)

    def approach_mode(
        self,
        data: Data,
        prior: GaussianPrior,
        precision: Float[np.ndarray, " r"],
        start: Float[np.ndarray, " r"],
        key: Array | None,
    ) -> Float[np.ndarray, " r"]:
        """By stochastic gradients of the penalised log-likelihood."""
        assert key is not None
        descent = partial(
            descend,
            passes=self.passes or TOWARD_MODE,
            recipe=Recipe(self.optimiser, self.averaging, self.clip),
            key=jax.random.fold_in(key, 5),
        )
        return descended_mode(data, prior, precision, start, descent)


def _reason(data: Data, size: int, example: Observations) -> str:
    outputs, count = num_outputs(data, example), num_batches(data)
    batches = "1 batch, so that gradients are exact" if count == 1 else f"{count:,} minibatches"
    return f"stochastic gradients: {size:,} parameters, {outputs:,} outputs in {batches}"


class _Descent(AbstractSolver):
    """Descents, each followed by a few passes of block conjugate gradients."""

    loss: Callable[[Equations], Loss]
    passes: int | None
    recipe: Recipe
    callback: Callable[[int, DescentState], None] | None
    key: Array
    krylov: ClassVar[bool] = False

    def solve(self, equations, begin, limit, hint, *, quadrature) -> Solved:
        """See `AbstractSolver.solve`; the hint is the step that a race has found."""
        looked = _looked(equations) if quadrature else _Looked(NO_RECURRENCE, 0, False)
        begin = equations.base if begin is None else begin
        rate = None if hint is None else hint.rate
        first = min(self.passes or FIRST, max(limit - looked.passes - CHECK, 1))
        best = self._descended(equations, begin, first, rate)
        spent, passes = looked.passes + best.passes, 2 * first
        rate, before, shorter = best.hint.rate, np.inf, self._can_shorten(equations)
        while self.passes is None and best.unfinished and spent + passes + CHECK <= limit:
            going = rate, best.hint.curvature
            found = self._descended(equations, best.value, passes, *going, spent=spent)
            spent, passes = spent + found.passes, 2 * passes
            if found.error >= best.error:
                break
            share, rate = found.error / best.error, found.hint.rate
            noisy = shorter and share > NOISY
            if noisy:
                shorter = share < before
                rate *= SHORTER if shorter else 1 / SHORTER
            best, before = found, share if noisy else np.inf
        if self.passes is None and best.unfinished and spent < limit:
            last = equations.solve(best.value, limit - spent, None)
            best, spent = best._replace(checked=last), spent + last.progress.passes
        progress = best.checked.progress._replace(passes=spent)
        rest = progress, looked.recurrence, best.hint, looked.cut
        return Solved(best.value, equations, best.checked.result, *rest)

    def _can_shorten(self, equations: Equations) -> bool:
        """Whether there is noise of minibatches, and the length of steps is not the caller's."""
        return self.recipe.automatic and num_batches(equations.model.data) > 1

    def described(self, equations, value, hint, report) -> SolverReport:
        """With how the descent went, and what gradients of minibatches are like at its end."""
        assert isinstance(hint, _Hint)
        order = np.random.default_rng(np.asarray(jax.random.key_data(self.key)))
        variances = gradient_variances(equations, value, order)
        went = DescentReport(hint.rate, hint.curvature, hint.loss, variances)
        return replace(report, descent=went)

    def _descended(
        self,
        equations: Equations,
        x: Float[Array, "k1 r"],
        passes: int,
        rate: float | None,
        curvature: float = 1.0,
        *,
        spent: int = 0,
    ) -> "_Checked":
        """One descent, and the passes that check it."""
        objective, drawn = self.loss(equations)
        descended = descend(
            objective,
            equations.model.data,
            x,
            passes=passes,
            recipe=self.recipe,
            key=jax.random.fold_in(self.key, spent),
            drawn=drawn,
            rate=rate,
            curvature=curvature,
            callback=self.callback,
        )
        checked = equations.solve(descended.value, CHECK, None)
        hint = _Hint(descended.rate, descended.curvature, descended.loss)
        return _Checked(checked, descended.passes + checked.progress.passes, hint)


class _Checked(NamedTuple):
    """A descent and the conjugate gradients behind it."""

    checked: BlockSolution
    passes: int
    hint: "_Hint"

    @property
    def value(self) -> Float[Array, "k1 r"]:
        """x."""
        return self.checked.value

    @property
    def error(self) -> float:
        """Σ‖e‖²_H of the deviations, as far as it is known."""
        progress = self.checked.progress
        return float(np.minimum(progress.error, progress.measure.residual**2)[:-1].sum())

    @property
    def unfinished(self) -> bool:
        """Whether more passes might help."""
        return bool(self.checked.result == RESULTS.max_passes_reached)


class _Hint(NamedTuple):
    """What a descent leaves to another near by, and to its report."""

    rate: float
    curvature: float
    loss: Float[np.ndarray, " k1"]


class _Looked(NamedTuple):
    """A Krylov space of some of the deviations and the mean."""

    recurrence: Recurrence
    passes: int
    cut: bool
    """whether it has ended before its solve has"""


def _looked(equations: Equations) -> _Looked:
    probes = min(MAX_PROBES, len(equations.rhs) - 1)
    chosen, rule = np.append(np.arange(probes), -1), equations.rule
    solution = block_cg(equations.product, equations.rhs[chosen], rule, max_passes=LOOK)
    cut = bool(solution.result == RESULTS.max_passes_reached)
    return _Looked(solution.recurrence, solution.progress.passes, cut)
