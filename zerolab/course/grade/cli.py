"""`zerolab grade`: grade exercise notebooks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from zerolab.apps.cli import ending
from zerolab.apps.cli.parser import Parser
from zerolab.course.grade.cage import Limits
from zerolab.errors import InputError, ZerolabError
from zerolab.train.outputs import check_output

MOST_REPORT = 2**16
"""Bytes for which there must be room where grades are to be written."""


def main(argv: Sequence[str] | None = None) -> int:
    """Grade files: 0 at full marks, 1 below, 2 where a file cannot be graded, or a grade not be written."""
    options = parser().parse_args(argv)
    try:
        for flag, value in (("--seconds", options.seconds), ("--memory-mb", options.memory_mb)):
            if not 0 < value < 1e6:
                raise InputError(f"{flag} is {value:g}; give a number above 0 and below a million")
        for target in filter(None, (options.json, options.markdown)):
            check_output("--json" if target is options.json else "--markdown", target, MOST_REPORT)
    except (ZerolabError, OSError) as error:
        ending.print_error(ending.in_one_sentence(error))
        return 2
    # All of the rest takes torch.
    from zerolab.course.grade.run import grade_files

    return grade_files(options, Limits(options.seconds, options.memory_mb))


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="zerolab grade", description="Run the answers in notebooks on fresh data and say what holds.")
    made.add_argument(
        "notebooks",
        type=Path,
        nargs="*",
        metavar="NOTEBOOK|FOLDER",
        help="such as exercises/01_ring_collectives.ipynb; of a folder, all its exercises; if left out, exercises/",
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the grade in Gradescope's shape")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write the grade as a Markdown table")
    made.add_argument("--seed", type=int, help="draw the data of an earlier run again")
    made.add_argument(
        "--source",
        type=Path,
        metavar="FILE",
        help="the notebook that the exercise was made from, of the course's folder solutions/: it has the points and "
        "the cells around an answer; if left out, looked for where zerolab runs from and beside the exercise",
    )
    made.add_argument("--seconds", type=float, default=Limits.seconds, help="limit for each exercise")
    made.add_argument("--memory-mb", type=int, default=Limits.memory_mb, help="limit on memory, in MiB")
    return made
