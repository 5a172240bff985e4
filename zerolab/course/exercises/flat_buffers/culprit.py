"""Exercise of lesson 02: whose calls departed first."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from zerolab.course.exercises.twice import LEAVES_ITS_INPUT, REMEMBERS, in_turn, twice
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.same import alike, short

TEXT = """
Who departed?

Four ranks hang. Each has written down what it called. Rank 2 skips a layer now and then:

```{code-cell}
:name: shown_trace

def calls_of(comm):
    numels = [96, 128, 128, 64]
    return [("all_reduce", numels[layer]) for layer in (3, 2, 1, 0) if (comm.rank, layer) != (2, 2)]


for rank, calls in enumerate(launch(calls_of, ranks=4, world="lockstep", device="cpu")):
    print(f"rank {rank}: {calls}")
```

The sizes of layers 1 and 2 are alike, so for one call more nobody notices: rank 2 reduces its layer 1 with the
others' layer 2. What a trace shows is the first call that *differs*, at index 2, and rank 2 departs there. So look a
little before that place, too.

Find it for any trace. `calls[r]` are rank r's calls in order, each `(name, elements)`. Return `(rank, index)` of the
first call that one rank makes differently from all others; a call that only one rank makes, or only one rank does not
make, differs as well. There are at least three ranks, and at that index the others agree; later another rank may
depart, too. If all calls are alike, return `None`. The check draws who departs, where and how, on three to five
ranks. About six lines.
"""


def culprit(calls: list[list[tuple[str, int]]]) -> tuple[int, int] | None:
    """(rank, index) of the first call in which one rank departs from the others."""
    ### BEGIN SOLUTION
    for index in range(max(len(mine) for mine in calls)):
        made = [mine[index] if index < len(mine) else None for mine in calls]
        for rank, call in enumerate(made):
            if made.count(call) == 1:
                return rank, index
    return None
    ### END SOLUTION


Calls = Sequence[Sequence[tuple[str, int]]]
HOWS = (
    "swaps",
    "skips",
    "others",
    "resizes",
    "far",
    "gives up",
    "small",
    "stops",
    "skips",
    "adds",
    "renames",
    "agrees",
)
NAMES = ("all_reduce", "reduce_scatter", "all_gather")


def culprit_cases(rng: Random) -> list[Case]:
    cases = []
    # Of what goes wrong with one rank, the first case shows it in names and in sizes, and not in the lengths of lists.
    for how in HOWS:
        ranks = 4 if how == "gives up" else rng.randint(3, 5)
        # Rank 0 is surely the odd one here and there: who compares with rank 0 must not pass by luck.
        rank = 0 if how in ("others", "adds", "renames") else rng.randrange(how in ("swaps", "skips"), ranks)
        first = rng.randrange(3)
        length = rng.randint(90, 98) if how == "far" else 8
        plan = [(NAMES[(first + n) % 3], 8 * size) for n, size in enumerate(rng.sample(range(1, 99), length))]
        calls = [list(plan) for _ in range(ranks)]
        # The other one that departs, later, comes before the culprit in the list, too.
        rank = ranks - 1 if how == "gives up" else rank
        at, other = rng.randrange(1, 4), rank - 1 if how == "swaps" else (rank + 1) % ranks
        if how == "skips":
            del calls[rank][at]
            # Another one departs later.
            calls[other][at + 2] = ("all_reduce", 8000)
        elif how == "stops":
            del calls[rank][at + 1 :]
        elif how == "swaps":
            calls[rank][at], calls[rank][at + 1] = plan[at + 1], plan[at]
            calls[other][at + 2] = ("all_reduce", 8000)
        elif how == "gives up":
            del calls[rank][at + 1 :]
            calls[other][at + 2] = ("all_reduce", 8000)
        elif how == "small":
            # Another one departs later, and for good.
            calls[rank][at] = (plan[at][0], plan[at][1] + 8)
            del calls[other][at + 1]
        elif how in ("resizes", "far"):
            at = length - 4 if how == "far" else at
            calls[rank][at] = (plan[at][0], plan[at][1] + 8)
        elif how == "adds":
            calls[rank].append(("barrier", 0))
        elif how == "others":
            calls[rank][at] = ("broadcast", plan[at][1] + 8)
        elif how == "renames":
            calls[rank][at] = ("broadcast", plan[at][1])
        cases.append(culprit_case(calls, how, rank))
    return [
        *cases,
        culprit_case([[("all_gather", 8)], [("all_gather", 8)], []], "stops", 2),
        # The list of no one rank says how far to go.
        culprit_case([[("all_gather", 8)], [("all_gather", 8), ("barrier", 0)], [("all_gather", 8)]], "adds", 1),
        culprit_case([[("all_gather", 8)], [("all_gather", 8)], [("all_gather", 8), ("barrier", 0)]], "adds", 2),
        culprit_case([[], [("all_gather", 8)], [("all_gather", 8)]], "stops", 0),
        culprit_case([[]] * 3, "agrees", 0),
        # On three ranks two that depart leave no two lists alike, whichever of them is taken for the usual one.
        *(culprit_case(apart(rng, first, later), "first", first) for first, later in ((0, 1), (2, 0), (1, 2))),
        # Two lists have lengths of their own, and the longer or the shorter one comes first.
        *(culprit_case(long(rng, lengths), "ends", lengths.index(4)) for lengths in ENDS),
        *in_turn([culprit_case([[A, one], [A, two], [A, three]], how, rank) for one, two, three, how, rank in CHAIN]),
    ]


A, B = ("all_gather", 8), ("all_gather", 16)
# From each to the next, all lists but the first, or but the last, are alike, or they are the same in another order.
CHAIN = ((A, A, B, "resizes", 2), (A, A, A, "agrees", 0), (B, A, A, "resizes", 0), (A, B, A, "resizes", 1))


ENDS = ((5, 6, 4), (4, 6, 5), (5, 6, 4, 5), (5, 4, 6, 5))


def long(rng: Random, lengths: Sequence[int]) -> list[list[tuple[str, int]]]:
    """The same calls on all ranks, so many on each."""
    plan = [(NAMES[n % 3], 8 * size) for n, size in enumerate(rng.sample(range(1, 99), max(lengths)))]
    return [plan[:length] for length in lengths]


def apart(rng: Random, first: int, later: int) -> list[list[tuple[str, int]]]:
    """Three ranks, of which two bring another size once, one after the other."""
    calls = long(rng, (6, 6, 6))
    for rank, at in ((first, rng.randrange(1, 3)), (later, 4)):
        name, size = calls[rank][at]
        calls[rank][at] = (name, size + 8)
    return calls


def culprit_case(calls: list[list[tuple[str, int]]], how: str, rank: int) -> Case:
    did = {
        "skips": f"rank {rank} skips a call, and another rank changes one later",
        "stops": f"rank {rank} makes no more calls",
        "swaps": f"rank {rank} swaps two calls, and another rank changes one later",
        "gives up": f"rank {rank} makes no more calls, and another rank changes one later",
        "small": f"rank {rank} brings another size once, and another rank skips a call later",
        "first": f"rank {rank} brings another size once, and another rank does so later",
        "ends": f"rank {rank} makes no more calls, and another rank makes one more than the others",
        "others": f"rank {rank} calls something else once",
        "resizes": f"rank {rank} brings another size once",
        "far": f"rank {rank} brings another size once, {plural(len(calls[0]), 'call')} each",
        "adds": f"rank {rank} makes one call more at the end",
        "renames": f"rank {rank} calls another collective with the same size",
        "agrees": "all calls are alike",
    }[how]
    return Case([(calls,)], about=f"{plural(len(calls), 'rank')}, {did}")


def right_culprit(calls: Calls) -> tuple[int, int] | None:
    return first_odd(calls, max(len(mine) for mine in calls))


def first_odd(calls: Calls, length: int, by: int | None = None) -> tuple[int, int] | None:
    """The first (rank, index) of a call unlike all others; `by` compares one part of the calls."""
    for index in range(length):
        made = [(mine[index] if by is None else mine[index][by]) if index < len(mine) else None for mine in calls]
        for rank, of in enumerate(made):
            if made.count(of) == 1:
                return rank, index
    return None


def unlike(calls: Calls, judge: int) -> tuple[int, int] | None:
    """The first (rank, index) of a call unlike that of rank `judge`."""
    for index in range(max(len(mine) for mine in calls)):
        for rank, mine in enumerate(calls):
            if mine[index : index + 1] != calls[judge][index : index + 1]:
                return rank, index
    return None


def deaf_to_silence(calls: Calls) -> tuple[int, int] | None:
    """Compares those alone that still call; who has stopped is looked for at the end."""
    for index in range(max(len(mine) for mine in calls)):
        made = [(rank, mine[index]) for rank, mine in enumerate(calls) if index < len(mine)]
        for rank, of in made:
            if len(made) > 1 and [other for _, other in made].count(of) == 1:
                return rank, index
    return None


def never_rank_0(calls: Calls, others: bool) -> tuple[int, int] | None:
    """Passes over departures of rank 0, and, unless `others`, over those of others at the same index."""
    for index in range(max(len(mine) for mine in calls)):
        made = [mine[index : index + 1] for mine in calls]
        odd = [rank for rank, of in enumerate(made) if made.count(of) == 1]
        if any(odd if others else odd[:1]):
            return next(rank for rank in odd if rank), index
    return None


def rank_by_rank(calls: Calls) -> tuple[int, int] | None:
    """The first odd call of the first rank that has one."""
    for rank, mine in enumerate(calls):
        for index in range(max(map(len, calls))):
            if sum(other[index : index + 1] == mine[index : index + 1] for other in calls) == 1:
                return rank, index
    return None


def most_different(calls: Calls) -> int:
    """The rank that is unlike others at most places."""
    padded = [[*mine, *[None] * (max(map(len, calls)) - len(mine))] for mine in calls]
    unlike_others = [sum(a != b for other in padded for a, b in zip(mine, other, strict=True)) for mine in padded]
    return unlike_others.index(max(unlike_others))


def rarest_length(calls: Calls) -> int:
    """The first rank whose list is as long as fewest others."""
    lengths = [len(mine) for mine in calls]
    return lengths.index(min(lengths, key=lengths.count))


def culprit_right(case: Case, seen: Observation) -> str | None:
    (calls,) = case.args[0]
    got, want = seen.records[0].value["first"], right_culprit(calls)
    if alike(got, want, 0.0):
        return None
    if want is None:
        return f"you say {short(got)}, and nobody departs: return None"
    said = f"you say {'None' if got is None else short(got)}, and it is {want}"
    if alike(got, want[::-1], 0.0):
        return f"{said}: the rank comes first"
    if alike(got, [want[0], want[1] + 1], 0.0):
        return f"{said}: calls are counted from 0, or you looked one too far"
    if len(calls[0]) == want[1] > 0 and want[0] and got is None and len(calls) == 3:
        return f"{said}: rank {want[0]} goes on where rank 0's list ends: go as far as the longest list"
    if alike(got, first_odd(calls, min(len(mine) for mine in calls)), 0.0):
        ends = f"rank {want[0]}'s list ends there, and a missing call is a departure"
        if want[1] < len(calls[want[0]]):
            ends = f"the others have ended, and a call that rank {want[0]} alone makes is a departure"
        return f"{said}: {ends}: do not stop as zip does"
    if want[1] > 15 and got is None:
        return f"{said}: it is far down: go through all calls"
    if alike(got, first_odd(calls, max(map(len, calls)), by=0), 0.0):
        return f"{said}: you compare names only; sizes must agree, too"
    if alike(got, first_odd(calls, max(map(len, calls)), by=1), 0.0):
        return f"{said}: you compare sizes only; the names differ"
    if alike(got, deaf_to_silence(calls), 0.0):
        return f"{said}: rank {want[0]} is silent there while the others call: to stop is to depart"
    if alike(got, rank_by_rank(calls), 0.0):
        return f"{said}: rank {got[0]} departs, too, but later, and the first is the one that counts: go index by index"
    if len(calls[want[0]]) > want[1] and all(len(mine) == want[1] for mine in calls if mine is not calls[want[0]]):
        return (
            f"{said}: rank {want[0]} alone goes on there, and the others end alike: it is the longer list that is odd"
        )
    if want[0] == 0 and any(alike(got, never_rank_0(calls, others), 0.0) for others in (False, True)):
        return f"{said}: rank 0 may be the odd one, too, and 0 is false in a condition"
    if len(set(map(len, calls))) == 3 and alike(got, [rarest_length(calls), want[1]], 0.0):
        return f"{said}: how rare a list's length is says nothing: who is silent at index {want[1]}, and who calls?"
    if len(set(map(tuple, calls))) == len(calls) and alike(got, unlike(calls, want[0]), 0.0):
        usual = f"you hold the others to rank {want[0]}'s list, as if it were the usual one, and no two lists are alike"
        return f"{said}: {usual}: count calls, index by index, not whole lists"
    if isinstance(got, list) and got[:1] == [most_different(calls)] != [want[0]]:
        return f"{said}: rank {got[0]} is unlike the others at most places; who was the first to depart?"
    if want[0] == 0 and alike(got, unlike(calls, 0), 0.0):
        return f"{said}: who compares with rank 0 blames the others, but it may be the odd one: what do most ranks do?"
    if isinstance(got, list) and len(got) == 2 and got[1] == want[1]:
        return f"{said}: the index is right; whose call does nobody else make there?"
    if got is None:
        return f"{said}: lists of equal length may differ inside"
    lengths = [len(mine) for mine in calls]
    if len(set(lengths)) > 1 and isinstance(got, list) and got[:1] == [lengths.index(min(lengths))]:
        return f"{said}: who makes the fewest calls need not be the first to depart"
    if isinstance(got, list) and len(got) == 2 and isinstance(got[1], int) and got[1] > want[1]:
        return f"{said}: after the first departure everything is out of step; the first is the one that counts"
    return f"{said}: write the lists side by side, a row for each index"


EXERCISE = Exercise(
    "culprit",
    culprit_cases,
    (Claim("it names the rank and the call", culprit_right), REMEMBERS, LEAVES_ITS_INPUT),
    run=twice,
    hints=(
        "Go through the lists side by side, an index at a time, and look at what the ranks call there.",
        "Where a list has ended, let None stand for the call. A call that only one rank makes is the odd one.",
    ),
    text=TEXT,
    answer=(culprit,),
    points=2,
)
