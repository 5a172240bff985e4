"""The `zerolab` command."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import read_word
from zerolab.errors import InputError, ZerolabError

FAILED, MISUSED = 1, 2
ABOUT = "ZeRO by building it. Begin with: zerolab train --zero-stage 2 --ranks 2"
# A command's room is imported when it is asked for: the library stands without the course.
COMMANDS = {
    "train": "train a small language model with ZeRO stage 0, 1, 2 or 3",
    "sweep": "train once for each combination of settings, and compare",
    "prepare": "write a text file as tokens to train on",
    "sample": "show how a trained model goes on with a text",
    "launch": "start N processes of a script, as torchrun does",
    "checkpoint": "look into what a run saved",
    "plan": "say what a training run needs, whether it fits, and what to change",
    "env": "report what this machine has, for a bug report",
    "grade": "grade an exercise notebook",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its status: 0 done, 1 failed, 2 asked for what cannot work. Without `argv` it is that of
    this process: a signal ends it, with one line, and 128 and its number as status."""
    if argv is None:
        ending.take_signals()
    status = run_command(sys.argv[1:] if argv is None else argv)
    if argv is None:
        ending.leave_group(status)
    return status


def run_command(argv: Sequence[str]) -> int:
    ending.command, name = "zerolab", ""
    try:
        name = read_word("zerolab", ABOUT, COMMANDS, argv)
        ending.command = f"zerolab {name}"
        return import_command(name)([*argv[1:]])
    except InputError as error:
        ending.print_error(error)
        return MISUSED
    except ModuleNotFoundError as error:
        remedy = "'pip install \"zerolab[course]\"' brings what it needs"
        ending.print_error(f"{error.name} is not installed; {remedy}")
        return MISUSED
    except Exception as error:
        if os.environ.get("ZEROLAB_TRACEBACK") and not isinstance(error, ZerolabError):
            raise
        ending.print_error(ending.in_one_sentence(error))
        # Of a grading, 1 means that points are missing.
        return MISUSED if name == "grade" else FAILED


def import_command(name: str) -> Callable[[list[str]], int]:
    # None of the many objects that are made now is garbage; to look for any takes time.
    gc.disable()
    try:
        room = "zerolab.course.grade.cli" if name == "grade" else f"zerolab.apps.cli.{name}"
        command: Callable[[list[str]], int] = import_module(room).main
        return command
    finally:
        gc.enable()
