"""The oracle for other likelihoods: Newton's method on dense matrices in NumPy's float64."""

from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln, log_expit, log_softmax, softmax

from laws import dense


class Mode(NamedTuple):
    """Laplace's approximation, at the mode or with the curvature of elsewhere."""

    mean: np.ndarray
    precision: np.ndarray
    """H"""
    information: np.ndarray
    """M = ΦᵀBΦ"""
    log_evidence: float


def log_prob(kind, f, y):
    """Of every observation, (n,)."""
    if kind == "categorical":
        return np.sum(y * log_softmax(f, axis=1), axis=1)
    if kind == "bernoulli":
        return np.sum(y * log_expit(f) + (1 - y) * log_expit(-f), axis=1)
    return np.sum(y * f - np.exp(f) - gammaln(y + 1), axis=1)


def expected(kind, f):
    return {"categorical": lambda f: softmax(f, axis=1), "bernoulli": expit, "poisson": np.exp}[
        kind
    ](f)


def curvature(kind, f):
    """B_i of every observation, (n, m, m)."""
    p = expected(kind, f)
    variance = p * (1 - p) if kind == "bernoulli" else p
    blocks = variance[:, :, None] * np.eye(f.shape[1])
    return blocks - p[:, :, None] * p[:, None, :] if kind == "categorical" else blocks


def laplace(kind, design, targets, prior, *, offset, weights, mean, curvature_at=None):
    """The mode, its curvature and the evidence.

    Args:
        kind: of likelihood.
        design: (n, m, d).
        targets: (n, m).
        prior: the precision A, (d, d), zero rows where flat.
        offset: (n, m).
        weights: (n,).
        mean: of the prior, (d,).
        curvature_at: θ at which the curvature of H is taken.
    """
    outputs = lambda theta: offset + design @ theta
    value = lambda theta: (
        weights @ log_prob(kind, outputs(theta), targets)
        - 0.5 * (theta - mean) @ prior @ (theta - mean)
    )
    information = lambda theta: np.einsum(
        "n,nid,nij,nje->de", weights, design, curvature(kind, outputs(theta)), design
    )
    theta = mean.copy()
    for _ in range(200):
        left = targets - expected(kind, outputs(theta))
        gradient = np.einsum("n,ni,nid->d", weights, left, design) - prior @ (theta - mean)
        step = np.linalg.solve(prior + information(theta), gradient)
        length = 1.0
        while value(theta + length * step) < value(theta) - 1e-12 and length > 1e-9:
            length /= 2
        theta = theta + length * step
    m = information(theta if curvature_at is None else curvature_at)
    determinants = dense.log_pseudo_determinant(prior / (2 * np.pi))
    determinants -= dense.log_pseudo_determinant((prior + m) / (2 * np.pi))
    return Mode(theta, prior + m, m, value(theta) + 0.5 * determinants)
