"""The way between parameters θ and the prior's coordinates x, θ − μ = F α^{-½} x."""

import equinox as eqx
import jax
import lineax as lx
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from linmodels._priors import GaussianPrior
from linmodels.methods._dense import scale_rows
from linmodels.methods._method import Scales
from linmodels.methods._moments import Shift


class ParameterMap(eqx.Module):
    """F, flat parameters and groups as NumPy arrays."""

    structure: PyTree = eqx.field(static=True)
    root: Float[np.ndarray, "..."] | None
    flat: Bool[np.ndarray, " r"]
    group: Int[np.ndarray, " r"]
    num_groups: int = eqx.field(static=True)

    @property
    def epsilon(self) -> float:
        """Spacing of the parameters' dtype."""
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(self.structure)]
        return float(max(np.finfo(dtype).eps for dtype in dtypes))

    def scale(self, alpha: Float[np.ndarray, " L"]) -> Float[np.ndarray, " r"]:
        """α^{-½} of every coordinate's group; 1 for flat ones."""
        return np.where(self.flat, 1.0, alpha[self.group] ** -0.5)

    def group_sums(self, values: Float[np.ndarray, " p"]) -> Float[np.ndarray, " L"]:
        """Sums over the penalised coordinates of each group."""
        sums = np.bincount(self.group[~self.flat], values, minlength=self.num_groups)
        return sums.astype(np.float64)

    @property
    def group_sizes(self) -> Float[np.ndarray, " L"]:
        """Number of penalised coordinates in each group."""
        return self.group_sums(np.ones(int((~self.flat).sum())))

    def pull(self, values: Float[np.ndarray, "d ..."]) -> Float[np.ndarray, "r ..."]:
        """Fᵀ times parameters' cofactors (sums such as ΦᵀBy)."""
        if self.root is None:
            return values
        if self.root.ndim == 2:
            return self.root.T @ values
        return scale_rows(self.root, values)

    def push(
        self, coordinates: Float[np.ndarray, "r ..."], shift: Shift, *, centred: bool
    ) -> Float[np.ndarray, "d ..."]:
        """θ − μ from coordinates that are already scaled by α^{-½}."""
        if self.root is None:
            parameters = coordinates
        elif self.root.ndim == 2:
            parameters = self.root @ coordinates
        else:
            parameters = scale_rows(self.root, coordinates)
        return shift.restore(parameters, centred=centred)


def as_operator(units: Float[Array, "d ..."]) -> lx.AbstractLinearOperator:
    """A diagonal given as a vector, or a matrix, as an operator."""
    return lx.MatrixLinearOperator(units) if units.ndim == 2 else lx.DiagonalLinearOperator(units)


def parameter_map(prior: GaussianPrior, structure: PyTree) -> ParameterMap:
    """Reads F, flat parameters and groups off a settled prior.

    Raises:
        ValueError: they do not fit the parameters.
    """
    root = prior.root(structure)
    root = None if root is None else np.asarray(root, np.float64)
    flat = prior.flat_mask(structure)
    group, num_groups = prior.group_labels(structure)
    if root is not None and root.ndim == 2:
        flat, group = np.zeros(root.shape[1], bool), np.zeros(root.shape[1], int)
    if root is not None and root.ndim == 1:
        root = np.where(flat, 1.0, root)
    return ParameterMap(structure, root, flat, group, num_groups)


ROUNDING = 64 * np.finfo(float).eps
"""Residual sums of squares below this, relative to those of the targets, are rounding."""


def known_residual(
    residual: Float[np.ndarray, "..."] | float, square: Float[np.ndarray, "..."] | float
) -> Float[np.ndarray, "..."]:
    """A residual sum of squares from moments; 0 where it is rounding of the targets'."""
    return np.where(residual > ROUNDING * np.asarray(square), residual, 0.0)


def noise_caps(
    rank: Float[np.ndarray, " C"],
    square: Float[np.ndarray, " C"],
    raw_square: Float[np.ndarray, " C"],
    epsilon: float,
) -> Float[np.ndarray, " C"]:
    """Noise precisions beyond which the residuals are rounding of the targets.

    The residual sum of squares is known to 64 float64 spacings of the centred squares, and to the
    square of the targets' own spacing.

    Args:
        rank: observed entries, for each noise precision.
        square: Σ b₀ y² of the targets, centred on the flat columns.
        raw_square: the same before centring.
        epsilon: spacing of the targets' dtype.
    """
    floor = np.maximum(max(epsilon**1.5, ROUNDING) * square, epsilon**2 / 16 * raw_square)
    return np.maximum(rank, 1) / np.where(floor > 0, floor, 1.0)


def scales_of(
    information: Float[np.ndarray, " L"],
    size: Float[np.ndarray, " L"],
    rank: Float[np.ndarray, " C"],
    square: Float[np.ndarray, " C"],
    raw_square: Float[np.ndarray, " C"],
    epsilon: float,
) -> Scales:
    """Starts and caps from what the data say about each group and from the targets' squares.

    Args:
        information: tr (F₀ᵀΦᵀB₀ΦF₀)_ll, flat columns projected out.
        size: number of penalised parameters.
        rank: as for `noise_caps`.
        square: as for `noise_caps`.
        raw_square: as for `noise_caps`.
        epsilon: as for `noise_caps`.
    """
    caps = noise_caps(rank, square, raw_square, epsilon)
    total = max(square.sum(), rank.sum() / caps.max()) or 1.0
    return Scales(
        alpha=information / total,
        noise_precision=np.minimum(rank / np.maximum(square, 1e-300), caps),
        information=information,
        size=size,
        max_noise_precision=caps,
        rank=rank,
    )


def require_identifiable(gram: Float[np.ndarray, "f f"]) -> None:
    """Refuses flat columns that are zero or linearly dependent: their posterior is improper.

    Raises:
        ValueError: with the offending flat column.
    """
    diagonal = np.diag(gram)
    if not (diagonal > 0).all():
        column = int(np.flatnonzero(diagonal <= 0)[0])
        raise ValueError(f"Flat column {column} (counted among the flat ones) is zero.")
    scaled = gram / np.sqrt(diagonal * diagonal[:, None])
    smallest = np.linalg.eigvalsh(scaled)[0] if len(gram) else 1.0
    if smallest < len(gram) * 1e-12:
        raise ValueError(
            f"The flat columns are linearly dependent (correlation eigenvalue {smallest:.1e}): "
            "drop one, or give it a prior."
        )


def drop_rounding(
    squares: Float[np.ndarray, " d"], original: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Sums of squares after projection; 0 where only rounding of a constant column is left."""
    return np.where(squares > (1e3 * np.finfo(float).eps) ** 2 * original, squares, 0)
