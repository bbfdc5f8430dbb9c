"""Matrix-free inference: all deviations and the mean by block conjugate gradients."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._observations import Data, Observations, example_batch, num_outputs
from linmodels._priors import GaussianPrior
from linmodels._products import WhitenedDesign
from linmodels._results import RESULTS
from linmodels._whitening import explain_non_finite, gaussian
from linmodels.effective_dimension import Estimate
from linmodels.krylov import (
    AbstractPreconditioner,
    AbstractRoot,
    IdentityRoot,
    Progress,
)
from linmodels.methods._equations import Equations, dual_equations, primal_equations, pull
from linmodels.methods._evidence_path import EvidencePath, require_one_each
from linmodels.methods._krylov_path import krylov_path
from linmodels.methods._look import look_once
from linmodels.methods._matrix_free import MatrixFree
from linmodels.methods._method import (
    AbstractMethod,
    AbstractSystem,
    Evaluation,
    EvidenceTerms,
    Scales,
    Solution,
    SolverReport,
    required_key,
)
from linmodels.methods._parameters import scales_of
from linmodels.methods._samples import evidence_terms, log_determinant_of
from linmodels.methods._sketch import require_batches, sketchable
from linmodels.methods.stopping import evaluation_of, report_of

MAX_PROBES = 16
"""Random vectors of the evidence path: they give γ to √(2/(16 γ)), 4 % where γ is 100."""
REFINEMENTS = 3
"""Solves to a smaller tolerance, where groups of parameters turn out to have a small γ_l."""
NOTHING = 0.01
"""γ_l that is nothing to wait for; a bound on it is tr M_ll/α_l."""
PROBE_ENTRIES = 2**28
"""Largest block of them, fewer vectors where there are more outputs: 1 GiB in float32."""


MEAN_TOLERANCE = 1e-6
"""ε² of a mean that is solved for alone, as a step to a mode."""


class BlockCG(AbstractMethod):
    """Posterior samples and mean by products alone, for data and parameters of any size.

    All k deviations and the mean are solved in one block, so that each pass over the data serves
    every one of them, and the block finds the large eigenvalues together. Effective dimension and
    log determinant are estimated from the same run, with standard errors.

    Args:
        side: "primal" (blocks of d' parameters) or "dual" (of N outputs); the smaller where None.
        tolerance: ε², the mean squared error of a deviation in the H-norm over γ; 1/(8k) where
            None. With several groups passes go on until the error is as small a share of the
            smallest γ_l, as far as passes and precision allow.
        max_passes: products with the data before giving up.
        callback: called with the solver's `Progress` after every pass, in the preconditioner's
            coordinates where there is one.
        preconditioner: one such as `linmodels.krylov.Nystrom(100)`, sketched anew at every solve;
            worth its passes where few samples are wanted or the spectrum falls slowly.

    Raises:
        ValueError: an unknown side, a tolerance outside (0, 1), or max_passes below 1.
    """

    side: Literal["primal", "dual"] | None = eqx.field(static=True, default=None)
    tolerance: float | None = eqx.field(static=True, default=None)
    max_passes: int = eqx.field(static=True, default=1_000)
    callback: Callable[[Progress], None] | None = eqx.field(static=True, default=None)
    preconditioner: AbstractPreconditioner | None = None

    def __check_init__(self):
        if self.side not in (None, "primal", "dual"):
            raise ValueError(f'side must be "primal", "dual" or None, got {self.side!r}.')
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}.")
        if self.max_passes < 1:
            raise ValueError(f"max_passes must be at least 1, got {self.max_passes}.")

    def prepare(
        self, data: Data, prior: GaussianPrior, *, num_samples: int, key: Array | None
    ) -> AbstractSystem:
        """Looks at the data in up to three passes; see `AbstractMethod.prepare`.

        Raises:
            ValueError: data that are not finite or not Gaussian, flat columns that are dependent,
                a prior that does not fit, no samples, arguments that are traced, or a
                preconditioner that is to look at batches which are not there.
        """
        key = required_key("BlockCG", data, prior, num_samples, key)
        example = example_batch(data)
        learn_noise = gaussian(example.likelihood).learn
        explain = lambda index: explain_non_finite(data, index)
        seen, error = look_once(data, example, prior, num_samples, key, explain)
        side, reason = self._choose(data, seen.factor.size, example, error)
        require_batches(self.preconditioner, data, dual=side == "dual")
        tolerance = 1 / (8 * num_samples) if self.tolerance is None else self.tolerance
        limits = tolerance, self.max_passes, self.callback
        sketch = self.preconditioner, jax.random.fold_in(key, 2)  # 0 and 1 are u's and z's
        return BlockSystem(seen.prior, reason, seen, side, learn_noise, *limits, *sketch)

    def for_the_mean(self) -> tuple["BlockCG", int]:
        """Itself with one sample, which measures γ, and the tolerance of a mean."""
        return replace(self, tolerance=MEAN_TOLERANCE), 1

    def _choose(self, data: Data, size: int, example: Observations, error: float):
        outputs = num_outputs(data, example)
        side = self.side or ("primal" if size <= outputs else "dual")
        why = "as asked" if self.side else "the shorter vectors"
        reason = f"block-CG, {side}: {size:,} parameters, {outputs:,} outputs; {why}"
        if error > 0:
            reason += f"; g-prior scales from random signs, squares ± {100 * error:.0f} %"
        return side, reason


class BlockSystem(AbstractSystem):
    """A linear model in products, to be solved at given hyperparameters."""

    prior: GaussianPrior
    reason: str
    model: MatrixFree
    side: str
    learn_noise: bool
    tolerance: float
    max_passes: int
    callback: Callable[[Progress], None] | None
    preconditioner: AbstractPreconditioner | None
    key: Array
    """of the preconditioner's sketch"""

    def scales(self) -> Scales:
        """Starts and caps."""
        model, sums = self.model, self.model.sums
        epsilon = float(jnp.finfo(sums.cross.dtype).eps)
        about = self._information, model.group_sums(np.ones(model.factor.size))
        return scales_of(*about, sums.rank, sums.square, sums.raw_square, epsilon)

    @cached_property
    def _information(self) -> Float[np.ndarray, " L"]:
        """tr (W₀ᵀW₀)_ll from the noise, E‖W₀ᵀu‖²."""
        model, ones = self.model, np.ones(len(self.model.sums.rank))
        cross = model.design(np.ones(model.groups[1]), ones)
        pulled = pull(cross, model.crosses(ones)[:-1])
        return model.group_sums(np.asarray(pulled) ** 2).mean(0)

    def evaluate(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: "Nearby | None" = None
    ) -> Evaluation:
        """The evidence and its terms: from the path for one of each, else from a solve."""
        if self.has_path:
            return Evaluation(self.path.evaluate(alpha, beta), converged=self.path.settled)
        equations, found = self._find(alpha, beta, start)
        change = equations.change(found.value)
        near = Nearby(found.alpha, found.beta, change, found.terms, found.determinant)
        return evaluation_of(found.terms, found.report, self.model.sums.rank, near)

    @property
    def has_path(self) -> bool:
        """Whether one α and one noise precision make a path."""
        return self.model.groups[1] == len(self.model.sums.rank) == 1

    @cached_property
    def path(self) -> EvidencePath:
        """The evidence at every α and noise precision, from one block Krylov space."""
        model, one = self.model, np.ones(1)
        require_one_each(model.groups[1], len(model.sums.rank))
        outputs = num_outputs(model.data, example_batch(model.data))
        fitting = max(PROBE_ENTRIES // outputs, 2)
        return krylov_path(
            model,
            model.design(one, one),
            model.rows(one, min(MAX_PROBES, model.num_samples, fitting)),
            noise_precision=None if self.learn_noise else 1.0,
            max_passes=self.max_passes,
        )

    def solve(self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: Any = None) -> Solution:
        """The posterior by block-CG, and the evidence from its recurrence."""
        _, found = self._find(alpha, beta, None)
        terms = found.terms
        if "path" in vars(self):  # it is there already, and knows the evidence better
            best = self.path.evaluate(found.alpha, found.beta)
            terms = terms._replace(
                log_evidence=best.log_evidence, log_evidence_error=best.log_evidence_error
            )
        posterior = self.model.posterior(found.units)
        return Solution(terms, posterior, found.result, found.report, found.units[-1])

    def _find(self, alpha: Any, beta: Any, start: "Nearby | None") -> tuple[Equations, "_Found"]:
        """Solves to the tolerance, and for several groups on from there."""
        alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
        design = self.model.design(alpha, beta)
        root, looked = self.look(design)
        form = primal_equations if self.side == "primal" else dual_equations
        equations = form(self.model, design, beta, root, self.tolerance)
        if start is None or not start.is_close(alpha, beta, equations.rhs.shape):
            found = self._found(equations, alpha, beta, looked)
        else:
            begin = equations.begin(start.change)
            found = self._found(equations, alpha, beta, looked, begin, start.determinant)
            found = found.moved(self._growth(start, found))
        return equations, self._refined(equations, found)

    def _refined(self, equations: Equations, found: "_Found") -> "_Found":
        """Goes on until the error resolves every group, as far as passes and precision allow."""
        for _ in range(REFINEMENTS):
            wanted, spent = self._resolving(found), found.report.passes
            if found.result != RESULTS.successful or found.report.estimate <= wanted:
                break
            if spent >= self.max_passes:
                break
            finer, begin = equations.with_tolerance(wanted), found.value
            finer = self._found(finer, found.alpha, found.beta, spent, begin, found.determinant)
            report = replace(finer.report, tolerance=found.report.tolerance)
            found = finer._replace(report=report, result=found.result)
            if finer.result != RESULTS.successful:
                break
        return found

    def _found(
        self,
        equations: Equations,
        alpha: Float[np.ndarray, " L"],
        beta: Float[np.ndarray, " C"],
        spent: int,
        begin: Float[Array, "k1 n"] | None = None,
        determinant: Estimate | None = None,
    ) -> "_Found":
        """One solve, and the terms of the evidence at it.

        Only a solve that begins at 0 has a quadrature of its own for the log determinant.
        """
        model, rule = self.model, equations.rule
        solution = equations.solve(begin, max(self.max_passes - spent, 1), self.callback)
        x = equations.coordinates(solution.value)
        units = model.units(equations.design, x, model.crosses(beta))
        if determinant is None:
            epsilon = float(jnp.finfo(x.dtype).eps)
            sizes = equations.size, rule.root, epsilon
            determinant = log_determinant_of(solution.recurrence, *sizes)
        terms = evidence_terms(model, alpha, beta, x, units, determinant)
        progress = solution.progress
        error = progress.error if self.side == "primal" else None
        report = report_of(progress.measure, float(rule.tolerance), spent + progress.passes, error)
        value, result = solution.value, solution.result
        return _Found(alpha, beta, value, units, terms, determinant, report, result)

    def _growth(self, start: "Nearby", found: "_Found") -> float:
        """Of log det(I + WᵀW), whose slopes are −γ_l in log α_l and γ_c, less flats, in log β_c."""
        middle = lambda one, two: (np.asarray(one) + np.asarray(two)) / 2
        old, new = start.terms, found.terms
        parameters = middle(old.group_dimension, new.group_dimension)
        outputs = middle(old.output_dimension, new.output_dimension)
        flat = [np.linalg.slogdet(self.model.flats.gram(at.beta))[1] for at in (start, found)]
        grown = outputs @ np.log(found.beta / start.beta)
        grown -= parameters @ np.log(found.alpha / start.alpha)
        return float(grown - (flat[1] - flat[0]))

    def _resolving(self, found: "_Found") -> float:
        """The tolerance at which an error as large as ε²γ is a small share of every group's γ_l."""
        dimension = found.terms.group_dimension
        seen = self._information * found.beta.max() / found.alpha > NOTHING
        if len(dimension) == 1 or not seen.any():
            return self.tolerance
        smallest = max(float(dimension[seen].min()), 1.0)
        return self.tolerance * min(smallest / max(float(dimension.sum()), 1.0), 1.0)

    def look(self, design: WhitenedDesign) -> tuple[AbstractRoot, int]:
        """The preconditioner at these hyperparameters, and the passes that it took."""
        if self.preconditioner is None:
            return IdentityRoot(), 0
        chosen = self.preconditioner.batches
        operator = sketchable(self.model, design, chosen, dual=self.side == "dual")
        return self.preconditioner.root(operator, key=self.key), self.preconditioner.passes(
            operator
        )


class Nearby(NamedTuple):
    """A solve, from which one at hyperparameters near by may begin."""

    alpha: Float[np.ndarray, " L"]
    beta: Float[np.ndarray, " C"]
    change: Float[Array, "k1 n"]
    """what hyperparameters change little: α^{-½}(x − z), or c on the dual side"""
    terms: EvidenceTerms
    determinant: Estimate

    def is_close(self, alpha: np.ndarray, beta: np.ndarray, shape: tuple[int, ...]) -> bool:
        """Whether every hyperparameter is within a factor of 4/3.

        Raises:
            ValueError: it is of another problem.
        """
        if self.change.shape != shape or self.alpha.shape != alpha.shape:
            raise ValueError(
                f"start is of a problem of shape {self.change.shape}, here it is {shape}: it is of "
                "another fit. Start without it."
            )
        logs = np.log(np.concatenate([alpha / self.alpha, beta / self.beta]))
        return bool(np.abs(logs).max() <= np.log(4 / 3))


class _Found(NamedTuple):
    """What a solve has found."""

    alpha: Float[np.ndarray, " L"]
    beta: Float[np.ndarray, " C"]
    value: Float[Array, "k1 n"]
    """q"""
    units: Float[Array, "k1 r"]
    terms: EvidenceTerms
    determinant: Estimate
    """log det(I + WᵀW)"""
    report: SolverReport
    result: RESULTS

    def moved(self, growth: float) -> "_Found":
        """With a log determinant that is larger."""
        value = self.determinant.value + growth
        log_evidence = self.terms.log_evidence - growth / 2
        return self._replace(
            determinant=self.determinant._replace(value=value),
            terms=self.terms._replace(log_evidence=log_evidence),
        )
