"""Each mistake that an exercise names is a program that fails, and whose author is told just that."""

from __future__ import annotations

import pytest
from cover import EVERY_ANSWER
from zoo.trial import NAMES, drawn, hint_of, quick

from zerolab.course.exercises import exercises_of
from zerolab.course.judge.model import program, read_mistakes

MISTAKES = [
    (lesson, name, says)
    for lesson, name in NAMES
    for text in (
        exercises_of(lesson)[name].mistakes,
        exercises_of(lesson)[name].stuck,
        *(score.wastes for score in exercises_of(lesson)[name].scores),
    )
    for says in read_mistakes(text)
]


@pytest.mark.parametrize(("lesson", "name", "says"), MISTAKES if EVERY_ANSWER else MISTAKES[::2])
def test_a_mistake_is_told_of_itself(lesson: str, name: str, says: str) -> None:
    exercise = quick(exercises_of(lesson)[name])
    texts = (exercise.mistakes, exercise.stuck, *(score.wastes for score in exercise.scores))
    change = next(known[says] for known in map(read_mistakes, texts) if says in known)
    hint = hint_of(says, exercise, program(exercise.answer[0], change), drawn(lesson, name, 5))
    assert says in hint, hint or "it passes"
