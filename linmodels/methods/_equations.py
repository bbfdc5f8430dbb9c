"""The equations of either side, whose solutions are posterior deviations and the mean."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._blocks import safe_square_sums
from linmodels._products import WhitenedDesign
from linmodels.krylov import (
    AbstractRoot,
    BlockSolution,
    IdentityRoot,
    Progress,
    Residual,
    block_cg,
    rounding_of,
)
from linmodels.methods._matrix_free import MatrixFree
from linmodels.methods._method import Hyperparameters
from linmodels.methods._sketch import patience, sketched_root
from linmodels.methods.stopping import DualRule, MeanRule, Measured, PrimalRule, dual_rule


class Equations(NamedTuple):
    """H q = b, and what q stands for."""

    model: MatrixFree
    at: Hyperparameters
    base: Float[Array, "k1 r"]
    """z, and 0 for the mean; `rebased`, the x there is"""
    product: Callable[[Array], Array]
    rhs: Float[Array, "k1 n"]
    residual: Callable[[Array], Residual] | None
    """b − Hq, where it can be had more exactly than from `product`"""
    rule: PrimalRule | DualRule | MeanRule
    root: AbstractRoot
    """P^{½}"""
    design: WhitenedDesign
    size: int
    """side of H, flat parameters apart"""
    coordinates: Callable[[Array], Array]
    """x from q"""
    change: Callable[[Array], Array]
    """`Nearby.change` from q"""
    begin: Callable[[Array], Array]
    """q from `Nearby.change`"""

    def measured_at_zero(self) -> Measured:
        """What the rule measures before any solve."""
        measured = self.rule.measure(jnp.zeros_like(self.rhs), self.rhs, self.rhs)
        return Measured(*(np.asarray(values, np.float64) for values in measured))

    def with_tolerance(self, tolerance: float) -> "Equations":
        """To be solved to another tolerance."""
        rule = eqx.tree_at(lambda r: r.tolerance, self.rule, np.asarray(tolerance))
        return self._replace(rule=rule)

    def patience(self, largest: float) -> float:
        """Passes that a solve may take, from ‖H‖, before it wants a sketch."""
        if not isinstance(self.root, IdentityRoot):
            return np.inf
        return patience(self.model, self.rhs.shape[1], largest)

    def sketched(self, key: Array) -> tuple["Equations", int]:
        """Preconditioned by what a look at the data tells, and the passes that it takes."""
        dual = isinstance(self.rule, DualRule)
        root, passes = sketched_root(self.model, self.design, dual=dual, key=key)
        return self._replace(root=root), passes

    def rebased(self, value: Float[Array, "k1 n"]) -> "Equations":
        """Of what is left to find from q on the dual side, in one pass; b is the residual of x.

        Rounding of c makes errors of x up to λ₁ times as large. Where x is kept beside c, what is
        left of x − z − Wᵀc counts in the norm of H⁻¹, as no more than itself.
        """
        assert isinstance(self.rule, DualRule)
        known = self.change(value)
        rule = eqx.tree_at(lambda r: r.known, self.rule, known)
        base = self.coordinates(value)
        rhs = rule.rows - known - self.model.forward(self.design, base)
        return _dual_equations(self.model, self.at, self.design, self.root, rule, base, rhs)

    def solve(
        self,
        begin: Float[Array, "k1 n"] | None,
        limit: int,
        callback: Callable[[Progress], None] | None,
        patience: Callable[[float], float] | None = None,
    ) -> BlockSolution:
        """By `block_cg`."""
        return block_cg(
            self.product,
            self.rhs,
            self.rule,
            root=self.root,
            start=begin,
            max_passes=limit,
            callback=callback,
            residual=self.residual,
            patience=patience,
        )


def primal_equations(
    model: MatrixFree,
    at: Hyperparameters,
    design: WhitenedDesign,
    root: AbstractRoot,
    tolerance: float,
) -> Equations:
    """(I + WᵀW) x = z + Wᵀu.

    Residuals are z − x + Wᵀ(u − Wx). Rounding of Wx and u in the rows makes an error of no more
    than its own size, where that of Wᵀu may be √λ₁ times as large in directions of H = 1. What is
    left there comes from sums of columns: ‖W‖_F² for entries of 1 in x and in u − Wx.
    """
    draws, scale = model.prior_draws(), design.scale
    rhs = draws + pull(design, model.crosses(at.beta))
    rounding = rounding_of(safe_square_sums(rhs), rhs.dtype)

    def residual(x: Array) -> Residual:
        pulled, squares = model.misfit(design, at.beta, x)
        return Residual(draws - x + pulled, _rounding_by_rows(rounding, x, squares))

    return Equations(
        model,
        at,
        draws,
        lambda x: x + model.normal(design, x),
        rhs,
        residual,
        PrimalRule(tolerance),
        root,
        design,
        model.num_penalised,
        coordinates=lambda x: x,
        change=lambda x: scale * (x - draws),
        begin=lambda change: draws + change / jnp.where(scale > 0, scale, 1),
    )


def dual_equations(
    model: MatrixFree,
    at: Hyperparameters,
    design: WhitenedDesign,
    root: AbstractRoot,
    tolerance: float,
) -> Equations:
    """x = z + Wᵀc with (I + WWᵀ) c = u − Wz."""
    draws, rows = model.prior_draws(), model.rows(at.beta)
    through = model.forward(design, draws)
    rule = dual_rule(rows, through, tolerance)
    return _dual_equations(model, at, design, root, rule, draws, rows - through)


def _dual_equations(
    model: MatrixFree,
    at: Hyperparameters,
    design: WhitenedDesign,
    root: AbstractRoot,
    rule: DualRule,
    base: Float[Array, "k1 r"],
    rhs: Float[Array, "k1 N"],
) -> Equations:
    """x = b + Wᵀc with (I + WWᵀ) c = u − a − Wb, of `rule` the u and a, b = z + Wᵀa."""
    return Equations(
        model,
        at,
        base,
        lambda c: c + model.outward(design, c),
        rhs,
        None,
        rule,
        root,
        design,
        rhs.shape[1],
        coordinates=lambda c: base + model.backward(design, c),
        change=lambda c: rule.known + c,
        begin=lambda c: c - rule.known,
    )


def _rounding_by_rows(
    rounding: Float[np.ndarray, " k1"], x: Array, squares: Float[Array, "2 k1"]
) -> Float[np.ndarray, " k1"]:
    """From that of b; the same where there are no draws, whose b tell ‖W‖_F."""
    if len(rounding) == 1:
        return rounding
    rows, left = np.asarray(squares, np.float64)
    count = max(rows[:-1].mean(), 1)  # of draws from N(0, 1)
    entries = left / count + safe_square_sums(x) / x.shape[1]
    return rounding_of(rows, x.dtype) + rounding[:-1].mean() * entries


@eqx.filter_jit
def pull(design: WhitenedDesign, cross: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Wᵀ of rows from √β W₀ᵀ of them."""
    return design.pull(cross)
