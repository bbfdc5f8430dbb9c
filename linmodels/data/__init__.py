"""Data embedded in the package, small and in the public domain."""

from linmodels.data._co2 import WeeklyCO2, load_co2

__all__ = ["WeeklyCO2", "load_co2"]
