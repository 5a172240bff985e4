"""What every answer is held to unless its exercise says otherwise, by name, in `without`."""

from __future__ import annotations

from zerolab.course.judge.case import Case, Observation, Record
from zerolab.course.judge.claims import each_rank, leaves_at_once, leaves_nothing, untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import does
from zerolab.course.judge.promise import in_words, promised


@each_rank
def as_promised(case: Case, rank: int, record: Record) -> str | None:
    who = "you return" if case.ranks == 1 else f"rank {rank} returned"
    return f"{who} {record.unlike}" if record.unlike else None


@each_rank
def unspoilt(case: Case, rank: int, record: Record) -> str | None:
    said = f"on rank {rank} a second call changes what the first one gave: each call needs memory of its own"
    return said if record.spoilt else None


def defaults_of(exercise: Exercise) -> tuple[list[Claim], list[Claim]]:
    """The claims before an exercise's own, and after them."""

    def own_dtypes(case: Case, seen: Observation) -> str | None:
        due = {name for record in does(exercise, case).records for name in record.dtypes}
        for rank, record in enumerate(seen.records):
            if others := sorted(set(record.dtypes) - due):
                said = f"rank {rank} sends {others[0]}, and {' or '.join(sorted(due)) or 'nothing'} is due"
                return f"{said}: what travels keeps its own dtype"
        return None

    promise = promised(exercise.answer)
    before = {"shape": Claim(f"it returns {in_words(promise)}", as_promised)} if promise is not None else {}
    if exercise.run is not alone and exercise.answer:
        before["dtype"] = Claim("what travels keeps its dtype", own_dtypes)
    after = {"inputs": Claim("its arguments stay as they were", untouched())}
    if exercise.memory:
        after["left"] = Claim("it leaves nothing else behind", leaves_nothing)
        after["late"] = Claim("nothing waits for Python's garbage collector", leaves_at_once)
    before, after = (
        {name: claim for name, claim in those.items() if name not in exercise.without} for those in (before, after)
    )
    return [*before.values()], [*after.values()]


ANEW = Claim("a second call begins anew", unspoilt)
