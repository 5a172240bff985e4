"""Python's parser of flags, but what it has to say is heard, or leads to a sentence and a status."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import IO, Any, NoReturn

from zerolab.cli import ending

MISUSED = 2


class Parser(argparse.ArgumentParser):
    """A parser whose help, usage and version end with status 2 where nobody hears them."""

    def print_help(self, file: IO[str] | Any = None) -> None:
        self.show("help", self.format_help())

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the flags, in a sentence, on whichever stream is heard."""
        ending.say(f"{self.prog}: {message}{self._meant(message)}; {self.prog} --help lists what there is")
        raise SystemExit(MISUSED)

    def _meant(self, message: str) -> str:
        """The flag that is nearest to one that there is not."""
        if not message.startswith("unrecognized arguments: --"):
            return ""
        flag = message.split()[2].partition("=")[0]
        near = get_close_matches(flag, self._option_string_actions, n=1)
        return f" (did you mean {near[0]}?)" if near else ""

    def show(self, what: str, text: str) -> None:
        """Write to standard output, or say why that cannot be."""
        try:
            ending.show(text)
        except OSError as error:
            why = error.strerror or error
            ending.say(f"{self.prog}: the {what} cannot be written to standard output ({why})")
            raise SystemExit(MISUSED) from None


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Arguments whose flags are written with dashes: --max_steps=2 is --max-steps=2. Values stay as they are."""
    words = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        words.append((flag.replace("_", "-") if flag.startswith("--") else flag) + equals + value)
    return words


class Version(argparse.Action):
    """The flag `--version`: shows the version, which is its `const`, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        parser.show("version", f"{parser.prog} {self.const}\n")
        raise SystemExit(0)
