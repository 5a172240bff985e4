"""Tries an answer in the place of the model's, as the grader does, but in this process and in lockstep alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from zerolab.course.exercises import LESSONS, exercises_of
from zerolab.course.grade.cells import grade_id, is_answer, is_check, is_locked
from zerolab.course.grade.worker import load, run
from zerolab.course.judge.bounds import offence
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.verdict import Finding, judge
from zoo.answers import solution

NAMES = [(lesson, exercise.name) for lesson, exercises in LESSONS.items() for exercise in exercises]


def model_names(lesson: str) -> dict[str, Any]:
    """What the solution's cells define; cells that only show something (`shown_...`) are left out."""
    names: dict[str, Any] = {"__name__": "answers"}
    for cell in solution(lesson).cells:
        runs = is_answer(cell) or (is_locked(cell) and not is_check(cell))
        if cell.cell_type == "code" and runs and not grade_id(cell).startswith("shown_"):
            assert load(grade_id(cell), cell.source, names) is None, grade_id(cell)
    return names


def quick(exercise: Exercise) -> Exercise:
    """The exercise without its cases on real processes."""

    def cases(rng: Random) -> list[Case]:
        return [case for case in exercise.cases(rng) if case.world == "lockstep"]

    return replace(exercise, cases=cases)


@cache
def drawn(lesson: str, name: str, seed: int) -> list[Case]:
    """The cases of a seed. Answers share them, and what references say of them: ranks in lockstep work on copies."""
    return quick(exercises_of(lesson)[name]).drawn(seed)


def findings(lesson: str, name: str, source: str | None = None, seed: int = 5) -> list[Finding]:
    """What the grader makes of `source` in the place of the model answer, or of the model answer."""
    exercise = quick(exercises_of(lesson)[name])
    names = model_names(lesson)
    trouble = None
    if source is not None:
        del names[name]
        trouble = offence(source) or load(name, source, names)
    cases = drawn(lesson, name, seed)
    return judge(exercise, cases, run(exercise, names, trouble, cases))


def hint_for(lesson: str, name: str, source: str, seed: int = 5) -> str:
    """The hint that `source` gets first; '' if all holds."""
    return next((finding.hint for finding in findings(lesson, name, source, seed) if finding.hint), "")
