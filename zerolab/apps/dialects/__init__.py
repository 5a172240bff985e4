"""What other tools call the settings of a run, a file each: read into our settings, and written from them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any


def _write(tool: str, settings: dict[str, Any]) -> str:
    written = import_module(f"zerolab.apps.dialects.{tool}").write(settings)
    if isinstance(written, dict):
        return json.dumps(written, indent=2) + "\n"
    return command_line(written) if isinstance(written, list) else str(written)


DIALECTS: dict[str, Callable[[dict[str, Any]], str]] = {
    tool: partial(_write, tool) for tool in ("zerolab", "megatron", "fsdp2", "accelerate", "deepspeed", "nanogpt")
}
"""By name, what writes a run's settings (names and values of `RunSpec`'s fields) as a text: flags with a line each,
a file's content, or a program. It raises an InputError for what the dialect cannot say."""


def command_line(words: Sequence[str]) -> str:
    """Words for a shell, with a line for what comes before the first flag and one for each flag."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines) + "\n"
