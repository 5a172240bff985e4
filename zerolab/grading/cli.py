"""`zerolab grade`: grade an exercise notebook."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from zerolab.errors import InputError
from zerolab.grading.progress import progress
from zerolab.grading.referee import Limits, grade
from zerolab.grading.report import as_json, as_markdown, print_report, totals
from zerolab.grading.submission import read_submission


def main(argv: Sequence[str] | None = None) -> int:
    """Grade a file; 0 at full marks, 1 below, 2 where it cannot be graded."""
    options = parser().parse_args(argv)
    try:
        limits = Limits(positive("--seconds", options.seconds), int(positive("--memory-mb", options.memory_mb)))
        for target in filter(None, (options.json, options.markdown)):
            if not target.resolve().parent.is_dir():
                raise InputError(f"there is no folder {target.parent} to write {target.name} in; make it first")
        submission = read_submission(options.notebook, options.source)
        seed = secrets.randbelow(2**32) if options.seed is None else options.seed
        with progress(sum(step.graded for step in submission.steps)) as watch:
            verdicts = grade(submission, seed, limits, watch)
        if options.json:
            options.json.write_text(json.dumps(as_json(verdicts), indent=2) + "\n", encoding="utf-8")
        if options.markdown:
            options.markdown.write_text(as_markdown(verdicts), encoding="utf-8")
    except (InputError, OSError) as error:
        print(f"zerolab grade: {error}", file=sys.stderr)
        return 2
    print_report(submission, verdicts, seed)
    score, most = totals(verdicts)
    return 0 if score == most else 1


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="zerolab grade", description="Run the answers in a notebook on fresh data and say what holds."
    )
    made.add_argument("notebook", type=Path, help="such as exercises/01_ring_collectives.ipynb")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the grade in Gradescope's shape")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write the grade as a Markdown table")
    made.add_argument("--seed", type=int, help="draw the data of an earlier run again")
    made.add_argument("--source", type=Path, help="the solution that the exercise was made from")
    made.add_argument("--seconds", type=float, default=Limits.seconds, help="limit for each exercise")
    made.add_argument("--memory-mb", type=float, default=Limits.memory_mb, help="limit on memory, in MiB")
    return made


def positive(flag: str, value: float) -> float:
    if not 0 < value < 1e6:
        raise InputError(f"{flag} is {value:g}; give a number above 0 and below a million")
    return value
