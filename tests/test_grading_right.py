"""Right answers of all kinds pass: a check asks for what the text asks for, not for how the model answer does it."""

import pytest
from zoo import RIGHT, Right
from zoo.trial import NAMES, drawn, half, hint_for_right

OF_EXERCISES = {(lesson, name): [right for right in RIGHT[lesson] if right.exercise == name] for lesson, name in NAMES}
ANSWERS = [(lesson, right, part) for (lesson, _), those in OF_EXERCISES.items() for part, right in enumerate(those)]


def named(value: object) -> str:
    return f"{value.exercise}-{value.name}" if isinstance(value, Right) else str(value)


@pytest.mark.parametrize(("lesson", "right", "part"), ANSWERS, ids=named)
def test_a_right_answer_in_another_style_passes(lesson: str, right: Right, part: int) -> None:
    assert hint_for_right(lesson, right.exercise, right.source, part) == ""


@pytest.mark.parametrize(("lesson", "name"), NAMES)
def test_any_two_answers_that_follow_each_other_are_tried_on_all_cases(lesson: str, name: str) -> None:
    cases = drawn(lesson, name, 0)
    odd, even = (half(cases, part) for part in (1, 2))
    assert half(cases, 3) == odd and {*map(id, odd), *map(id, even)} == set(map(id, cases))
    assert set(map(id, odd)) & set(map(id, even)) == {id(case) for case in cases if case.board}


def test_every_exercise_has_four_right_answers_in_other_styles() -> None:
    assert {name: len(those) for name, those in OF_EXERCISES.items() if len(those) < 4} == {}
