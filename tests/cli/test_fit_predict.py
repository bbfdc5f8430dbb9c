"""`linmodels fit` and `linmodels predict`, in-process."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtri

from linmodels.cli import main
from linmodels.cli._model import load_model

SUFFIXES = ["npz", "csv", "csv.gz", "parquet"]


def value(output: str, name: str) -> str:
    """The value printed after a name."""
    return re.search(rf"^{re.escape(name)}\s+(.*)$", output, re.MULTILINE)[1]


def read(path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            return pd.DataFrame(dict(arrays))
    return pd.read_csv(path, parse_dates=["when"])


@pytest.fixture
def model(frame, write, tmp_path, capsys):
    """A model of the whole frame."""
    table = write(frame, "train.parquet")
    assert main(["fit", str(table), "--target", "price", "--out", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    return tmp_path / "model"


def test_the_report_says_what_was_found(frame, write, capsys):
    table = write(frame, "t.parquet")
    assert main(["fit", str(table), "--target", "price", "--holdout", "0.2"]) == 0
    output = capsys.readouterr().out
    assert value(output, "method").startswith("exact, primal")
    assert value(output, "expected").startswith("1 pass, about ")
    assert float(value(output, "noise std").split()[0]) == pytest.approx(0.5, rel=0.15)
    assert re.match(r"\d+\.\d of 37$", value(output, "effective dimension"))
    assert "when.hour (24), when.weekday (7)" in output
    assert float(value(output, "held-out 90 % coverage").rstrip("%")) > 75
    mean, lower, upper = map(float, value(output, "size").split())
    assert lower < 2.0 < upper
    assert mean == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_every_kind_of_file_gives_the_same_fit(frame, write, capsys, kind, small_batches):
    outputs = []
    for name in ("a.parquet", f"b.{kind}"):
        table = write(frame, name)
        assert main(["fit", str(table), "--target", "price", "--holdout", "0.1"]) == 0
        outputs.append(capsys.readouterr().out.split("\n", 1)[1])
    assert outputs[0] == outputs[1]


def test_streaming_equals_one_block(frame, write, tmp_path, request, capsys):
    table = write(frame, "t.parquet")
    fit = ["fit", str(table), "--target", "price", "--holdout", "0.1", "--out"]
    assert main([*fit, str(tmp_path / "whole")]) == 0
    whole = capsys.readouterr().out.replace("whole", "")
    request.getfixturevalue("small_batches")
    assert main([*fit, str(tmp_path / "parts")]) == 0
    parts = capsys.readouterr().out.replace("parts", "")
    assert value(whole, "held-out 90 % coverage") == value(parts, "held-out 90 % coverage")
    means = [load_model(tmp_path / name)[0].mean for name in ("whole", "parts")]
    np.testing.assert_allclose(*means, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_predictions_are_those_of_the_posterior(frame, model, write, tmp_path, kind, small_batches):
    table, out = write(frame, f"new.{kind}"), tmp_path / f"out.{kind}"
    assert main(["predict", str(model), str(table), "--out", str(out), "--level", "0.8"]) == 0
    result = read(out)
    assert list(result) == [*frame, "price_mean", "price_lower", "price_upper"]
    np.testing.assert_allclose(result["size"], frame["size"], rtol=1e-12)
    assert (result.city.to_numpy() == frame.city.to_numpy()).all()
    half = (result.price_upper - result.price_lower) / 2
    np.testing.assert_allclose(half, 0.5 * ndtri(0.9), rtol=0.25)
    inside = frame.price.between(result.price_lower, result.price_upper)
    assert 0.7 < inside.mean() < 0.95


def test_printed_coverage_is_that_of_the_predictions(frame, write, tmp_path, capsys):
    from linmodels.cli._rows import training_mask

    table = write(frame, "t.csv")
    fit = ["fit", str(table), "--target", "price", "--holdout", "0.3", "--seed", "5"]
    assert main([*fit, "--out", str(tmp_path / "m")]) == 0
    output = capsys.readouterr().out
    out = tmp_path / "p.parquet"
    assert main(["predict", str(tmp_path / "m"), str(table), "--out", str(out)]) == 0
    result = read(out)[~training_mask(0.3, 5)(0, len(frame))]
    inside = result.price.between(result.price_lower, result.price_upper).mean()
    assert value(output, "held-out 90 % coverage") == f"{inside:.1%}"
    std = (result.price_upper - result.price_lower) / 2 / ndtri(0.95)
    log_prob = -0.5 * ((result.price - result.price_mean) / std) ** 2 - np.log(std)
    expected = log_prob.mean() - 0.5 * np.log(2 * np.pi)
    assert float(value(output, "held-out log-likelihood").split()[0]) == pytest.approx(
        expected, abs=1e-3
    )


def test_units_of_the_target_change_no_prediction(frame, write, tmp_path):
    predictions = []
    for number, unit in enumerate((1.0, 1e6)):
        table = write(frame.assign(price=frame.price * unit), f"u{number}.parquet")
        folder, out = tmp_path / f"m{number}", tmp_path / f"p{number}.parquet"
        assert main(["fit", str(table), "--target", "price", "--out", str(folder)]) == 0
        assert main(["predict", str(folder), str(table), "--out", str(out)]) == 0
        predictions.append(read(out).price_mean / unit)
    np.testing.assert_allclose(*predictions, rtol=1e-5)


@pytest.mark.parametrize(("size", "price"), [(1e100, 1e-100), (1e-100, 1e100), (1.0, 1e140)])
def test_units_beyond_single_precision_change_only_the_figures(frame, write, capsys, size, price):
    lines = []
    for number, units in enumerate([(1.0, 1.0), (size, price)]):
        scaled = frame.assign(size=frame["size"] * units[0], price=frame.price * units[1])
        table = write(scaled, f"u{number}.parquet")
        assert main(["fit", str(table), "--target", "price", "--holdout", "0.2"]) == 0
        output = capsys.readouterr().out
        error = float(value(output, "held-out error (rms)").split()[0]) / units[1]
        effect = np.array(value(output, "size").split(), float) * units[0] / units[1]
        lines.append([error, *effect])
    np.testing.assert_allclose(*lines, rtol=2e-3)


def test_large_integers_that_differ_by_much_are_numbers(frame, write, capsys):
    """Nanoseconds since 1970, an hour apart and more: rounding to 256 of them is nothing."""
    table = write(frame.assign(size=frame.when.astype("M8[ns]").astype("i8")), "t.csv")
    assert main(["fit", str(table), "--target", "price", "--drop", "when"]) == 0
    assert "size, city (3), open (2)" in capsys.readouterr().out


def test_imputation_is_learned_from_training_rows_and_stored(frame, write, tmp_path, capsys):
    holes = frame.copy()
    holes.loc[[3, 4], "size"] = np.nan
    holes.loc[5, "city"] = None
    holes.loc[6, "when"] = pd.NaT
    holes.loc[7, "price"] = np.nan
    table = write(holes, "t.parquet")
    fit = ["fit", str(table), "--target", "price", "--out", str(tmp_path / "m")]
    assert main([*fit, "--impute"]) == 0
    assert "239 rows, 1 left out without a target" in capsys.readouterr().out
    columns = {column.label: column for column in load_model(tmp_path / "m")[1].columns}
    assert columns["size"].fill == pytest.approx(holes["size"][holes.price.notna()].median())
    assert columns["city"].fill == holes.city.mode()[0]
    out = tmp_path / "p.csv"
    assert main(["predict", str(tmp_path / "m"), str(table), "--out", str(out)]) == 0
    assert pd.read_csv(out).price_mean.notna().all()


def test_numbers_can_be_categories_and_dates_numbers(frame, write, capsys):
    table = write(frame.assign(zone=["07", "1", "2", "07"] * 60, day=frame.when.dt.date), "t.csv")
    flags = ["--categorical", "zone", "--drop", "when", "city", "--calendar", "time", "month"]
    assert main(["fit", str(table), "--target", "price", *flags, "--top", "40"]) == 0
    output = capsys.readouterr().out
    assert "size, day.time, open (2), zone (3), day.month (3)" in output
    assert "zone=07" in output


@pytest.fixture
def shifted(frame):
    """The frame's timestamps as clocks at +06:00 and +05:00 showed them, spelt so."""
    offset = np.where(np.arange(len(frame)) % 2, "+06:00", "+05:00")
    return frame.assign(when=frame.when.dt.strftime("%Y-%m-%dT%H:%M:%S") + offset)


def test_hours_are_those_that_were_written(frame, shifted, write, tmp_path, capsys):
    """With an offset, and with another one in every row: as without; the column stays as it was."""
    outputs, predicted = [], []
    for name, table in (("plain", frame), ("shifted", shifted)):
        path, model = write(table, f"{name}.csv"), tmp_path / name
        assert main(["fit", str(path), "--target", "price", "--out", str(model)]) == 0
        outputs.append(capsys.readouterr().out.replace(name, ""))
        out = tmp_path / f"{name}-out.csv"
        assert main(["predict", str(model), str(path), "--out", str(out)]) == 0
        capsys.readouterr()
        predicted.append(pd.read_csv(out))
    assert outputs[0] == outputs[1]
    np.testing.assert_array_equal(predicted[0].price_mean, predicted[1].price_mean)
    assert (predicted[1].when == shifted.when).all()


def test_days_since_1970_are_moments(frame, shifted, write, tmp_path):
    moments = frame.assign(when=pd.to_datetime(shifted.when, utc=True))
    tables = [write(shifted, "t.csv"), write(moments, "t.parquet")]
    centres = []
    for number, path in enumerate(tables):
        model, rest = tmp_path / f"m{number}", ["--calendar", "time", "--out"]
        assert main(["fit", str(path), "--target", "price", *rest, str(model)]) == 0
        columns = {column.label: column for column in load_model(model)[1].columns}
        centres.append(columns["when.time"].centre)
    assert centres[0] == centres[1]


def test_arrays_of_an_npz_are_columns(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2))
    np.savez(tmp_path / "t.npz", x=x, y=x @ [1.0, -2.0] + 0.1 * rng.normal(size=50))
    assert main(["fit", str(tmp_path / "t.npz"), "--target", "y"]) == 0
    output = capsys.readouterr().out
    assert value(output, "x0").startswith(tuple("01"))
    assert value(output, "x1").startswith("-")


def test_a_wide_table_is_fitted_on_the_dual_side(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 30))
    np.savez(tmp_path / "t.npz", x=x, y=x[:, 0] + 0.1 * rng.normal(size=20))
    assert main(["fit", str(tmp_path / "t.npz"), "--target", "y"]) == 0
    assert value(capsys.readouterr().out, "method").startswith("exact, dual")


def test_columns_that_the_model_does_not_use_stay_as_they_are_spelt(frame, model, tmp_path):
    spelt = ["007", "12345678901234567890123", "1.10"]
    table, out = tmp_path / "new.csv", tmp_path / "out.csv"
    frame[:3].assign(label=spelt).to_csv(table, index=False)
    assert main(["predict", str(model), str(table), "--out", str(out)]) == 0
    assert pd.read_csv(out, dtype=str).label.tolist() == spelt
