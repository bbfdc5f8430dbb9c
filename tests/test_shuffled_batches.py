"""Minibatches: rows in random order where they can be had one by one, else batches."""

import numpy as np
import pandas as pd
import pytest
from laws.test_sample_then_optimise import observe_known, simple_data, whole

import linmodels as lm
from linmodels._batches import shuffled_batches


def test_sorted_rows_are_shuffled():
    """Minibatches of rows that lie in the order of their size are as alike as of shuffled ones."""
    x, y = whole(simple_data())
    order = np.argsort(np.linalg.norm(x, axis=1))
    rows = lm.RowSlices(x[order].astype(np.float32), y[order].astype(np.float32), batch_size=8)
    seen = list(shuffled_batches(lm.Batched(rows, observe_known), np.random.default_rng(0)))
    first = np.concatenate([batch.first for batch in seen])
    assert sorted(first) == list(range(64))
    means = [np.linalg.norm(batch.arguments[0], axis=1).mean() for batch in seen]
    assert np.std(means) < np.std(np.sort(np.linalg.norm(x, axis=1)).reshape(8, 8).mean(1)) / 2
    for batch in seen:
        np.testing.assert_array_equal(batch.arguments[0], rows.arrays[0][batch.first])


class Scaled(lm.RowSlices):
    """Rows that are made from others."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x / 255, y


def test_batches_of_a_subclass_are_its_own():
    """They come in another order, as they are."""
    x, y = whole(simple_data())
    rows = Scaled((255 * x).astype(np.float32), y.astype(np.float32), batch_size=8)
    seen = list(shuffled_batches(lm.Batched(rows, observe_known), np.random.default_rng(0)))
    assert sorted(int(batch.first) for batch in seen) == list(range(0, 64, 8))
    for batch in seen:
        place = int(batch.first)
        np.testing.assert_allclose(batch.arguments[0], x[place : place + 8], rtol=1e-5)


class Unreadable:
    """An array on a disk that has failed."""

    def __getitem__(self, rows):
        raise OSError(5, "Input/output error")


def test_rows_that_cannot_be_read_are_named():
    data = simple_data()
    data.batches.arrays = (Unreadable(), data.batches.arrays[1])
    with pytest.raises(OSError, match="Input/output error") as caught:
        next(shuffled_batches(data, np.random.default_rng(0)))
    assert "while reading 8 rows between" in caught.value.__notes__[0]


def test_rows_of_lists_and_tables_are_taken_by_place():
    table = pd.Series([1.0, 2.0, 3.0], index=[2, 0, 1], dtype=np.float32)
    rows = lm.RowSlices([[1.0], [2.0], [3.0]], table, batch_size=2)
    (batch, *_) = shuffled_batches(lm.Batched(rows, observe_known), np.random.default_rng(1))
    np.testing.assert_array_equal(batch.arguments[0][:, 0], batch.arguments[1])
