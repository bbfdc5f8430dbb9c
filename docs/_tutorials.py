"""Makes pages of the tutorials, which are programs: comments become text, all else code."""

import re
from itertools import groupby
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_LINK = re.compile(r"\]\(((?:\S*/)?tutorials/\w+|\w+)\.py\)")


def as_markdown(source: str) -> str:
    """A program as a page: lines that begin with # are text, those between them code."""
    parts = []
    for is_text, lines in groupby(source.splitlines(), lambda line: line.startswith("#")):
        if is_text:
            parts.append("\n".join(line[1:].removeprefix(" ") for line in lines))
        elif code := "\n".join(lines).strip("\n"):
            parts.append(f"```python\n{code}\n```")
    return "\n\n".join(parts) + "\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files it has found, of which programs are none."""
    for path in sorted(Path(config.docs_dir, "tutorials").glob("*.py")):
        content = as_markdown(path.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"tutorials/{path.stem}.md", content=content))
    return files


def on_page_markdown(markdown: str, **_) -> str:
    """Called by MkDocs with every page: what links to a tutorial's program links to its page."""
    return _LINK.sub(r"](\1.md)", markdown)
