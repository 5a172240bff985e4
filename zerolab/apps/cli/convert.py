"""`zerolab checkpoint convert`: checkpoints to torch's distributed ones (DCP) and back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from zerolab.apps.cli import ending
from zerolab.errors import CheckpointError
from zerolab.train.progress import Bar

FLAGS = {
    "frozen=[...]": "--frozen NAME",
    "buffers=[...]": "--buffers NAME",
    'model="..."': "--model NAME",
    'optimizer=""': "--weights-only",
    ", or give the model (module=...)": "",
    "give the model (module=...), or save": "save",
}
"""What an error of the library says, and what the command has instead."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="a checkpoint or a folder of some, or a folder of torch's")
    parser.add_argument("target", type=Path, help="a folder that is new or empty")
    parser.add_argument(
        "--to", choices=("dcp", "zerolab"), required=True, help="torch's distributed checkpoint, or ours"
    )
    back = parser.add_argument_group("with --to zerolab", "of a DCP folder, in which nothing is run")
    text = "NAME is %s; patterns such as 'norm.*' name several, and the flag may be given again"
    back.add_argument("--frozen", metavar="NAME", action="append", default=[],
                      help=text % "a frozen parameter, or another name of a tied one")  # fmt: skip
    back.add_argument("--buffers", metavar="NAME", action="append", default=[], help=text % "a buffer")
    back.add_argument(
        "--model", default="model", metavar="NAME", help="what the model is called there (default: model)"
    )
    back.add_argument(
        "--optimizer", default="optim", metavar="NAME", help="what the optimizer is called there (default: optim)"
    )
    back.add_argument("--weights-only", action="store_true", help="leave the optimizer's states out")


def run(given: argparse.Namespace) -> int:
    """Write the other kind of folder, and say where."""
    # It takes a second to import.
    from zerolab.apps.interop.dcp import from_dcp, to_dcp

    with Bar(desc="convert", unit="entry", disable=None) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        if given.to == "dcp":
            path = to_dcp(given.source, given.target, progress=progress)
        else:
            options: dict[str, Any] = {"frozen": given.frozen, "buffers": given.buffers, "model": given.model}
            optimizer = "" if given.weights_only else given.optimizer
            try:
                path = from_dcp(given.source, given.target, optimizer=optimizer, progress=progress, **options)
            except CheckpointError as error:
                raise CheckpointError(_with_flags(str(error))) from None
    ending.show(f"{path} is written\n")
    return 0


def _with_flags(message: str) -> str:
    for of_library, of_command in FLAGS.items():
        message = message.replace(of_library, of_command)
    return message
