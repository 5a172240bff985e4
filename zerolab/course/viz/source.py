"""The library's own source, shown in a lesson: what runs is what is read."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any


class Source:
    """The source of a function or class, as a notebook shows it."""

    def __init__(self, thing: Any) -> None:
        self.text = textwrap.dedent(inspect.getsource(thing)).rstrip()
        self.name = f"{thing.__module__}.{thing.__qualname__}"

    def _repr_markdown_(self) -> str:
        # A page made by nbconvert shows fenced code in the font around it; JupyterLab has a font of its own for code.
        return f'`{self.name}`\n\n<div style="font-family: monospace">\n\n```python\n{self.text}\n```\n\n</div>'

    def __repr__(self) -> str:
        return f"{self.name}\n\n{self.text}"
