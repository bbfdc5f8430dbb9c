"""What is minimised: a quadratic of every vector that is known exactly, and a sum over batches."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
from jaxtyping import Array, Float

from linmodels._batches import Batch


class Term(NamedTuple):
    """One batch's part of the sum."""

    loss: Float[Array, " k"]
    gradient: Float[Array, "k r"]
    curved: Float[Array, "1 r"]
    """its second derivative times a probe"""


class AbstractObjective(eqx.Module):
    """½‖p ⊙ (x_j − c_j)‖² + Σ_b loss_b(x_j) for every vector x_j."""

    centre: eqx.AbstractVar[Float[Any, "k r"]]
    """c"""
    penalised: eqx.AbstractVar[Float[Any, " r"]]
    """p: 1, or 0 at flat coordinates"""

    @abc.abstractmethod
    def term(
        self,
        batch: Batch,
        drawn: Float[Array, "k N"] | None,
        x: Float[Array, "k r"],
        probe: Float[Array, "1 r"],
    ) -> Term:
        """One batch's part, with what was drawn for it outside jit, if anything; inside jit."""
