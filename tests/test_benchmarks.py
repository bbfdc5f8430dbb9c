"""The scripts of `benchmarks` find what they import."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPTS = sorted([*FOLDER.glob("[a-z]*.py"), *FOLDER.glob("paper/[a-z]*.py")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_it_loads(script, monkeypatch):
    """All but the measuring itself, below `if __name__ == "__main__"`."""
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.syspath_prepend(FOLDER.parent)
    assert runpy.run_path(str(script), run_name="loaded")["__doc__"]
