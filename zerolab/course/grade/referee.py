"""Runs a submission in a process of its own, with limits, and judges here what it did there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from zerolab.course.exercises import exercises_of
from zerolab.course.grade import cage
from zerolab.course.grade.cage import Limits
from zerolab.course.grade.doubt import hold_limits, hold_model, in_doubt
from zerolab.course.grade.needs import mend_first, mentions, uses
from zerolab.course.grade.progress import Watch
from zerolab.course.grade.runner import Runner
from zerolab.course.grade.submission import Step, Submission
from zerolab.course.judge.case import Observation, Trouble
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.verdict import Finding, judge
from zerolab.errors import RankError


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
        """What to mend first."""
        return next((finding.hint for finding in self.findings if finding.hint), "")


def grade(
    submission: Submission, seed: int, limits: Limits | None = None, watch: Watch = lambda name, done: None
) -> list[Verdict]:
    """A verdict for each exercise, in order. `watch` is told which one runs and how many are done. Raises a RankError
    where the machine does not let a right answer run."""
    exercises = exercises_of(submission.lesson)
    limits = limits or Limits()
    seen = observe_steps(submission, seed, limits, watch)
    rule_out_the_machine(submission, seed, limits, seen)
    mentioned = mentions(step.source for step in submission.steps)
    verdicts: list[Verdict] = []
    for step in submission.steps:
        if step.graded:
            findings = judged(exercises[step.name], step, seen[step.name], seed)
            used = uses(step.name, mentioned)
            if causes := [earlier.name for earlier in verdicts if earlier.name in used and not earlier.passed]:
                findings = mend_first(findings, causes[0])
            verdicts.append(Verdict(step.name, step.points, tuple(findings)))
    return verdicts


def rule_out_the_machine(
    submission: Submission, seed: int, limits: Limits, seen: Mapping[str, Sequence[Observation]]
) -> None:
    """Raise a RankError unless model answers are right where answers met a trouble that the machine may have made."""
    answers = {step.name: step for step in submission.steps if step.graded and step.model and not step.refusal}
    names = [name for name in answers if in_doubt(seen[name])]
    steps = tuple(replace(step, source=step.model, refusal="") if step.graded else step for step in submission.steps)
    exercises = exercises_of(submission.lesson)
    # The first by itself: where the machine is short of something, that will do.
    for some in filter(None, (names[:1], names[1:])):
        shown = observe_steps(replace(submission, steps=steps), seed, limits, only=some)
        for name in some:
            hold_model(name, judged(exercises[name], answers[name], shown[name], seed), shown[name])
            hold_limits(name, seen[name], limits.memory_mb, cage.memory_taken())


def judged(exercise: Exercise, step: Step, seen: list[Observation], seed: int) -> list[Finding]:
    """The findings of one exercise; the cases are drawn again here, where no learner's code runs."""
    if step.refusal:
        seen = [Observation(trouble=Trouble("Refused", step.refusal))]
    return judge(exercise, exercise.drawn(seed), seen)


def observe_steps(
    submission: Submission,
    seed: int,
    limits: Limits,
    watch: Watch = lambda name, done: None,
    only: Collection[str] | None = None,
) -> dict[str, list[Observation]]:
    """What each exercise, or each of `only` these, was seen to do. A step that ends its process, or hangs, is left out
    of the next process, which goes on with the others."""
    graded = [step.name for step in submission.steps if step.graded and (only is None or step.name in only)]
    seen: dict[str, list[Observation]] = {name: [] for name in graded}
    left_out = {step.name for step in submission.steps if step.refusal}
    done: set[str] = set()
    # Each process takes a step off the list, so that there are never more of them, whatever they say.
    for _ in submission.steps:
        if done | left_out >= seen.keys():
            break
        steps = [
            {
                "name": step.name,
                "source": step.source,
                "answer": step.graded,
                "graded": step.name in seen.keys() - done,
            }
            for step in submission.steps
            if step.name not in left_out
        ]
        began, trouble = "", False
        job = {"lesson": submission.lesson, "seed": seed, "memory_mb": limits.memory_mb, "steps": steps}
        for line in Runner(job, limits.seconds):
            began = line.get("began", began)
            if "ended" in line and began in seen:
                seen[began] = line["seen"]
                done.add(began)
                if tampered_with(line["seen"]):
                    # What it replaced is not the others' fault: they get a process in which all is as it should be.
                    trouble = True
                    left_out.add(began)
                    break
            trouble = "trouble" in line
            if trouble and not began:
                # Nobody's answer has run yet, so that it is nobody's fault here.
                raise RankError(
                    f"the process that answers run in ended before it began ({line['trouble']['message']}); see "
                    "whether memory, files and processes are limited, or give more --memory-mb"
                )
            if trouble:
                left_out.add(began)
                if began in seen:
                    seen[began] = [Observation(trouble=Trouble(**line["trouble"]))]
                    done.add(began)
            if began in seen:
                watch(began, len(done | left_out & seen.keys()))
        if not (trouble and began):
            break
    return seen


def tampered_with(seen: Sequence[Observation]) -> bool:
    """Whether an answer has put something of its own in the place of what the check relies on."""
    return any(observation.trouble is not None and observation.trouble.kind == "Tampered" for observation in seen)
