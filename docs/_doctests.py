"""Shows the `>>>` examples of docstrings as code, wherever they stand in them."""

import re

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)


class Doctests(griffe.Extension):
    """Fences every example that is not in an `Examples` section."""

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        """Called with every module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
