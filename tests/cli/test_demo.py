"""The demonstration, and the picture."""

import re

import numpy as np
import pytest

from linmodels.cli import _demo, main
from linmodels.plots import plot_forecast

pytest.importorskip("matplotlib", reason="needs the extra 'plots'")


def test_smooth_waves_make_the_covariance_that_they_say():
    age = np.linspace(0, 30, 61)
    waves = _demo._smooth(age, 2.0)
    expected = np.exp(-((age[:, None] - age) ** 2) / 8)
    np.testing.assert_allclose(waves @ waves.T, expected, atol=0.02)


def test_on_thinned_out_weeks_it_forecasts_and_draws(tmp_path, monkeypatch, capsys):
    weeks = _demo.load_co2()
    few = type(weeks)(weeks.date[::24], weeks.co2[::24])
    monkeypatch.setattr(_demo, "load_co2", lambda: few)
    monkeypatch.setattr(_demo, "WAVES", 5)
    monkeypatch.setattr(_demo, "BEND_SPACING", 1.0)
    picture = tmp_path / "forecast.png"
    assert main(["demo", "--out", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    assert float(re.search(r"90 % coverage\s+([\d.]+)%", output)[1]) > 60
    assert float(re.search(r"error \(rms\)\s+([\d.]+)", output)[1]) < 4


def test_a_forecast_is_drawn_from_numbers_with_gaps(tmp_path):
    time = np.arange(6.0)
    observed = np.array([0.0, 1.0, np.nan, 3.0, 4.0, 5.0])
    held_out = time > 3
    path = tmp_path / "picture.svg"
    plot_forecast(time, observed, held_out, time, time - 1, time + 1, path=path, title="T")
    assert "<svg" in path.read_text()


def test_a_picture_that_cannot_be_written_is_refused(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path / "no" / "forecast.png")]) == 2
    assert "there is no folder" in capsys.readouterr().err
