"""The evidence at every α and noise precision from one block Krylov space."""

from dataclasses import replace
from functools import partial

import numpy as np
from jaxtyping import Array, Float

from linmodels._products import WhitenedDesign
from linmodels.krylov import Ritz, bidiagonalise
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._matrix_free import MatrixFree

SHARE = 0.1
"""Share of the Monte Carlo error that the quadrature may still be off."""


def krylov_path(
    model: MatrixFree,
    design: WhitenedDesign,
    rows: Float[Array, "p1 N"],
    *,
    noise_precision: float | None,
    max_passes: int,
) -> EvidencePath:
    """Bidiagonalises until the evidence at its maximum is known to a share of its noise.

    The weights that u puts on the eigenvalues of W₀W₀ᵀ are, over the mean, their multiplicities.
    Gauss quadrature of log and of λ/(λ + α) errs from below (Golub & Meurant 2010).

    Args:
        model: the data.
        design: W₀, flat columns projected out.
        rows: random probes u and, last, the targets v.
        noise_precision: β where it is known.
        max_passes: passes before stopping all the same.
    """
    monitor = _Monitor(model, noise_precision)
    forward, backward = partial(model.forward, design), partial(model.backward, design)
    ritz = bidiagonalise(forward, backward, rows, monitor.settled, max_passes=max_passes)
    settled = ritz.exhausted or ritz.passes < max_passes or monitor.settled(ritz)
    return replace(path_of(model, ritz), settled=settled)


class _Monitor:
    """Compares what the last Ritz values say at the maximum with what the ones before said."""

    def __init__(self, model: MatrixFree, noise_precision: float | None):
        self.model, self.noise_precision = model, noise_precision
        self.before = None

    def settled(self, ritz: Ritz) -> bool:
        path = path_of(self.model, ritz)
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


def path_of(model: MatrixFree, ritz: Ritz) -> EvidencePath:
    """The path of one α and one noise precision from Ritz values; the targets' lie among them."""
    return EvidencePath(
        eigenvalues=ritz.values,
        squares=ritz.weights[-1],
        remainder=0.0,
        num_flat=len(model.flats.index),
        flat_log_determinant=float(np.linalg.slogdet(model.flats.gram(np.ones(1)))[1]),
        rank=float(model.sums.rank[0]),
        log_determinant=model.sums.log_determinant,
        multiplicities=ritz.weights[:-1],
        passes=ritz.passes,
    )
