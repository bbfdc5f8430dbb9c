"""Several classes by their logits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from linmodels._arrays import is_traced, real_array, require_structure
from linmodels.likelihoods._likelihood import AbstractCurved
from linmodels.likelihoods._targets import curvature_floor, require_between

SUM_TOLERANCE = 1e-3
"""How far from 1 a row of soft labels may sum: rounding in half precision."""


class Categorical(AbstractCurved):
    """p = softmax(f) over the last axis of the outputs, the m ≥ 2 classes.

    Targets are class numbers 0 … m−1, shaped as the outputs without their last axis, or
    probabilities shaped as the outputs whose rows sum to 1: one-hot or soft labels.

    R v = √p ⊙ (v − pᵀv), of rank m − 1.

    >>> import jax, jax.numpy as jnp
    >>> Categorical().as_targets(jnp.array([1, 0]), jax.ShapeDtypeStruct((2, 2), jnp.float32))
    Array([[0., 1.],
           [1., 0.]], dtype=float32)
    """

    def __init__(self):  # for type checkers, which take abstract variables for fields
        pass

    @property
    def acts_by_entry(self) -> bool:
        """R mixes the classes."""
        return False

    def as_targets(self, targets: PyTree, structure: PyTree) -> PyTree[Float[Array, "..."]]:
        """Labels as probabilities; see `AbstractLikelihood.as_targets`.

        Raises:
            ValueError: one output or no class axis, labels that are no class or no integers, rows
                that are negative or do not sum to 1 (with the observation named).
        """
        require_structure(targets, structure, "targets", "the design's outputs")
        return jax.tree.map(_probabilities, targets, structure)

    def log_prob(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """Σ_c y_c log p_c of every observation, without the class axis."""
        one = lambda f, y: jnp.sum(y * jax.nn.log_softmax(f), axis=-1)
        return jax.tree.map(one, outputs, targets)

    def score(self, outputs: PyTree, targets: PyTree) -> PyTree:
        """y − p."""
        return jax.tree.map(lambda f, y: y - jax.nn.softmax(f), outputs, targets)

    def root_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """√p ⊙ (v − pᵀv)."""

        def one(f: Array, v: Array) -> Array:
            p = _floored(f)
            return jnp.sqrt(p) * (v - jnp.sum(p * v, axis=-1, keepdims=True))

        return jax.tree.map(one, outputs, vector)

    def root_transpose_product(self, outputs: PyTree, vector: PyTree) -> PyTree:
        """√p ⊙ u − p (√pᵀu)."""

        def one(f: Array, u: Array) -> Array:
            p = _floored(f)
            scaled = jnp.sqrt(p) * u
            return scaled - p * jnp.sum(scaled, axis=-1, keepdims=True)

        return jax.tree.map(one, outputs, vector)

    def pearson_residual(self, outputs: PyTree, score: PyTree) -> PyTree:
        """(y − p)/√p, the factor taken at `outputs`; Rᵀ of it is y − p, as that sums to 0."""
        return jax.tree.map(lambda f, s: s / jnp.sqrt(_floored(f)), outputs, score)

    def rank(self, outputs: PyTree) -> PyTree:
        """(m − 1)/m for every entry."""
        share = lambda f: jnp.full(f.shape, (f.shape[-1] - 1) / f.shape[-1], f.dtype)
        return jax.tree.map(share, outputs)

    def expected_targets(self, outputs: PyTree) -> PyTree:
        """softmax(f)."""
        return jax.tree.map(jax.nn.softmax, outputs)


def _floored(logits: Array) -> Array:
    return jnp.maximum(jax.nn.softmax(logits), curvature_floor(logits.dtype))


def _probabilities(targets: Any, outputs: Any) -> Array:
    """One leaf of labels or probabilities, as probabilities."""
    shape, dtype = tuple(outputs.shape), jax.dtypes.canonicalize_dtype(outputs.dtype)
    if len(shape) < 2 or shape[-1] < 2:
        raise ValueError(
            f"Categorical needs outputs whose last axis has at least 2 classes, got {shape}: use "
            "Bernoulli for one logit, and operators.multi_output for one design for all classes."
        )
    targets = targets if is_traced(targets) else np.asarray(targets)
    if targets.shape == shape[:-1]:
        return _one_hot(targets, shape[-1], dtype)
    if targets.shape != shape:
        raise ValueError(
            f"Categorical targets have shape {targets.shape}: give class numbers {shape[:-1]} or "
            f"probabilities {shape}."
        )
    rows = require_between(real_array(targets, "targets", dtype, kinds="biuf"), 0.0, 1.0, "targets")
    if is_traced(rows):
        sums = jnp.sum(rows, axis=-1, keepdims=True)
        return jnp.where(jnp.abs(sums - 1) <= SUM_TOLERANCE, rows / sums, jnp.nan)
    return jnp.asarray(_normalised(np.asarray(rows)))


def _one_hot(labels: Any, num_classes: int, dtype: Any) -> Array:
    if labels.dtype.kind not in "iu":
        raise ValueError(f"Class numbers must be integers, got {labels.dtype}: cast them.")
    if is_traced(labels):
        valid = (labels >= 0) & (labels < num_classes)
        return jnp.where(
            valid[..., None], jax.nn.one_hot(labels, num_classes, dtype=dtype), jnp.nan
        )
    bad = np.argwhere((labels < 0) | (labels >= num_classes))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"targets: observation {', '.join(map(str, where))} has the class {labels[where]}; "
            f"the design has outputs for the classes 0 … {num_classes - 1}."
        )
    return jnp.asarray(np.eye(num_classes, dtype=dtype)[labels])


def _normalised(rows: np.ndarray) -> np.ndarray:
    """Rows that sum to 1 up to rounding, to exactly 1."""
    sums = rows.sum(axis=-1, keepdims=True)
    bad = np.argwhere(np.abs(sums[..., 0] - 1) > SUM_TOLERANCE)
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        raise ValueError(
            f"targets: the probabilities of observation {', '.join(map(str, where))} sum to "
            f"{sums[where][0]:g}, not to 1."
        )
    return rows / sums
