"""Exercises of lesson 01: ring collectives. Values, messages, bytes sent, bytes held and inputs are judged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from zerolab.collectives import wire_bytes
from zerolab.grading.case import Case, Observation
from zerolab.grading.claims import leaves_nothing, most_held, most_messages, most_sent
from zerolab.grading.exercise import Claim, Exercise, Score, alone
from zerolab.grading.lessons.ring_calls import broadcast_and_overwrite, call_twice
from zerolab.grading.lessons.ring_cases import (
    BOARD,
    all_gather_cases,
    all_gather_expected,
    all_reduce_cases,
    all_reduce_expected,
    broadcast_cases,
    broadcast_expected,
    reduce_scatter_cases,
    reduce_scatter_expected,
)
from zerolab.grading.lessons.ring_claims import (
    Expecting,
    begins_anew,
    in_place_or_not,
    messages,
    new_tensor,
    no_library_collective,
    one_message,
    right_values,
    traffic,
)
from zerolab.grading.lessons.ring_numbers import (
    bounds_are_pairs,
    bounds_are_right,
    bounds_cases,
    bytes_are_right,
    bytes_cases,
)


def ring_scores(
    collective: str, extra_chunks: int, look: str | Callable[[Case, Observation], str]
) -> tuple[Score, ...]:
    """The scoreboard of a collective that may hold one whole tensor and `extra_chunks` chunks beside its input."""
    halves = 2 if collective == "all_reduce" else 1

    def sent(case: Case) -> int:
        return max(wire_bytes(collective, BOARD[1], 4, case.ranks, rank) for rank in range(case.ranks))

    return (
        Score("bytes a rank sends", most_sent, sent, "in each step one chunk travels"),
        Score(
            "messages a rank sends",
            most_messages,
            lambda case: halves * (case.ranks - 1),
            "each message waits for the network once more: send a chunk in one piece",
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            lambda case: 4 * BOARD[1] * (case.ranks + extra_chunks) // case.ranks + 64,
            look,
        ),
    )


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


def ring_exercise(
    name: str,
    cases: Callable[[Random], list[Case]],
    expected: Expecting,
    says: str,
    hints: tuple[str, ...],
    scores: tuple[Score, ...] = (),
    in_place: bool = False,
) -> Exercise:
    """An exercise whose function is a collective, judged by values, messages, bytes and inputs."""
    kept = (Claim("it returns a new tensor", new_tensor), Claim("it leaves nothing else behind", leaves_nothing))
    return Exercise(
        name,
        cases,
        (
            Claim("it is built from messages, not from a finished collective", no_library_collective),
            Claim(says, right_values(expected)),
            Claim(
                "its result is right in place" if in_place else "its input stays as it was",
                in_place_or_not(expected, in_place),
            ),
            Claim("each message goes to the right neighbour", messages),
            Claim("it sends what a ring sends, to the byte", one_message(expected) if in_place else traffic(expected)),
            *(() if in_place else kept),
            Claim("a second call begins anew", begins_anew(expected)),
        ),
        run=broadcast_and_overwrite if in_place else call_twice,
        scores=scores,
        hints=hints,
        memory=bool(scores),
    )


EXERCISES = (
    Exercise(
        "chunk_bounds",
        bounds_cases,
        (
            Claim("it returns a start and a stop", bounds_are_pairs),
            Claim("chunks lie end to end, the longer ones first", bounds_are_right),
        ),
        run=alone,
        hints=(
            "divmod(numel, ranks) gives the length of a short chunk, and how many chunks are one longer.",
            "A chunk's start is the length of all chunks before it: how many of those are longer ones?",
            "Before rank r lie r chunks, and min(r, the number of longer ones) of them have one element more.",
        ),
    ),
    ring_exercise(
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
    ),
    ring_exercise(
        "ring_all_gather",
        all_gather_cases,
        all_gather_expected,
        "every rank returns all shards in order",
        (
            "Make the whole tensor first (shard.new_empty), and put your shard where it belongs.",
            "In step 0 rank r sends chunk r and gets the left neighbour's. A step later both are one chunk back.",
            "A chunk is a view, so pass_on can receive straight into its place in the whole tensor.",
        ),
        ring_scores(
            "all_gather", 0, "receive each chunk where it belongs in the whole tensor, then nothing is kept twice"
        ),
    ),
    ring_exercise(
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
    ),
    Exercise(
        "ring_bytes",
        bytes_cases,
        (Claim("what you predict is what the meter counts", bytes_are_right),),
        run=alone,
        hints=(
            "In each half a rank sends every chunk but one, so the cost is two tensors less two chunks.",
            "In the reduce-scatter a rank never sends the chunk that ends with it.",
            "In the all-gather it never sends the chunk that its right neighbour began with: ask chunk_bounds for "
            "both, the index modulo ranks.",
        ),
    ),
    ring_exercise(
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
    ),
)
