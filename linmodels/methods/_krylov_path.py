"""The evidence at every α and noise precision from one block Krylov space."""

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float

from linmodels._products import WhitenedDesign
from linmodels.krylov import Ritz, RitzPairs, bidiagonalise
from linmodels.methods._evidence_path import EvidencePath
from linmodels.methods._matrix_free import MatrixFree

SHARE = 0.1
"""Share of the Monte Carlo error that the quadrature may still be off."""


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
    Gauss quadrature too much (Golub & Meurant 2010), so that both together tell how far off it is.

    Args:
        model: the data.
        design: W₀, flat columns projected out.
        rows: random probes u and, last, the targets v.
        noise_precision: β where it is known.
        max_passes: passes before stopping all the same.
    """
    forward, backward = partial(model.forward, design), partial(model.backward, design)
    settled = lambda ritz: _is_settled(path_of(model, ritz), noise_precision)
    ritz = bidiagonalise(forward, backward, rows, settled, max_passes=max_passes)
    done = ritz.exhausted or ritz.passes < max_passes or settled(ritz)
    assert ritz.pairs is not None
    return Explored(replace(path_of(model, ritz), settled=done), ritz.pairs)


def _is_settled(path: EvidencePath, noise_precision: float | None) -> bool:
    """Whether both quadratures agree on the maximum, to a share of the Monte Carlo error."""
    assert path.opposite is not None
    sides = replace(path, opposite=None), path.opposite
    ratios = [side.strongest_signal(noise_precision) for side in sides]
    one, other = (side.at(1.0, ratios[0]) for side in sides)
    return bool(
        abs(np.log(ratios[1] / ratios[0])) < 0.3
        and abs(one.log_evidence - other.log_evidence) <= SHARE * one.log_evidence_error
        and abs(one.effective_dimension - other.effective_dimension)
        <= SHARE * one.effective_dimension_error
    )


def path_of(model: MatrixFree, ritz: Ritz) -> EvidencePath:
    """The path of one α and one noise precision from Ritz values; the targets' lie among them."""
    gauss, radau = (
        EvidencePath(
            eigenvalues=quadrature.values,
            squares=quadrature.weights[-1],
            remainder=0.0,
            num_flat=len(model.flats.index),
            flat_log_determinant=float(np.linalg.slogdet(model.flats.gram(np.ones(1)))[1]),
            rank=float(model.sums.rank[0]),
            log_determinant=model.sums.log_determinant,
            multiplicities=quadrature.weights[:-1],
            passes=ritz.passes,
            limit=model.largest_dimension,
        )
        for quadrature in (ritz.gauss, ritz)
    )
    return replace(radau, opposite=gauss)
