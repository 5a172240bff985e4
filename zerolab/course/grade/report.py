"""Grades as tables for people and as JSON for a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from zerolab.apps.cli.tables import render
from zerolab.course.grade import cage
from zerolab.course.grade.check import MARKS
from zerolab.course.grade.referee import Verdict
from zerolab.course.grade.submission import Submission
from zerolab.course.judge.case import legible
from zerolab.course.judge.verdict import Finding


@dataclass(frozen=True)
class Graded:
    """A file, what was handed in with it, and a verdict on each of its exercises."""

    path: Path
    submission: Submission
    verdicts: tuple[Verdict, ...]


def totals(results: Sequence[Graded]) -> tuple[float, float]:
    """Points reached and points there are."""
    verdicts = [verdict for result in results for verdict in result.verdicts]
    return sum(verdict.score for verdict in verdicts), sum(verdict.points for verdict in verdicts)


def text_of(results: Sequence[Graded], seed: int) -> str:
    """A table for each file, then a hint for each exercise that does not hold yet."""
    return render(describe(results, seed))


def describe(results: Sequence[Graded], seed: int) -> Iterator[str | Table]:
    for result in results:
        yield table(result)
        for verdict in result.verdicts:
            if not verdict.passed:
                yield f"{verdict.name}: {verdict.hint}"
        if result.submission.restored:
            yield f"put back as they were: {', '.join(result.submission.restored)}"
        yield f"graded the file {legible(str(result.path.resolve()))}\n"
    score, most = totals(results)
    if len(results) > 1:
        yield f"{len(results)} notebooks together: {score:g} / {most:g}"
    yield f"data drawn from seed {seed}; draw the same with --seed {seed}"
    if cage.version() < 1:
        yield "this system cannot keep answers from reading your files; docs/instructors.md says what to do"


def table(result: Graded) -> Table:
    """Points by exercise."""
    made = Table(title=result.submission.lesson, title_justify="left")
    made.add_column("exercise")
    made.add_column("points", justify="right")
    made.add_column("claims that hold", justify="right")
    for verdict in result.verdicts:
        held = sum(finding.holds is True for finding in verdict.findings)
        made.add_row(verdict.name, f"{verdict.score:g} / {verdict.points:g}", f"{held} of {len(verdict.findings)}")
    score, most = totals([result])
    made.add_section()
    made.add_row("together", f"{score:g} / {most:g}", "")
    return made


def as_json(results: Sequence[Graded], refused: Sequence[str] = ()) -> dict[str, Any]:
    """The grade in the shape that Gradescope's autograders write; names carry the lesson if there are several. What is
    wrong with files that could not be graded stands in the output of the whole."""
    score, most = totals(results)
    return {
        **({"output": "\n".join(refused)} if refused else {}),
        "score": score,
        "max_score": most,
        "status": "passed" if score == most and not refused else "failed",
        "tests": [
            {
                "name": f"{result.submission.lesson}: {verdict.name}" if len(results) > 1 else verdict.name,
                "score": verdict.score,
                "max_score": verdict.points,
                "status": "passed" if verdict.passed else "failed",
                "output": text_of_findings(verdict),
            }
            for result in results
            for verdict in result.verdicts
        ],
    }


def as_markdown(results: Sequence[Graded], refused: Sequence[str] = ()) -> str:
    """The grade as a Markdown table, such as for a comment on a pull request."""
    lines = ["| lesson | exercise | points | what to do |", "| --- | --- | ---: | --- |"]
    for result in results:
        lesson = result.submission.lesson
        lines += [
            f"| {lesson} | {v.name} | {v.score:g} / {v.points:g} | {v.hint.replace('|', '/') or 'holds'} |"
            for v in result.verdicts
        ]
    score, most = totals(results)
    lines.append(f"| | **together** | **{score:g} / {most:g}** | |")
    return "\n".join([*lines, *(f"\nNot graded: {said}" for said in refused)]) + "\n"


def text_of_findings(verdict: Verdict) -> str:
    lines = [f"{MARKS[finding.holds]}  {finding.text}{numbers(finding)}" for finding in verdict.findings]
    return "\n".join([*lines, verdict.hint]).rstrip()


def numbers(finding: Finding) -> str:
    """A score and its target, where a finding has some."""
    return "" if finding.target is None else f": {finding.yours:,} (target {finding.target:,})"
