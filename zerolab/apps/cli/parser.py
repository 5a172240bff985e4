"""Python's parser of flags, but what it has to say is heard, or is one sentence."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from textwrap import fill
from typing import Any, NoReturn

from zerolab import __version__
from zerolab.apps.cli import ending
from zerolab.errors import InputError

ELSEWHERE = {
    "--ranks": "n np nproc nproc-per-node num-processes gpus n-gpus num-gpus devices world-size",
    "--device cuda": "gpu cuda",
    "--deepspeed-config": "deepspeed ds ds-config",
    "--zero-stage": "zero",
    "--zero-stage 3": "fsdp zero3",
    "--max-steps, since steps are counted, not epochs": "epochs num-train-epochs",
    "--max-steps": "iters max-iters iterations num-steps",
    "--lr": "learning-rate",
}
"""A flag, and what other tools call it."""


class Parser(argparse.ArgumentParser):
    """Python's, but what is wrong is an InputError, and so is a help that nobody hears."""

    def __init__(self, prog: str, description: str, *, hint: str = "", **given: Any) -> None:
        given |= {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        super().__init__(prog, description=fill(description), **given)
        self.hint = hint or f"{prog} --help lists what there is"

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = sys.argv[1:] if args is None else args
        dashed = [re.sub("^--[^=]+", lambda flag: flag[0].replace("_", "-"), word) for word in words]
        return super().parse_known_args(dashed, namespace)

    def _print_message(self, message: str, file: Any = None) -> None:
        try:
            ending.print_output(message)
        except OSError as error:
            why = f"({error.strerror or error})"
            raise InputError(f"this cannot be written to standard output {why}") from None

    def error(self, message: str) -> NoReturn:
        nothing = r"\1 is given without a value; give one"
        message = re.sub("argument (.*): expected one argument", nothing, message)
        if message.startswith("unrecognized arguments: "):
            near = self._find_meant(message.split()[2])
            message += f" (did you mean {near}?)" if near else ""
        raise InputError(f"{message}; {self.hint}")

    def _find_meant(self, word: str) -> str | None:
        known = list(self._option_string_actions)
        if not word.startswith("-"):
            ours = word.endswith(".json") and "--deepspeed-config" in known
            return f"--deepspeed-config {word}" if ours else None
        name = word.partition("=")[0].lstrip("-")
        for flag, theirs in ELSEWHERE.items():
            if name.lower() in theirs.split() and re.split("[ ,]", flag)[0] in known:
                return flag
        return find_nearest(f"--{name}", known)


def read_word(prog: str, about: str, words: Mapping[str, str], arguments: Sequence[str]) -> str:
    """The first argument, one of these words; help says what each is for."""
    listed = [f"  {word:<12}{text}" for word, text in words.items()]
    usage, epilog = f"{prog} COMMAND ...", "\n".join(["commands:", *listed])
    parser = Parser(prog, about, usage=usage, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of those below")
    word: str = parser.parse_args(arguments[:1]).command or ""
    if word in words:
        return word
    near = word and find_nearest(word, list(words))
    what = f"there is no command {word!r}" if word else "no command is given"
    meant = f" (did you mean {near}?)" if near else ""
    parser.error(f"{what}{meant}; give one of {', '.join(words)}")


def find_nearest(word: str, words: Sequence[str]) -> str | None:
    """One that begins with this word, or has it as a part, or is spelled alike."""
    plain = word.lower().replace("_", "-")
    begin = [name for name in words if f"{name}-".startswith(f"{plain}-")]
    part = [name for name in words if plain.lstrip("-") in name.strip("-").split("-")]
    alike = get_close_matches(plain, words, n=1, cutoff=0.75)
    found = begin or part or [name for name in words if name.startswith(plain)] or alike
    return min(found, key=len, default=None)
