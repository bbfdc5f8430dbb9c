"""Encodings: there and back through JSON, and the design that they make."""

import json

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from linmodels.cli._encoding import Encoding, Indicators, RowEncoder, design_operator
from linmodels.cli._rows import EncodedRows, of_size, training_mask
from linmodels.cli._survey import Choices, NumberSurvey, survey_table
from linmodels.cli._tables import fixed_size, open_table


@pytest.fixture
def survey(frame, write):
    table = open_table(write(frame, "t.parquet"))
    return table, survey_table(table, Choices("price"), training_mask(0.25, 0))


def test_json_keeps_every_bit(survey):
    encoding = survey[1].encoding
    back = Encoding.from_json(json.loads(json.dumps(encoding.to_json())))
    assert back.to_json() == encoding.to_json()
    assert vars(back.columns[1]) == vars(encoding.columns[1])


def test_the_design_is_standardised_columns_and_centred_indicators(survey, frame):
    table, found = survey
    encoding = found.encoding
    numeric, codes = RowEncoder(encoding).encode(next(table.batches(encoding.sources())), 0)
    design = np.asarray(
        design_operator(*map(jnp.asarray, (numeric, codes)), Indicators.of(encoding)).as_matrix()
    )
    train = training_mask(0.25, 0)(0, len(frame))
    size = frame["size"]
    np.testing.assert_allclose(
        design[:, 0], (size - size[train].mean()) / size[train].std(ddof=0), rtol=2e-6
    )
    names = encoding.names()
    assert names[:4] == ["size", "city=Bern", "city=Oslo", "city=Rome"]
    city = np.array(frame.city)[:, None] == ["Bern", "Oslo", "Rome"]
    share = city[train].mean(axis=0)
    scale = np.sqrt((share * (1 - share)).sum())
    np.testing.assert_allclose(design[:, 1:4], (city - share) / scale, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(design[train][:, :-1].mean(axis=0), 0, atol=1e-6)
    np.testing.assert_array_equal(design[:, -1], 1)
    hours = [names.index(f"when.hour={hour}") for hour in frame.when.dt.hour]
    assert (design[np.arange(len(frame)), hours] > 0).all()


def test_batches_can_be_read_in_any_order(survey, small_batches, frame):
    table, found = survey
    rows = EncodedRows(table, found.encoding, training_mask(0.25, 0))
    forward = [rows[index] for index in range(len(rows))]
    backward = [rows[index] for index in reversed(range(len(rows)))][::-1]
    assert [len(batch[0]) for batch in forward] == [64, 64, 64, 48]
    for one, other in zip(forward, backward, strict=True):
        for first, second in zip(one, other, strict=True):
            np.testing.assert_array_equal(first, second)
    assert sum(batch[3].sum() for batch in forward) == found.training_rows
    assert sum(len(batch[0]) for batch in rows.held_out()) == found.held_out_rows
    with pytest.raises(IndexError, match="batch 4 of 4"):
        rows[4]


def test_the_held_out_share_does_not_depend_on_batches():
    mask = training_mask(0.3, 7)
    whole = mask(0, 10_000)
    np.testing.assert_array_equal(whole, np.concatenate([mask(0, 17), mask(17, 9_983)]))
    assert abs((~whole).mean() - 0.3) < 4 * np.sqrt(0.21 / 10_000)
    assert (whole != training_mask(0.3, 8)(0, 10_000)).any()
    assert training_mask(0.0, 7)(0, 100).all()


def test_regrouping_keeps_rows_in_order():
    lengths = [3, 0, 9, 1]
    values = np.arange(13)
    parts = iter([(part,) for part in np.split(values, np.cumsum(lengths)[:-1])])
    groups = [(batch[0].tolist(), rows) for batch, rows in of_size(parts, 4)]
    assert groups == [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 4), ([8, 9, 10, 11], 4), ([12] * 4, 1)]
    stream = [pa.record_batch({"a": part}) for part in np.split(values, np.cumsum(lengths)[:-1])]
    sizes = [batch.column("a").to_pylist() for batch in fixed_size(stream, 5, skip=4)]
    assert sizes == [[4, 5, 6, 7, 8], [9, 10, 11, 12]]


def test_the_median_of_a_long_column_comes_from_a_sample_of_it():
    survey = NumberSurvey()
    for block in np.split(np.random.default_rng(0).permutation(400_000).astype(float), 80):
        survey.add(block, np.ones(len(block), bool))
    column = survey.encoded("x", "numeric", impute=True)
    assert column.fill == pytest.approx(200_000, rel=0.02)
    assert column.centre[0] == pytest.approx(199_999.5, rel=1e-12)


def test_csv_types_come_from_all_rows(tmp_path):
    rows = ["1,2,1999-12-31,true,1,1.0,1", *["2,3,2000-01-01T10:00:00,false,,2e3,2"] * 70_000]
    rows.append(f"2.5,x,,,3,1,{2**64}")
    (tmp_path / "t.csv").write_text("a,b,c,d,e,f,g\n" + "\n".join(rows))
    types = {name: str(kind) for name, kind in open_table(tmp_path / "t.csv").types.items()}
    ones = {"a": "double", "b": "string", "c": "timestamp[us]", "d": "bool", "e": "int64"}
    assert types == {**ones, "f": "double", "g": "decimal128(38, 0)"}
