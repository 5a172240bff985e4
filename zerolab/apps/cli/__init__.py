"""The `zerolab` command. A command's own room is imported when it is asked for."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from importlib import import_module

from zerolab import __version__
from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser, Version, nearest
from zerolab.errors import InputError, ZerolabError

FAILED, MISUSED = 1, 2
# Named, not imported: a command's room is imported when it is asked for, and the library stands without the course.
COMMANDS = {
    "train": ("zerolab.apps.cli.train", "train a small language model with ZeRO stage 0, 1, 2 or 3"),
    "sweep": ("zerolab.apps.cli.sweep", "train once for each combination of settings, and compare"),
    "prepare": ("zerolab.apps.cli.prepare", "write a text file as tokens to train on"),
    "sample": ("zerolab.apps.cli.sample", "show how a trained model goes on with a text"),
    "launch": ("zerolab.apps.cli.launch", "start N processes of a script, as torchrun does"),
    "checkpoint": ("zerolab.apps.cli.checkpoint", "look into what a run saved"),
    "plan": ("zerolab.apps.cli.plan", "say what a training run needs, whether it fits, and what to change"),
    "env": ("zerolab.apps.cli.env", "report what this machine has, for a bug report"),
    "grade": ("zerolab.course.grade.cli", "grade an exercise notebook"),
}
FAILURE = dict.fromkeys(COMMANDS, FAILED) | {"grade": MISUSED}
"""The status where something outside went wrong: of a grading, 1 means that points are missing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status: 0 done, 1 failed, 2 asked for something that cannot work. Without `argv`
    this is the command of this process: a signal ends it, with one line and 128 and the signal's number as status."""
    if argv is None:
        ending.take_signals()
    status = _run(argv)
    if argv is None:
        ending.part(status)
    return status


def command(name: str) -> Callable[[list[str]], int]:
    """What a command of this name runs, or an InputError that says what must be installed for it."""
    # None of the many objects that are made now is garbage; to look for any takes time.
    searched = gc.isenabled()
    gc.disable()
    try:
        return import_module(COMMANDS[name][0]).main
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed; 'pip install \"zerolab[course]\"' brings what it needs"
        ) from None
    finally:
        if searched:
            gc.enable()


def listed() -> str:
    """The commands with what they are for, a line each."""
    return "\n".join(["commands:", *(f"  {name:<12}{text}" for name, (_, text) in COMMANDS.items())])


def _run(argv: Sequence[str] | None) -> int:
    parser = Parser(
        prog="zerolab",
        usage="zerolab COMMAND ...",
        description="ZeRO by building it: plan and train, look into checkpoints, and grade the course's exercises.\n"
        "Begin with: zerolab train --zero-stage 2 --ranks 2 --model-size nano --max-steps 20",
        epilog=listed(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, nargs=0, const=__version__, help="show the version and end")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="see: zerolab COMMAND --help")
    parsed = parser.parse_args(argv)
    if parsed.command not in COMMANDS:
        near = parsed.command and nearest(parsed.command, list(COMMANDS))
        meant = f" (did you mean {near}?)" if near else ""
        what = "no command is given" if parsed.command is None else f"there is no command {parsed.command!r}{meant}"
        parser.error(f"{what}; give one of {', '.join(COMMANDS)}")
    ending.command = f"zerolab {parsed.command}"
    try:
        return command(parsed.command)(parsed.arguments)
    except InputError as error:
        ending.say(f"{ending.command}: {error}")
        return MISUSED
    except ZerolabError as error:
        ending.say(f"{ending.command}: {error}")
        return FAILURE[parsed.command]
    except KeyboardInterrupt:
        ending.say(f"{ending.command}: interrupted; all ranks were ended")
        return ending.INTERRUPTED
    except Exception as error:
        if ending.wants_traceback():
            raise
        ending.say(f"{ending.command}: {ending.in_one_sentence(error)}")
        return FAILURE[parsed.command]
