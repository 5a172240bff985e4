"""Every wrong answer fails, with a hint of its own; the model answers pass."""

import copy
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from cover import EVERY_ANSWER, NIGHTLY
from zoo import ZOO, Wrong, house_of, wrong_file
from zoo.answers import changed, everywhere, model, solution
from zoo.ring_collectives.hostile import GREEDY
from zoo.trial import NAMES, findings, hint_for_wrong, model_names, quick

from zerolab.course.exercises import LESSONS, exercises_of
from zerolab.course.grade import CheckFailed, checks
from zerolab.course.grade.cells import grade_id, is_answer
from zerolab.course.grade.needs import globals_by_name, uses
from zerolab.course.grade.referee import Limits, Verdict, grade
from zerolab.course.grade.submission import compare
from zerolab.course.grade.worker import load
from zerolab.course.judge import observe
from zerolab.course.judge.case import Observation
from zerolab.course.judge.exercise import alone
from zerolab.course.judge.verdict import judge
from zerolab.flat import chunk_bounds as right_bounds

LESSON = "01_ring_collectives"
EXERCISES = exercises_of(LESSON)
WRONG = [(lesson, wrong) for lesson, cage in ZOO.items() for wrong in cage]
OF_EXERCISES = {name: [one for one in WRONG if (one[0], one[1].exercise) == name] for name in NAMES}
BY_DAY = [
    wrong
    for at, those in enumerate(OF_EXERCISES.values())
    for wrong in (those if EVERY_ANSWER else those[at % 3 :: 3] if len(those) > 8 else those[at % 2 :: 2])
]
"""Every third answer to each exercise, or second of few; nightly all, and in `make quick` all to those that changed."""


def named(value: object) -> str:
    return value.name if isinstance(value, Wrong) else str(value)


@pytest.mark.parametrize(("lesson", "wrong"), BY_DAY, ids=named)
def test_a_wrong_answer_fails_with_its_own_hint(lesson: str, wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    # An answer that loops for ever costs the suite two seconds; the others have time, however busy the machine is.
    monkeypatch.setattr(observe, "CASE_SECONDS", 2.0 if wrong.hint == "does not end" else 12.0)
    hint = hint_for_wrong(lesson, wrong.exercise, wrong.source, wrong.hint)
    assert hint, "the wrong answer passed"
    assert wrong.hint in hint
    assert len(hint) < 400 and "\n" not in hint


def test_hints_tell_wrong_answers_apart() -> None:
    told = Counter((lesson, wrong.exercise, wrong.hint) for lesson, wrong in WRONG)
    alone = sum(times for times in told.values() if times == 1)
    assert alone >= 0.6 * len(WRONG), f"{alone} of {len(WRONG)}; what others share are a claim's own words"


def test_every_exercise_has_five_wrong_answers() -> None:
    cages = Counter((lesson, wrong.exercise) for lesson, wrong in WRONG)
    assert {name: cages[name] for name in NAMES if cages[name] < 5} == {}
    assert set(ZOO) == set(LESSONS)


def test_by_day_each_exercise_has_wrong_answers_tried_and_by_night_all() -> None:
    tried = Counter((lesson, wrong.exercise) for lesson, wrong in BY_DAY)
    assert {name: tried[name] for name in NAMES if tried[name] < 2} == {}
    assert not EVERY_ANSWER or BY_DAY == WRONG


def test_every_answer_in_the_zoo_stands_in_the_file_of_an_exercise() -> None:
    zoo = Path(__file__).parents[2] / "zoo"
    assert {*zoo.rglob("*.txt")} == {wrong_file(*name) for name in NAMES}
    assert {path for path in zoo.rglob("*.py") if "RIGHT = " in path.read_text()} == {
        Path(str(house_of(*name).__file__)) for name in NAMES
    }


def test_an_answer_changed_from_the_model_says_one_place() -> None:
    forward = model("05_zero_3", "forward")
    assert forward.startswith("\ndef forward(comm, shards, shapes, x):\n    for index"), "no types, no docstring"
    assert "SOLUTION" not in forward and forward.endswith("    return x\n")
    assert changed(forward, "return x", "return 2 * x") == forward.removesuffix("x\n") + "2 * x\n"
    for absent_or_common in ("return y", "whole"):
        with pytest.raises(AssertionError, match="times in"):
            changed(forward, absent_or_common, "")
    with pytest.raises(AssertionError, match="1 times in"):
        everywhere(forward, "return x", "")


def test_the_course_has_its_exercises() -> None:
    assert len(NAMES) >= 25


DRAWS = [(*exercise, seed) for at, exercise in enumerate(NAMES) for seed in range(3) if NIGHTLY or seed == at % 3]
"""By day a draw an exercise, and the draws of its right answers in other styles; nightly three."""


@pytest.mark.parametrize(("lesson", "name", "seed"), DRAWS)
def test_a_model_answer_passes_on_any_draw(lesson: str, name: str, seed: int) -> None:
    assert [finding for finding in findings(lesson, name, seed=seed) if not finding.holds] == []


@pytest.mark.parametrize(("lesson", "name"), NAMES)
def test_cases_have_1_to_4_ranks_and_are_drawn_anew(lesson: str, name: str) -> None:
    exercise = exercises_of(lesson)[name]
    first, second = (exercise.cases(Random(seed)) for seed in (1, 2))
    assert {case.ranks for case in first} >= {1, 2, 3, 4} or not speaks(lesson, name)
    assert str(first) != str(second), "each seed draws anew"
    boards = [[*map(shapes, case.args)] for cases in (first, second) for case in cases if case.board]
    assert boards[: len(boards) // 2] == boards[len(boards) // 2 :], "what fills the scoreboard has the same sizes"
    assert bool(exercise.scores) == any(case.board for case in first)
    if speaks(lesson, name):
        assert any(case.world == "processes" for case in first)
        assert any(case.world == "lockstep" for case in first)


@cache
def speaks(lesson: str, name: str) -> bool:
    """Whether an answer sends something."""
    exercise = quick(exercises_of(lesson)[name])
    if exercise.run is alone:
        return False  # It is given nothing to send with.
    seen = observe.observe_all(exercise, model_names(lesson)[name], exercise.cases(Random(0)))
    return any(record.sent for observation in seen for record in observation.records)


@pytest.mark.parametrize("name", EXERCISES)
def test_sizes_of_ring_exercises_do_not_divide_and_ranks_hold_different_data(name: str) -> None:
    if name in ("chunk_bounds", "ring_bytes"):
        return
    first = EXERCISES[name].cases(Random(1))
    numels = [(case.ranks, sum(args[0].numel() for args in case.args)) for case in first]
    assert any(numel // ranks % ranks or numel % ranks for ranks, numel in numels)
    for case in first:
        data = [str(args[0]) for args in case.args if args[0].numel()]
        assert len(set(data)) == len(data), "ranks hold different data"


ALIKE = {"Persistent"}
"""It cuts parameters, which all ranks hold alike."""
PADDED = {"MendedStep"}
"""Its rows are made of whole shards."""


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors with elements in an argument; of a module, its parameters."""
    if isinstance(value, torch.Tensor):
        return [value.detach()] if value.numel() else []
    parts = value.parameters() if isinstance(value, torch.nn.Module) else value
    return (
        [leaf for part in parts for leaf in leaves(part)] if isinstance(value, list | tuple | torch.nn.Module) else []
    )


def shapes(value: Any) -> list[torch.Size]:
    return [leaf.shape for leaf in leaves(value)]


@pytest.mark.parametrize(("lesson", "name"), NAMES)
def test_data_differ_by_rank_and_sizes_do_not_divide_in_every_exercise_whose_ranks_have_data(
    lesson: str, name: str
) -> None:
    cases = [case for case in exercises_of(lesson)[name].cases(Random(1)) if case.ranks > 1]
    data = [ranks for ranks in ([leaves(args) for args in case.args] for case in cases) if any(ranks)]
    if data:
        assert name in PADDED or any(leaf.numel() % len(ranks) for ranks in data for rank in ranks for leaf in rank)
        alike = [all(str(rank) == str(ranks[0]) for rank in ranks) for ranks in data]
        assert all(alike) if name in ALIKE else not any(alike)


def test_an_observation_that_stops_early_never_passes() -> None:
    exercise = EXERCISES["chunk_bounds"]
    cases = exercise.cases(Random(0))
    assert judge(exercise, cases, [])[0].holds is False
    assert judge(exercise, cases, [Observation()] * len(cases))[0].holds is False


def graded(answers: dict[str, str], limits: Limits) -> list[Verdict]:
    """The verdicts on a file that holds `answers`, and the model answers otherwise."""
    handed_in = copy.deepcopy(solution(LESSON))
    for cell in handed_in.cells:
        if is_answer(cell):
            cell.source = answers.get(grade_id(cell), cell.source)
    return grade(compare(handed_in, solution(LESSON), LESSON), seed=3, limits=limits)


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
    names = model_names(LESSON)
    for exercise, source in (("chunk_bounds", WRONG_BOUNDS), ("ring_bytes", GUESS)):
        assert load(exercise, source, names) is None
    with pytest.raises(
        CheckFailed, match=r"ring_bytes does not hold yet: mend chunk_bounds first, which it uses, then"
    ):
        checks(LESSON).ring_bytes(names["ring_bytes"])
    assert load("chunk_bounds", "def chunk_bounds(n, ranks, rank):\n    return right(n, ranks)[rank]", names) is None
    names["right"] = right_bounds
    with pytest.raises(CheckFailed, match=r"ring_bytes does not hold yet: ring_bytes\(numel="):
        checks(LESSON).ring_bytes(names["ring_bytes"])


LOCAL = """
def ring_bytes(numel, itemsize, ranks, rank):
    {line}
    return itemsize
"""


@pytest.mark.parametrize(
    ("line", "sent"),
    [
        ("chunk_bounds = numel // ranks", False),
        ("rank.chunk_bounds = 3", False),
        ("def chunk_bounds(): return rank", False),
        ("[chunk_bounds for chunk_bounds in (1, 2)]", False),
        ("[chunk_bounds(numel, ranks, one) for one in range(ranks)]", True),
        ("given = lambda one: chunk_bounds(numel, ranks, one)", True),
    ],
)
def test_only_what_reads_an_earlier_answer_is_sent_to_it(line: str, sent: bool) -> None:
    read = globals_by_name([WRONG_BOUNDS, LOCAL.format(line=line)])
    assert uses("ring_bytes", read) == ({"chunk_bounds"} if sent else set())


@pytest.mark.parametrize("name", ["chunk_bounds", "ring_bytes"])
def test_an_error_in_an_answer_comes_with_its_case(name: str) -> None:
    found = findings(LESSON, name, f"def {name}(*numbers):\n    return undefined")
    assert re.match(rf"{name}\(numel=\d+, .*ranks=1, rank=0\): rank 0 raised NameError: ", found[0].hint)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit on memory is Linux's")
@pytest.mark.ranks
def test_an_answer_that_takes_all_memory_meets_the_limit() -> None:
    blank = "raise NotImplementedError()"
    answers = dict.fromkeys(EXERCISES, blank) | {"ring_bytes": GREEDY}
    verdicts = {verdict.name: verdict for verdict in graded(answers, Limits(seconds=60, memory_mb=1024))}
    assert "more memory than the limit" in verdicts["ring_bytes"].hint
    assert not any(verdict.passed for verdict in verdicts.values())
