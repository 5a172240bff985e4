"""The exercises: a folder a lesson, in it a file an exercise, named as it; each says what is drawn, how an answer is
called and what it is held to."""

from __future__ import annotations

from zerolab.course.exercises import (
    checkpoints,
    cost_and_scale,
    flat_buffers,
    mixed_precision,
    offloading,
    ring_collectives,
    start_here,
    when_it_pays,
    zero_1,
    zero_2,
    zero_3,
)
from zerolab.course.judge.exercise import Exercise
from zerolab.errors import InputError

LESSONS: dict[str, tuple[Exercise, ...]] = {
    "00_start_here": start_here.EXERCISES,
    "01_ring_collectives": ring_collectives.EXERCISES,
    "02_flat_buffers": flat_buffers.EXERCISES,
    "03_zero_1": zero_1.EXERCISES,
    "04_zero_2": zero_2.EXERCISES,
    "05_zero_3": zero_3.EXERCISES,
    "06_mixed_precision": mixed_precision.EXERCISES,
    "07_offloading": offloading.EXERCISES,
    "07b_when_it_pays": when_it_pays.EXERCISES,
    "08_checkpoints": checkpoints.EXERCISES,
    "09_cost_and_scale": cost_and_scale.EXERCISES,
}


def exercises_of(lesson: str) -> dict[str, Exercise]:
    """The exercises of a lesson by name, in order."""
    if lesson not in LESSONS:
        raise InputError(f"there are no exercises for lesson {lesson!r}; choose one of {', '.join(LESSONS)}")
    return {exercise.name: exercise for exercise in LESSONS[lesson]}
