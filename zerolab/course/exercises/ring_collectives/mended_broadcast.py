"""Exercise of lesson 01: a broadcast with two faults, mended."""

from __future__ import annotations

from zerolab.course.exercises.ring_collectives.cases import broadcast_cases, broadcast_expected
from zerolab.course.exercises.ring_collectives.ring import ring_exercise

EXERCISE = ring_exercise(
    "mended_broadcast",
    broadcast_cases,
    broadcast_expected,
    "every rank ends with rank src's tensor",
    (
        "Who has nothing to receive? And whose right neighbour already has the tensor?",
        "`if comm.rank:` asks whether this is rank 0; the text asks about another rank.",
        "Each of the two calls needs a condition of its own, and both are about src.",
    ),
    in_place=True,
)
