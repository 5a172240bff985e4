"""Exercise of lesson 01: a reduce-scatter that goes round."""

from __future__ import annotations

from zerolab.course.exercises.ring_collectives.cases import reduce_scatter_cases, reduce_scatter_expected
from zerolab.course.exercises.ring_collectives.ring import ring_exercise, ring_scores

EXERCISE = ring_exercise(
    "ring_reduce_scatter",
    reduce_scatter_cases,
    reduce_scatter_expected,
    "rank r returns chunk r of the sum",
    (
        "Take the table for rank 0 and write down, for each step, which chunk leaves and which one arrives.",
        "In step s rank r sends chunk r - 1 - s; its left neighbour does the same with its own r.",
        "Work on a copy: what arrives is added to a chunk of it, and in the next step that chunk leaves.",
    ),
    ring_scores(
        "reduce_scatter", 2, "one copy of the tensor is enough, and a chunk that arrived is used up when added"
    ),
)
