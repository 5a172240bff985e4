"""Tries an answer in the place of the model's, as the grader does, but in this process and in lockstep alone."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any
from zlib import crc32

from cover import NIGHTLY

from zerolab.course.exercises import LESSONS, exercises_of
from zerolab.course.grade.cells import grade_id, is_answer, is_check, is_locked
from zerolab.course.grade.worker import load, run
from zerolab.course.judge.bounds import offence
from zerolab.course.judge.case import Case, Observation, Trouble
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.observe import observe_all
from zerolab.course.judge.verdict import Finding, by_themselves, judge
from zoo.answers import solution

# What is there before any answer runs is no answer's garbage: to search it takes a tenth of the time.
gc.freeze()
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


@lru_cache(maxsize=8)
def drawn(lesson: str, name: str, seed: int) -> list[Case]:
    """The cases of a seed. Answers share them, and what references say of them: ranks in lockstep work on copies."""
    return quick(exercises_of(lesson)[name]).drawn(seed)


def instead(lesson: str, name: str, source: str | None) -> tuple[Exercise, dict[str, Any], Trouble | None]:
    """An exercise, all names with `source` in the place of the model answer (None leaves that), and why it does not
    load."""
    names = model_names(lesson)
    trouble = None
    if source is not None:
        del names[name]
        trouble = offence(source) or load(name, source, names)
    return quick(exercises_of(lesson)[name]), names, trouble


def findings(lesson: str, name: str, source: str | None = None, seed: int = 5) -> list[Finding]:
    """What the grader makes of `source` in the place of the model answer, or of the model answer."""
    exercise, names, trouble = instead(lesson, name, source)
    cases = drawn(lesson, name, seed)
    return judge(exercise, cases, run(exercise, names, trouble, cases))


def hint_for(lesson: str, name: str, source: str, seed: int = 5) -> str:
    """The hint that `source` gets first; '' if all holds."""
    return told(findings(lesson, name, source, seed))


def told(found: Sequence[Finding]) -> str:
    """The first hint; '' if all holds."""
    return next((finding.hint for finding in found if finding.hint), "")


def hint_for_wrong(lesson: str, name: str, source: str, awaited: str) -> str:
    """The hint that a wrong answer gets first, as `hint_of` has it."""
    exercise, names, trouble = instead(lesson, name, source)
    if trouble or not callable(names.get(name)):
        return hint_for(lesson, name, source)
    return hint_of(awaited, exercise, names[name], drawn(lesson, name, 5))


def hint_of(awaited: str, exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> str:
    """The hint that a wrong program gets first; by day, in the first case that gives it the `awaited` one, if one does
    (cases after another call only where those by themselves hold, since they are told of only then). That this comes
    before all that other cases say is seen nightly."""
    if NIGHTLY:
        return told(judge(exercise, cases, run(exercise, {exercise.name: fn}, None, cases)))
    seen: list[Observation] = []
    first = by_themselves(cases)
    for part in (first, cases[len(first) :]):
        for case, observation in zip(part, observe_all(exercise, fn, part), strict=False):
            seen.append(observation)
            if awaited in (hint := told(judge(exercise, [case], [observation]))):
                return hint
        if told(judge(replace(exercise, scores=()), first, seen)):
            break
    return told(judge(exercise, cases, seen))


def first_hint(exercise: Exercise, fn: Callable[..., Any], cases: Sequence[Case]) -> str:
    """The hint of the first of these cases that has one, '' if none has; the cases after it are not run."""
    told_of = (
        told(judge(exercise, [case], [seen]))
        for case, seen in zip(cases, observe_all(exercise, fn, cases), strict=False)
    )
    return next(filter(None, told_of), "")


def hint_for_right(lesson: str, name: str, source: str, part: int, parts: int) -> str:
    """The hint that a right answer is refused with, '' if it is not. Each is tried on a draw of its own, by day on one
    of `parts` parts of its cases."""
    exercise, names, trouble = instead(lesson, name, source)
    cases = drawn(lesson, name, crc32(source.encode()) % 100)
    if not NIGHTLY:
        cases = shared_out(cases, part, parts)
    return told(judge(exercise, cases, run(exercise, names, trouble, cases)))


MOST_PARTS = 8
"""Into how many parts cases are shared out at most."""


def parts_of(answers: int) -> int:
    """Into how many parts the cases of an exercise with so many right answers are shared out; each is tried on one."""
    return max(1, min(MOST_PARTS, answers))


def shared_out(cases: Sequence[Case], part: int, parts: int) -> list[Case]:
    """Every case whose turn it is; and those that fill the scoreboard."""
    return [case for place, case in enumerate(cases) if case.board or place % parts == part % parts]
