"""The zoo: wrong answers by lesson, each with a piece of the hint that it must get, and right ones, each in a style of
its own that no check may refuse. As in `zerolab.course.exercises`, a folder a lesson and in it a file an exercise."""

from __future__ import annotations

import re
from importlib import import_module
from types import ModuleType

from zerolab.course.exercises import LESSONS
from zoo.answers import Right, Wrong


def house_of(lesson: str, exercise: str) -> ModuleType:
    """The module with the answers to an exercise, such as `zoo.zero_3.forward`."""
    folder = re.sub(r"^\d+[a-z]?_", "", lesson)
    file = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", exercise).lower()
    return import_module(f"zoo.{folder}.{file}")


ZOO: dict[str, list[Wrong]] = {}
RIGHT: dict[str, list[Right]] = {}
for lesson, exercises in LESSONS.items():
    houses = {exercise.name: house_of(lesson, exercise.name) for exercise in exercises}
    ZOO[lesson] = [wrong._replace(exercise=name) for name, house in houses.items() for wrong in house.WRONG]
    RIGHT[lesson] = [right._replace(exercise=name) for name, house in houses.items() for right in house.RIGHT]

__all__ = ["RIGHT", "ZOO", "Right", "Wrong", "house_of"]
