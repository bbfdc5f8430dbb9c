"""Matheron's rule: prior draws corrected on the outputs' side, by any lineax solver."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jaxtyping import Array, Float

from linmodels._batches import Batched, Data
from linmodels._blocks import unit_scales
from linmodels._observations import Observations
from linmodels._priors import GaussianPrior
from linmodels._products import WhitenedDesign
from linmodels._results import RESULTS
from linmodels.effective_dimension import Estimate, SampleNorms, combined
from linmodels.krylov import AbstractPreconditioner, AbstractRoot, Ritz, bidiagonalise
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._krylov_path import SHARE
from linmodels.methods._mean import mean_by_products
from linmodels.methods._method import (
    AbstractMethod,
    AbstractSystem,
    Evaluation,
    Mean,
    Scales,
    Solution,
    required_key,
)
from linmodels.methods._samples import evidence_terms
from linmodels.methods.block_cg import BlockCG
from linmodels.methods.block_system import MAX_PROBES, BlockSystem
from linmodels.methods.stopping import Measured, dual_rule, evaluation_of, report_of, within
from linmodels.operators import AbstractMatrixFreeOperator


class Matheron(AbstractMethod):
    """Deviations by Matheron's rule, x = z + Wᵀ(I + WWᵀ)⁻¹(u − Wz), with any lineax solver.

    z are prior draws and u noise draws of unit variance; W carries a factor of the noise precision,
    which may be singular and is never inverted. All k deviations and the mean are solved side by
    side. For a lone `Observations` with fewer outputs than parameters; `BlockCG` does the same for
    data in batches, with all right-hand sides in one Krylov space. The log determinant comes from
    block Gauss quadrature.

    Args:
        linear_solver: of a positive definite system, such as `lineax.CG` or `lineax.Cholesky`; it
            sees right-hand sides whose largest entry is between 1 and 2. `lineax.CG` to 1e-5 where
            None.
        preconditioner: one such as `linmodels.krylov.Nystrom(100)`, folded into the system.
        tolerance: ε², the mean squared error of a deviation in the H-norm over γ that true
            residuals must certify, or the result is not successful; 1/(8k) where None.

    Raises:
        ValueError: no lineax solver, or a tolerance outside (0, 1).

    ??? cite
        Antorán, Padhy et al. (ICLR 2023), "Sampling-based inference for large linear models", §3;
        Wilson et al. (JMLR 2021), "Pathwise conditioning of Gaussian processes".
    """

    linear_solver: lx.AbstractLinearSolver
    preconditioner: AbstractPreconditioner | None
    tolerance: float | None = eqx.field(static=True)

    def __init__(
        self,
        linear_solver: Any = None,
        preconditioner: AbstractPreconditioner | None = None,
        *,
        tolerance: float | None = None,
    ):
        if linear_solver is None:
            # Recomputed residuals would not make float32 more accurate, and cost a product.
            linear_solver = lx.CG(rtol=1e-5, atol=1e-5, stabilise_every=None, max_steps=1_000)
        if not isinstance(linear_solver, lx.AbstractLinearSolver):
            raise ValueError(
                f"linear_solver must be one of lineax's, such as lineax.CG(1e-5, 1e-5), got "
                f"{linear_solver!r}."
            )
        BlockCG("dual", tolerance, preconditioner=preconditioner)  # refuses what it refuses
        self.linear_solver, self.preconditioner = linear_solver, preconditioner
        self.tolerance = tolerance

    def prepare(
        self, data: Data, prior: GaussianPrior, *, num_samples: int, key: Array | None
    ) -> AbstractSystem:
        """Looks at the data; see `AbstractMethod.prepare`.

        Raises:
            ValueError: data in batches, and as `BlockCG`.
        """
        if isinstance(data, Batched):
            raise ValueError(
                "Matheron needs all outputs at once, in a lone Observations: use "
                'BlockCG(side="dual") for data in batches.'
            )
        key = required_key("Matheron", data, prior, num_samples, key)
        method = BlockCG("dual", self.tolerance, preconditioner=self.preconditioner)
        system = method.prepare(data, prior, num_samples=num_samples, key=key)
        assert isinstance(system, BlockSystem)
        solver = type(self.linear_solver).__name__
        size, outputs = system.model.factor.size, data.design.out_size()
        reason = f"Matheron's rule with {solver}: {size:,} parameters, {outputs:,} outputs"
        return MatheronSystem(system.prior, reason, system, self.linear_solver)

    def mean(self, data, prior, alpha, near, closeness, similar) -> Mean:
        """By conjugate gradients on the parameters' side, whatever the linear solver."""
        return mean_by_products(data, prior, alpha, near, closeness, similar)

    def approach_mode(self, data, prior, precision, start, key) -> Float[np.ndarray, " r"]:
        """The start."""
        return start


class MatheronSystem(AbstractSystem):
    """The dual side of a linear model, to be solved at given hyperparameters."""

    prior: GaussianPrior
    reason: str
    dual: BlockSystem
    """what is the same with block conjugate gradients"""
    linear_solver: lx.AbstractLinearSolver

    def scales(self) -> Scales:
        """Starts and caps."""
        return self.dual.scales()

    def evaluate(
        self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: Any = None
    ) -> Evaluation:
        """The evidence and its terms: from the path for one of each, else from a solve."""
        if self.has_path:
            return self.dual.evaluate(alpha, beta)
        solution = self.solve(alpha, beta)
        assert solution.report is not None
        about = solution.terms, solution.report, solution.result
        return evaluation_of(*about, self.dual.model.sums.rank)

    @property
    def has_path(self) -> bool:
        """Whether evaluations come from a path."""
        return self.dual.has_path

    @property
    def path(self) -> EvidencePath:
        """The evidence at every α and noise precision, from one block Krylov space."""
        return self.dual.path

    def solve(self, alpha: Float[Any, " L"], beta: Float[Any, " C"], start: Any = None) -> Solution:
        """The posterior by Matheron's rule, the log determinant by block bidiagonalisation."""
        alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
        model, tolerance = self.dual.model, self.dual.tolerance
        design = model.design(alpha, beta)
        root, looked = self.dual.look(design)
        start, rows = model.prior_draws(), model.rows(beta)
        through = model.forward(design, start)
        rhs = rows - through
        kernel = _Kernel(model.data, design, root, rows.shape[1])
        c, claim, steps = _scaled_solve(self.linear_solver, kernel, rhs)
        residual = rhs - c - model.outward(design, c)
        rule = dual_rule(rows, through, tolerance)
        measured = jax.tree.map(_float64, rule.measure(c, residual, rhs))
        x = start + model.backward(design, c)
        units = model.units(design, x, model.crosses(beta))
        log_determinant, passes = self._log_determinant(design, rows)
        terms = evidence_terms(model, alpha, beta, x, units, log_determinant)
        report = report_of(measured, tolerance, looked + steps + 1 + passes)
        result = _verdict(claim, measured, tolerance)
        return Solution(terms, model.posterior(units), result, report)

    def _log_determinant(
        self, design: WhitenedDesign, rows: Float[Array, "k1 N"]
    ) -> tuple[Estimate, int]:
        """log det(I + WWᵀ) = E uᵀ log(I + WWᵀ) u, and the passes that it took."""
        probes = rows[: min(MAX_PROBES, len(rows) - 1)]
        before: list[Estimate] = []

        def settled(ritz: Ritz) -> bool:
            before.append(_log_determinant_of(ritz, rows.shape[1]))
            if len(before) < 2:
                return False
            old, new = before[-2:]
            return bool(abs(new.value - old.value) <= SHARE * new.standard_error)

        model = self.dual.model
        forward, backward = partial(model.forward, design), partial(model.backward, design)
        ritz = bidiagonalise(forward, backward, probes, settled, max_passes=self.dual.max_passes)
        return _log_determinant_of(ritz, rows.shape[1]), ritz.passes


class _Kernel(AbstractMatrixFreeOperator):
    """P^{-½}(I + WWᵀ)P^{-½} on ravelled outputs."""

    data: Observations
    design: WhitenedDesign
    root: AbstractRoot
    size: int = eqx.field(static=True)

    def mv(self, vector: Float[Array, " N"]) -> Float[Array, " N"]:
        """The product."""
        c = self.root.divide(vector[None])
        through = self.design.product(self.data, self.design.transpose_product(self.data, c))
        return self.root.divide(c + through)[0]

    def transpose(self) -> "_Kernel":
        """Itself."""
        return self

    def in_structure(self) -> jax.ShapeDtypeStruct:
        """N numbers."""
        return jax.ShapeDtypeStruct((self.size,), self.design.scale.dtype)

    def out_structure(self) -> jax.ShapeDtypeStruct:
        """N numbers."""
        return self.in_structure()


lx.is_symmetric.register(_Kernel, lambda operator: True)
lx.is_positive_semidefinite.register(_Kernel, lambda operator: True)


def _scaled_solve(
    solver: lx.AbstractLinearSolver, kernel: _Kernel, rhs: Float[Array, "k1 N"]
) -> tuple[Float[Array, "k1 N"], RESULTS, int]:
    """(I + WWᵀ)⁻¹ of every right-hand side, what the solver says of it, and its steps."""
    rhs = kernel.root.divide(rhs)
    scale = jnp.asarray(unit_scales(rhs), rhs.dtype)[:, None]
    value, result, steps = _solved(solver, kernel, rhs / scale)
    return kernel.root.divide(scale * value), _translated(result), int(np.max(steps))


@eqx.filter_jit
def _solved(solver: lx.AbstractLinearSolver, kernel: _Kernel, rhs: Float[Array, "k1 N"]):
    def solve(vector: Float[Array, " N"]):
        solution = lx.linear_solve(kernel, vector, solver, throw=False)
        steps = jnp.asarray(solution.stats.get("num_steps", 1))  # 1: the matrix, in one block
        return solution.value, solution.result, steps

    return eqx.filter_vmap(solve)(rhs)


_TRANSLATIONS = (
    (lx.RESULTS.nonfinite_input, RESULTS.non_finite),
    (lx.RESULTS.max_steps_reached, RESULTS.max_passes_reached),
    (lx.RESULTS.stagnation, RESULTS.stagnated),
    (lx.RESULTS.conlim, RESULTS.stagnated),
)


def _translated(results: Any) -> RESULTS:
    """The first of lineax's results, over all right-hand sides, that is not a success."""
    for theirs, ours in _TRANSLATIONS:
        if np.any(results == theirs):
            return ours
    successful = np.all(results == lx.RESULTS.successful)
    return RESULTS.successful if successful else RESULTS.breakdown


def _verdict(claim: RESULTS, measured: Measured, tolerance: float) -> RESULTS:
    """True residuals decide; where they are too large, what the solver said tells why."""
    if not np.isfinite(measured.residual).all():
        return RESULTS.non_finite
    if within(measured.residual**2, measured, tolerance):
        return RESULTS.successful
    return RESULTS.stagnated if claim == RESULTS.successful else claim


def _log_determinant_of(ritz: Ritz, size: int) -> Estimate:
    """From probes u: ‖u‖², of known mean, takes most of the noise as in `combined`."""
    logs = ritz.weights @ np.log1p(ritz.values)
    known = ritz.weights.sum(1)
    return combined(SampleNorms(jnp.asarray(logs), jnp.asarray(known - logs), size, np.inf))


def _float64(x: Array) -> Float[np.ndarray, "..."]:
    return np.asarray(x, np.float64)
