"""Observations in one piece or in batches, and passes over them."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Int

from linmodels._arrays import is_traced, require_integer, size_of
from linmodels._observations import Observations
from linmodels.likelihoods import AbstractLikelihood


class RowSlices(Sequence):
    """Consecutive slices of arrays (memory maps, for example) as a sequence of batches.

    On a CPU a slice that begins at a multiple of 64 bytes is used where it lies: so do those of a
    memory-mapped .npy file if `batch_size` rows are a multiple of 64 bytes. Others are copied, a
    page at a time: batches of some 10 MB are quicker than larger ones.

    Args:
        arrays: share their leading axis, the n rows.
        batch_size: rows in a batch; the last may be shorter.

    Raises:
        ValueError: no arrays, no rows, unequal lengths or a batch size below 1.

    >>> import numpy as np
    >>> [batch[0].tolist() for batch in RowSlices(np.arange(5), batch_size=2)]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(self, *arrays: Any, batch_size: int):
        lengths = [(*np.shape(array)[:1], 0)[0] for array in arrays]
        if not arrays or len(set(lengths)) != 1 or lengths[0] == 0:
            raise ValueError(f"arrays must share a leading axis of at least one row: {lengths}.")
        require_integer(batch_size, "batch_size", minimum=1)
        self.arrays = tuple(_by_place(array) for array in arrays)
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.arrays[0]) // self.batch_size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        rows = slice(index % len(self) * self.batch_size, (index % len(self) + 1) * self.batch_size)
        return tuple(array[rows] for array in self.arrays)


def _by_place(array: Any) -> Any:
    """Indexed by arrays of places: lists know none, pandas takes them for labels."""
    return np.asarray(array) if isinstance(array, list | tuple) or hasattr(array, "iloc") else array


class Batched:
    """Observations that arrive batch by batch, each seen once a pass.

    `observe` runs inside jit and is traced once a shape. A shorter last batch is padded by
    repeating its last row, and the padding gets weight 0. Noise draws follow a row's position in
    the data, so that they do not depend on the batch size.

    Args:
        batches: any sequence of tuples of equal-shaped arrays (rows of a memory map, a loader).
        observe: `observe(*arrays, *shared) -> Observations`.
        shared: arrays or modules every batch needs; arguments, so that they are not baked in.

    Raises:
        ValueError: no batches.

    >>> import lineax as lx, numpy as np
    >>> rows = RowSlices(np.ones((5, 2), np.float32), np.ones(5, np.float32), batch_size=2)
    >>> data = Batched(rows, lambda x, y: Observations(lx.MatrixLinearOperator(x), y))
    >>> data.num_observations
    5
    """

    def __init__(
        self, batches: Sequence[tuple[Any, ...]], observe: Callable[..., Observations], *shared: Any
    ):
        if not (hasattr(batches, "__len__") and hasattr(batches, "__getitem__")):
            raise ValueError(
                f"batches must be a sequence, got {type(batches).__name__}: every look at the data "
                "goes through them again."
            )
        if len(batches) == 0:
            raise ValueError("Empty data: there are no batches.")
        if not callable(observe):
            raise ValueError(f"observe must be a function, got {observe!r}.")
        self.batches = batches
        self.observe = observe
        self.shared = shared
        first = self.read(0)
        self.batch_size = len(first[0])
        self._row_shapes = [array.shape[1:] for array in first]
        self.num_observations = (len(batches) - 1) * self.batch_size + len(self.read(-1)[0])

    def extended(
        self, kept: list[tuple[np.ndarray, ...]], observe: Callable[..., Observations]
    ) -> "Batched":
        """The same batches with further arrays behind their own; none of them is read.

        Args:
            kept: those arrays, of every batch.
            observe: takes the arrays of a batch, then the further ones, then what is shared.
        """
        result = copy.copy(self)
        result.batches, result.observe = _Beside(self.batches, kept), observe
        result._row_shapes = self._row_shapes + [array.shape[1:] for array in kept[0]]
        if shuffles_rows(self):
            assert isinstance(self.batches, RowSlices)
            columns = [np.concatenate(column) for column in zip(*kept, strict=True)]
            arrays = *self.batches.arrays, *columns
            result.batches = RowSlices(*arrays, batch_size=self.batches.batch_size)
        return result

    def read(self, index: int) -> tuple[np.ndarray, ...]:
        """The arrays of one batch; errors of the reader name the batch.

        Raises:
            ValueError: the batch is no tuple of arrays with one leading axis, or is empty.
        """
        number = index % len(self.batches)
        try:
            arrays = self.batches[number]
            if not isinstance(arrays, tuple | list):
                raise ValueError(f"a batch must be a tuple of arrays, got {type(arrays).__name__}.")
            batch = tuple(np.asarray(array) for array in arrays)
        except Exception as error:
            error.add_note(f"while reading batch {number} of {len(self.batches)}")
            raise
        for place, array in enumerate(batch):
            if array.dtype.kind not in "biufcV":
                raise ValueError(f"batch {number}: array {place} holds {array.dtype}, not numbers.")
        lengths = {array.shape[:1] for array in batch}
        if len(lengths) != 1 or lengths & {(), (0,)}:
            raise ValueError(
                f"batch {number}: arrays must share a leading axis of at least one row, got shapes "
                f"{[array.shape for array in batch]}."
            )
        return batch

    def padded(self, index: int) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """One batch with exactly `batch_size` rows, and weights (batch_size,) of 1 and 0.

        Raises:
            ValueError: a batch other than the last is shorter, any is longer, or its rows have
                other shapes than the first's.
        """
        batch = self.read(index)
        rows, missing = len(batch[0]), self.batch_size - len(batch[0])
        if missing < 0 or (missing > 0 and index < len(self.batches) - 1):
            raise ValueError(
                f"batch {index} has {rows} rows, the first {self.batch_size}: only the last "
                "may be shorter."
            )
        shapes = [array.shape[1:] for array in batch]
        if shapes != self._row_shapes:
            raise ValueError(
                f"batch {index} has rows of shapes {shapes}, the first {self._row_shapes}."
            )
        return self._padded(batch)

    def padded_rows(self, rows: Int[np.ndarray, " r"]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """As `padded`, of rows of `RowSlices` at these places."""
        assert isinstance(self.batches, RowSlices)
        try:
            arrays = tuple(np.asarray(array[rows]) for array in self.batches.arrays)
        except Exception as error:
            error.add_note(f"while reading {len(rows)} rows between {rows[0]} and {rows[-1]}")
            raise
        return self._padded(arrays)

    def _padded(self, batch: tuple[np.ndarray, ...]) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The last row again up to `batch_size` rows, and weights of 1 and 0."""
        rows = len(batch[0])
        mask = (np.arange(self.batch_size) < rows).astype(np.float32)
        if rows < self.batch_size:
            missing = self.batch_size - rows
            batch = tuple(np.concatenate([a, np.repeat(a[-1:], missing, 0)]) for a in batch)
        return batch, mask


class _Beside(Sequence):
    """Batches with further arrays."""

    def __init__(self, batches: Sequence[tuple[Any, ...]], kept: list[tuple[np.ndarray, ...]]):
        self.batches, self.kept = batches, kept

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (*self.batches[index], *self.kept[index])


Data = Observations | Batched
"""What every verb takes: observations in one piece or in batches."""


class Batch(NamedTuple):
    """The arguments that become observations inside jit."""

    observe: Any
    arguments: Any
    mask: Any
    first: Any
    """index in the data of the first row, or of every row"""

    def observations(self) -> Observations:
        """Inside jit: the batch, padding weighted 0."""
        if self.observe is None:
            return self.arguments
        return self.observe(*self.arguments).reweighted(self.mask)


def num_batches(data: Data) -> int:
    """How many batches a pass reads; a lone `Observations` is a batch of one."""
    return 1 if isinstance(data, Observations) else len(data.batches)


def batches(data: Data, chosen: Iterable[int] | None = None) -> Iterator[Batch]:
    """One pass over the data, or over the chosen batches of it."""
    chosen = range(num_batches(data)) if chosen is None else chosen
    if isinstance(data, Observations):
        yield from (Batch(None, data, None, np.asarray(0)) for _ in chosen)
        return
    for index in chosen:
        arrays, mask = data.padded(index)
        first = np.asarray(index * data.batch_size)  # an array: a number would compile anew
        yield Batch(data.observe, (*arrays, *data.shared), mask, first)


def shuffles_rows(data: Data) -> bool:
    """Whether rows can be had one by one: not where batches are made from them by a subclass."""
    if isinstance(data, Observations):
        return False
    kind = type(data.batches)
    return issubclass(kind, RowSlices) and kind.__getitem__ is RowSlices.__getitem__


def shuffled_batches(data: Data, generator: np.random.Generator) -> Iterator[Batch]:
    """One pass in a random order: of rows where they can be had one by one, else of batches."""
    if isinstance(data, Observations) or not shuffles_rows(data):
        yield from batches(data, generator.permutation(num_batches(data)).tolist())
        return
    count, size = data.num_observations, data.batch_size
    order = generator.permutation(np.arange(count, dtype=np.min_scalar_type(-count)))
    for start in range(0, count, size):
        rows = np.sort(order[start : start + size])  # in the order of the disk
        arrays, mask = data.padded_rows(rows)
        first = np.pad(rows.astype(int), (0, size - len(rows)), mode="edge")
        yield Batch(data.observe, (*arrays, *data.shared), mask, first)


def num_outputs(data: Data, example: Observations) -> int:
    """N, all entries of the targets; padding of a last batch does not count.

    Args:
        data: the observations.
        example: their `example_batch`.
    """
    outputs = size_of(example.targets)
    if isinstance(data, Observations):
        return outputs
    return outputs * data.num_observations // data.batch_size


def example_batch(data: Data) -> Observations:
    """The likelihood of the first batch and the structure of its observations, without the data.

    `Observations` are their own example.
    """
    if isinstance(data, Observations):
        return data

    def observe(arrays, mask):
        observations = data.observe(*arrays, *data.shared)
        if not isinstance(observations, Observations):
            raise ValueError(f"observe must return Observations, got {type(observations)}.")
        return observations.reweighted(mask)

    arrays, mask = data.padded(0)
    example = eqx.filter_eval_shape(observe, arrays, mask)
    likelihood = _likelihood(data.observe, arrays, data.shared)
    return eqx.tree_at(lambda o: o.likelihood, example, likelihood)


@eqx.filter_jit
def _likelihood(observe, arrays, shared) -> AbstractLikelihood:
    return observe(*arrays, *shared).likelihood


def require_untraced(data: Data, action: str) -> None:
    """Refuses traced observations for what needs concrete numbers.

    Raises:
        ValueError: a leaf of the data is traced.
    """
    if isinstance(data, Observations) and is_traced(data):
        raise ValueError(f"{action} is a Python loop: call it outside jit, vmap and grad.")
