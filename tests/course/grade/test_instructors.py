"""The exercise that docs/instructors.md writes in an hour is judged as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo.answers
from nbformat.v4 import new_code_cell, new_notebook
from zoo.trial import quick

from zerolab.course.grade.cells import strip_answer
from zerolab.course.grade.worker import load, run
from zerolab.course.judge.verdict import judge

PAGE = (Path(__file__).parents[3] / "docs" / "instructors.md").read_text()
ANSWER, CHECK, ZOO = re.findall(r"```python\n(.*?)```", PAGE.partition("### An exercise in an hour")[2], re.DOTALL)
NAME = "whole_mean"


def cell() -> Any:
    """The answer's cell, with the metadata that the page asks for."""
    found = re.search(r"nbgrader metadata `(\{.*?\})`", PAGE, re.DOTALL)
    assert found is not None
    role = found[1].replace("my_function", NAME).replace("true", "True").replace("false", "False")
    return new_code_cell(ANSWER, metadata={"nbgrader": eval(role)})


def hint_for(source: str, seed: int = 5) -> str:
    """The first hint that an answer gets of the page's check, or ''."""
    check: dict[str, Any] = {"__name__": "whole_mean"}
    exec(compile(CHECK, "whole_mean.py", "exec"), check)
    exercise, names = quick(check["EXERCISE"]), {"__name__": "answers", "torch": torch}
    assert exercise.name == NAME
    trouble, cases = load(NAME, source, names), exercise.drawn(seed)
    found = judge(exercise, cases, run(exercise, names, trouble, cases))
    return next((finding.hint for finding in found if finding.hint), "")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The page's zoo, which reads the model answer from a notebook that holds the page's cell."""
    monkeypatch.setattr(zoo.answers, "solution", lambda lesson: new_notebook(cells=[cell()]))
    names: dict[str, Any] = {}
    exec(compile(ZOO, "zoo.py", "exec"), names)
    return names


@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_answer_passes_and_the_blank_is_called_one(seed: int) -> None:
    blank = cell()
    strip_answer(blank)
    assert "YOUR CODE HERE" in blank.source and "all_reduce" not in blank.source
    assert hint_for(ANSWER, seed) == ""
    assert hint_for(blank.source, seed).startswith("not written yet")


def test_wrong_answers_get_the_hints_that_the_page_promises(answers: dict[str, Any]) -> None:
    assert len(answers["WRONG"]) == 3
    for wrong in answers["WRONG"]:
        hint = hint_for(wrong.source)
        assert wrong.hint in hint and re.match(r"on \d ranks, ", hint), wrong.name


@pytest.mark.parametrize("seed", [5, 6])
def test_right_answers_in_other_styles_pass(answers: dict[str, Any], seed: int) -> None:
    assert len(answers["RIGHT"]) == 2
    assert [
        (right.name, hint_for(right.source, seed)) for right in answers["RIGHT"] if hint_for(right.source, seed)
    ] == []


def test_the_words_in_the_table_are_where_it_says() -> None:
    rows = re.findall(r"^\| [^|]* \| (`.*) \| `(\w+)\.py` \|$", PAGE, re.MULTILINE)
    assert len(rows) >= 7
    for words, module in rows:
        text = (Path(__file__).parents[3] / "zerolab" / "course" / "judge" / f"{module}.py").read_text()
        for word in re.findall(r"`@?(\w+)", words):
            assert re.search(rf"^(def |class )?{word}\b", text, re.MULTILINE) or word == "wanted", word
