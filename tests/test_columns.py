"""Centring and scaling of columns."""

import numpy as np
import pytest

from linmodels._columns import (
    ColumnScaling,
    block_moments,
    merge_moments,
    standardise,
    unstandardise,
    unstandardising_matrix,
)


@pytest.fixture
def columns() -> np.ndarray:
    return np.random.default_rng(0).normal([0.0, 1e4, -3.0], [1.0, 1e-1, 1e9], size=(101, 3))


def test_blocks_of_any_length_agree_with_one_block(columns):
    whole = ColumnScaling.from_blocks([columns])
    blocks = ColumnScaling.from_blocks(np.split(columns, [1, 7, 7, 60]))
    np.testing.assert_allclose(blocks.centre, columns.mean(0), rtol=1e-12)
    np.testing.assert_allclose(blocks.scale, columns.std(0), rtol=1e-9)
    np.testing.assert_allclose(blocks.scale, whole.scale, rtol=1e-9)


def test_a_large_mean_does_not_cancel_the_variance():
    rows = 1e9 + np.tile([-1.0, 1.0], 50_000)[:, None]
    scaling = ColumnScaling.from_blocks(np.array_split(rows, 37))
    np.testing.assert_allclose(scaling.scale, 1.0, rtol=1e-9)


def test_integer_weights_are_repeated_rows(columns):
    weights = np.arange(101) % 4
    weighted = ColumnScaling.from_blocks([columns[:50], columns[50:]], [weights[:50], weights[50:]])
    repeated = ColumnScaling.from_blocks([np.repeat(columns, weights, axis=0)])
    np.testing.assert_allclose(weighted.centre, repeated.centre, rtol=1e-13)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-9)


def test_rows_of_weight_zero_are_not_looked_at(columns):
    spoilt = np.vstack([columns, np.full((2, 3), np.nan)])
    weights = np.r_[np.ones(101), 0, 0]
    np.testing.assert_array_equal(
        ColumnScaling.from_blocks([spoilt], [weights]).centre,
        ColumnScaling.from_blocks([columns], [np.ones(101)]).centre,
    )


@pytest.mark.parametrize("value", [0.0, 0.1, -1e9, 1e-9, 1e300])
def test_a_constant_column_has_scale_one_and_becomes_zero(value):
    rows = np.full((1_001, 1), value)
    scaling = ColumnScaling.from_blocks(np.array_split(rows, 7))
    assert scaling.scale == 1.0
    assert not standardise(rows, scaling).any()


@pytest.mark.parametrize("unit", [1e-200, 1e-9, 1.0, 1e9, 1e200])
def test_scale_follows_the_unit(unit):
    scaling = ColumnScaling.from_blocks([unit * np.array([[-1.0], [1.0]])] * 3)
    np.testing.assert_allclose(scaling.scale, unit, rtol=1e-12)


def test_a_nearly_constant_column_is_not_constant():
    rows = np.array([[1.0], [np.nextafter(1.0, 2.0)]])
    assert 0 < ColumnScaling.from_blocks([rows]).scale[0] < 1e-15


def test_unstandardised_coefficients_predict_the_same(columns):
    scaling = ColumnScaling.from_blocks([columns])
    coefficients, intercept = np.array([[1.0, -2.0, 3.0]] * 2), np.array([4.0, 5.0])
    raw, raw_intercept = unstandardise(coefficients, intercept, scaling)
    direct = standardise(columns, scaling) @ coefficients.T + intercept
    np.testing.assert_allclose(columns @ raw.T + raw_intercept, direct, rtol=1e-9, atol=1e-9)
    both = unstandardising_matrix(scaling) @ np.append(coefficients[0], intercept[0])
    np.testing.assert_allclose(both, np.append(raw[0], raw_intercept[0]), rtol=1e-12)


def test_merging_with_unseen_columns_changes_nothing(columns):
    seen = block_moments(columns)
    merged = merge_moments(block_moments(np.full((2, 3), np.nan), np.zeros((2, 3))), seen)
    np.testing.assert_array_equal(merged.mean, seen.mean)
    np.testing.assert_array_equal(merged.squares, seen.squares)


def test_bad_input_is_named():
    rows = np.ones((2, 2))
    with pytest.raises(ValueError, match="at least one row"):
        ColumnScaling.from_blocks([])
    with pytest.raises(ValueError, match="Column 0 has no row of positive weight"):
        ColumnScaling.from_blocks([rows], [np.zeros(2)])
    with pytest.raises(ValueError, match="Block 1: Row 0, column 1 is inf"):
        ColumnScaling.from_blocks([rows, np.array([[0.0, np.inf]])])
    with pytest.raises(ValueError, match=r"A weight is -1\.0"):
        block_moments(rows, np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="2 and 1 columns"):
        merge_moments(block_moments(rows), block_moments(rows[:, :1]))
    with pytest.raises(ValueError, match=r"\(2, 3\) does not end in the scaling's 2 columns"):
        standardise(np.ones((2, 3)), ColumnScaling.from_blocks([rows]))
