"""A file to save to, and what may be in it."""

from pathlib import Path

import pytest

from linmodels import _encoding


@pytest.fixture(autouse=True, scope="module")
def _classes_of_these_tests_may_be_saved():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_encoding, "_PACKAGES", (*_encoding._PACKAGES, "storage"))
        yield


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "box.lm"
