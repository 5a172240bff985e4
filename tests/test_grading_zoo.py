"""Every wrong answer fails, with a hint of its own; the model answers pass."""

import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from grading_cases import GREEDY, HOSTILE, ZOO, Wrong

from zerolab.flat import chunk_bounds as right_bounds
from zerolab.grading import CheckFailed, checks, observe
from zerolab.grading.case import Observation
from zerolab.grading.cells import grade_id, is_answer, is_check, is_locked, read_notebook
from zerolab.grading.exercise import Exercise, Finding, judge, shortcut
from zerolab.grading.lessons import exercises_of
from zerolab.grading.observe import observe_all
from zerolab.grading.referee import Limits, Verdict, grade
from zerolab.grading.submission import compare
from zerolab.grading.worker import load, run

ROOT = Path(__file__).resolve().parent.parent
LESSON = "01_ring_collectives"
SOLUTION = ROOT / "solutions" / f"{LESSON}.ipynb"
EXERCISES = exercises_of(LESSON)


def model_names() -> dict[str, Any]:
    """What the solution's cells define."""
    names: dict[str, Any] = {"__name__": "answers"}
    for cell in read_notebook(SOLUTION).cells:
        runs = is_answer(cell) or (is_locked(cell) and not is_check(cell))
        if cell.cell_type == "code" and runs and grade_id(cell) != "broken":
            assert load(grade_id(cell), cell.source, names) is None
    return names


def quick(exercise: Exercise) -> Exercise:
    """The exercise without its cases on real processes."""

    def cases(rng: Random) -> list[Any]:
        return [case for case in exercise.cases(rng) if case.world == "lockstep"]

    return Exercise(exercise.name, cases, exercise.claims, exercise.takes_comm)


def findings(exercise: Exercise, source: str, seed: int = 5) -> list[Finding]:
    """What the grader makes of `source` in the place of the model answer."""
    names = model_names()
    del names[exercise.name]
    trouble = shortcut(source) or load(exercise.name, source, names)
    return judge(exercise, exercise.cases(Random(seed)), run(exercise, names, trouble, seed))


@pytest.mark.parametrize("wrong", ZOO, ids=lambda wrong: wrong.name)
def test_a_wrong_answer_fails_with_its_own_hint(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "CASE_SECONDS", 2.0)
    found = findings(quick(EXERCISES[wrong.exercise]), wrong.source)
    hints = [finding.hint for finding in found if finding.holds is False]
    assert hints, "the wrong answer passed"
    assert wrong.hint in hints[0]
    assert len(hints[0]) < 400 and "\n" not in hints[0]


def test_hints_tell_wrong_answers_apart() -> None:
    # Several roads lead to returning one's own numbers.
    shared = {"nothing was added", "does not end", "it calls exit"}
    told = [wrong.hint for wrong in [*ZOO, *HOSTILE] if wrong.hint not in shared]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("name", EXERCISES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_model_answer_passes_on_any_draw(name: str, seed: int) -> None:
    exercise = quick(EXERCISES[name])
    cases = exercise.cases(Random(seed))
    found = judge(exercise, cases, observe_all(model_names()[name], cases, exercise.takes_comm))
    assert [finding.hint for finding in found if not finding.holds] == []


@pytest.mark.parametrize("name", EXERCISES)
def test_cases_have_1_to_4_ranks_uneven_sizes_and_different_data(name: str) -> None:
    first, second = (EXERCISES[name].cases(Random(seed)) for seed in (1, 2))
    assert {case.ranks for case in first} == {1, 2, 3, 4}
    assert str(first) != str(second), "each seed draws anew"
    if name not in ("chunk_bounds", "ring_bytes"):
        assert any(case.world == "processes" for case in first)
        numels = [(case.ranks, sum(args[0].numel() for args in case.args)) for case in first]
        assert any(numel // ranks % ranks or numel % ranks for ranks, numel in numels)
        for case in first:
            data = [str(args[0]) for args in case.args]
            assert len(set(data)) == len(data), "ranks hold different data"


def test_an_observation_that_stops_early_never_passes() -> None:
    exercise = EXERCISES["chunk_bounds"]
    cases = exercise.cases(Random(0))
    assert judge(exercise, cases, [])[0].holds is False
    assert judge(exercise, cases, [Observation()] * len(cases))[0].holds is False


def graded(answers: dict[str, str], limits: Limits) -> list[Verdict]:
    """The verdicts on a file that holds `answers`, and the model answers otherwise."""
    handed_in = read_notebook(SOLUTION)
    for cell in handed_in.cells:
        if is_answer(cell):
            cell.source = answers.get(grade_id(cell), cell.source)
    return grade(compare(handed_in, read_notebook(SOLUTION), LESSON), seed=3, limits=limits)


@pytest.mark.ranks
@pytest.mark.timeout(110)
def test_hostile_answers_fail_alone_and_leave_the_others_their_points() -> None:
    verdicts = graded({wrong.exercise: wrong.source for wrong in HOSTILE}, Limits(seconds=6, memory_mb=2048))
    hints = {verdict.name: verdict.hint for verdict in verdicts}
    for wrong in HOSTILE:
        assert wrong.hint in hints[wrong.exercise], wrong.name
    assert {verdict.name for verdict in verdicts if verdict.passed} == {"chunk_bounds", "ring_bytes"}


WRONG_BOUNDS = "def chunk_bounds(numel, ranks, rank):\n    return rank, rank + 1"
GUESS = "def ring_bytes(numel, itemsize, ranks, rank):\n    return chunk_bounds(numel, ranks, rank)[1] * itemsize"
REFUSED = "import zerolab\n" + WRONG_BOUNDS
UNWRITTEN = "def chunk_bounds(numel, ranks, rank):\n    raise NotImplementedError()"


@pytest.mark.ranks
@pytest.mark.parametrize("bounds", [WRONG_BOUNDS, REFUSED, UNWRITTEN])
def test_answers_that_use_a_wrong_one_are_sent_to_it(bounds: str) -> None:
    blank = "def ring_all_gather(comm, shard, numel):\n    raise NotImplementedError()"
    verdicts = graded({"chunk_bounds": bounds, "ring_all_gather": blank}, Limits(seconds=60))
    hints = {verdict.name: verdict.hint for verdict in verdicts}
    for name in ("ring_reduce_scatter", "ring_all_reduce", "ring_bytes"):
        assert hints[name].startswith("mend chunk_bounds first, which it uses"), "also through the helper `chunk`"
        assert "not written yet" not in hints[name] and "keep helpers" not in hints[name]
    assert "mend" not in hints["chunk_bounds"]
    assert hints["ring_all_gather"].startswith("not written yet"), "a blank uses nothing"
    assert not hints["mended_broadcast"], "it does without"


def test_a_check_sends_to_the_earlier_answer_that_is_wrong() -> None:
    names = model_names()
    for exercise, source in (("chunk_bounds", WRONG_BOUNDS), ("ring_bytes", GUESS)):
        assert load(exercise, source, names) is None
    with pytest.raises(
        CheckFailed, match=r"ring_bytes does not hold yet: mend chunk_bounds first, which it uses, then"
    ):
        checks(LESSON).ring_bytes(names["ring_bytes"])
    assert load("chunk_bounds", "def chunk_bounds(n, ranks, rank):\n    return right(n, ranks)[rank]", names) is None
    names["right"] = right_bounds
    with pytest.raises(CheckFailed, match=r"ring_bytes does not hold yet: \d+ elements"):
        checks(LESSON).ring_bytes(names["ring_bytes"])


@pytest.mark.parametrize("name", ["chunk_bounds", "ring_bytes"])
def test_an_error_in_an_answer_comes_with_its_case(name: str) -> None:
    found = findings(quick(EXERCISES[name]), f"def {name}(*numbers):\n    return undefined")
    assert re.match(r"\d+ elements? .*over 1 rank: rank 0 raised NameError: ", found[0].hint)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.ranks
def test_an_answer_that_takes_all_memory_meets_the_limit() -> None:
    blank = "raise NotImplementedError()"
    answers = dict.fromkeys(EXERCISES, blank) | {"ring_bytes": GREEDY}
    verdicts = {verdict.name: verdict for verdict in graded(answers, Limits(seconds=60, memory_mb=1024))}
    assert "more memory than the limit" in verdicts["ring_bytes"].hint
    assert not any(verdict.passed for verdict in verdicts.values())
