"""The evidence at every α and noise precision from one block Krylov space."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from linmodels._products import WhitenedDesign
from linmodels.krylov import Quadrature, Ritz, RitzPairs, bidiagonalise
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._matrix_free import MatrixFree

SHARE = 1.0
"""Share of the Monte Carlo error by which the quadratures may be off their mean, which itself is
some five times nearer."""


class Explored(NamedTuple):
    """What a Krylov space of W₀ has told."""

    path: EvidencePath
    pairs: RitzPairs
    """of the shorter side, at α = 1 and unit noise"""


def krylov_path(
    model: MatrixFree,
    design: WhitenedDesign,
    rows: Float[Array, "p1 N"],
    *,
    noise_precision: float | None,
    max_passes: int,
) -> Explored:
    """Bidiagonalises until the evidence at its maximum is known to a share of its noise.

    The weights that u puts on the eigenvalues of W₀W₀ᵀ are, over the mean, their multiplicities.
    Of log(1 + ρλ) and ρλ/(1 + ρλ) Gauss-Radau quadrature with a node at 0 takes too little and
    Gauss quadrature too much (Golub & Meurant 2010), by nearly the same: their mean is the path,
    and how far they are off it the error.

    Args:
        model: the data.
        design: W₀, flat columns projected out.
        rows: random probes u and, last, the targets v.
        noise_precision: β where it is known.
        max_passes: passes before stopping all the same.
    """
    forward, backward = partial(model.forward, design), partial(model.backward, design)
    count = int((rows[:-1] != 0).any(0).sum())  # without rows of weight 0
    settled = lambda ritz: _is_settled(path_of(model, ritz, count), noise_precision)
    ritz = bidiagonalise(forward, backward, rows, settled, max_passes=max_passes)
    done = ritz.exhausted or ritz.passes < max_passes or settled(ritz)
    assert ritz.pairs is not None
    return Explored(replace(path_of(model, ritz, count), settled=done), ritz.pairs)


def _is_settled(path: EvidencePath, noise_precision: float | None) -> bool:
    """Whether the quadratures agree on the maximum, to a share of the Monte Carlo error."""
    assert path.coarser is not None
    one, other = replace(path, coarser=None), path.coarser
    at, elsewhere = one.maximum(noise_precision), other.maximum(noise_precision)
    if not at[1] > 0:  # flat parameters fit the targets: nothing is left to learn from
        return True
    mean, gauss = one.at(*at), other.at(*at)
    moved = np.log(at[1] / at[0]) - np.log(elsewhere[1] / elsewhere[0])
    return bool(
        abs(moved) < 0.3
        and abs(mean.log_evidence - gauss.log_evidence) <= SHARE * mean.log_evidence_error
        and abs(mean.effective_dimension - gauss.effective_dimension)
        <= SHARE * mean.effective_dimension_error
    )


def path_of(model: MatrixFree, ritz: Ritz, count: int) -> EvidencePath:
    """The path of one α and one noise precision from Ritz values; the targets' lie among them.

    Probes u are scaled to ‖u‖² = `count`, the number of their entries: uᵀf(WWᵀ)u is unbiased on
    the sphere, too, and has no noise from the mean of f.
    """
    values = np.concatenate([ritz.gauss.values, ritz.values])
    weights = np.concatenate([ritz.gauss.weights, ritz.weights], axis=1) / 2
    scale = count / weights[:-1].sum(1, keepdims=True)
    mean, gauss = (
        EvidencePath(
            eigenvalues=quadrature.values,
            squares=quadrature.weights[-1],
            remainder=0.0,
            num_flat=len(model.flats.index),
            flat_log_determinant=float(np.linalg.slogdet(model.flats.gram(np.ones(1)))[1]),
            rank=float(model.sums.rank[0]),
            log_determinant=model.sums.log_determinant,
            multiplicities=quadrature.weights[:-1] * scale,
            passes=ritz.passes,
            limit=model.largest_dimension,
        )
        for quadrature in (Quadrature(values, weights), ritz.gauss)
    )
    return replace(mean, coarser=gauss)
