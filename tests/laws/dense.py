"""The oracle: the posterior and the evidence by inverting matrices in NumPy's float64."""

from typing import NamedTuple

import numpy as np


class Answer(NamedTuple):
    """What an exact method must say about y = Φθ + η, η ~ N(0, B⁻¹), θ ~ N(0, A⁻¹)."""

    mean: np.ndarray
    covariance: np.ndarray
    """H⁻¹, H = A + ΦᵀBΦ"""
    precision: np.ndarray
    log_evidence: float
    dimension: np.ndarray
    """(d,) diagonal of H⁻¹M"""
    leverage: np.ndarray
    """(N,) diagonal of BΦH⁻¹Φᵀ"""
    square: np.ndarray
    """(N,) entries of r ⊙ Br, r = y − Φθ̄"""


def solve(design, targets, noise, prior, log_noise):
    """The posterior, and the evidence as likelihood × prior / posterior at the mean.

    `log_noise` is the log of the noise density's constant; a flat parameter (a zero row of the
    prior precision) has prior density 1.
    """
    information = design.T @ noise @ design
    precision = prior + information
    covariance = inverse(precision)
    mean = covariance @ (design.T @ noise @ targets)
    residual = targets - design @ mean
    log_likelihood = log_noise - 0.5 * residual @ noise @ residual
    log_prior = 0.5 * log_pseudo_determinant(prior / (2 * np.pi)) - 0.5 * mean @ prior @ mean
    log_posterior = 0.5 * log_pseudo_determinant(precision / (2 * np.pi))
    return Answer(
        mean=mean,
        covariance=covariance,
        precision=precision,
        log_evidence=log_likelihood + log_prior - log_posterior,
        dimension=np.diag(covariance @ information),
        leverage=np.diag(noise @ design @ covariance @ design.T),
        square=residual * (noise @ residual),
    )


def log_normal(residual, covariance):
    """log N(r; 0, C)."""
    sign, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    assert sign > 0
    return -0.5 * (log_determinant + residual @ np.linalg.solve(covariance, residual))


def inverse(matrix):
    """The inverse of a positive definite matrix, scaled to a unit diagonal on the way."""
    scale = np.sqrt(np.diag(matrix))
    return np.linalg.inv(matrix / np.outer(scale, scale)) / np.outer(scale, scale)


def log_pseudo_determinant(matrix):
    """log det over the rows that are not zero."""
    seen = np.diag(matrix) > 0
    scale = np.sqrt(np.diag(matrix)[seen])
    sign, value = np.linalg.slogdet(matrix[np.ix_(seen, seen)] / np.outer(scale, scale))
    assert sign > 0
    return value + 2 * np.log(scale).sum()


def root(matrix):
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
