"""A table's rows as a sequence of encoded batches for `lm.Batched`; held-out ones apart."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import linmodels as lm
from linmodels.cli._encoding import Encoding, Indicators, RowEncoder, design_operator, float_dtype
from linmodels.cli._progress import Progress, track_rows
from linmodels.cli._tables import Table
from linmodels.cli._values import numbers

Batch = tuple[np.ndarray, ...]
BLOCK_ENTRIES = 2**21


def training_mask(fraction: float, seed: int) -> Callable[[int, int], np.ndarray]:
    """A function (start, rows) → mask of the rows to train on, about 1 − `fraction` of them.

    Which they are depends on the seed and the row's number alone (SplitMix64), not on batching.
    """

    def mask(start: int, rows: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            state = np.arange(start, start + rows, dtype=np.uint64)
            state += np.uint64(seed) * np.uint64(0xD1B54A32D192ED03)
            state = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
            state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state ^= state >> np.uint64(31)
        return state >= np.uint64(int(fraction * 2**64))

    return mask


def block_rows(width: int) -> int:
    """Rows of a design of `width` columns that make a block of 8 MB in float32, a power of two.

    Larger blocks are no faster, and freed and allocated over and over they fragment the heap.
    """
    return min(16_384, max(256, 2 ** ((BLOCK_ENTRIES // width).bit_length() - 1)))


class EncodedRows(Sequence):
    """Batches (numbers, codes, targets, weights) of a table; consecutive ones are read in one go.

    Targets are standardised. Weights are 1, and 0 for rows that are held out or have no target.
    """

    def __init__(
        self, table: Table, encoding: Encoding, training: Callable[[int, int], np.ndarray]
    ) -> None:
        self._table, self._encoding, self._training = table, encoding, training
        self._encoder = RowEncoder(encoding)
        self._progress = Progress("fitting")
        self.batch_rows = block_rows(len(encoding.names()))
        self._next = 0
        self._stream: Iterator[Any] | None = None
        self._ends: dict[int, Batch] = {}

    def __len__(self) -> int:
        return -(-self._table.num_rows // self.batch_rows)

    def __getitem__(self, index: int) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Batch `index`; the first and the last, which are asked for more than once, are kept."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        if index in self._ends:
            return self._ends[index]
        batch = self._encoded(self._read(index), index * self.batch_rows)
        if index in (0, len(self) - 1):
            self._ends[index] = batch
        self._progress.show(
            f"{index * self.batch_rows + len(batch[0]):,} rows of {self._table.num_rows:,}"
        )
        return batch

    def held_out(self) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Numbers, codes and standardised targets of the held-out rows, batch by batch."""
        row = 0
        stream = self._table.batches(self._columns())
        for batch in track_rows(stream, "testing", self._table.num_rows):
            numeric, codes, targets, _ = self._encoded(batch, row)
            chosen = ~self._training(row, len(batch)) & self._labelled(batch, row)
            row += len(batch)
            if chosen.any():
                yield numeric[chosen], codes[chosen], targets[chosen]

    def close(self) -> None:
        """Ends the progress line and the file being read."""
        self._progress.close()
        self._stream = None

    def _columns(self) -> list[str]:
        return [*self._encoding.sources(), self._encoding.target]

    def _read(self, index: int) -> Any:
        if self._stream is None or index != self._next:
            self._stream = self._table.batches(
                self._columns(), index * self.batch_rows, self.batch_rows
            )
        self._next = index + 1
        return next(self._stream)

    def _labelled(self, batch: Any, row: int) -> np.ndarray:
        return ~np.isnan(numbers(batch.column(self._encoding.target), self._encoding.target, row))

    def _encoded(self, batch: Any, row: int) -> Batch:
        encoding = self._encoding
        numeric, codes = self._encoder.encode(batch, row)
        targets = numbers(batch.column(encoding.target), encoding.target, row)
        labelled = ~np.isnan(targets)
        targets = np.where(labelled, (targets - encoding.target_centre) / encoding.target_scale, 0)
        weights = self._training(row, len(batch)) & labelled
        return numeric, codes, targets.astype(float_dtype()), weights.astype(float_dtype())


def observe(
    numeric: Any, codes: Any, targets: Any, weights: Any, indicators: Indicators
) -> lm.Observations:
    """The observations of one batch of `EncodedRows`; runs inside jit."""
    design = design_operator(numeric, codes, indicators)
    return lm.Observations(design, targets, lm.Gaussian(), weights=weights)


def of_size(batches: Iterator[Batch], size: int) -> Iterator[tuple[Batch, int]]:
    """Regroups batches of rows to `size` rows each, for code that compiles once a shape.

    The last is padded by repeating its last row; with each comes the number of its true rows.
    """
    waiting: list[Batch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += len(batch[0])
        while rows >= size:
            joined = _joined(waiting)
            yield tuple(array[:size] for array in joined), size
            waiting, rows = [tuple(array[size:] for array in joined)], rows - size
    if rows:
        joined = _joined(waiting)
        yield (
            tuple(np.concatenate([a, np.repeat(a[-1:], size - rows, axis=0)]) for a in joined),
            rows,
        )


def _joined(batches: list[Batch]) -> Batch:
    return tuple(np.concatenate(arrays) for arrays in zip(*batches, strict=True))
