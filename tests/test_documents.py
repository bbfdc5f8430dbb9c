"""The examples in README and docs run, in order, file by file."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    "README.md",
    "docs/coming-from-laplace-torch.md",
    "docs/getting-started.md",
    "docs/how-it-works.md",
    "docs/networks.md",
    "docs/which-method.md",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", DOCUMENTS)
def test_examples_run(name, tmp_path, monkeypatch):
    text = (ROOT / name).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert blocks, f"{name} has no example"
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    text = (ROOT / name).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    local = [link for link in links if not link.startswith("http")]
    missing = [link for link in local if not ((ROOT / name).parent / link).exists()]
    assert not missing
