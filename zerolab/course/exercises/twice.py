"""Answers that are called a second time: they may remember nothing, and leave alone what they are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

from zerolab.course.judge.case import Case, Record, decode, encode, once
from zerolab.course.judge.claims import each_rank, untouched
from zerolab.course.judge.exercise import Claim, Test
from zerolab.course.judge.same import Tolerance, alike, short


def twice(fn: Callable[..., Any], comm: Any, *args: Any) -> dict[str, Any]:
    """What it returns, and what it returns for the same arguments when it is called again."""
    given = deepcopy(args)
    # As plain data at once, since a list may be the function's own, and grow.
    first = snapshot(fn(*args))
    return {"first": first, "again": fn(*given)}


def in_turn(cases: Sequence[Case]) -> list[Case]:
    """These cases, and then each after the one before it. Where two neighbours differ in one thing alone, an answer
    shows that keeps what it said by the rest."""
    about = "{}, after another call ({})"
    after = [replace(b, before=a, about=about.format(b.about, a.about)) for a, b in pairwise(cases)]
    return [*cases, *after]


def snapshot(value: Any) -> Any:
    """A copy of what an answer returned, which a later call cannot change."""
    return decode(encode(value))


OUTLIVES = (
    "the first call is right, and a second one, with other gradients, is wrong on rank {rank}: what outlives a call?"
)


def begins_anew(wanted: Callable[[Case], Sequence[Any]], tolerance: Tolerance = 1e-5, wrong: str = OUTLIVES) -> Test:
    """The second call gives what `wanted` says, and what the first one gave is still there: a run notes them as
    `again`, and as `kept` beside `first`. `wrong` is said of a second call that is wrong."""
    wanted = once(wanted)

    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        if "again" not in record.value:
            return None
        if not alike(record.value["kept"], record.value["first"]):
            return f"on rank {rank} a second call changes what the first one gave: each call needs memory of its own"
        again = alike(record.value["again"], wanted(case)[rank], tolerance)
        return None if again else wrong.format(rank=rank)

    return test


@each_rank
def remembers_nothing(case: Case, rank: int, record: Record) -> str | None:
    first, again = record.value["first"], record.value["again"]
    said = f"a second call with the same arguments gives {short(again)}, and the first gave {short(first)}"
    look = "what outlives a call, such as a list that is a default argument?"
    return None if alike(again, first) else f"{said}: {look}"


REMEMBERS = Claim("a second call gives the same", remembers_nothing)
LEAVES_ITS_INPUT = Claim("its arguments stay as they were", untouched())
