"""Where a solve stands, and when that is good enough."""

import abc
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree


class Progress(NamedTuple):
    """Where a solve stands, one entry a right-hand side."""

    passes: int
    """products with the operator so far, each with a whole block"""
    right_hand_side: Float[np.ndarray, " k"]
    """‖b‖², with a preconditioner ‖P^{-½}b‖²"""
    residual: Float[np.ndarray, " k"]
    """‖b − Hx‖², with a preconditioner ‖P^{-½}(b − Hx)‖²"""
    error: Float[np.ndarray, " k"]
    """‖x − H⁻¹b‖²_H, estimated; infinite while unknown"""
    measure: PyTree[Float[np.ndarray, " k"]]
    """what the stopping rule measures of the iterates"""


class AbstractStoppingRule(eqx.Module):
    """When iterates are good enough."""

    @abc.abstractmethod
    def measure(
        self, iterate: Float[Array, "k d"], residual: Float[Array, "k d"], rhs: Float[Array, "k d"]
    ) -> PyTree[Float[Array, " k"]]:
        """What `met` needs to know of every iterate, a number or several; runs inside jit."""

    @abc.abstractmethod
    def met(self, progress: Progress) -> bool:
        """Whether to stop."""


class RelativeResidual(AbstractStoppingRule):
    """‖b − Hx‖ ≤ tolerance · ‖b‖ for every right-hand side, both as in `Progress`.

    Raises:
        ValueError: a tolerance outside (0, 1).
    """

    tolerance: float = eqx.field(static=True)

    def __check_init__(self):
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must be between 0 and 1, got {self.tolerance}.")

    def measure(self, iterate, residual, rhs) -> tuple[()]:
        """Nothing is needed."""
        return ()

    def met(self, progress: Progress) -> bool:
        """Every column below its own tolerance."""
        return bool((progress.residual <= self.tolerance**2 * progress.right_hand_side).all())
