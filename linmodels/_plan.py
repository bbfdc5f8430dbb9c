"""`plan`: which method, at what cost, and why."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._arguments import require_kinds
from linmodels._batches import Data, batches, example_batch, num_outputs
from linmodels._expansion import at_prior_mean
from linmodels._priors import GaussianPrior
from linmodels._products import normal
from linmodels.krylov import block_cg
from linmodels.methods import AbstractMethod, BlockCG, EvidencePath, Exact
from linmodels.methods.block_system import BlockSystem
from linmodels.methods.stopping import PrimalRule

EXACT_SIDE = 4_000
"""Side up to which a dense factorisation is the quickest answer."""
PROBES, LOOKS = 8, 14
"""Random vectors that a probe looks at the spectrum with, and its passes: 126 products with W and
Wᵀ at most, as many as two passes of 64 samples take.
"""
NODES = 2_000
"""Eigenvalues that stand for all in the rehearsal of a solve."""


class Plan(NamedTuple):
    """A method, and what it is expected to take.

    Attributes:
        method: of inference.
        reason: why it was chosen, for people.
        side: "primal" (blocks of parameters) or "dual" (of outputs).
        memory: expected peak of arrays beside the data and what its own products need, in bytes.
            Compiled programs take some 200 MB more; so does, for arrays below 32 MB each, what
            the C library keeps of freed ones. What block-CG sketches for a search of many solves,
            or for a slow one, has up to 256 MiB in float32, and a few times that for a moment; the
            basis of an evidence path has 17 vectors of the shorter side a pass, and is kept for the
            solve.
        passes: products with the data, each with all samples, that a solve (or, to the mode of
            other likelihoods than `Gaussian`, a Newton step) is expected to take, alone: behind
            an evidence path fewer; None where only a probe could tell.
        seconds: that a solve is expected to take, without compilation; None as `passes`. Learning
            several strengths takes a solve a step.
    """

    method: AbstractMethod
    reason: str
    side: str
    memory: int
    passes: int | None = None
    seconds: float | None = None

    @property
    def cost(self) -> str:
        """Passes, memory and time, for people."""
        parts = [] if self.passes is None else [f"{self.passes} pass{'es' * (self.passes > 1)}"]
        parts.append(f"about {_bytes(self.memory)} beside the data")
        return ", ".join(parts + ([] if self.seconds is None else [_seconds(self.seconds)]))

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.reason}; {self.cost}"


def plan(
    data: Data,
    prior: GaussianPrior | None = None,
    num_samples: int = 64,
    *,
    key: Array | None = None,
) -> Plan:
    """The method for these data: exact where a side is small enough, else block-CG.

    With a key, and where the method is block-CG, 9 vectors look at the spectrum, in products no
    more than two passes of 64 samples, and the solve is rehearsed on 2,000 eigenvalues like it:
    passes are right within a factor of 2 on spectra that fall like 1/i or 1/i², and too few on
    ones that are spread evenly over decades. Strengths are those of `prior` and the noise, if
    known, else the ones of the largest evidence that the probe sees.

    Args:
        data: the observations.
        prior: `GaussianPrior.g_prior()` by default; it matters to a probe only.
        num_samples: k, deviations to draw.
        key: of the probe; no products without it.

    Raises:
        ValueError: arguments of the wrong kind; with a key, as `BlockCG.prepare`.

    >>> import jax.numpy as jnp, lineax as lx
    >>> from linmodels import Observations
    >>> data = Observations(lx.MatrixLinearOperator(jnp.ones((50, 3))), jnp.ones(50))
    >>> print(plan(data).reason)
    exact on the primal side: 3 parameters, 50 outputs, of which the smaller is at most 4,000
    """
    require_kinds(data, prior, None, num_samples, key)
    example = example_batch(data)
    parameters, outputs = example.design.in_size(), num_outputs(data, example)
    side = "primal" if parameters <= outputs else "dual"
    smaller, larger = sorted((parameters, outputs))
    sizes = f"{parameters:,} parameters, {outputs:,} outputs, of which the smaller is"
    if smaller <= EXACT_SIDE or num_samples == 0:
        limit = f"at most {EXACT_SIDE:,}"
        if smaller > EXACT_SIDE:
            limit = f"{smaller:,}, as without samples there is no other way"
        memory = 40 * smaller**2 + (8 * parameters * num_samples)
        if side == "dual":  # also its inverse, and the design in both precisions
            memory += 60 * smaller**2 + 12 * outputs * parameters
        # A Gram matrix, and a decomposition in float64: 20 products of that side in float32.
        seconds = (2 * larger * smaller**2 + 20 * smaller**3) / flops_per_second()
        reason = f"exact on the {side} side: {sizes} {limit}"
        return Plan(Exact(), reason, side, memory, 1, seconds)
    reason = f"block-CG on the {side} side: {sizes} more than {EXACT_SIDE:,}"
    width = max(leaf.dtype.itemsize for leaf in jax.tree.leaves(example.targets))
    memory = _held_numbers(side, parameters, outputs, example.design.out_size())
    chosen = Plan(BlockCG(), reason, side, memory * (num_samples + 1) * width)
    return chosen if key is None else _probed(chosen, data, prior, num_samples, key)


def followed(
    method: AbstractMethod | None, data: Data, prior: GaussianPrior | None, num_samples: int
) -> tuple[AbstractMethod, Plan | None]:
    """The caller's method, or the one of a plan, and the plan."""
    if method is not None:
        return method, None
    made = plan(data, prior, num_samples)
    return made.method, made


def _held_numbers(side: str, parameters: int, outputs: int, rows: int) -> int:
    """By block-CG at once, for every vector of a block: counted at its peaks.

    Args:
        side: of the blocks.
        parameters: d'.
        outputs: N.
        rows: of them in a batch.
    """
    if side == "dual":
        return 17 * outputs + 3 * parameters
    in_a_step, in_the_last_pass = 18 * parameters, 5 * parameters + 9 * rows // 2
    return max(in_a_step, in_the_last_pass)


@functools.cache
def flops_per_second() -> float:
    """Of a float32 matrix product on this machine's host."""
    matrix = np.ones((768, 768), np.float32)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        np.matmul(matrix, matrix)
        times.append(time.perf_counter() - start)
    return 2 * len(matrix) ** 3 / min(times)


def _probed(
    chosen: Plan, data: Data, prior: GaussianPrior | None, num_samples: int, key: Array
) -> Plan:
    """The plan with passes and seconds, where one α and one noise precision make a path."""
    prior = GaussianPrior.g_prior() if prior is None else prior
    data = at_prior_mean(data, prior)
    probe = BlockCG(max_passes=LOOKS).prepare(data, prior, num_samples=PROBES, key=key)
    assert isinstance(probe, BlockSystem)
    if not probe.has_path:
        return chosen
    if prior.alpha is None or probe.learn_noise:
        ratio = probe.path.strongest_signal(None if probe.learn_noise else 1.0)
    else:
        ratio = 1 / float(np.ravel(np.asarray(prior.alpha))[0])
    passes = _rehearsed(probe.path, ratio, num_samples)
    side = min(probe.model.factor.size, int(probe.model.sums.rank.sum()))
    step = 14 * side * (num_samples + 1) ** 2 / flops_per_second()
    return chosen._replace(
        passes=passes, seconds=(passes + 2) * (_pass_seconds(data, probe, num_samples) + step)
    )


def _rehearsed(path: EvidencePath, ratio: float, num_samples: int) -> int:
    """Passes of a solve with eigenvalues like those of a path."""
    values, counts = _spectrum(path)
    h = 1 + ratio * values
    draws = jax.random.normal(jax.random.key(0), (num_samples + 1, len(h)))
    rhs = draws * jnp.asarray(np.sqrt(h * counts), draws.dtype)
    rhs = rhs.at[-1].multiply(jnp.asarray(np.sqrt(ratio * values), draws.dtype))
    scale = jnp.asarray(h, draws.dtype)
    rule = PrimalRule(1 / (8 * num_samples))
    return block_cg(lambda x: scale * x, rhs, rule).progress.passes


def _spectrum(path: EvidencePath) -> tuple[Float[np.ndarray, " s"], Float[np.ndarray, " s"]]:
    """Eigenvalues, and how many each stands for: the largest one by one, then in geometric bins."""
    assert path.multiplicities is not None
    order = np.argsort(-path.eigenvalues)
    values, counts = path.eigenvalues[order], path.multiplicities.mean(0)[order]
    seen = values > 1e-9 * values.max(initial=0.0)
    values, counts = values[seen], counts[seen]
    if not len(values):
        return np.zeros(1), np.ones(1)
    ends = np.cumsum(counts)
    size = max(round(float(ends[-1])), 1)
    edges = np.arange(size + 1.0)
    if size > NODES:
        half = NODES // 2
        edges = np.concatenate([edges[:half], np.geomspace(half, size, half + 1)])
    ranks = np.sqrt(np.maximum(edges[:-1], 0.5) * edges[1:])
    middles = np.maximum(ends - counts / 2, 1e-3)
    logs = np.interp(np.log(ranks), np.log(middles), np.log(values))
    return np.exp(logs), np.diff(edges)


def _pass_seconds(data: Data, probe: BlockSystem, num_samples: int) -> float:
    """Of a product of all samples with all data, from the first batch; compiled before."""
    design = probe.model.design(np.ones(1), np.ones(1))
    block = jnp.zeros((num_samples + 1, probe.model.factor.size), design.scale.dtype)
    batch, seconds = next(iter(batches(data))), np.inf
    for _ in range(2):
        start = time.perf_counter()
        jax.block_until_ready(normal(batch, design, block))
        seconds = time.perf_counter() - start
    return seconds * num_outputs(data, example_batch(data)) / batch.observations().design.out_size()


def _bytes(count: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _seconds(count: float) -> str:
    return "less than a second" if count < 1 else f"about {count:,.0f} seconds"
