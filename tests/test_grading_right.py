"""Right answers of all kinds pass: a check asks for what the text asks for, not for how the model answer does it."""

from collections import Counter
from zlib import crc32

import pytest
from zoo import RIGHT, Right
from zoo.trial import NAMES, hint_for

ANSWERS = [(lesson, right) for lesson, answers in RIGHT.items() for right in answers]


def named(value: object) -> str:
    return f"{value.exercise}-{value.name}" if isinstance(value, Right) else str(value)


@pytest.mark.parametrize(("lesson", "right"), ANSWERS, ids=named)
def test_a_right_answer_in_another_style_passes(lesson: str, right: Right) -> None:
    # Each is tried on one draw, and they are not the same: all answers of an exercise together see many.
    assert hint_for(lesson, right.exercise, right.source, seed=crc32(right.source.encode()) % 100) == ""


def test_every_exercise_has_four_right_answers_in_other_styles() -> None:
    kept = Counter((lesson, right.exercise) for lesson, right in ANSWERS)
    assert {name: kept[name] for name in NAMES if kept[name] < 4} == {}
