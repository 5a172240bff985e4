"""`zerolab grade`: grade exercise notebooks."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from zerolab.errors import InputError
from zerolab.grading.case import legible
from zerolab.grading.progress import Watch, progress
from zerolab.grading.referee import Limits, grade
from zerolab.grading.report import Graded, as_json, as_markdown, print_report, totals
from zerolab.grading.submission import Submission, find_notebooks, read_submission


def main(argv: Sequence[str] | None = None) -> int:
    """Grade files: 0 at full marks, 1 below, 2 where a file cannot be graded, or a flag cannot work."""
    options = parser().parse_args(argv)
    try:
        limits = Limits(positive("--seconds", options.seconds), int(positive("--memory-mb", options.memory_mb)))
        for target in filter(None, (options.json, options.markdown)):
            if not target.resolve().parent.is_dir():
                raise InputError(f"there is no folder {target.parent} to write {target.name} in; make it first")
        paths = find_notebooks(options.notebooks or [Path("exercises")])
        if options.source and len(paths) > 1:
            raise InputError(f"--source is the source of one notebook, and {len(paths)} are to be graded; name one")
        submissions, refused = read_all(paths, options.source)
        seed = secrets.randbelow(2**32) if options.seed is None else options.seed
        results: list[Graded] = []
        with progress(sum(step.graded for _, submission in submissions for step in submission.steps)) as watch:
            for path, submission in submissions:
                before = sum(len(result.verdicts) for result in results)
                verdicts = grade(submission, seed, limits, from_there(watch, before))
                results.append(Graded(path, submission, tuple(verdicts)))
        if options.json:
            options.json.write_text(json.dumps(as_json(results, refused), indent=2) + "\n", encoding="utf-8")
        if options.markdown:
            options.markdown.write_text(as_markdown(results, refused), encoding="utf-8")
    except (InputError, OSError) as error:
        print(f"zerolab grade: {error}", file=sys.stderr)
        return 2
    print_report(results, seed)
    for said in refused:
        print(f"zerolab grade: {said}", file=sys.stderr)
    score, most = totals(results)
    return 2 if refused else 0 if score == most else 1


def read_all(paths: Sequence[Path], source: Path | None) -> tuple[list[tuple[Path, Submission]], list[str]]:
    """The submissions, and what is wrong with the files that are none: of many, one that cannot be read keeps nobody
    else's from being graded."""
    submissions: list[tuple[Path, Submission]] = []
    refused: list[str] = []
    for path in paths:
        try:
            submissions.append((path, read_submission(path, source)))
        except (InputError, OSError) as error:
            if len(paths) == 1:
                raise
            refused.append(legible(str(error)))
    return submissions, refused


def from_there(watch: Watch, before: int) -> Watch:
    """A watch for a file that comes after `before` exercises of other files."""
    return lambda name, done: watch(name, before + done)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="zerolab grade", description="Run the answers in notebooks on fresh data and say what holds."
    )
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
    made.add_argument("--source", type=Path, help="the solution that the exercise was made from")
    made.add_argument("--seconds", type=float, default=Limits.seconds, help="limit for each exercise")
    made.add_argument("--memory-mb", type=float, default=Limits.memory_mb, help="limit on memory, in MiB")
    return made


def positive(flag: str, value: float) -> float:
    if not 0 < value < 1e6:
        raise InputError(f"{flag} is {value:g}; give a number above 0 and below a million")
    return value
