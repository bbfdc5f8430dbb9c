"""Checks of targets, and the floor under curvatures."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from linmodels._arrays import is_traced


def curvature_floor(dtype: Any) -> float:
    """Least curvature, in which residuals are divided by its root.

    Far below rounding beside curvatures that matter, and residuals squared stay far from overflow.
    """
    return float(jnp.finfo(dtype).eps) ** 2


def require_between(values: Array, low: float, high: float, name: str) -> Array:
    """The values, NaN where they are traced and not between `low` and `high`.

    Raises:
        ValueError: with the first value that is not.
    """
    if is_traced(values):
        return jnp.where((values >= low) & (values <= high), values, jnp.nan)
    held = np.asarray(values)
    bad = np.argwhere(~((held >= low) & (held <= high)))
    if len(bad):
        where = tuple(int(i) for i in bad[0])
        limit = f"at least {low:g}" if np.isinf(high) else f"between {low:g} and {high:g}"
        raise ValueError(f"{name} must be {limit}; entry {where} is {held[where]}.")
    return values
