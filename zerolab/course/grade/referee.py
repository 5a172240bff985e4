"""Runs each answer of a submission in a process of its own, with limits, and judges here what it did there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zerolab.course.exercises import exercises_of
from zerolab.course.grade.cage import Limits
from zerolab.course.grade.doubt import hold_limits, hold_model, in_doubt
from zerolab.course.grade.needs import globals_by_name, mend_first, uses
from zerolab.course.grade.runner import observe_apart
from zerolab.course.grade.submission import Submission
from zerolab.course.grade.worker import Cells
from zerolab.course.judge.case import Observation, Trouble
from zerolab.course.judge.verdict import Finding, judge

Watch = Callable[[str], None]
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Verdict:
    """What became of one exercise."""

    name: str
    points: float
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return bool(self.findings) and all(finding.holds for finding in self.findings)

    @property
    def score(self) -> float:
        return self.points if self.passed else 0.0

    @property
    def hint(self) -> str:
        return next((finding.hint for finding in self.findings if finding.hint), "")


def grade(
    submission: Submission, seed: int, limits: Limits = DEFAULT_LIMITS, watch: Watch = lambda name: None
) -> list[Verdict]:
    """A verdict for each exercise, in order. `watch` is told which one runs. Raises a RankError where the machine does
    not let a right answer run."""

    def observe(cells: Sequence[tuple[str, str, bool]]) -> list[Observation] | Trouble:
        return observe_apart(Cells(submission.lesson, cells, seed, limits.memory_mb), limits.seconds)

    hold_limits(limits.memory_mb)
    read = globals_by_name(step.source for step in submission.steps)
    verdicts: list[Verdict] = []
    # What ends its process, or spoils it, is not the others' fault: it is left out of theirs.
    left_out: set[str] = set()
    for at, step in enumerate(submission.steps):
        if not step.graded:
            continue
        watch(step.name)
        steps = [one for one in submission.steps[: at + 1] if one.name not in left_out]
        cells = [(one.name, one.source, one.graded) for one in steps]
        exercise = exercises_of(submission.lesson)[step.name]
        # The cases are drawn again here, where no learner's code runs.
        cases = exercise.drawn(seed)
        seen = Trouble("Refused", step.refusal) if step.refusal else observe(cells)
        if isinstance(seen, Trouble):
            left_out.add(step.name)
            seen = [Observation(trouble=seen)]
        if in_doubt(seen):
            shown = observe([(one.name, one.model or one.source, one.graded) for one in submission.steps[: at + 1]])
            shown = [Observation(trouble=shown)] if isinstance(shown, Trouble) else shown
            hold_model(step.name, judge(exercise, cases, shown), shown)
        findings = judge(exercise, cases, seen)
        used = uses(step.name, read)
        if causes := [earlier.name for earlier in verdicts if earlier.name in used and not earlier.passed]:
            findings = mend_first(findings, causes)
        verdicts.append(Verdict(step.name, step.points, tuple(findings)))
    return verdicts
