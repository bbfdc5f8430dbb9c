"""What is saved in these tests."""

import enum
from typing import Any

import equinox as eqx


class Box(eqx.Module):
    content: Any
    note: Any = eqx.field(static=True, default=None)


class Colour(enum.Enum):
    RED = "red"
