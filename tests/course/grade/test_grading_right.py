"""Right answers of all kinds pass: a check asks for what the text asks for, not for how the model answer does it."""

import pytest
from zoo import RIGHT, Right
from zoo.trial import NAMES, drawn, hint_for_right, parts_of, shared_out

OF_EXERCISES = {(lesson, name): [right for right in RIGHT[lesson] if right.exercise == name] for lesson, name in NAMES}
ANSWERS = [(lesson, right, part) for (lesson, _), those in OF_EXERCISES.items() for part, right in enumerate(those)]


def named(value: object) -> str:
    return f"{value.exercise}-{value.name}" if isinstance(value, Right) else str(value)


@pytest.mark.parametrize(("lesson", "right", "part"), ANSWERS, ids=named)
def test_a_right_answer_in_another_style_passes(lesson: str, right: Right, part: int) -> None:
    parts = parts_of(len(OF_EXERCISES[lesson, right.exercise]))
    assert hint_for_right(lesson, right.exercise, right.source, part, parts) == ""


@pytest.mark.parametrize(("lesson", "name"), NAMES)
def test_each_case_is_tried_on_a_right_answer(lesson: str, name: str) -> None:
    cases, answers = drawn(lesson, name, 0), len(OF_EXERCISES[lesson, name])
    tried = [id(case) for part in range(answers) for case in shared_out(cases, part, parts_of(answers))]
    for case in cases:
        assert tried.count(id(case)) == answers if case.board else tried.count(id(case)) >= 1


def test_every_exercise_has_four_right_answers_in_other_styles() -> None:
    assert {name: len(those) for name, those in OF_EXERCISES.items() if len(those) < 4} == {}
