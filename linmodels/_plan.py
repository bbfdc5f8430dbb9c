"""`plan`: which method, at what cost, and why."""

from typing import NamedTuple

import jax
import numpy as np

from linmodels._observations import Data, example_batch, num_outputs
from linmodels.methods import AbstractMethod, BlockCG, Exact

EXACT_SIDE = 4_000
"""Side up to which a dense factorisation is the quickest answer."""


class Plan(NamedTuple):
    """A method, and what it is expected to take.

    Attributes:
        method: of inference.
        reason: why it was chosen, for people.
        side: "primal" (blocks of parameters) or "dual" (of outputs).
        memory: expected peak beside the data, in bytes.
    """

    method: AbstractMethod
    reason: str
    side: str
    memory: int


def plan(data: Data, num_samples: int = 64) -> Plan:
    """The method for these data: exact where a side is small enough, else block-CG.

    Args:
        data: the observations.
        num_samples: k, deviations to draw.

    >>> import jax.numpy as jnp, lineax as lx
    >>> from linmodels import Observations
    >>> data = Observations(lx.MatrixLinearOperator(jnp.ones((50, 3))), jnp.ones(50))
    >>> print(plan(data).reason)
    exact on the primal side: 3 parameters, 50 outputs, of which the smaller is at most 4,000
    """
    parameters, outputs, width = _sizes(data)
    side = "primal" if parameters <= outputs else "dual"
    smaller = min(parameters, outputs)
    sizes = f"{parameters:,} parameters, {outputs:,} outputs, of which the smaller is"
    if smaller <= EXACT_SIDE or num_samples == 0:
        limit = f"at most {EXACT_SIDE:,}"
        if smaller > EXACT_SIDE:
            limit = f"{smaller:,}, as without samples there is no other way"
        memory = 40 * smaller**2 + (8 * parameters * num_samples)
        memory += 3 * 8 * outputs * parameters if side == "dual" else 0
        return Plan(Exact(), f"exact on the {side} side: {sizes} {limit}", side, memory)
    reason = f"block-CG on the {side} side: {sizes} more than {EXACT_SIDE:,}"
    return Plan(BlockCG(), reason, side, _block_memory(smaller, num_samples, width))


def _sizes(data: Data) -> tuple[int, int, int]:
    """Parameters, outputs, and bytes of a number."""
    example = example_batch(data)
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(example.targets)]
    width = max(np.dtype(dtype).itemsize for dtype in dtypes)
    return example.design.in_size(), num_outputs(data, example), width


def _block_memory(side: int, num_samples: int, width: int) -> int:
    """Ten blocks of k + 1 vectors: a step's five, its product, draws, right-hand sides, results."""
    return 10 * side * (num_samples + 1) * width
