"""The demonstration with networks, on few images, and its table."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from linmodels_nn import demo
from linmodels_nn.data import Digits, load_digits

pytest.importorskip("matplotlib", reason="needs the extra 'plots'")


def few():
    """As many held out as the picture has turns of one: other shapes would be compiled anew."""
    train, held_out = load_digits()
    return (
        Digits(train.images[:60], train.labels[:60]),
        Digits(held_out.images[:37], held_out.labels[:37]),
    )


@pytest.mark.slow  # trains and fits
def test_on_few_images_it_prints_its_table_and_draws(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "load_digits", few)
    small = {"WIDTH": 8, "TRAINING_STEPS": 100, "ANGLES": (0, 90), "TABULATED": (0, 90)}
    for name, value in small.items():
        monkeypatch.setattr(demo, name, value)
    picture = tmp_path / "digits.png"
    assert demo.main(["--out", str(picture), "--seed", "1"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    output = capsys.readouterr().out
    rows = re.findall(r"^(.{20})(MAP|Laplace) (.*)$", output, flags=re.MULTILINE)
    assert [name.strip() for name, _, _ in rows] == ["held-out images", "", "turned by 90°", ""]
    assert [method for _, method, _ in rows] == ["MAP", "Laplace"] * 2
    found = np.array([re.findall(r"-?\d+\.\d+", cells) for *_, cells in rows], float)
    log_likelihood, calibration_error, brier, accuracy = found.T
    assert (log_likelihood < 0).all()
    assert ((calibration_error >= 0) & (calibration_error <= 1)).all()
    assert ((brier >= 0) & (brier <= 2)).all()
    assert ((accuracy >= 0) & (accuracy <= 1)).all()
    assert accuracy[0] > 0.3  # it has learned: chance is 0.1
    dimension, size = re.search(r"effective dimension +(\d+) ± \d+ of (\d+)", output).groups()
    assert 0 < int(dimension) < int(size) == 362


def test_scores_are_those_of_these_probabilities():
    """The first label has probability 0.8, the second 0.5 and the third 0.1."""
    p = np.full((3, 10), 0.0, "f")
    p[0, :2] = 0.8, 0.2
    p[1, :2] = 0.5, 0.5
    p[2, :2] = 0.1, 0.9
    labels = np.zeros(3, np.int32)
    own = demo.scores(jnp.log(p[:, 0]), jnp.asarray(p), labels)
    np.testing.assert_allclose(own.log_likelihood, np.log([0.8, 0.5, 0.1]).mean(), rtol=1e-6)
    np.testing.assert_allclose(own.brier, (0.08 + 0.5 + 1.62) / 3, rtol=1e-6)
    np.testing.assert_allclose(own.calibration_error, (0.2 + 0.5 + 0.9) / 3, rtol=1e-6)
    np.testing.assert_allclose(own.accuracy, 2 / 3, rtol=1e-6)


def test_the_better_of_two_is_marked_whichever_it_is():
    better, worse = demo.Scores(-1.0, 0.1, 0.5, 0.9), demo.Scores(-2.0, 0.2, 0.6, 0.9)
    first, second = (demo.table([pair]) for pair in comparisons(better, worse))
    assert [line.count("*") for line in first] == [0, 4, 1]  # accuracies are equal
    assert [line.count("*") for line in second] == [0, 1, 4]


def comparisons(better, worse):
    return demo.Comparison(0, better, worse), demo.Comparison(15, worse, better)


def test_an_image_is_turned_to_the_left():
    image = np.zeros((8, 8), np.float32)
    image[0, 3] = 1
    assert np.unravel_index(demo.turned(image, 90).argmax(), (8, 8)) == (4, 0)
    np.testing.assert_allclose(demo.turned(image, 0), image, atol=1e-6)
    several = demo.turned(np.stack([image, image.T]), 90)
    np.testing.assert_allclose(several[0], demo.turned(image, 90), atol=1e-6)


def test_a_picture_that_cannot_be_written_is_refused(tmp_path, capsys):
    assert demo.main(["--out", str(tmp_path / "no" / "picture.png")]) == 2
    assert "there is no folder" in capsys.readouterr().err
