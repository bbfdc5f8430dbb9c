"""Data embedded in the package, small and under a free licence."""

from linmodels_nn.data._digits import Digits, load_digits

__all__ = ["Digits", "load_digits"]
