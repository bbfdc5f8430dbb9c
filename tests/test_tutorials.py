"""The tutorials run, and become pages."""

import importlib.util
import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))


@pytest.mark.slow  # they train and fit
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path))


@pytest.fixture(scope="module")
def pages():
    """The hook of MkDocs."""
    pytest.importorskip("mkdocs", reason="MkDocs is of the docs group of dependencies")
    spec = importlib.util.spec_from_file_location("_tutorials", DOCS / "_tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_comments_become_text_and_all_else_code(pages):
    code = "x = 1\n\n\ndef f():\n    # why\n    return x\n"
    source = f"# # Title\n#\n# Some\n# words.\n\n{code}\n\n# End.\n"
    expected = f"# Title\n\nSome\nwords.\n\n```python\n{code}```\n\nEnd.\n"
    assert pages.as_markdown(source) == expected


def test_links_to_tutorials_lead_to_their_pages(pages):
    text = "[a](tutorials/regression.py), [b](classification.py), [c](../networks.md)"
    expected = "[a](tutorials/regression.md), [b](classification.md), [c](../networks.md)"
    assert pages.on_page_markdown(text) == expected


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_links_of_a_tutorial_lead_somewhere(path):
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    assert links
    assert all((path.parent / link).exists() for link in links)
