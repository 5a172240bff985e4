"""What other tools call the settings of a run, a file each: read into our settings, and written from them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from typing import Any

DIALECTS: dict[str, Callable[[dict[str, Any]], str]] = {}
"""By name, what writes a run's settings (names and values of `RunSpec`'s fields) as a text: flags with a line each,
a file's content, or a program. It raises an InputError for what the dialect cannot say. Modules are imported when they
are called for."""


def _writes(name: str) -> Callable[[Callable[[dict[str, Any]], str]], Callable[[dict[str, Any]], str]]:
    def keep(function: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any]], str]:
        DIALECTS[name] = function
        return function

    return keep


@_writes("zerolab")
def _zerolab(settings: dict[str, Any]) -> str:
    from zerolab.apps.dialects.own import write

    return command_line(["zerolab", "train", *write(settings)])


@_writes("megatron")
def _megatron(settings: dict[str, Any]) -> str:
    from zerolab.apps.dialects.megatron_write import write

    return command_line(write(settings))


@_writes("fsdp2")
def _fsdp2(settings: dict[str, Any]) -> str:
    from zerolab.apps.dialects.fsdp2 import write

    return write(settings)


@_writes("accelerate")
def _accelerate(settings: dict[str, Any]) -> str:
    from zerolab.apps.dialects.accelerate import write

    return write(settings)


@_writes("deepspeed")
def _deepspeed(settings: dict[str, Any]) -> str:
    from zerolab.apps.dialects.deepspeed_write import write

    return json.dumps(write(settings), indent=2) + "\n"


@_writes("nanogpt")
def _nanogpt(settings: dict[str, Any]) -> str:
    from zerolab.apps.dialects.nanogpt_write import write

    return write(settings)


def command_line(words: Sequence[str]) -> str:
    """Words for a shell, with a line for what comes before the first flag and one for each flag."""
    lines: list[list[str]] = [[]]
    for word in words:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(line) for line in lines) + "\n"
