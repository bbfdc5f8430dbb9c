"""Turns the formulas of the pages into MathML, so that reading them needs no script."""

import html
import re

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def _mathml(match: re.Match[str]) -> str:
    display = "block" if match[2] == "[" else "inline"
    return convert(html.unescape(match[3]), display=display)


def on_page_content(content: str, **_) -> str:
    """Called by MkDocs with the HTML of every page."""
    return _FORMULA.sub(_mathml, content)
