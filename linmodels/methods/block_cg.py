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

from linmodels._blocks import inner_products, norms, square_sums
from linmodels._observations import Data, Observations, example_batch, num_outputs
from linmodels._priors import GaussianPrior
from linmodels._products import WhitenedDesign
from linmodels._whitening import explain_non_finite, gaussian
from linmodels.krylov import (
    AbstractPreconditioner,
    AbstractRoot,
    AbstractStoppingRule,
    BlockSolution,
    IdentityRoot,
    Progress,
    block_cg,
)
from linmodels.methods._evidence_path import EvidencePath, require_one_each
from linmodels.methods._krylov_path import krylov_path
from linmodels.methods._look import look_once
from linmodels.methods._matrix_free import MatrixFree
from linmodels.methods._method import (
    AbstractMethod,
    AbstractSystem,
    EvidenceTerms,
    Scales,
    Solution,
    SolverReport,
    required_key,
)
from linmodels.methods._parameters import scales_of
from linmodels.methods._samples import evidence_terms, log_determinant_of
from linmodels.methods._sketch import require_batches, sketchable

MAX_PROBES = 16
"""Random vectors of the evidence path: they give γ to √(2/(16 γ)), 4 % where γ is 100."""
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
            None.
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


class Measured(NamedTuple):
    """What stops a solve, of the system without its preconditioner."""

    signal: Float[Any, " k1"]
    """‖Wx‖²"""
    residual: Float[Any, " k1"]
    """‖b − Hx‖"""


class PrimalRule(AbstractStoppingRule):
    """Σ‖e_j‖²_H ≤ tolerance · Σ‖Wx_j‖², and the mean's at most a deviation's share of it.

    ‖e‖²_H ≤ ‖r‖² as H ≥ 1; the solver's estimate of ‖e‖²_H serves where it is smaller. With a
    preconditioner x = P^{-½}y and r = P^{½}r̃; ‖e‖²_H is the same of either system.
    """

    root: AbstractRoot
    tolerance: float = eqx.field(static=True)

    def measure(self, iterate, residual, rhs) -> Measured:
        """‖Wx‖² = xᵀ(b − r) − ‖x‖²."""
        x, left = self.root.divide(iterate), self.root.multiply(residual)
        signal = inner_products(iterate, rhs - residual) - square_sums(x)
        return Measured(signal, norms(left))

    def met(self, progress: Progress) -> bool:
        """For deviations together and for the mean, which comes last."""
        error = np.minimum(progress.error, progress.measure.residual**2)
        return within(error, progress.measure, self.tolerance)


class DualRule(AbstractStoppingRule):
    """The same for x = z + Wᵀc, whose ‖e‖²_H = ‖r‖² − ‖e_c‖²_V ≤ ‖r‖²."""

    rows: Float[Array, "k1 N"]
    """u and, last, v"""
    root: AbstractRoot
    tolerance: float = eqx.field(static=True)

    def measure(self, iterate, residual, rhs) -> Measured:
        """‖Wx‖² with Wx = u − r − c."""
        c, left = self.root.divide(iterate), self.root.multiply(residual)
        return Measured(square_sums(self.rows - left - c), norms(left))

    def met(self, progress: Progress) -> bool:
        """For deviations together and for the mean, which comes last."""
        measured = progress.measure
        return within(measured.residual**2, measured, self.tolerance)


def within(error: Float[np.ndarray, " k1"], measured: Measured, tolerance: float) -> bool:
    """Whether the deviations' squared errors together, and the mean's, are small enough."""
    total = max(measured.signal[:-1].sum(), 0.0)
    count = len(error) - 1
    return bool(error[:-1].sum() <= tolerance * total and error[-1] <= tolerance * total / count)


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
        """Starts and caps; tr M from the noise, E‖W₀ᵀu‖²."""
        model, sums = self.model, self.model.sums
        ones = np.ones(len(sums.rank))
        cross = model.design(np.ones(model.groups[1]), ones)
        pulled = _pull(cross, model.crosses(ones)[:-1])
        information = model.group_sums(np.asarray(pulled) ** 2).mean(0)
        epsilon = float(jnp.finfo(sums.cross.dtype).eps)
        return scales_of(information, sums.rank, sums.square, sums.raw_square, epsilon)

    def evaluate(self, alpha: Float[Any, " L"], beta: Float[Any, " C"]) -> EvidenceTerms:
        """The evidence and its terms: from the path for one of each, else from a solve."""
        if self.has_path:
            return self.path.evaluate(alpha, beta)
        return self.solve(alpha, beta).terms

    @property
    def settled(self) -> bool:
        """Whether the path, if there is one, has settled within `max_passes`."""
        return not self.has_path or self.path.settled

    def resolution(self, terms: EvidenceTerms) -> float:
        """A tenth of the relative standard error of γ; the path is smooth."""
        if self.has_path:
            return 0.0
        return 0.1 * float(terms.dimension_error / max(terms.group_dimension.sum(), 1e-300))

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

    def solve(self, alpha: Float[Any, " L"], beta: Float[Any, " C"]) -> Solution:
        """The posterior by block-CG, and the evidence from its recurrence."""
        alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
        model, design = self.model, self.model.design(alpha, beta)
        root, looked = self.look(design)
        solve = self._primal if self.side == "primal" else self._dual
        x, solution, size = solve(design, beta, root, max(self.max_passes - looked, 1))
        units = model.units(design, x, model.crosses(beta))
        epsilon = float(jnp.finfo(x.dtype).eps)
        log_determinant = log_determinant_of(solution.recurrence, size, root, epsilon)
        terms = evidence_terms(model, alpha, beta, x, units, log_determinant)
        if "path" in vars(self):  # it is there already, and knows the evidence better
            best = self.path.evaluate(alpha, beta)
            terms = terms._replace(
                log_evidence=best.log_evidence, log_evidence_error=best.log_evidence_error
            )
        progress = solution.progress
        error = progress.error if self.side == "primal" else None
        passes = looked + progress.passes
        report = report_of(progress.measure, self.tolerance, passes, error)
        return Solution(terms, model.posterior(units), solution.result, report, units[-1])

    def look(self, design: WhitenedDesign) -> tuple[AbstractRoot, int]:
        """The preconditioner at these hyperparameters, and the passes that it took."""
        if self.preconditioner is None:
            return IdentityRoot(), 0
        chosen = self.preconditioner.batches
        operator = sketchable(self.model, design, chosen, dual=self.side == "dual")
        return self.preconditioner.root(operator, key=self.key), self.preconditioner.passes(
            operator
        )

    def _primal(self, design: WhitenedDesign, beta: np.ndarray, root: AbstractRoot, limit: int):
        """(I + WᵀW) x = z + Wᵀu."""
        rhs = self.model.prior_draws() + _pull(design, self.model.crosses(beta))
        product = lambda x: x + self.model.normal(design, x)
        x, solution = self._block_cg(product, rhs, PrimalRule(root, self.tolerance), limit)
        return x, solution, self.model.factor.size - len(self.model.flats.index)

    def _dual(self, design: WhitenedDesign, beta: np.ndarray, root: AbstractRoot, limit: int):
        """x = z + Wᵀc with (I + WWᵀ) c = u − Wz."""
        start, rows = self.model.prior_draws(), self.model.rows(beta)
        rhs = rows - self.model.forward(design, start)
        product = lambda c: c + self.model.outward(design, c)
        c, solution = self._block_cg(product, rhs, DualRule(rows, root, self.tolerance), limit)
        return start + self.model.backward(design, c), solution, rhs.shape[1]

    def _block_cg(self, product, rhs, rule, limit) -> tuple[Array, BlockSolution]:
        """Solves P^{-½}HP^{-½} y = P^{-½}b; x = P^{-½}y."""
        divide = lambda x: _divide(rule.root, x)
        solution = block_cg(
            lambda y: divide(product(divide(y))),
            divide(rhs),
            rule,
            max_passes=limit,
            callback=self.callback,
        )
        return divide(solution.value), solution


def report_of(
    measured: Measured,
    tolerance: float,
    passes: int,
    error: Float[np.ndarray, " k1"] | None = None,
) -> SolverReport:
    """What true residuals certify, and what the solver estimates ‖e‖²_H to be, if it does."""
    total = max(measured.signal[:-1].sum(), np.finfo(float).tiny)
    share = lambda squares: float(squares[:-1].sum() / total)
    certificate = share(measured.residual**2)
    estimate = certificate if error is None else min(certificate, share(error))
    return SolverReport(passes, certificate, estimate, tolerance, measured.residual)


@eqx.filter_jit
def _divide(root: AbstractRoot, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
    return root.divide(x)


@eqx.filter_jit
def _pull(design: WhitenedDesign, cross: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Wᵀ of rows from √β W₀ᵀ of them."""
    return design.pull(cross)
