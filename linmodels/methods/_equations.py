"""The equations of either side, whose solutions are posterior deviations and the mean."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._products import WhitenedDesign
from linmodels.krylov import AbstractRoot, BlockSolution, Progress, block_cg, rounding_of
from linmodels.methods._matrix_free import MatrixFree
from linmodels.methods._method import Hyperparameters
from linmodels.methods.stopping import DualRule, MeanRule, PrimalRule


class Equations(NamedTuple):
    """H q = b, and what q stands for."""

    model: MatrixFree
    at: Hyperparameters
    draws: Float[Array, "k1 r"]
    """z, and 0 for the mean"""
    product: Callable[[Array], Array]
    rhs: Float[Array, "k1 n"]
    rule: PrimalRule | DualRule | MeanRule
    design: WhitenedDesign
    size: int
    """side of H, flat parameters apart"""
    coordinates: Callable[[Array], Array]
    """x from q"""
    change: Callable[[Array], Array]
    """`Nearby.change` from q"""
    begin: Callable[[Array], Array]
    """q from `Nearby.change`"""

    def with_tolerance(self, tolerance: float) -> "Equations":
        """To be solved to another tolerance."""
        rule = eqx.tree_at(lambda r: r.tolerance, self.rule, np.asarray(tolerance))
        return self._replace(rule=rule)

    def solve(
        self,
        begin: Float[Array, "k1 n"] | None,
        limit: int,
        callback: Callable[[Progress], None] | None,
    ) -> BlockSolution:
        """By P^{-½}HP^{-½} y = P^{-½}b; q = P^{-½}y."""
        divide = lambda q: _divide(self.rule.root, q)
        solution = block_cg(
            lambda y: divide(self.product(divide(y))),
            divide(self.rhs),
            self.rule,
            start=None if begin is None else _multiply(self.rule.root, begin),
            max_passes=limit,
            callback=callback,
            rounding=rounding_of(self.rhs),
        )
        return solution._replace(value=divide(solution.value))


def primal_equations(
    model: MatrixFree,
    at: Hyperparameters,
    design: WhitenedDesign,
    root: AbstractRoot,
    tolerance: float,
) -> Equations:
    """(I + WᵀW) x = z + Wᵀu."""
    draws, scale = model.prior_draws(), design.scale
    return Equations(
        model,
        at,
        draws,
        lambda x: x + model.normal(design, x),
        draws + pull(design, model.crosses(at.beta)),
        PrimalRule(root, tolerance),
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
    rhs = rows - model.forward(design, draws)
    return Equations(
        model,
        at,
        draws,
        lambda c: c + model.outward(design, c),
        rhs,
        DualRule(rows, root, tolerance),
        design,
        rhs.shape[1],
        coordinates=lambda c: draws + model.backward(design, c),
        change=lambda c: c,
        begin=lambda c: c,
    )


@eqx.filter_jit
def _divide(root: AbstractRoot, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
    return root.divide(x)


@eqx.filter_jit
def _multiply(root: AbstractRoot, x: Float[Array, "k n"]) -> Float[Array, "k n"]:
    return root.multiply(x)


@eqx.filter_jit
def pull(design: WhitenedDesign, cross: Float[Array, "k r"]) -> Float[Array, "k r"]:
    """Wᵀ of rows from √β W₀ᵀ of them."""
    return design.pull(cross)
