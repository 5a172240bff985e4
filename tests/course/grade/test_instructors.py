"""The exercise that docs/instructors.md writes in half an hour is judged as it stands there."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from nbformat.v4 import new_code_cell
from zoo.answers import plain, read_wrong
from zoo.trial import quick

from zerolab.course.grade.cells import strip_answer
from zerolab.course.grade.worker import load, run
from zerolab.course.judge.exercise import Exercise
from zerolab.course.judge.model import program, read_mistakes
from zerolab.course.judge.verdict import judge
from zerolab.course.source import role_of, text_of_exercise

PAGE = (Path(__file__).parents[3] / "docs" / "instructors.md").read_text()
CHECK, ZOO = re.findall(r"```python\n(.*?)```", PAGE.partition("### An exercise in half an hour")[2], re.DOTALL)
(WRONG,) = re.findall(r"```text\n(=== .*?)```", PAGE, re.DOTALL)
NAME = "whole_mean"


@pytest.fixture(scope="module")
def exercise(tmp_path_factory: pytest.TempPathFactory) -> Exercise:
    """The page's exercise, from a file of its own, since the model answer's source is read."""
    path = tmp_path_factory.mktemp("page") / "whole_mean.py"
    path.write_text(CHECK)
    spec = importlib.util.spec_from_file_location("whole_mean", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["whole_mean"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return quick(module.EXERCISE)


def hint_for(exercise: Exercise, source: str, seed: int = 5) -> str:
    """The first hint that an answer gets of the page's check, or ''."""
    names: dict[str, Any] = {"__name__": "answers", "torch": torch}
    assert exercise.name == NAME
    trouble, cases = load(NAME, source, names), exercise.drawn(seed)
    found = judge(exercise, cases, run(exercise, names, trouble, cases))
    return next((finding.hint for finding in found if finding.hint), "")


def answer(exercise: Exercise) -> str:
    return inspect.getsource(exercise.answer[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_answer_passes_and_the_blank_is_called_one(exercise: Exercise, seed: int) -> None:
    blank = new_code_cell(answer(exercise), metadata={"nbgrader": role_of(NAME, "answer", (exercise,))})
    strip_answer(blank)
    assert "YOUR CODE HERE" in blank.source and "all_reduce" not in blank.source
    assert hint_for(exercise, answer(exercise), seed) == ""
    assert hint_for(exercise, blank.source, seed).startswith("not written yet")


def test_the_page_becomes_cells_of_a_notebook(exercise: Exercise) -> None:
    text = text_of_exercise(7, exercise)
    assert text.startswith("## 7. The mean of all (2 points)\n\nEach rank holds a shard")
    assert "check.whole_mean(whole_mean)" in text and role_of("check_whole_mean", "check", (exercise,))["points"] == 2


def test_wrong_answers_get_the_hints_that_the_page_promises(exercise: Exercise, tmp_path: Path) -> None:
    path = tmp_path / "whole_mean.txt"
    path.write_text(WRONG)
    wrong = read_wrong(path, plain(answer(exercise)))
    assert len(wrong) == 3
    for one in wrong:
        hint = hint_for(exercise, one.source)
        assert one.hint in hint and re.match(r"on \d ranks, ", hint), (one.name, hint)


@pytest.mark.parametrize("says", read_mistakes(re.findall(r'MISTAKES = r"""(.*?)"""', CHECK, re.DOTALL)[0]))
def test_each_mistake_on_the_page_is_told_of_itself(exercise: Exercise, says: str) -> None:
    changed = program(exercise.answer[0], read_mistakes(exercise.mistakes)[says])
    cases = exercise.drawn(5)
    found = judge(exercise, cases, run(exercise, {NAME: changed}, None, cases))
    assert says in next(finding.hint for finding in found if finding.hint)


@pytest.mark.parametrize("seed", [5, 6])
def test_right_answers_in_other_styles_pass(exercise: Exercise, seed: int) -> None:
    answers: dict[str, Any] = {}
    exec(compile(ZOO, "zoo.py", "exec"), answers)
    assert len(answers["RIGHT"]) == 2
    told = {right.name: hint_for(exercise, right.source, seed) for right in answers["RIGHT"]}
    assert not any(told.values()), told


def test_the_words_in_the_table_are_where_it_says() -> None:
    rows = re.findall(r"^\| [^|]* \| (`.*) \| `([\w/]+)\.py` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 7
    for words, module in rows:
        room = Path(__file__).parents[3] / "zerolab" / "course" / ("" if "/" in module else "judge")
        text = (room / f"{module}.py").read_text()
        for word in re.findall(r"`@?(\w+)", words):
            assert re.search(rf"^(def |class )?{word}\b", text, re.MULTILINE) or word == "say", word
