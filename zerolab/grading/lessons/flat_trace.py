"""Exercise of lesson 02: whose calls departed first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import alike, short
from zerolab.grading.exercise import Claim, Exercise, alone

Calls = Sequence[Sequence[tuple[str, int]]]
NAMES = ("all_reduce", "reduce_scatter", "all_gather")


def culprit_cases(rng: Random) -> list[Case]:
    cases = []
    # Of what goes wrong with one rank, the first case shows it in names and in sizes, and not in the lengths of lists.
    for how in ("swaps", "skips", "resizes", "stops", "skips", "adds", "renames", "agrees"):
        ranks = rng.randint(3, 5)
        # Rank 0 is surely the odd one here and there: who compares with rank 0 must not pass by luck.
        rank = 0 if how in ("adds", "renames") else rng.randrange(ranks)
        first = rng.randrange(3)
        plan = [(NAMES[(first + n) % 3], 8 * size) for n, size in enumerate(rng.sample(range(1, 99), 6))]
        calls = [list(plan) for _ in range(ranks)]
        at = rng.randrange(1, 4)
        if how == "skips":
            del calls[rank][at]
            # Another one departs later.
            calls[(rank + 1) % ranks][at + 2] = ("all_reduce", 8000)
        elif how == "stops":
            del calls[rank][at + 1 :]
        elif how == "swaps":
            calls[rank][at], calls[rank][at + 1] = plan[at + 1], plan[at]
            calls[(rank + 1) % ranks][at + 2] = ("all_reduce", 8000)
        elif how == "resizes":
            calls[rank][at] = (plan[at][0], plan[at][1] + 8)
        elif how == "adds":
            calls[rank].append(("barrier", 0))
        elif how == "renames":
            calls[rank][at] = ("broadcast", plan[at][1])
        cases.append(culprit_case(calls, how, rank))
    return [
        *cases,
        culprit_case([[("all_gather", 8)], [("all_gather", 8)], []], "stops", 2),
        culprit_case([[]] * 3, "agrees", 0),
    ]


def culprit_case(calls: list[list[tuple[str, int]]], how: str, rank: int) -> Case:
    did = {
        "skips": f"rank {rank} skips a call, and another rank changes one later",
        "stops": f"rank {rank} makes no more calls",
        "swaps": f"rank {rank} swaps two calls, and another rank changes one later",
        "resizes": f"rank {rank} brings another size once",
        "adds": f"rank {rank} makes one call more at the end",
        "renames": f"rank {rank} calls another collective with the same size",
        "agrees": "all calls are alike",
    }[how]
    return Case([(calls,)], about=f"{plural(len(calls), 'rank')}, {did}")


def culprit(calls: Calls) -> tuple[int, int] | None:
    return first_odd(calls, max(len(mine) for mine in calls))


def first_odd(calls: Calls, length: int, by: int | None = None) -> tuple[int, int] | None:
    """The first (rank, index) of a call unlike all others; `by` compares one part of the calls."""
    for index in range(length):
        made = [(mine[index] if by is None else mine[index][by]) if index < len(mine) else None for mine in calls]
        for rank, of in enumerate(made):
            if made.count(of) == 1:
                return rank, index
    return None


def unlike_rank_0(calls: Calls) -> tuple[int, int] | None:
    for index in range(max(len(mine) for mine in calls)):
        for rank, mine in enumerate(calls):
            if mine[index : index + 1] != calls[0][index : index + 1]:
                return rank, index
    return None


def culprit_right(case: Case, seen: Observation) -> str | None:
    (calls,) = case.args[0]
    got, want = seen.records[0].value, culprit(calls)
    if alike(got, want, 0.0):
        return None
    if want is None:
        return f"{case.about}: you say {short(got)}, and nobody departs: return None"
    said = f"{case.about}: you say {'None' if got is None else short(got)}, and it is {want}"
    if alike(got, want[::-1], 0.0):
        return f"{said}: the rank comes first"
    if alike(got, [want[0], want[1] + 1], 0.0):
        return f"{said}: calls are counted from 0, or you looked one too far"
    if alike(got, first_odd(calls, min(len(mine) for mine in calls)), 0.0):
        return f"{said}: you stop where the shortest list stops (as zip does), and a missing call is a departure"
    if alike(got, unlike_rank_0(calls), 0.0):
        return f"{said}: you compare with rank 0, which may be the odd one: what do most ranks do?"
    if alike(got, first_odd(calls, max(map(len, calls)), by=0), 0.0):
        return f"{said}: you compare names only; sizes must agree, too"
    if alike(got, first_odd(calls, max(map(len, calls)), by=1), 0.0):
        return f"{said}: you compare sizes only; the names differ"
    if got is None:
        return f"{said}: lists of equal length may differ inside"
    lengths = [len(mine) for mine in calls]
    if len(set(lengths)) > 1 and isinstance(got, list) and got[:1] == [lengths.index(min(lengths))]:
        return f"{said}: who makes the fewest calls need not be the first to depart"
    if isinstance(got, list) and len(got) == 2 and isinstance(got[1], int) and got[1] > want[1]:
        return f"{said}: after the first departure everything is out of step; the first is the one that counts"
    return f"{said}: write the lists side by side, a row for each index"


CULPRIT = Exercise(
    "culprit",
    culprit_cases,
    (Claim("it names the rank and the call", culprit_right),),
    run=alone,
    hints=(
        "Go through the lists side by side, an index at a time, and look at what the ranks call there.",
        "Where a list has ended, let None stand for the call. A call that only one rank makes is the odd one.",
    ),
)
