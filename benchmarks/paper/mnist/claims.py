"""What was claimed beforehand, and whether it holds."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import _report


class Claim(NamedTuple):
    """A claim, what was measured, and whether that meets it."""

    text: str
    measured: str
    met: bool


def saved(name: str, size: str, claims: Sequence[Claim], left_out: Sequence[str]) -> None:
    """Writes and prints the claims."""
    rows = [[one.text, one.measured, "met" if one.met else "NOT met"] for one in claims]
    notes = "Measured in the tables beside this one."
    if left_out:
        notes += f" Not run, as the time was over: {', '.join(left_out)}."
    _report.save(name, f"MNIST, claims ({size})", ["claim", "measured", ""], rows, notes)
