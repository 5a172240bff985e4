"""The zoo: wrong answers by lesson, each with a piece of the hint that it must get, and right ones, each in a style of
its own that no check may refuse. As in `zerolab.course.exercises`, a folder a lesson and in it a file an exercise;
wrong ones are data, in `wrong/`."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from zerolab.course.exercises import LESSONS
from zoo.answers import Right, Wrong, model, read_wrong


def house_of(lesson: str, exercise: str) -> ModuleType:
    """The module with the answers to an exercise, such as `zoo.zero_3.forward`."""
    folder = re.sub(r"^\d+[a-z]?_", "", lesson)
    file = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", exercise).lower()
    return import_module(f"zoo.{folder}.{file}")


def wrong_file(lesson: str, exercise: str) -> Path:
    """The file with the wrong answers to an exercise."""
    house = Path(str(house_of(lesson, exercise).__file__))
    return Path(__file__).parent / "wrong" / house.parent.name / f"{house.stem}.txt"


ZOO: dict[str, list[Wrong]] = {}
RIGHT: dict[str, list[Right]] = {}
for lesson, exercises in LESSONS.items():
    houses = {exercise.name: house_of(lesson, exercise.name) for exercise in exercises}
    ZOO[lesson] = [
        wrong._replace(exercise=name)
        for name in houses
        for wrong in read_wrong(wrong_file(lesson, name), model(lesson, name))
    ]
    RIGHT[lesson] = [right._replace(exercise=name) for name, house in houses.items() for right in house.RIGHT]

__all__ = ["RIGHT", "ZOO", "Right", "Wrong", "house_of", "wrong_file"]
