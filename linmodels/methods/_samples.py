"""The evidence and its terms estimated from posterior deviations."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from linmodels._batches import Batch, batches
from linmodels._blocks import square_sums
from linmodels._products import WhitenedDesign, backward, forward
from linmodels.effective_dimension import Estimate, SampleNorms, combined
from linmodels.krylov import AbstractRoot, Recurrence, quadratic_forms, with_node_at_one
from linmodels.likelihoods import LOG_2PI
from linmodels.methods._matrix_free import MatrixFree, spread
from linmodels.methods._method import EvidenceTerms

_combined = eqx.filter_jit(combined)  # in one piece: twenty small compilations less

ROUNDING = 4
"""Spacings of the largest eigenvalue that rounding may make of none."""


class _Rows(NamedTuple):
    """Sums over rows at the solution, for every noise precision."""

    signal: Float[np.ndarray, "k C"]
    """‖Wx‖², flat parameters included"""
    noise: Float[np.ndarray, "k C"]
    """‖u − Wx‖²"""
    count: Float[np.ndarray, " C"]
    """rows"""
    residual: Float[np.ndarray, " C"]
    """‖v − Wx̄‖² at unit noise"""
    normal: Float[Array, "k r"] | None
    """√β W₀ᵀWx, where groups need it"""


def evidence_terms(
    model: MatrixFree,
    alpha: Float[np.ndarray, " L"],
    beta: Float[np.ndarray, " C"],
    x: Float[Array, "k1 r"],
    units: Float[Array, "k1 r"],
    log_determinant: Estimate,
) -> EvidenceTerms:
    """Terms of the evidence, in one pass over the data.

    Args:
        model: the data.
        alpha: α.
        beta: β.
        x: penalised coordinates of the deviations and, last, of the mean.
        units: the same at α = 1, with flat ones.
        log_determinant: of I + WᵀW.
    """
    sums, rows = model.sums, _row_sums(model, beta, units)
    num_flat = len(model.flats.index)
    norm = model.group_sums(np.asarray(x[-1], np.float64) ** 2)
    log_evidence = 0.5 * (
        sums.rank @ (np.log(beta) - LOG_2PI)
        + sums.log_determinant
        - beta @ rows.residual
        - norm.sum()
        - float(log_determinant.value)
        - np.linalg.slogdet(model.flats.gram(beta))[1]
        + num_flat * LOG_2PI
    )
    dimensions, errors, error = _group_dimensions(model, alpha, beta, x[:-1], rows)
    return EvidenceTerms(
        log_evidence,
        dimensions,
        norm,
        _shares(rows.signal, rows.noise, rows.count)[0],
        rows.residual,
        error,
        0.5 * float(log_determinant.standard_error),
        errors,
    )


def _row_sums(model: MatrixFree, beta: np.ndarray, units: Float[Array, "k1 r"]) -> _Rows:
    count, k = len(beta), model.num_samples
    signal, noise, rank, residual = (np.zeros(s) for s in ((count, k), (count, k), count, count))
    whole, shift = model.whole_design(beta), spread(model.flats, model.factor.size)
    shift, pulled = jnp.asarray(shift, units.dtype), None
    for batch in batches(model.data):
        seen = model.look(batch)
        products, part = _row_products(batch, whole, units, shift, pull=model.groups[1] > 1)
        pulled = part if pulled is None or part is None else pulled + part
        output, products = np.asarray(seen.output), np.asarray(products)
        signal += _square_sums(products[:-1], output, count)
        noise += _square_sums(np.asarray(seen.noise).T - products[:-1], output, count)
        rank += np.bincount(output, minlength=count)
        left = np.asarray(seen.targets, np.float64) - products[-1] / np.sqrt(beta)[output]
        residual += np.bincount(output, left**2, minlength=count)
    return _Rows(signal.T, noise.T, rank, residual, pulled)


def _square_sums(
    rows: Float[np.ndarray, "k N"], output: Int[np.ndarray, " N"], count: int
) -> Float[np.ndarray, "C k"]:
    """‖·‖² in float64 over the entries of every noise precision."""
    parts = [rows] if count == 1 else [rows[:, output == c] for c in range(count)]
    return np.stack([np.einsum("kn,kn->k", part, part, dtype=np.float64) for part in parts])


@eqx.filter_jit
def _row_products(
    batch: Batch, design: WhitenedDesign, units: Array, shift: Array, *, pull: bool
) -> tuple[Array, Array | None]:
    """√β W₀ of the deviations and of the mean + shift; and √β W₀ᵀ of those, deviations only."""
    products = forward(batch, design, units.at[-1].add(shift))
    return products, backward(batch, design, products[:-1]) if pull else None


def _shares(
    data: Float[np.ndarray, "k p"], rest: Float[np.ndarray, "k p"], size: Float[np.ndarray, " p"]
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
    """γ_p from draws of mean γ_p and of mean d_p − γ_p, and its standard error: d D/(D + R).

    To first order the control variate of `combined`, D + R with its coefficient γ/d. It changes
    smoothly with the hyperparameters, stays within [0, d], and has the relative precision of D
    where γ is small and of R where d − γ is.
    """
    count, total = len(data), data.sum(0) + rest.sum(0)
    share = np.clip(data.sum(0) / np.where(total > 0, total, 1), 0, 1)
    draws = data + share * (size - rest - data)
    spread = draws.std(0, ddof=1) if count > 1 else np.sqrt(2 * share * size)
    return share * size, spread / np.sqrt(count)


def _group_dimensions(
    model: MatrixFree, alpha: np.ndarray, beta: np.ndarray, x: Float[Array, "k r"], rows: _Rows
) -> tuple[Float[np.ndarray, " L"], Float[np.ndarray, " L"], float]:
    """γ_l of every group, their standard errors, and the one of their sum."""
    labels, _ = model.groups
    signal = jnp.asarray(rows.signal.sum(1) - len(model.flats.index))
    norms = SampleNorms(signal, square_sums(x), model.num_penalised, model.largest_dimension)
    total = _combined(norms)
    if rows.normal is None:
        value, error = float(total.value), float(total.standard_error)
        return np.array([value]), np.array([error]), error
    square = model.group_sums(np.asarray(x, np.float64) ** 2)
    design = model.design(alpha, beta)
    data = model.group_sums(np.asarray(x * design.pull(rows.normal), np.float64))
    sizes = model.group_sums(np.ones(len(labels)))
    return *_shares(data, square, sizes), float(total.standard_error)


def log_determinant_of(
    recurrence: Recurrence, size: int, root: AbstractRoot, epsilon: float
) -> Estimate:
    """log det H from the solve of Hx = g_j for g_j of covariance H and, last, the mean.

    gᵀH⁻¹log(H) g has mean log det H, and gᵀH⁻¹g, of known mean, takes most of its noise: the
    estimator `combined` with the eigenvalues' logarithms in place of their shrinkage. With a
    preconditioner the same holds of P^{-½}HP^{-½} and P^{-½}g, and log det P is added.

    Eigenvalues of M below `ROUNDING` spacings of the largest may be nothing but rounding, so what
    they add is in the error.

    Args:
        recurrence: of the solve, with the preconditioner folded in.
        size: side of H.
        root: P^{½}.
        epsilon: spacing of the dtype that the solve was done in.
    """
    smallest = 1 / root.largest

    def forms(h: Float[np.ndarray, " s"]) -> Float[np.ndarray, "s 3"]:
        inverse = 1 / np.maximum(h, smallest)
        doubtful = h <= smallest + ROUNDING * epsilon * h.max()
        excess = np.where(doubtful, -np.log(smallest * inverse), 0)
        return np.stack([-np.log(inverse) * inverse, inverse, excess * inverse], axis=1)

    logs, known, doubtful = quadratic_forms(recurrence, forms)[:-1].T
    draws = jnp.asarray(logs), jnp.asarray(known - logs)
    least = np.asarray(-root.log_determinant)  # an array: another one needs no compilation
    estimate = _combined(SampleNorms(*draws, size, np.inf, least))
    return Estimate(
        estimate.value + root.log_determinant, jnp.hypot(estimate.standard_error, doubtful.mean())
    )


def truncated_log_determinant(
    recurrence: Recurrence, size: int, root: AbstractRoot, epsilon: float
) -> Estimate:
    """The same where the solve was cut short: how far a quadrature with a node at 1 is off.

    That one (Gauss-Radau) takes what is left for nothing but prior, the other for more than it is.
    """
    gauss = log_determinant_of(recurrence, size, root, epsilon)
    radau = log_determinant_of(with_node_at_one(recurrence), size, root, epsilon)
    return Estimate(gauss.value, jnp.hypot(gauss.standard_error, radau.value - gauss.value))
