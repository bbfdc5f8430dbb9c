"""The two losses whose minimisers are posterior deviations and the mean, as sums over batches."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._blocks import square_sums
from linmodels._observations import Batch, num_batches, shuffled_batches
from linmodels._products import WhitenedDesign, look_at_rows
from linmodels.descent import AbstractObjective, Term
from linmodels.methods._equations import Equations
from linmodels.methods._matrix_free import MatrixFree, spread, sum_of
from linmodels.methods._method import GradientVariances


class NoiseInRegulariser(AbstractObjective):
    """L′(x) = ½‖Wx‖² + ½‖x − (z + Wᵀu)‖²: all noise is in the term that is known exactly.

    ??? cite
        Antorán, Padhy et al. (ICLR 2023), eq. 8, in whitened coordinates.
    """

    centre: Float[Any, "k r"]
    """z + Wᵀu and, last, Wᵀv"""
    penalised: Float[Any, " r"]
    design: WhitenedDesign

    def drawn(self, batch: Batch) -> None:
        """Nothing."""

    def term(
        self, batch: Batch, drawn: PyTree, x: Float[Array, "k r"], probe: Float[Array, "1 r"]
    ) -> Term:
        """½‖W_b x‖² and its gradient."""
        return _quadratic(self.design, batch, jnp.zeros((), x.dtype), x, probe)

    def of(self, columns: Sequence[int]) -> "NoiseInRegulariser":
        """The same for some of the vectors."""
        return eqx.tree_at(lambda o: o.centre, self, self.centre[np.asarray(columns)])


class NoiseInFit(AbstractObjective):
    """L(x) = ½‖Wx − u‖² + ½‖x − z‖²: the data fit noise.

    ??? cite
        Papandreou & Yuille (NeurIPS 2010); Antorán, Padhy et al. (ICLR 2023), eq. 7.
    """

    centre: Float[Any, "k r"]
    """z and, last, 0"""
    penalised: Float[Any, " r"]
    design: WhitenedDesign
    model: MatrixFree
    columns: tuple[int, ...]

    def drawn(self, batch: Batch) -> Float[Array, "k N"]:
        """u and, last, √β v of the batch."""
        return self.rows(batch)[np.asarray(self.columns)]

    def rows(self, batch: Batch) -> Float[Array, "k1 N"]:
        """The same for all deviations and the mean."""
        model = self.model
        whole = model.whole_design(np.asarray(self.design.beta))
        shift = None
        if len(model.flats.index):
            shift = jnp.asarray(spread(model.flats, model.factor.size)[None], self.centre.dtype)
        return look_at_rows(batch, whole, shift, model.look(batch))

    def term(
        self, batch: Batch, drawn: PyTree, x: Float[Array, "k r"], probe: Float[Array, "1 r"]
    ) -> Term:
        """½‖W_b x − u_b‖² and its gradient."""
        return _quadratic(self.design, batch, drawn, x, probe)

    def of(self, columns: Sequence[int]) -> "NoiseInFit":
        """The same for some of the vectors."""
        chosen = tuple(self.columns[column] for column in columns)
        centre = self.centre[np.asarray(columns)]
        return NoiseInFit(centre, self.penalised, self.design, self.model, chosen)


def noise_in_regulariser(equations: Equations) -> NoiseInRegulariser:
    """L′ of all deviations and the mean."""
    return NoiseInRegulariser(equations.rhs, _penalised(equations), equations.design)


def noise_in_fit(equations: Equations) -> NoiseInFit:
    """L of all deviations and the mean."""
    columns = tuple(range(len(equations.draws)))
    known = equations.design, equations.model, columns
    return NoiseInFit(equations.draws, _penalised(equations), *known)


def _penalised(equations: Equations) -> Float[Array, " r"]:
    return jnp.asarray(~equations.model.flat, equations.draws.dtype)


def _quadratic(design: WhitenedDesign, batch: Batch, rows: Array, x: Array, probe: Array) -> Term:
    """½‖W_b x − rows‖² of every vector; the probe goes along in the same products."""
    data = batch.observations()
    products = design.product(data, jnp.concatenate([x, probe]))
    left = products[:-1] - rows
    pulled = design.transpose_product(data, jnp.concatenate([left, products[-1:]]))
    return Term(square_sums(left) / 2, pulled[:-1], pulled[-1:])


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
    fit = noise_in_fit(equations).of(range(model.num_samples))
    sums = sum_of(
        _gradients(batch, fit.design, x[:-1], fit.drawn(batch))
        for batch in shuffled_batches(model.data, generator)
    )
    squares = jax.tree.map(lambda v: np.asarray(v, np.float64), sums.squares)
    whole = [square_sums(total) for total in (sums.pulled, sums.pulled - sums.noise)]
    variance = lambda each, total: float(np.mean(count * each - np.asarray(total, np.float64)))
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


@eqx.filter_jit
def _gradients(batch: Batch, design: WhitenedDesign, x: Array, rows: Array) -> _Gradients:
    data = batch.observations()
    pulled = design.transpose_product(data, design.product(data, x))
    noise = design.transpose_product(data, rows)
    return _Gradients(pulled, noise, tuple(map(square_sums, (pulled, pulled - noise, noise))))
