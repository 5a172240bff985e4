"""What other tools call the settings of a run, a file each: read and written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any


def write(tool: str, settings: dict[str, Any]) -> str:
    """A tool's text as it is, JSON, or words for a shell, with a line for each flag."""
    written = import_module(f"zerolab.apps.dialects.{tool}").write(settings)
    if isinstance(written, str):
        return written
    if isinstance(written, dict):
        return json.dumps(written, indent=2) + "\n"
    lines: list[list[str]] = [[]]
    for word in written:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines) + "\n"


TOOLS = ("zerolab", "megatron", "fsdp2", "accelerate", "deepspeed", "nanogpt")
DIALECTS: dict[str, Callable[[dict[str, Any]], str]] = {tool: partial(write, tool) for tool in TOOLS}
"""By name, what writes settings as a text. It raises an InputError for what the dialect cannot say."""
