"""Claims that every answer is held to, and claims and measures that the lessons share. A hint says what was tried, what
came out and what was expected; the case is put in front of it by the judge."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch

from zerolab.course.judge.case import Case, Observation, Record
from zerolab.course.judge.exercise import Claim, Exercise, Test, alone
from zerolab.course.judge.model import does
from zerolab.course.judge.promise import in_words, promised
from zerolab.course.judge.same import alike

Calls = list[tuple[str, int]]

# Of each rank.


def each_rank(test: Callable[[Case, int, Record], str | None]) -> Test:
    """A claim about each rank's record: the hint is that of the first rank of which it does not hold."""

    @wraps(test)
    def every(case: Case, seen: Observation) -> str | None:
        return next((hint for rank, one in enumerate(seen.records) if (hint := test(case, rank, one))), None)

    return every


def never(name: str, says: str) -> Test:
    """No rank's run noted anything under `name`; `says` is what to say where it did, of {rank} and what {it} noted."""

    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        return says.format(rank=rank, it=record.value[name]) if record.value[name] else None

    return test


def untouched(*places: int) -> Test:
    """The arguments at these places (after `comm`), or all if none is named, are as they were."""

    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        for place in places or range(len(record.after)):
            before = case.args[rank][place]
            if isinstance(before, torch.nn.Module):
                before = [parameter.detach() for parameter in before.parameters()]
            if not alike(record.after[place], before):
                return f"it overwrote rank {rank}'s input, which belongs to the caller: work on a copy"
        return None

    return test


def calls_are(wanted: Callable[[Case, int], Calls], look: str) -> Test:
    """The library's collectives that each rank calls, in order, are those of `wanted(case, rank)`."""

    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        want = wanted(case, rank)
        if record.calls == want:
            return None
        made, due = len(record.calls), len(want)
        at = next((i for i in range(min(made, due)) if record.calls[i] != want[i]), None)
        if at is not None:
            return f"call {at + 1} of rank {rank} is {call(record.calls[at])}, and {call(want[at])} is due: {look}"
        odd = f"{call(want[made])} is missing" if made < due else f"{call(record.calls[due])} is too many"
        return f"rank {rank} makes {made} calls where {due} are due, {odd}: {look}"

    return test


def call(of: tuple[str, int]) -> str:
    return f"{of[0]} of {of[1]:,} elements"


# What every answer is held to unless its exercise says otherwise, by name, in `without`.


@each_rank
def as_promised(case: Case, rank: int, record: Record) -> str | None:
    who = "you return" if case.ranks == 1 else f"rank {rank} returned"
    return f"{who} {record.unlike}" if record.unlike else None


@each_rank
def leaves_nothing(case: Case, rank: int, record: Record) -> str | None:
    """Beside what an answer returned, no tensor of its making is alive; the exercise measures memory."""
    if record.left <= 0:
        return None
    left = f"when it has returned, {record.left:,} bytes on rank {rank} are alive that it did not return"
    return f"{left}: what keeps them, a view of something larger, a global, an attribute?"


@each_rank
def leaves_at_once(case: Case, rank: int, record: Record) -> str | None:
    """Nor was there such a tensor until Python's garbage collector came."""
    if record.late <= 0:
        return None
    late = f"when it has returned, {record.late:,} bytes on rank {rank} wait for Python's garbage collector"
    return f"{late}: a reference cycle holds them, such as a function inside yours that calls itself: take a loop"


@each_rank
def unspoilt(case: Case, rank: int, record: Record) -> str | None:
    said = f"on rank {rank} a second call changes what the first one gave: each call needs memory of its own"
    return said if record.spoilt else None


ANEW = Claim("a second call begins anew", unspoilt)


def with_defaults(exercise: Exercise) -> list[Claim]:
    """An exercise's own claims, and those before and after them that it shares with all."""

    def own_dtypes(case: Case, seen: Observation) -> str | None:
        due = {name for record in does(exercise, case).records for name in record.dtypes}
        for rank, record in enumerate(seen.records):
            if others := sorted(set(record.dtypes) - due):
                said = f"rank {rank} sends {others[0]}, and {' or '.join(sorted(due)) or 'nothing'} is due"
                return f"{said}: what travels keeps its own dtype"
        return None

    promise, sends = promised(exercise.answer), exercise.answer and exercise.run is not alone
    named = {
        "shape": [Claim(f"it returns {in_words(promise)}", as_promised)] if promise is not None else [],
        "dtype": [Claim("what travels keeps its dtype", own_dtypes)] if sends else [],
        "": exercise.claims,
        "inputs": [Claim("its arguments stay as they were", untouched())],
        "left": [Claim("it leaves nothing else behind", leaves_nothing)] if exercise.memory else [],
        "late": [Claim("nothing waits for Python's garbage collector", leaves_at_once)] if exercise.memory else [],
    }
    return [claim for name, claims in named.items() if name not in exercise.without for claim in claims]


# What a scoreboard measures.


def most(name: str) -> Callable[[Case, Observation], int]:
    return lambda case, seen: max(int(record.value[name]) for record in seen.records)


def most_sent(case: Case, seen: Observation) -> int:
    return max(record.nbytes for record in seen.records)


def most_messages(case: Case, seen: Observation) -> int:
    return max(len(record.sent) for record in seen.records)


def most_held(case: Case, seen: Observation) -> int:
    """The most bytes that a rank had made and still held, at its worst moment; the exercise measures memory."""
    return max(record.peak for record in seen.records)


def number_of_calls(case: Case, seen: Observation) -> int:
    return max(len(record.calls) for record in seen.records)


def microseconds(case: Case, seen: Observation) -> int:
    """The virtual clock at the end, rounded."""
    return round(1e6 * seen.seconds)
