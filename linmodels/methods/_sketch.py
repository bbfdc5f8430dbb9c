"""What a preconditioner may look at: WᵀW or WWᵀ, from all batches or from some of them."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._arrays import size_of
from linmodels._batches import Data, batches, example_batch, num_batches
from linmodels._products import WhitenedDesign, backward, normal
from linmodels.krylov import (
    OVERSAMPLING,
    AbstractPreconditioner,
    AbstractRoot,
    Eigenpairs,
    Known,
    Sketchable,
    nystrom_eigenpairs,
)
from linmodels.methods._matrix_free import MatrixFree, sum_of

AT_ONCE = 64
"""Vectors that pass through a batch together: the memory of as many samples."""
SKETCHED = 320
"""Vectors of a sketch where none was asked for; all but `OVERSAMPLING` become eigenpairs."""
PATIENCE = 2
"""Products that a solve may take, relative to those of a sketch, before it gets one."""
STRONG = 0.05
"""ε‖H‖ from which rounding may hide the smallest eigenvalues, 1, so that a solve has no end."""
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
    at_once: int | None = None,
) -> Sketchable:
    """WWᵀ (dual), or WᵀW estimated from `count` batches: their sum times all over `count`.

    Args:
        model: the data.
        design: W.
        count: of batches; all where None.
        dual: which of the two.
        at_once: vectors that pass through together; `AT_ONCE`, on the dual side all, where None.
    """
    if dual:
        return _dual(model, design, at_once)
    total = num_batches(model.data)
    count = total if count is None else count
    chosen = [number * total // count for number in range(count)]
    scale = total / len(chosen)

    def product(x: Float[Array, "k r"]) -> Float[Array, "k r"]:
        most = at_once or AT_ONCE
        one = lambda batch: _in_parts(lambda part: normal(batch, design, part), x, most)
        return scale * sum_of(one(batch) for batch in batches(model.data, chosen))

    def probes(number: int, key: Array) -> Float[Array, "p r"]:
        rows = _num_rows(model.data)
        signs = lambda index: _signs(jax.random.fold_in(key, index), (number, rows), model)
        parts = zip(batches(model.data, chosen), chosen, strict=True)
        return np.sqrt(scale) * sum_of(backward(b, design, signs(index)) for b, index in parts)

    dtype = model.sums.cross.dtype
    return Sketchable(model.factor.size, dtype, product, probes, len(chosen) / total)


def _in_parts(
    product: Callable[[Array], Array], x: Float[Array, "p r"], at_once: int
) -> Float[Array, "p r"]:
    """A product with a few vectors after the others."""
    return jnp.concatenate([product(part) for part in jnp.array_split(x, -(-len(x) // at_once))])


def _rank(model: MatrixFree, size: int) -> int:
    """Of a sketch where none was asked for: as many directions as there is room for.

    0 where that is no more than a block of samples finds by itself.
    """
    rank = min(SKETCHED, CARRIED_ENTRIES // size) - OVERSAMPLING
    return rank if rank > model.num_samples else 0


def _num_vectors(rank: int, size: int) -> int:
    """Of a sketch of this rank."""
    return min(rank + OVERSAMPLING, size)


def patience(model: MatrixFree, size: int, largest: float) -> float:
    """Passes that a solve may take without a sketch; infinite where there is no room for one.

    Args:
        model: the data.
        size: of a vector.
        largest: eigenvalue of H.
    """
    rank, strong = _rank(model, size), float(jnp.finfo(model.sums.cross.dtype).eps) * largest
    each = -(-_num_vectors(rank, size) // (model.num_samples + 1))
    return float(PATIENCE * each) if rank and strong >= STRONG else np.inf


def sketched_root(
    model: MatrixFree, design: WhitenedDesign, *, dual: bool, key: Array
) -> tuple[AbstractRoot, int]:
    """P^{½}, and the passes over the data that it takes.

    One of rows; on the dual side, where vectors span all batches, as many as blocks of
    `CARRIED_ENTRIES` numbers need.
    """
    at_once = _at_once(model)
    if dual:
        at_once = max(at_once, CARRIED_ENTRIES // model.factor.size)
    operator = sketchable(model, design, None, dual=dual, at_once=at_once)
    rank = _rank(model, operator.size)
    count = _num_vectors(rank, operator.size)
    root = nystrom_eigenpairs(operator, rank, key=key).root()
    return root, -(-count // at_once) if dual else 1


def _at_once(model: MatrixFree) -> int:
    """Vectors, whose products take no more memory than the samples'."""
    return min(AT_ONCE, model.num_samples + 1)


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

    None where there is no room for one.

    Args:
        model: the data.
        information: tr W₀ᵀBW₀ of every group.
        beta: β there.
        key: of the sketch.
    """
    rank = _rank(model, model.factor.size)
    if not rank:
        return None
    count = model.group_sums(np.ones(model.factor.size))
    seen = (information > 0) & (count > 0)
    alpha = np.divide(information, count, out=np.ones(len(count)), where=seen)
    design = model.design(alpha, beta)
    operator = sketchable(model, design, None, dual=False, at_once=_at_once(model))
    return Carried(strength(design), nystrom_eigenpairs(operator, rank, key=key))


def _dual(model: MatrixFree, design: WhitenedDesign, at_once: int | None) -> Sketchable:
    def probes(number: int, key: Array) -> Float[Array, "p N"]:
        return model.forward(design, _signs(key, (number, model.factor.size), model))

    size = _num_rows(model.data) * num_batches(model.data)
    outward = lambda rows: model.outward(design, rows)
    product = lambda rows: _in_parts(outward, rows, at_once or len(rows))
    return Sketchable(size, model.sums.cross.dtype, product, probes, 1.0)


def _signs(key: Array, shape: tuple[int, int], model: MatrixFree) -> Float[Array, "p n"]:
    return jax.random.rademacher(key, shape, model.sums.cross.dtype)


def _num_rows(data: Data) -> int:
    """Outputs of a batch, ravelled."""
    return size_of(example_batch(data).targets)
