"""What the cells of an exercise's text define, for its model answer and its checks."""

from __future__ import annotations

import re
from typing import Any

import torch


def given(text: str, *cells: str) -> dict[str, Any]:
    """What the cells of these names define."""
    names: dict[str, Any] = {"torch": torch, "__name__": __name__}
    for cell in cells:
        exec(re.findall(rf"^:name: {cell}\n\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0], names)
    return names
