"""Exercise of lesson 02: whose calls departed first."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

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
others' layer 2. What a trace shows is the first call that *differs*, at index 2. So whoever mends
a program looks a little before that place; what you return is the place itself.

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


MISTAKES = r"""
The rank comes first
    return rank, index => return index, rank
Calls are counted from 0, or you looked one too far
    return rank, index => return rank, index + 1
Another one departs, too, but later, and the first is the one that counts: go index by index
    range(max(len(mine) for mine in calls)) => reversed(range(max(len(mine) for mine in calls)))
A missing call is a departure, and so is one that a rank alone makes: do not stop as zip does
    max(len(mine) for mine in calls) => min(len(mine) for mine in calls)
Go as far as the longest list, which need not be that of rank 0
    max(len(mine) for mine in calls) => len(calls[0])
Names alone do not tell it: sizes must agree, too
    mine[index] if => mine[index][0] if
Sizes alone do not tell it: names must agree, too
    mine[index] if => mine[index][1] if
It is silent there while the others call: to stop is to depart
    if made.count(call) == 1 => if call and made.count(call) == 1
Rank 0 may be the odd one, too, and 0 is false in a condition
    if made.count(call) == 1 => if rank and made.count(call) == 1
Who compares with rank 0 blames the others, but it may be the odd one: what do most ranks do?
    made.count(call) == 1 => call != made[0]
You hold all to one list, as if it were the usual one, and no two lists are alike: count calls, index by index
    made.count(call) == 1 => calls[rank][index : index + 1] != max(calls, key=calls.count)[index : index + 1]
"""
NAMES = ("all_reduce", "reduce_scatter", "all_gather")
Calls = list[tuple[str, int]]
HOWS: dict[str, Callable[[Calls], Calls]] = {
    "swaps two calls": lambda rest: [rest[1], rest[0], *rest[2:]],
    "skips a call": lambda rest: rest[1:],
    "calls something else once": lambda rest: [("broadcast", rest[0][1] + 8), *rest[1:]],
    "calls another collective with the same size": lambda rest: [("broadcast", rest[0][1]), *rest[1:]],
    "brings another size once": lambda rest: [(rest[0][0], rest[0][1] + 8), *rest[1:]],
    "makes no more calls": lambda rest: [],
    "makes one call more at the end": lambda rest: [*rest, ("barrier", 0)],
}
"""What a rank does, and what becomes of its calls from there on."""
RESIZES, STOPS = "brings another size once", "makes no more calls"


def trace(rng: Random, ranks: int, *departures: tuple[int, int, str], length: int = 8) -> Case:
    """`departures` are (rank, index of the call, what it does)."""
    first = rng.randrange(3)
    plan = [(NAMES[(first + n) % 3], 8 * size) for n, size in enumerate(rng.sample(range(1, 99), length))]
    calls = [plan] * ranks
    for rank, at, does in departures:
        calls[rank] = plan[:at] + HOWS[does](plan[at:])
    said = ", and ".join(f"rank {rank} {does}" for rank, _, does in sorted(departures, key=lambda one: one[1]))
    return Case([(calls,)], about=f"{ranks} ranks of {length} calls, {said or 'all alike'}")


def culprit_cases(rng: Random) -> list[Case]:
    cases = [trace(rng, 4)]
    for does in HOWS:
        ranks, at = rng.randint(4, 5), rng.randrange(1, 4)
        rank = rng.randrange(1, ranks)
        # The other one that departs, later, comes before the culprit in the list, or after it.
        cases.append(trace(rng, ranks, (rank, at, does), (rank - 1, 5, RESIZES)))
        # Rank 0 is the odd one here: who compares with rank 0 must not pass by luck.
        cases.append(trace(rng, rng.randint(3, 5), (0, at, does)))
        cases.append(trace(rng, ranks, (rank - 1, at, does), (rank, 5, "skips a call")))
    cases.append(trace(rng, 3, (rng.randrange(3), 90, RESIZES), length=94))
    # On three ranks two that depart leave no two lists alike, whichever of them is taken for the usual one.
    for first, second in ((0, 1), (2, 0), (1, 2)):
        cases.append(trace(rng, 3, (first, rng.randrange(1, 3), RESIZES), (second, 4, RESIZES), length=6))
    # Two lists have lengths of their own, and the longer or the shorter one comes first.
    for lengths in ((5, 6, 4), (4, 6, 5), (5, 6, 4, 5), (5, 4, 6, 5)):
        stops = ((rank, length, STOPS) for rank, length in enumerate(lengths) if length < 6)
        cases.append(trace(rng, len(lengths), *stops, length=6))
    a, b, end = ("all_gather", 8), ("all_gather", 16), ("barrier", 0)
    # The list of no one rank says how far to go.
    short = [[[a], [a], []], [[a], [a, end], [a]], [[a], [a], [a, end]], [[], [a], [a]], [[], [], []]]
    # From each to the next, all lists but the first, or but the last, are alike, or they are the same in another order.
    short += [[[a], [a], [b]], [[a], [a], [a]], [[b], [a], [a]], [[a], [b], [a]]]
    return [*cases, *(Case([(calls,)]) for calls in short)]


EXERCISE = Exercise(
    "culprit",
    culprit_cases,
    (
        Claim(
            "it names the rank and the call",
            Gives(look="Write the lists side by side, a row for each index: whose call does nobody else make there?"),
        ),
    ),
    run=alone,
    hints=(
        "Go through the lists side by side, an index at a time, and look at what the ranks call there.",
        "Where a list has ended, let None stand for the call. A call that only one rank makes is the odd one.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(culprit,),
    points=2,
)
