"""Progress on stderr for whatever takes longer than a second."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_PATIENCE = 1.0
_TERMINAL_EVERY = 0.2
_LOG_EVERY = 5.0


class Progress:
    """One line on stderr that says how far a stage is; silent for the stage's first second.

    On a terminal the line is rewritten in place; elsewhere a line is written every five seconds.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._due = time.monotonic() + _PATIENCE
        self._live = sys.stderr.isatty()
        self._shown = False

    def show(self, what: str) -> None:
        """Reports `what`, if the last report is old enough."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + (_TERMINAL_EVERY if self._live else _LOG_EVERY)
        self._shown = True
        text = f"{self._stage}: {what}"
        print(
            f"\r\x1b[K{text}" if self._live else text,
            end="" if self._live else "\n",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        """Wipes the line off a terminal."""
        if self._live and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def track_rows(batches: Iterable[_Item], stage: str, total: int | None) -> Iterator[_Item]:
    """Passes batches of rows on and reports how many rows have gone by."""
    progress = Progress(stage)
    done = 0
    try:
        for batch in batches:
            yield batch
            done += len(batch)  # pyright: ignore[reportArgumentType]
            progress.show(f"{done:,} rows" + ("" if total is None else f" of {total:,}"))
    finally:
        progress.close()
