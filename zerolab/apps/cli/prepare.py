"""`zerolab prepare`: a text file as a data set to train on."""

from __future__ import annotations

from pathlib import Path

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser
from zerolab.data import prepare
from zerolab.errors import InputError


def main(arguments: list[str]) -> int:
    parser = Parser(
        prog="zerolab prepare",
        description="Write a text file as tokens: train.bin and val.bin, as nanoGPT has them, and meta.json. "
        "zerolab train --dataset FOLDER reads them.",
    )
    parser.add_argument("file", metavar="FILE", help="a text file in UTF-8")
    parser.add_argument("--out", metavar="FOLDER", type=Path, required=True, help="folder to write to; made if needed")
    parser.add_argument(
        "--tokens", choices=("bytes", "chars"), default="bytes",
        help="what is a token: each byte of the text (256 there are), or each character that it has (default: bytes)",
    )  # fmt: skip
    parser.add_argument(
        "--valid-fraction",
        metavar="X",
        default="0.1",
        help="how much of the end is held out to validate (default: 0.1)",
    )
    given = parser.parse_args(arguments)
    try:
        fraction = float(given.valid_fraction)
    except ValueError:
        raise InputError(f"--valid-fraction is {given.valid_fraction!r}; give a number between 0 and 1") from None
    if not 0 < fraction < 1:
        raise InputError(f"--valid-fraction is {given.valid_fraction}; give a number between 0 and 1")
    kind = {"bytes": "bytes", "chars": "characters"}[given.tokens]
    written = prepare(given.file, given.out.expanduser(), kind, fraction)
    ending.show(
        f"{given.out}: {written['train.bin']:,} tokens to train on and {written['val.bin']:,} to validate, of a "
        f"vocabulary of {written['vocab_size']:,}; train with: zerolab train --dataset {given.out}\n"
    )
    return 0
