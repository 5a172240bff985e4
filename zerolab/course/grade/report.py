"""Grades as tables for people and as JSON for a server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from zerolab.apps.cli.tables import make_table
from zerolab.course.grade import cage
from zerolab.course.grade.check import report
from zerolab.course.grade.referee import Verdict
from zerolab.course.grade.submission import Submission
from zerolab.course.judge.case import legible


@dataclass(frozen=True)
class Graded:
    path: Path
    submission: Submission
    verdicts: tuple[Verdict, ...]


def totals(results: Sequence[Graded]) -> tuple[float, float]:
    verdicts = [verdict for result in results for verdict in result.verdicts]
    return sum(verdict.score for verdict in verdicts), sum(verdict.points for verdict in verdicts)


def of(score: float, most: float) -> str:
    return f"{score:g} / {most:g}"


def describe(results: Sequence[Graded], seed: int) -> Iterator[str | Table]:
    """A table for each file, then a hint for each exercise that does not hold yet."""
    for result in results:
        rows = []
        for verdict in result.verdicts:
            held = sum(finding.holds is True for finding in verdict.findings)
            rows.append((verdict.name, of(verdict.score, verdict.points), f"{held} of {len(verdict.findings)}"))
        rows.append(("together", of(*totals([result])), ""))
        yield make_table(result.submission.lesson, "exercise|points|claims that hold", rows)
        yield from (f"{verdict.name}: {verdict.hint}" for verdict in result.verdicts if not verdict.passed)
        if result.submission.restored:
            yield f"put back as they were: {', '.join(result.submission.restored)}"
        yield f"graded the file {legible(str(result.path.resolve()))}\n"
    if len(results) > 1:
        yield f"{len(results)} notebooks together: {of(*totals(results))}"
    yield f"data drawn from seed {seed}; draw the same with --seed {seed}"
    if cage.version() < 1:
        yield "this system cannot keep answers from reading your files; docs/instructors.md says what to do"


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
                "output": f"{report(verdict.name, verdict.findings)}\n{verdict.hint}".rstrip(),
            }
            for result in results
            for verdict in result.verdicts
        ],
    }


def as_markdown(results: Sequence[Graded], refused: Sequence[str] = ()) -> str:
    lines = ["| lesson | exercise | points | what to do |", "| --- | --- | ---: | --- |"]
    for result in results:
        for verdict in result.verdicts:
            todo = " ".join(verdict.hint.replace("|", "/").split()) or "holds"
            points = of(verdict.score, verdict.points)
            lines.append(f"| {result.submission.lesson} | {verdict.name} | {points} | {todo} |")
    lines.append(f"| | **together** | **{of(*totals(results))}** | |")
    return "\n".join([*lines, *(f"\nNot graded: {said}" for said in refused)]) + "\n"
