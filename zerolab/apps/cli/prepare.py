"""`zerolab prepare`: a text file as a data set to train on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from zerolab.apps.cli import ending
from zerolab.apps.cli.flags import Flags
from zerolab.data.bins import prepare
from zerolab.run.spec import flag


class PrepareFlags(Flags):
    """Write a text file as tokens, which zerolab train --dataset FOLDER reads."""

    file: Annotated[str, "FILE"] = flag("a text file in UTF-8", ...)
    out: Path = flag("folder to write to; made if needed", ...)
    tokens: Literal["bytes", "chars"] = flag("what is a token", "bytes")
    valid_fraction: Annotated[float, Field(gt=0, lt=1)] = flag("held out to validate", 0.1)


def main(arguments: list[str]) -> int:
    given = PrepareFlags.read("zerolab prepare", arguments)
    kind = {"bytes": "bytes", "chars": "characters"}[given.tokens]
    written = prepare(given.file, given.out.expanduser(), kind, given.valid_fraction)
    ending.print_output(
        f"{given.out}: {written['train.bin']:,} tokens to train on and {written['val.bin']:,} to validate, of a "
        f"vocabulary of {written['vocab_size']:,}; train with: zerolab train --dataset {given.out}\n"
    )
    return 0
