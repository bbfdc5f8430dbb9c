"""What a preconditioner may look at: WᵀW or WWᵀ, from all batches or from some of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._arrays import size_of
from linmodels._batches import Batch, Data, batches, example_batch, num_batches
from linmodels._products import WhitenedDesign, backward, normal
from linmodels.krylov import (
    OVERSAMPLING,
    AbstractPreconditioner,
    Eigenpairs,
    Known,
    Sketchable,
    nystrom_eigenpairs,
)
from linmodels.methods._matrix_free import MatrixFree, sum_of

AT_ONCE = 64
"""Vectors that pass through a batch together: the memory of as many samples."""
SKETCHED = 320
"""Vectors of the sketch that serves every α, of which all but `OVERSAMPLING` become eigenpairs."""
CARRIED_ENTRIES = 2**26
"""Most entries that it has, fewer vectors where there are more parameters: 256 MiB in float32."""


def require_batches(preconditioner: AbstractPreconditioner | None, data: Data, *, dual: bool):
    """Refuses a look at batches that are not there.

    Raises:
        ValueError: more batches than the data have, or some of them on the dual side, whose
            vectors span all.
    """
    if preconditioner is None or preconditioner.batches is None:
        return
    if dual:
        raise ValueError(
            f"batches={preconditioner.batches} of a preconditioner needs the primal side: on the "
            'dual one vectors span all batches. Give batches=None, or BlockCG(side="primal").'
        )
    if preconditioner.batches > num_batches(data):
        raise ValueError(
            f"The preconditioner is to look at {preconditioner.batches} batches of "
            f"{num_batches(data)}: give batches=None for all."
        )


def sketchable(
    model: MatrixFree,
    design: WhitenedDesign,
    count: int | None,
    *,
    dual: bool,
    at_once: int = AT_ONCE,
) -> Sketchable:
    """WWᵀ (dual), or WᵀW estimated from `count` batches: their sum times all over `count`."""
    if dual:
        return _dual(model, design)
    total = num_batches(model.data)
    count = total if count is None else count
    chosen = [number * total // count for number in range(count)]
    scale = total / len(chosen)

    def product(x: Float[Array, "k r"]) -> Float[Array, "k r"]:
        return scale * sum_of(_normal(b, design, x, at_once) for b in batches(model.data, chosen))

    def probes(number: int, key: Array) -> Float[Array, "p r"]:
        rows = _num_rows(model.data)
        signs = lambda index: _signs(jax.random.fold_in(key, index), (number, rows), model)
        parts = zip(batches(model.data, chosen), chosen, strict=True)
        return np.sqrt(scale) * sum_of(backward(b, design, signs(index)) for b, index in parts)

    dtype = model.sums.cross.dtype
    return Sketchable(model.factor.size, dtype, product, probes, len(chosen) / total)


def _normal(
    batch: Batch, design: WhitenedDesign, x: Float[Array, "p r"], at_once: int
) -> Float[Array, "p r"]:
    """WᵀWx, a few vectors after the others."""
    parts = jnp.array_split(x, -(-len(x) // at_once))
    return jnp.concatenate([normal(batch, design, part) for part in parts])


class Carried(eqx.Module):
    """The largest eigenpairs of WᵀW at some α, which precondition at any other.

    With S = diag(s), s² the ratios of the one α to the other, SWᵀWS is as well known. One of a
    curvature that has not moved far serves as well, such as at other ratios of several β.
    """

    scale: Float[Array, " r"]
    """`strength` where they were found"""
    pairs: Eigenpairs

    def at(self, scale: Float[Array, " r"]) -> Known:
        """P at another `strength`."""
        safe = jnp.where(self.scale > 0, self.scale, 1)
        return Known(known=self.pairs.rescaled(scale / safe).root(), whole=False)


def strength(design: WhitenedDesign) -> Float[Array, " r"]:
    """√β α^{-½} of every coordinate, of several β their geometric mean; 0 at flat ones."""
    return design.scale * jnp.exp(jnp.mean(jnp.log(design.beta)) / 2)


def carried(
    model: MatrixFree,
    information: Float[np.ndarray, " L"],
    beta: Float[np.ndarray, " C"],
    *,
    key: Array,
) -> Carried | None:
    """From one pass over the data, at the α where a parameter of any group has as much to tell.

    None where there is room for no more pairs than a block of samples finds by itself.

    Args:
        model: the data.
        information: tr W₀ᵀBW₀ of every group.
        beta: β there.
        key: of the sketch.
    """
    size = model.factor.size
    rank = min(SKETCHED, CARRIED_ENTRIES // size) - OVERSAMPLING
    if rank <= model.num_samples:
        return None
    count = model.group_sums(np.ones(size))
    seen = (information > 0) & (count > 0)
    alpha = np.divide(information, count, out=np.ones(len(count)), where=seen)
    design = model.design(alpha, beta)
    at_once = min(AT_ONCE, model.num_samples + 1)  # no more memory than the samples take
    operator = sketchable(model, design, None, dual=False, at_once=at_once)
    return Carried(strength(design), nystrom_eigenpairs(operator, rank, key=key))


def _dual(model: MatrixFree, design: WhitenedDesign) -> Sketchable:
    def probes(number: int, key: Array) -> Float[Array, "p N"]:
        return model.forward(design, _signs(key, (number, model.factor.size), model))

    size = _num_rows(model.data) * num_batches(model.data)
    product = lambda rows: model.outward(design, rows)
    return Sketchable(size, model.sums.cross.dtype, product, probes, 1.0)


def _signs(key: Array, shape: tuple[int, int], model: MatrixFree) -> Float[Array, "p n"]:
    return jax.random.rademacher(key, shape, model.sums.cross.dtype)


def _num_rows(data: Data) -> int:
    """Outputs of a batch, ravelled."""
    return size_of(example_batch(data).targets)
