"""Whatever cannot be used: a message that names it, exit code 2, nothing written."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from linmodels.cli import main


@pytest.fixture(scope="module")
def fitted(frame, tmp_path_factory):
    """A model and the table it was fitted to."""
    folder = tmp_path_factory.mktemp("fitted")
    frame.to_parquet(folder / "t.parquet")
    arguments = ["--target", "price", "--drop", "when", "--out", str(folder / "model")]
    assert main(["fit", str(folder / "t.parquet"), *arguments]) == 0
    return folder


def refused(capsys, *arguments) -> str:
    """Runs the command, which must fail; what it said."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("linmodels: error: ")
    assert "Traceback" not in captured.err
    assert not captured.out
    return captured.err


CHANGES = {
    "missing number": (lambda f: f.assign(size=f["size"].where(f.index != 6)), "'size'.*row 7:"),
    "missing text": (lambda f: f.assign(city=f.city.where(f.index != 9)), "'city'.*row 10:"),
    "missing time": (lambda f: f.assign(when=f.when.where(f.index != 99)), "'when'.*row 100:"),
    "missing target": (lambda f: f.assign(price=f.price.where(f.index != 0)), "'price'.*row 1:"),
    "infinite": (lambda f: f.assign(size=f["size"].where(f.index != 3, np.inf)), "'size'.*row 4"),
    "text target": (lambda f: f.assign(price="dear"), "price: .*not numbers.*'dear'"),
    "no target": (lambda f: f.drop(columns="price"), "--target price: .*no such column.*city"),
    "only target": (lambda f: f[["price"]], "no column is left"),
    "no rows": (lambda f: f[:0], "has no rows"),
    "one row": (lambda f: f[:1], "at least two"),
    "constant": (lambda f: f.assign(price=-3.5), "--target price: it is -3.5 in every training"),
    "no values": (lambda f: f.assign(size=np.nan), "'size'.*row 1:"),
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("change", CHANGES)
def test_unusable_values_are_named(frame, write, capsys, tmp_path, change, kind):
    spoil, message = CHANGES[change]
    table = write(spoil(frame), f"t.{kind}")
    said = refused(capsys, "fit", table, "--target", "price", "--out", tmp_path / "m")
    assert pd.Series([said]).str.contains(message, regex=True).all(), said
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("flag", ["--drop", "--categorical"])
def test_unknown_columns_are_named(frame, write, capsys, flag):
    said = refused(capsys, "fit", write(frame, "t.csv"), "--target", "price", flag, "colour")
    assert f"{flag} colour" in said


def test_a_column_without_any_value_cannot_be_imputed(frame, write, capsys):
    table = write(frame.assign(city=None), "t.parquet")
    assert "'city'" in refused(capsys, "fit", table, "--target", "price", "--impute")


def test_unusable_types_are_named(frame, write, capsys):
    table = write(frame.assign(tags=[["a"]] * len(frame)), "t.parquet")
    said = refused(capsys, "fit", table, "--target", "price")
    assert "'tags' holds list" in said
    assert "--drop tags" in said


def test_too_many_categories_are_refused(frame, write, capsys, monkeypatch):
    monkeypatch.setattr("linmodels.cli._survey.MOST_COLUMNS", 100)
    table = write(frame.assign(name=[f"n{i}" for i in range(len(frame))]), "t.csv")
    assert "'name' has more than 100" in refused(capsys, "fit", table, "--target", "price")
    monkeypatch.setattr("linmodels.cli._survey.MOST_COLUMNS", 30)
    said = refused(capsys, "fit", table, "--target", "price", "--drop", "name", "when.x")
    assert "no such column" in said
    said = refused(capsys, "fit", write(frame, "t.csv"), "--target", "price")
    assert "when.hour (24)" in said


@pytest.mark.parametrize("unit", [1e300, 1e-300])
@pytest.mark.parametrize("column", ["price", "size"])
def test_units_that_cannot_be_computed_with_are_named(frame, write, capsys, column, unit):
    table = write(frame.assign(**{column: frame[column] * unit}), "t.parquet")
    said = refused(capsys, "fit", table, "--target", "price")
    assert f"Column '{column}' has a standard deviation of " in said
    assert "rescale it" in said


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
@pytest.mark.parametrize("column", ["price", "size"])
@pytest.mark.parametrize("base", [10**18, -(10**18), 2**63 + 10**18])
def test_integers_that_rounding_makes_one_are_named(frame, write, capsys, column, kind, base):
    numbers = np.arange(len(frame), dtype="u8" if base > 2**63 else "i8") + base
    table = write(frame.assign(**{column: numbers}), f"t.{kind}")
    said = refused(capsys, "fit", table, "--target", "price", "--drop", "when")
    assert f"Column '{column}' holds numbers of size" in said
    assert "beyond 2**53" in said
    assert "Subtract a base" in said


def test_integers_beyond_64_bits_are_no_reals(frame, write, capsys):
    table = write(frame.assign(id=[str(2**64 + n) for n in range(len(frame))]), "t.csv")
    said = refused(capsys, "fit", table, "--target", "price", "--drop", "when")
    assert "Column 'id' holds numbers of size" in said


def test_times_with_and_without_an_offset_are_no_categories(frame, write, capsys):
    times = [f"2024-01-01 10:{n % 60:02}:00{'+02:00' * (n % 2)}" for n in range(len(frame))]
    table = write(frame.assign(when=times), "t.csv")
    said = refused(capsys, "fit", table, "--target", "price")
    assert "'when' mixes timestamps with an offset and without" in said
    assert "--categorical when" in said


def test_a_column_called_as_a_prediction_is_refused_before_the_fit(frame, write, capsys, tmp_path):
    table = write(frame.assign(price_mean=frame["size"]), "t.csv")
    said = refused(capsys, "fit", table, "--target", "price")
    assert "'price_mean'" in said
    assert "--drop price_mean" in said
    out = str(tmp_path / "m")
    assert main(["fit", str(table), "--target", "price", "--drop", "price_mean", "--out", out]) == 0


def test_an_empty_holdout_is_refused(frame, write, capsys):
    table = write(frame[:5], "t.csv")
    said = refused(capsys, "fit", table, "--target", "price", "--holdout", "0.0001")
    assert "--holdout 0.0001" in said


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"", "ends in .csv"),
        ("t.parquet", b"not parquet", "cannot be read as parquet"),
        ("t.npz", b"not npz", "cannot be read as npz"),
        ("t.csv.gz", b"not gzip", "cannot be read as csv"),
        ("t.csv", b"", "cannot be read as csv"),
        ("t.csv", b"a,b\n1,2\n3\n", "Expected 2 columns"),
        ("t.csv", b"a,a\n1,2\n3,4\n", "two columns are called 'a'"),
        ("t.csv", b"a,price\n\xff,2\n3,4\n", "UTF8"),
        ("t.csv", b"gr\xf6\xdfe,price\n1,2\n3,4\n", "the header is not in UTF-8"),
    ],
)
def test_broken_files_are_named(tmp_path, capsys, name, content, message):
    (tmp_path / name).write_bytes(content)
    assert message in refused(capsys, "fit", tmp_path / name, "--target", "price")


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert "no such file" in refused(capsys, "fit", tmp_path / "t.csv", "--target", "y")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones(3), "y": np.ones(4)}, "different lengths"),
        ({"x": np.ones((2, 2, 2)), "y": np.ones(2)}, "1-D or 2-D"),
        ({"x": np.array([{}, {}]), "y": np.ones(2)}, "cannot be read as npz"),
        ({"x": np.ones(2, complex), "y": np.ones(2)}, "complex128"),
    ],
)
def test_arrays_that_are_no_columns_are_named(tmp_path, capsys, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    assert message in refused(capsys, "fit", tmp_path / "t.npz", "--target", "y")


def test_a_folder_that_is_no_model_is_not_replaced(frame, write, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    table = write(frame, "t.csv")
    said = refused(capsys, "fit", table, "--target", "price", "--out", tmp_path / "mine")
    assert "is not a model" in said
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "all of it"


NEW = {
    "category": (lambda f: f.assign(city=["Paris", *f.city[1:]]), "'city'.*'Paris' in row 1 "),
    "missing": (lambda f: f.assign(city=[None, *f.city[1:]]), "'city' is missing in row 1.*impute"),
    "text": (lambda f: f.assign(size=["7", "big", *["8"] * (len(f) - 2)]), "'big' in row 2"),
    "no column": (lambda f: f.drop(columns="size"), "needs the columns size"),
    "taken": (lambda f: f.assign(price_mean=0.0), "already has a column 'price_mean'"),
}


@pytest.mark.parametrize("change", NEW)
def test_new_tables_that_do_not_fit_are_refused(frame, write, fitted, tmp_path, capsys, change):
    spoil, message = NEW[change]
    out = tmp_path / "out.csv"
    said = refused(capsys, "predict", fitted / "model", write(spoil(frame), "n.csv"), "--out", out)
    assert pd.Series([said]).str.contains(message, regex=True).all(), said
    assert [path.name for path in tmp_path.iterdir()] == ["n.csv"]


def _in(zone):
    return lambda f: f.assign(when=f.when.dt.tz_localize(zone))


def _offsets(frame):
    return frame.assign(when=frame.when.dt.strftime("%Y-%m-%dT%H:%M:%S") + "+01:00")


def _mixed(frame):
    return frame.assign(when=[str(frame.when[0]), *_offsets(frame).when[1:]])


ZONES = {
    "none, then offsets": (None, "csv", _offsets, "'when'.*offsets of their own, .*without a zone"),
    "none, then UTC": (None, "parquet", _in("UTC"), "'when'.*in UTC, .*without a zone"),
    "UTC, then none": (_in("UTC"), "parquet", None, "'when'.*without a zone, .*in UTC"),
    "offsets, then none": (_offsets, "csv", None, "'when'.*without a zone, .*offsets of their"),
    "other zone": (_in("UTC"), "parquet", _in("Asia/Tokyo"), "'when'.*in Asia/Tokyo, .*in UTC"),
    "mixed": (_offsets, "csv", _mixed, "'when' mixes timestamps with an offset and without"),
    "no time": (_offsets, "csv", lambda f: f.assign(when=["soon", *_offsets(f).when[1:]]),
                "'when' is 'soon' in row 1, which is not a timestamp"),
}  # fmt: skip


@pytest.mark.parametrize("case", ZONES)
def test_times_of_another_zone_are_refused(frame, write, tmp_path, capsys, case):
    before, kind, after, message = ZONES[case]
    same = lambda f: f
    table = write((before or same)(frame), f"t.{kind}")
    fit = ["fit", str(table), "--target", "price", "--out", str(tmp_path / "m")]
    assert main([*fit, "--calendar", "hour"]) == 0
    capsys.readouterr()
    new = write((after or same)(frame), f"n.{kind}")
    said = refused(capsys, "predict", tmp_path / "m", new, "--out", tmp_path / "o.csv")
    assert pd.Series([said]).str.contains(message, regex=True).all(), said


def _truncate(model):
    path = model / "posterior.linmodels"
    path.write_bytes(path.read_bytes()[:-9])


def _edit(key, new):
    def edit(model):
        contents = json.loads((model / "encoding.json").read_text())
        contents[key] = new
        (model / "encoding.json").write_text(json.dumps(contents))

    return edit


DAMAGE = {
    "truncated posterior": (_truncate, "damaged"),
    "no posterior": (lambda m: (m / "posterior.linmodels").unlink(), "damaged"),
    "no encoding": (lambda m: (m / "encoding.json").unlink(), "not a model"),
    "no JSON": (lambda m: (m / "encoding.json").write_text("{"), "damaged"),
    "JSON of something else": (lambda m: (m / "encoding.json").write_text("[1]"), "damaged"),
    "newer": (_edit("version", 2), "version 2"),
    "another encoding": (_edit("encoding", {"target": "y"}), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_models_are_refused(fitted, tmp_path, capsys, damage):
    spoil, message = DAMAGE[damage]
    shutil.copytree(fitted / "model", tmp_path / "model")
    spoil(tmp_path / "model")
    table, out = fitted / "t.parquet", tmp_path / "o.csv"
    assert message in refused(capsys, "predict", tmp_path / "model", table, "--out", out)


def test_output_that_cannot_be_written_is_refused(fitted, tmp_path, capsys):
    predict = ["predict", fitted / "model", fitted / "t.parquet", "--out"]
    assert "cannot be written" in refused(capsys, *predict, tmp_path / "no" / "o.csv")
    assert "ends in .csv" in refused(capsys, *predict, tmp_path / "o.txt")
    assert "the table itself" in refused(capsys, *predict, fitted / "t.parquet")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fit"],
        ["fit", "t.csv", "--target", "y", "--holdout", "1"],
        ["fit", "t.csv", "--target", "y", "--seed", "4294967296"],
        ["demo", "--seed", "18446744073709551616"],
    ],
)
def test_wrong_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_a_folder_is_no_file_to_write(fitted, tmp_path, capsys):
    said = refused(
        capsys, "predict", fitted / "model", fitted / "t.parquet", "--out", folder(tmp_path)
    )
    assert "p.csv: is a folder" in said


def folder(tmp_path):
    made = tmp_path / "p.csv"
    made.mkdir()
    return made


def test_columns_that_a_csv_cannot_hold_are_said(frame, write, fitted, tmp_path, capsys):
    table = write(frame.assign(parts=[[1]] * len(frame)), "lists.parquet")
    said = refused(capsys, "predict", fitted / "model", table, "--out", tmp_path / "p.csv")
    assert "A CSV cannot hold the table" in said
    assert not (tmp_path / "p.csv").exists()


def test_one_array_is_no_archive(tmp_path, capsys):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.ones(3))
    assert "no archive as numpy.savez" in refused(
        capsys, "fit", tmp_path / "a.npz", "--target", "y"
    )


@pytest.mark.parametrize("kind", ["parquet", "npz"])
def test_what_is_no_number_is_no_category(tmp_path, capsys, kind):
    columns = {"g": np.r_[np.nan, np.tile([1.0, 2.0], 10)], "y": np.arange(21.0)}
    path = tmp_path / f"t.{kind}"
    if kind == "npz":
        np.savez(path, **columns)
    else:
        pd.DataFrame(columns).to_parquet(path)
    said = refused(capsys, "fit", path, "--target", "y", "--categorical", "g")
    assert "'g' is missing in row 1" in said


@pytest.mark.parametrize("column", ["size", "price"])
def test_numbers_with_a_stray_text_are_no_categories(frame, write, capsys, column):
    """As '?' for a missing value; but '5 or more' of few levels is a category."""
    spelt = frame[column].astype(str)
    spelt[7] = "?"
    table = write(frame.assign(**{column: spelt}), "t.csv")
    said = refused(capsys, "fit", table, "--target", "price")
    assert column in said
    assert "'?'" in said
    assert ("row 8" if column == "price" else "give --categorical size") in said


def test_few_levels_may_be_numbers_and_text(frame, write, tmp_path):
    doors = np.where(np.arange(len(frame)) % 4 == 3, "5 or more", np.arange(len(frame)) % 4)
    table = write(frame.assign(doors=doors), "t.csv")
    assert main(["fit", str(table), "--target", "price", "--out", str(tmp_path / "m")]) == 0
