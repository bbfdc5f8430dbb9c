"""What a preconditioner may look at: WᵀW or WWᵀ, from all batches or from some of them."""

import jax
import numpy as np
from jaxtyping import Array, Float

from linmodels._arrays import size_of
from linmodels._observations import Data, batches, example_batch, num_batches
from linmodels._products import WhitenedDesign, backward, normal
from linmodels.krylov import AbstractPreconditioner, Sketchable
from linmodels.methods._matrix_free import MatrixFree, sum_of


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
    model: MatrixFree, design: WhitenedDesign, count: int | None, *, dual: bool
) -> Sketchable:
    """WWᵀ (dual), or WᵀW estimated from `count` batches: their sum times all over `count`."""
    if dual:
        return _dual(model, design)
    total = num_batches(model.data)
    count = total if count is None else count
    chosen = [number * total // count for number in range(count)]
    scale = total / len(chosen)

    def product(x: Float[Array, "k r"]) -> Float[Array, "k r"]:
        return scale * sum_of(normal(batch, design, x) for batch in batches(model.data, chosen))

    def probes(number: int, key: Array) -> Float[Array, "p r"]:
        rows = _num_rows(model.data)
        signs = lambda index: _signs(jax.random.fold_in(key, index), (number, rows), model)
        parts = zip(batches(model.data, chosen), chosen, strict=True)
        return np.sqrt(scale) * sum_of(backward(b, design, signs(index)) for b, index in parts)

    dtype = model.sums.cross.dtype
    return Sketchable(model.factor.size, dtype, product, probes, len(chosen) / total)


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
