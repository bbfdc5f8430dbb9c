"""How to descend."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

MOMENTUM = 0.9
"""Of Nesterov's method."""
LIMIT = 0.5
"""Largest step, times the largest curvature, at that momentum without a race: 5 (1 − μ)."""


class Recipe(eqx.Module):
    """An optimiser and what is done with its iterates.

    Args:
        optimiser: any of optax's that needs but gradients and parameters, at its own learning rate;
            Nesterov's momentum of 0.9 at an automatic one where None.
        averaging: weight of a step's iterate in the average that is the answer, such as `polyak`;
            the last iterate, at steps that fall linearly to 0, where None.
        clip: a vector's gradient is cut to this many times its own recent size.

    Raises:
        ValueError: arguments of another kind, or a clip that is not positive.
    """

    optimiser: Any = eqx.field(static=True, default=None)
    averaging: Callable[[int], float] | None = eqx.field(static=True, default=None)
    clip: float = eqx.field(static=True, default=10.0)

    def __check_init__(self):
        if self.optimiser is not None and not isinstance(
            self.optimiser, optax.GradientTransformation
        ):
            raise ValueError(
                f"optimiser must be one of optax's, such as optax.adam(1e-2), got "
                f"{self.optimiser!r}."
            )
        if self.optimiser is not None:
            _require_usable(self.optimiser)
        if self.averaging is not None and not callable(self.averaging):
            raise ValueError(
                f"averaging must be a function of the step such as polyak, got {self.averaging!r}."
            )
        if not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}.")

    @property
    def automatic(self) -> bool:
        """Whether the step size is found from the data."""
        return self.optimiser is None

    @property
    def transformation(self) -> optax.GradientTransformation:
        """The optimiser, at a learning rate of 1 where it is automatic."""
        return _NESTEROV if self.optimiser is None else self.optimiser

    def decay(self, share: float) -> float:
        """Of the step size, when this share of all steps is done."""
        return 1 - share if self.automatic and self.averaging is None else 1.0


_NESTEROV = optax.sgd(1.0, momentum=MOMENTUM, nesterov=True)


def _require_usable(optimiser: optax.GradientTransformation) -> None:
    vector = jax.ShapeDtypeStruct((2,), jnp.float32)

    def step(x: Float[Array, " r"]) -> Any:
        return optimiser.update(x, optimiser.init(x), x)

    try:
        jax.eval_shape(step, vector)
    except TypeError as error:
        raise ValueError(
            f"optimiser needs more than gradients and parameters: {error}. Give one such as "
            "optax.adam(1e-2)."
        ) from None
