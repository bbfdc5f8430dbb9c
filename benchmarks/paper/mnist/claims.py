"""What was claimed beforehand, and whether it holds."""

from collections.abc import Sequence
from typing import NamedTuple


class Claim(NamedTuple):
    """A claim, what was measured, and whether that meets it."""

    text: str
    measured: str
    met: bool


def listed(claims: Sequence[Claim]) -> str:
    """A line a claim, for the notes below a table."""
    said = {True: "met", False: "NOT met"}
    return "\n".join(f"- {one.text}: **{said[one.met]}** ({one.measured})." for one in claims)
