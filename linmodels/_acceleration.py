"""Where a fixed-point iteration is going, from three of its points."""

from itertools import pairwise

import numpy as np
from jaxtyping import Float

from linmodels._hyperparameters import MAX_RATIO

ROUNDING = 64 * np.finfo(float).eps
"""Change from one log ratio to the next that is none: log t, to which slow ways to ∞ are alike, has
-ratio² instead."""


def extrapolated(
    points: tuple[Float[np.ndarray, " p"], ...], *, together: bool
) -> Float[np.ndarray, " p"]:
    """From three successive points, in their logarithms.

    Together: SQUAREM (Varadhan & Roland 2008, scheme S3), with one step length for all, which suits
    coordinates that settle together. Else each has its own (Aitken's), which suits those on their
    way to ∞ beside others that have settled. Either alone can take ten times as many steps as both
    in turn.
    """
    # Of ratios: differences of logarithms would lose the digits of small steps of large values.
    change, following = (np.log(b / a) for a, b in pairwise(points))
    curvature = following - change
    resolved = np.abs(curvature) > ROUNDING
    # Rounding, times the length of a step along a slow way to ∞, would throw the others off.
    curvature = np.where(resolved, curvature, -change * np.abs(change))
    size = np.linalg.norm(curvature)
    length = max(np.linalg.norm(change) / size, 1.0) if size > 0 else 1.0
    if together and change @ curvature <= 0:
        jump = length * (2 * change + length * curvature)
    elif together:  # where steps grow the parabola would go three times as far
        jump = length * change
    else:
        own = np.abs(change) / np.where(resolved, np.abs(curvature), 1)
        jump = np.where(resolved, np.maximum(own, 1), length) * change
    limit = np.log(MAX_RATIO)
    return points[0] * np.exp(np.clip(jump, -limit, limit))
