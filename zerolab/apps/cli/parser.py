"""Python's parser of flags, but what it has to say is heard, or leads to a sentence and a status."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import IO, Annotated, Any, Literal, NoReturn, get_args, get_origin

from zerolab.apps.cli import ending

MISUSED = 2
REWORDED = (
    (r"argument (\S+): invalid int value: ('.*')", r"\1 is \2; give a whole number"),
    (r"argument (\S+): invalid float value: ('.*')", r"\1 is \2; give a number"),
    (r"argument (\S+): invalid choice: ('.*') \(choose from (.*)\)", r"\1 is \2; give one of \3"),
    (r"argument (\S+): expected one argument", r"\1 is given without a value; give one"),
)
"""What Python says of a flag's value, and what we say."""

ELSEWHERE = {
    **dict.fromkeys(
        ("n", "np", "nproc", "nprocs", "nproc-per-node", "num-processes", "gpus", "ngpus", "n-gpus", "n-gpu",
         "num-gpus", "devices", "world-size"),
        "--ranks",
    ),
    **dict.fromkeys(("gpu", "cuda"), "--device cuda"),
    **dict.fromkeys(("deepspeed", "ds", "ds-config"), "--deepspeed-config"),
    "zero": "--zero-stage",
    **dict.fromkeys(("fsdp", "zero3"), "--zero-stage 3"),
    **dict.fromkeys(("epochs", "num-epochs", "num-train-epochs"), "--max-steps, since steps are counted, not epochs"),
    **dict.fromkeys(("iters", "max-iters", "iterations", "num-steps"), "--max-steps"),
    "learning-rate": "--lr",
}  # fmt: skip
"""What other tools call a flag, without its dashes, and the flag that is meant here."""


class Parser(argparse.ArgumentParser):
    """A parser whose help, usage and version end with status 2 where nobody hears them. A flag is written out: the
    beginning of one could be another's tomorrow."""

    def __init__(self, **given: Any) -> None:
        super().__init__(allow_abbrev=False, **given)
        self.also: Sequence[str] = ()
        """Words, beside its flags, that somebody may have meant."""

    def print_help(self, file: IO[str] | Any = None) -> None:
        self.show("help", self.format_help())

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the flags, in a sentence, on whichever stream is heard."""
        for said, ours in REWORDED:
            message = re.sub(said, ours, message)
        ending.say(f"{self.prog}: {message}{self._meant(message)}; {self.prog} --help lists what there is")
        raise SystemExit(MISUSED)

    def _meant(self, message: str) -> str:
        """The flag that is meant by one that there is not, or is nearest to it; what a file without a flag is for."""
        if not message.startswith("unrecognized arguments: "):
            return ""
        word, known = message.split()[2], [*self.also, *self._option_string_actions]
        if not word.startswith("-"):
            ours = word.endswith(".json") and "--deepspeed-config" in known
            return f" (did you mean --deepspeed-config {word}?)" if ours else ""
        name = word.partition("=")[0].lstrip("-")
        meant = ELSEWHERE.get(name.lower().replace("_", "-"), "")
        near = meant if re.split("[ ,]", meant)[0] in known else nearest(f"--{name}", known)
        return f" (did you mean {near}?)" if near else ""

    def show(self, what: str, text: str) -> None:
        """Write to standard output, or say why that cannot be."""
        try:
            ending.show(text)
        except OSError as error:
            why = error.strerror or error
            ending.say(f"{self.prog}: the {what} cannot be written to standard output ({why})")
            raise SystemExit(MISUSED) from None


def nearest(word: str, words: Sequence[str]) -> str | None:
    """Of the words, the one that was meant: one that begins with this one, else one that has it as a part, else one
    that is spelled alike."""
    plain, known = word.lower().replace("_", "-"), dict[str, str]()
    for name in words:
        known.setdefault(name.lower().replace("_", "-"), name)
    if plain in known:
        return known[plain]
    begin = [name for name in known if name.startswith(plain + "-")]
    part = [name for name in known if plain.lstrip("-") in name.strip("-").split("-")]
    whole = begin or part or [name for name in known if name.startswith(plain)]
    alike = get_close_matches(plain, known, n=1, cutoff=0.75)
    return known[min(whole, key=len)] if whole else known[alike[0]] if alike else None


def name_flags(message: str, names: Iterable[str]) -> str:
    """A message with settings named as their flags are: `zero_stage` becomes `--zero-stage`. A name that is an English
    word, too, is a setting where the sentence begins with it."""
    for name in names:
        start = r"(?<![\w.'\"/-])" if "_" in name else "^"
        message = re.sub(rf"{start}{name}(?![\w'\"/-]|\.\w|\s*=)", "--" + name.replace("_", "-"), message)
    return message


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Arguments whose flags are written with dashes: --max_steps=2 is --max-steps=2. Values stay as they are."""
    words = []
    for word in arguments:
        flag, equals, value = word.partition("=")
        words.append((flag.replace("_", "-") if flag.startswith("--") else flag) + equals + value)
    return words


def add_flag(parser: argparse._ActionsContainer, name: str, field: Any, default: Any) -> None:
    """A flag of a setting of a run, whose value is checked by `RunSpec`, in one place."""
    flag = "--" + name.replace("_", "-")
    text = f"{field.description} (default: {'none' if default is None else default})"
    if name == "resume":
        parser.add_argument(flag, dest=name, default=None, nargs="?", const="", metavar="FOLDER", help=text)
    elif field.annotation in (bool, bool | None):
        parser.add_argument(flag, dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
    else:
        # Numbers stay text until pydantic reads them, so that every refusal is worded alike.
        parser.add_argument(flag, dest=name, default=None, metavar=metavar(field.annotation), help=text)


def metavar(annotation: Any) -> str:
    """What a flag takes: a kind of value, or the words that there are to choose from."""
    if get_origin(annotation) is Annotated:
        return metavar(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if kinds:
        return "|".join(dict.fromkeys(map(metavar, kinds)))
    return {"int": "N", "float": "X", "Path": "FILE"}.get(annotation.__name__, "NAME")


class Version(argparse.Action):
    """The flag `--version`: shows the version, which is its `const`, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *given: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        parser.show("version", f"{parser.prog} {self.const}\n")
        raise SystemExit(0)
