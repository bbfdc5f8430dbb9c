"""A small table of every kind of column, in every kind of file."""

from pathlib import Path

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="needs the extra 'cli'")
pytest.importorskip("pyarrow", reason="needs the extra 'cli'")

ROWS = 240


@pytest.fixture(scope="session")
def frame():
    """Columns of numbers, text, bools and timestamps, and a target that depends on them all."""
    rng = np.random.default_rng(3)
    size = rng.normal(1_000.0, 2.0, ROWS)
    city = rng.choice(["Oslo", "Rome", "Bern"], ROWS)
    when = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(ROWS) * 7, unit="h")
    frame = pd.DataFrame({"size": size, "city": city, "open": rng.random(ROWS) < 0.4, "when": when})
    effect = frame.city.map({"Oslo": -5.0, "Rome": 0.0, "Bern": 4.0}) + 3.0 * frame.open
    frame["price"] = 100 + 2 * (size - 1_000) + effect + rng.normal(0, 0.5, ROWS)
    return frame


@pytest.fixture
def write(tmp_path):
    """Writes a frame to a file of the kind that its name says, and returns the path."""

    def write(frame, name: str) -> Path:
        path = tmp_path / name
        if name.endswith(".parquet"):
            frame.to_parquet(path, row_group_size=100)
        elif name.endswith(".npz"):
            arrays = {column: frame[column].to_numpy() for column in frame}
            np.savez(
                path, **{k: a.astype(str) if a.dtype == object else a for k, a in arrays.items()}
            )
        else:
            frame.to_csv(path, index=False)
        return path

    return write


@pytest.fixture
def small_batches(monkeypatch):
    """Blocks of 64 rows, so that small tables stream."""
    monkeypatch.setattr("linmodels.cli._rows.block_rows", lambda width: 64)
    monkeypatch.setattr("linmodels.cli._predict.block_rows", lambda width: 64)
