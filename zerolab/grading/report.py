"""A grade as a table for people and as JSON for a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from zerolab.grading.check import MARKS
from zerolab.grading.exercise import Finding
from zerolab.grading.referee import Verdict
from zerolab.grading.submission import Submission


def totals(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """Points reached and points there are."""
    return sum(verdict.score for verdict in verdicts), sum(verdict.points for verdict in verdicts)


def print_report(submission: Submission, verdicts: Sequence[Verdict], seed: int) -> None:
    """Points by exercise, then a hint for each that does not hold yet."""
    console = Console(highlight=False)
    table = Table(title=submission.lesson, title_justify="left")
    table.add_column("exercise")
    table.add_column("points", justify="right")
    table.add_column("claims that hold", justify="right")
    for verdict in verdicts:
        held = sum(finding.holds is True for finding in verdict.findings)
        table.add_row(verdict.name, f"{verdict.score:g} / {verdict.points:g}", f"{held} of {len(verdict.findings)}")
    score, most = totals(verdicts)
    table.add_section()
    table.add_row("together", f"{score:g} / {most:g}", "")
    console.print(table)
    for verdict in verdicts:
        if not verdict.passed:
            console.print(f"{verdict.name}: {verdict.hint}", markup=False, soft_wrap=True)
    if submission.restored:
        console.print(f"put back as they were: {', '.join(submission.restored)}", markup=False, soft_wrap=True)
    console.print(f"data drawn from seed {seed}; draw the same with --seed {seed}")


def as_json(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The grade in the shape that Gradescope's autograders write."""
    score, most = totals(verdicts)
    return {
        "score": score,
        "max_score": most,
        "status": "passed" if score == most else "failed",
        "tests": [
            {
                "name": verdict.name,
                "score": verdict.score,
                "max_score": verdict.points,
                "status": "passed" if verdict.passed else "failed",
                "output": text_of_findings(verdict),
            }
            for verdict in verdicts
        ],
    }


def as_markdown(verdicts: Sequence[Verdict]) -> str:
    """The grade as a Markdown table, such as for a comment on a pull request."""
    score, most = totals(verdicts)
    rows = [f"| {v.name} | {v.score:g} / {v.points:g} | {v.hint.replace('|', '/') or 'holds'} |" for v in verdicts]
    head = ["| exercise | points | what to do |", "| --- | ---: | --- |"]
    return "\n".join([*head, *rows, f"| **together** | **{score:g} / {most:g}** | |"]) + "\n"


def text_of_findings(verdict: Verdict) -> str:
    lines = [f"{MARKS[finding.holds]}  {finding.text}{numbers(finding)}" for finding in verdict.findings]
    return "\n".join([*lines, verdict.hint]).rstrip()


def numbers(finding: Finding) -> str:
    """A score and its target, where a finding has some."""
    return "" if finding.target is None else f": {finding.yours:,} (target {finding.target:,})"
