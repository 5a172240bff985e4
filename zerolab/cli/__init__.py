"""The `zerolab` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from zerolab import __version__
from zerolab.errors import InputError, ZerolabError

Command = Callable[[list[str]], int]

FAILED, MISUSED, INTERRUPTED = 1, 2, 130


def _train(arguments: list[str]) -> int:
    from zerolab.cli.train import main

    return main(arguments)


def _grade(arguments: list[str]) -> int:
    from zerolab.grading.cli import main

    return main(arguments)


COMMANDS: dict[str, tuple[Command, str]] = {
    "train": (_train, "train a small language model with ZeRO stage 0, 1, 2 or 3"),
    "grade": (_grade, "grade an exercise notebook"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status: 0 done, 1 failed, 2 asked for something that cannot work."""
    parser = argparse.ArgumentParser(
        prog="zerolab",
        description="ZeRO by building it: train, and grade the course's exercises.",
        epilog="\n".join(f"  {name:<8}{text}" for name, (_, text) in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"zerolab {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="command", help="one of those below")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see: zerolab COMMAND --help")
    parsed = parser.parse_args(argv)
    try:
        return COMMANDS[parsed.command][0](parsed.arguments)
    except InputError as error:
        print(f"zerolab {parsed.command}: {error}", file=sys.stderr)
        return MISUSED
    except ZerolabError as error:
        print(f"zerolab {parsed.command}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print(f"zerolab {parsed.command}: interrupted; all ranks were ended", file=sys.stderr)
        return INTERRUPTED
