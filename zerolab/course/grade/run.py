"""A grading as `zerolab grade` asks for it: files are read and graded, and grades shown and written."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from zerolab.apps.cli import ending
from zerolab.apps.cli.tables import render
from zerolab.course.grade.cage import Limits
from zerolab.course.grade.referee import Watch, grade
from zerolab.course.grade.report import Graded, as_json, as_markdown, describe, totals
from zerolab.course.grade.submission import Submission, find_notebooks, read_submission
from zerolab.course.judge.case import legible
from zerolab.errors import DiskError, InputError, RankError, ZerolabError
from zerolab.ranks.folders import reason
from zerolab.train.outputs import write_output
from zerolab.train.progress import Bar


def grade_files(options: argparse.Namespace, limits: Limits) -> int:
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    refused: list[str] = []
    try:
        paths = find_notebooks(options.notebooks or [Path("exercises")])
        if options.source and len(paths) > 1:
            raise InputError(f"--source is the source of one notebook, and {len(paths)} are to be graded; name one")
        submissions = read_all(paths, options.source, refused)
        results = grade_all(submissions, seed, limits, refused)
    except (ZerolabError, OSError) as error:
        for said in (*refused, ending.in_one_sentence(error)):
            ending.print_error(said)
        return 2
    lost = list(hand_over(results, refused, seed, options))
    for said in (*refused, *lost):
        ending.print_error(said)
    score, most = totals(results)
    return 2 if refused or lost else 0 if score == most else 1


def read_all(paths: Sequence[Path], source: Path | None, refused: list[str]) -> list[tuple[Path, Submission]]:
    """The submissions. Of many, one that cannot be read keeps nobody else's from being graded; it is `refused`."""
    submissions: list[tuple[Path, Submission]] = []
    for path in paths:
        try:
            submissions.append((path, read_submission(path, source)))
        except Exception as error:  # whatever a stranger's file does, the others' grades stand
            if len(paths) == 1:
                raise
            refused.append(legible(f"{path} could not be graded: {ending.in_one_sentence(error)}"))
    return submissions


def grade_all(
    submissions: Sequence[tuple[Path, Submission]], seed: int, limits: Limits, refused: list[str]
) -> list[Graded]:
    results: list[Graded] = []
    with progress(sum(step.graded for _, submission in submissions for step in submission.steps)) as watch:
        for path, submission in submissions:
            try:
                results.append(Graded(path, submission, tuple(grade(submission, seed, limits, watch))))
            except Exception as error:  # and whatever an answer does
                # The machine would let no other answer run; what has been graded until now is not lost.
                if isinstance(error, RankError) and not results:
                    raise
                refused.append(legible(f"{path} could not be graded: {ending.in_one_sentence(error)}"))
    return results


def hand_over(
    results: Sequence[Graded], refused: Sequence[str], seed: int, options: argparse.Namespace
) -> Iterator[str]:
    """Show the grades and write them to files; yields a sentence for each place where that could not be."""
    try:
        ending.print_output(render(describe(results, seed)))
    except OSError as error:
        yield f"the grades could not be shown ({reason(error)}); --json has all of them"
    written = (
        ("the grade in JSON", options.json, json.dumps(as_json(results, refused), indent=2) + "\n"),
        ("the grade in Markdown", options.markdown, as_markdown(results, refused)),
    )
    for what, path, text in written:
        try:
            if path is not None:
                write_output(what, path, text)
        except DiskError as error:
            yield str(error)


@contextmanager
def progress(exercises: int) -> Iterator[Watch]:
    """While the block runs, how far it is, on standard error: a bar where that is a terminal, one plain line elsewhere.
    Yields what to call with each exercise as it begins."""
    shape = "{desc} |{bar}| {n_fmt} of {total_fmt}"
    with Bar(desc="starting", total=exercises, bar_format=shape, file=sys.stderr, leave=False, disable=None) as bar:
        if bar.disable:
            with suppress(OSError):
                print(f"zerolab grade: running {exercises} exercises", file=sys.stderr, flush=True)

        done = count()

        def watch(name: str) -> None:
            bar.n = next(done)
            bar.set_description_str(name)

        yield watch
