"""Which exercises belong to which lesson."""

from __future__ import annotations

from zerolab.errors import InputError
from zerolab.grading.exercise import Exercise
from zerolab.grading.lessons import flat, mixed, offload, offload_pays, ring, start, zero1, zero2, zero3

LESSONS: dict[str, tuple[Exercise, ...]] = {
    "00_start_here": start.EXERCISES,
    "01_ring_collectives": ring.EXERCISES,
    "02_flat_buffers": flat.EXERCISES,
    "03_zero_1": zero1.EXERCISES,
    "04_zero_2": zero2.EXERCISES,
    "05_zero_3": zero3.EXERCISES,
    "06_mixed_precision": mixed.EXERCISES,
    "07_offloading": offload.EXERCISES,
    "07b_when_it_pays": (offload_pays.PAYS,),
}


def exercises_of(lesson: str) -> dict[str, Exercise]:
    """The exercises of a lesson by name, in order."""
    if lesson not in LESSONS:
        raise InputError(f"there are no exercises for lesson {lesson!r}; choose one of {', '.join(LESSONS)}")
    return {exercise.name: exercise for exercise in LESSONS[lesson]}
