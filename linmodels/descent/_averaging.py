"""Averages of iterates: the weight that the iterate of a step, counted from 0, has in them."""

from collections.abc import Callable


def polyak(step: int) -> float:
    """1 / (step + 1): every iterate counts alike (Polyak & Juditsky 1992)."""
    return 1 / (step + 1)


def geometric(rate: float) -> Callable[[int], float]:
    """Weights that fall by 1 − rate a step: the last 1/rate iterates count.

    Raises:
        ValueError: a rate outside (0, 1).

    >>> geometric(0.1)(0), geometric(0.1)(99)
    (1.0, 0.1)
    """
    if not 0 < rate < 1:
        raise ValueError(f"rate must be between 0 and 1, got {rate}.")
    return lambda step: max(1 / (step + 1), rate)
