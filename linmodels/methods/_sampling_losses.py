"""The two losses whose minimisers are posterior deviations and the mean, as sums over batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels._batches import Batch, num_batches, shuffled_batches
from linmodels._blocks import square_sums
from linmodels._products import WhitenedDesign, backward, normal
from linmodels._whitening import entry_weights
from linmodels.descent import AbstractObjective, Term
from linmodels.methods._equations import Equations
from linmodels.methods._matrix_free import sum_of
from linmodels.methods._method import GradientVariances


class SamplingLoss(AbstractObjective):
    """½‖Wx − u‖² + ½‖x − c‖², W and u by batches; u is 0 where none is drawn.

    With c = z this is L, "noise in the fit" (Papandreou & Yuille, NeurIPS 2010); with c = z + Wᵀu
    and no u it is L′, "noise in the regulariser" (Antorán, Padhy et al., ICLR 2023, eqs. 7 and 8),
    in whitened coordinates.
    """

    centre: Float[Any, "k r"]
    penalised: Float[Any, " r"]
    design: WhitenedDesign

    def term(
        self,
        batch: Batch,
        drawn: Float[Array, "k N"] | None,
        x: Float[Array, "k r"],
        probe: Float[Array, "1 r"],
    ) -> Term:
        """½‖W_b x − u_b‖² and its gradient; the probe goes along in the same products."""
        data = batch.observations()
        products = self.design.product(data, jnp.concatenate([x, probe]))
        left = products[:-1]
        if drawn is not None:  # padding has noise, too
            left = left - jnp.where(entry_weights(data) > 0, drawn, 0)
        pulled = self.design.transpose_product(data, jnp.concatenate([left, products[-1:]]))
        return Term(square_sums(left) / 2, pulled[:-1], pulled[-1:])


class Loss(NamedTuple):
    """A loss, and what draws noise for its batches outside jit."""

    objective: SamplingLoss
    drawn: Callable[[Batch], Float[Array, "k N"]] | None


def noise_in_regulariser(equations: Equations) -> Loss:
    """L′ of all deviations and the mean, whose targets are v."""
    return Loss(SamplingLoss(equations.rhs, _penalised(equations), equations.design), None)


def noise_in_fit(equations: Equations) -> Loss:
    """L of all deviations and the mean."""
    objective = SamplingLoss(equations.base, _penalised(equations), equations.design)
    return Loss(objective, equations.model.rows_by_batch(equations.at.beta))


def _penalised(equations: Equations) -> Float[Array, " r"]:
    return jnp.asarray(~equations.model.flat, equations.base.dtype)


def gradient_variances(
    equations: Equations, x: Float[Array, "k1 r"], generator: np.random.Generator
) -> GradientVariances:
    """Of either loss over minibatches at x, in one pass over the data.

    With M_b = W_bᵀW_b, q_b = W_bᵀu_b and n_b batches, gradients of one batch n_b M_b x + … (L′) and
    n_b (M_b x − q_b) + … (L) have variances n_b Σ‖M_b x‖² − ‖Mx‖² and the like. Where
    x = H⁻¹(z + Wᵀu), those of L exceed those of L′ by (n_b − 1) tr M − 2 (n_b Σ‖M_b x‖² − ‖Mx‖²)
    in expectation: for single rows n tr M − 2n Σ tr M_i H⁻¹M_i.
    """
    model, count = equations.model, num_batches(equations.model.data)
    noise = model.rows_by_batch(equations.at.beta)
    sums = sum_of(
        _gradients(batch, equations.design, x[:-1], noise(batch)[:-1])
        for batch in shuffled_batches(model.data, generator)
    )
    squares = jax.tree.map(lambda v: np.asarray(v, np.float64), sums.squares)
    whole = [square_sums(total) for total in (sums.pulled, sums.pulled - sums.noise)]
    # What rounding leaves of none is no variance.
    variance = lambda each, total: max(float(np.mean(count * each - np.asarray(total))), 0.0)
    regulariser, in_fit = variance(squares[0], whole[0]), variance(squares[1], whole[1])
    predicted = (count - 1) * float(squares[2].mean()) - 2 * regulariser
    return GradientVariances(in_fit, regulariser, predicted)


class _Gradients(NamedTuple):
    """Sums over batches."""

    pulled: Float[Array, "k r"]
    """M_b x"""
    noise: Float[Array, "k r"]
    """q_b"""
    squares: tuple[Float[Array, " k"], ...]
    """‖M_b x‖², ‖M_b x − q_b‖², ‖q_b‖²"""


def _gradients(
    batch: Batch, design: WhitenedDesign, x: Float[Array, "k r"], rows: Float[Array, "k N"]
) -> _Gradients:
    pulled, noise = normal(batch, design, x), backward(batch, design, rows)
    return _Gradients(pulled, noise, tuple(map(square_sums, (pulled, pulled - noise, noise))))
