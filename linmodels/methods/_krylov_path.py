"""The evidence at every α and noise precision from one block Krylov space."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from linmodels.krylov import Ritz, block_lanczos
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._matrix_free import MatrixFree

NEGLIGIBLE = 100
"""Ritz values below this many spacings of the largest are rounding."""
SHARE = 0.1
"""Share of the Monte Carlo error that the quadrature may still be off."""


def krylov_path(
    model: MatrixFree,
    start: Float[Array, "p1 n"],
    product,
    *,
    dual: bool,
    noise_precision: float | None,
    max_passes: int,
) -> EvidencePath:
    """Runs block Lanczos until the evidence at its maximum is known to a share of its noise.

    From W₀ᵀu on the parameters' side, or u itself on the outputs': the weights that u puts on the
    eigenvalues of W₀W₀ᵀ are, over the mean, their multiplicities. Gauss quadrature of log and of
    λ/(λ + α) errs from below (Golub & Meurant 2010).

    Args:
        model: the data.
        start: random probes and, last, the targets.
        product: W₀ᵀW₀ or W₀W₀ᵀ, flat columns projected out.
        dual: whether the vectors are outputs.
        noise_precision: β where it is known.
        max_passes: products before stopping all the same.
    """
    monitor = _Monitor(model, dual, noise_precision)
    ritz = block_lanczos(product, start, monitor.settled, max_passes=max_passes)
    path = path_of(model, ritz, dual=dual)
    settled = ritz.exhausted or ritz.passes < max_passes or monitor.settled(ritz)
    return replace(path, settled=settled)


class _Monitor:
    """Compares what the last Ritz values say at the maximum with what the ones before said."""

    def __init__(self, model: MatrixFree, dual: bool, noise_precision: float | None):
        self.model, self.dual, self.noise_precision = model, dual, noise_precision
        self.before = None

    def settled(self, ritz: Ritz) -> bool:
        path = path_of(self.model, ritz, dual=self.dual)
        ratio = path.strongest_signal(self.noise_precision)
        before, self.before = self.before, (path, ratio)
        if before is None:
            return False
        old, new = (p.at(1.0, ratio) for p in (before[0], path))
        near = abs(np.log(before[1] / ratio)) < 0.3
        return bool(
            near
            and abs(new.log_evidence - old.log_evidence) <= SHARE * new.log_evidence_error
            and abs(new.effective_dimension - old.effective_dimension)
            <= SHARE * new.effective_dimension_error
        )


def path_of(model: MatrixFree, ritz: Ritz, *, dual: bool) -> EvidencePath:
    """The path of one α and one noise precision from Ritz values."""
    epsilon = float(jnp.finfo(model.sums.cross.dtype).eps)
    largest = ritz.values.max(initial=0.0)
    # f(λ)/λ has a limit at 0, so that rounding of small values does no harm to sums over probes.
    values = np.maximum(ritz.values, 1e-3 * epsilon * largest) if largest > 0 else ritz.values
    shares = ritz.weights if dual or largest == 0 else ritz.weights / values
    # Only where shares are quotients do small values make noise of them.
    kept = ritz.values > (0.0 if dual else NEGLIGIBLE * epsilon * largest)
    squares = np.where(kept, shares[-1], 0)
    # The outputs' measure adds up to ‖v‖²; that of the parameters lacks what W₀ᵀ annihilates.
    outside = ritz.weights[-1][~kept].sum() if dual else model.sums.square[0] - squares.sum()
    return EvidencePath(
        eigenvalues=values,
        squares=squares,
        remainder=max(float(outside), 0.0),
        num_flat=len(model.flats.index),
        flat_log_determinant=float(np.linalg.slogdet(model.flats.gram(np.ones(1)))[1]),
        rank=float(model.sums.rank[0]),
        log_determinant=model.sums.log_determinant,
        multiplicities=shares[:-1],
        passes=ritz.passes,
    )
