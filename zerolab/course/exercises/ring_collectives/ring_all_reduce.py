"""Exercise of lesson 01: an all-reduce made of both."""

from __future__ import annotations

from zerolab.course.exercises.ring_collectives.cases import BOARD, all_reduce_cases, all_reduce_expected
from zerolab.course.exercises.ring_collectives.ring import ring_exercise, ring_scores
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import most_held


def two_wholes(case: Case, seen: Observation) -> str:
    """Where an all-reduce that holds too much may do so. A mean in a tensor of its own makes two whole ones."""
    if most_held(case, seen) == 2 * 4 * BOARD[1]:
        return (
            "two whole tensors at once: is the mean made in a new one, where dividing in place, or a chunk, would do?"
        )
    return (
        "a copy of the whole tensor that you make before the first half, such as tensor / comm.size or tensor.clone(), "
        "lives on beside both: the halves need none, and there is least to divide between them"
    )


EXERCISE = ring_exercise(
    "ring_all_reduce",
    all_reduce_cases,
    all_reduce_expected,
    "every rank returns the sum, or the mean",
    (
        "After a reduce-scatter each rank has a finished chunk; who needs it?",
        "The second half needs the length of the whole: tensor.numel().",
        "Divide where there is least to divide: between the halves, by comm.size.",
    ),
    ring_scores("all_reduce", 2, two_wholes),
)
