"""An exercise of lesson 01 that is a collective: values, messages, bytes sent, bytes held and inputs are judged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from zerolab.collectives import wire_bytes
from zerolab.course.exercises.ring_collectives.calls import broadcast_and_overwrite, call_twice
from zerolab.course.exercises.ring_collectives.cases import BOARD
from zerolab.course.exercises.ring_collectives.claims import (
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
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import leaves_nothing, most_held, most_messages, most_sent
from zerolab.course.judge.exercise import Claim, Exercise, Score


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


def ring_exercise(
    name: str,
    cases: Callable[[Random], list[Case]],
    expected: Expecting,
    says: str,
    hints: tuple[str, ...],
    scores: tuple[Score, ...] = (),
    in_place: bool = False,
    **about: Any,
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
        **about,
    )
