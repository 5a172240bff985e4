"""Exercise of lesson 02: whose calls departed first."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case, plural
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
It is far down: go through all calls
    max(len(mine) for mine in calls) => min(16, max(len(mine) for mine in calls))
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
The others have ended alike there: it is the longer list that is odd
    max( => min(
    for index in => lengths = [len(mine) for mine in calls]\n    for index in
    return None => return (lengths.index(min(lengths)), min(lengths)) if len(set(lengths)) > 1 else None
"""
NAMES = ("all_reduce", "reduce_scatter", "all_gather")
SWAPS, SKIPS, OTHER = "swaps two calls", "skips a call", "calls something else once"
RESIZES, STOPS, ADDS = "brings another size once", "makes no more calls", "makes one call more at the end"
RENAMES = "calls another collective with the same size"
# What one rank does, and another one later.
HOWS = (
    (SWAPS, "changes"),
    (SKIPS, "changes"),
    (OTHER, ""),
    (RESIZES, ""),
    (RESIZES, "far"),
    (STOPS, "changes"),
    (RESIZES, "skips"),
    (STOPS, ""),
    (SKIPS, "changes"),
    (ADDS, ""),
    (RENAMES, ""),
)


def planned(rng: Random, length: int) -> list[tuple[str, int]]:
    first = rng.randrange(3)
    return [(NAMES[(first + n) % 3], 8 * size) for n, size in enumerate(rng.sample(range(1, 99), length))]


def culprit_case(rng: Random, does: str, later: str) -> Case:
    ranks = 4 if (does, later) == (STOPS, "changes") else rng.randint(3, 5)
    # Rank 0 is surely the odd one here and there: who compares with rank 0 must not pass by luck.
    rank = 0 if does in (OTHER, ADDS, RENAMES) else rng.randrange(does in (SWAPS, SKIPS), ranks)
    rank = ranks - 1 if (does, later) == (STOPS, "changes") else rank
    # The other one that departs, later, comes before the culprit in the list, too.
    other = rank - 1 if does == SWAPS else (rank + 1) % ranks
    plan = planned(rng, rng.randint(90, 98) if later == "far" else 8)
    at = len(plan) - 4 if later == "far" else rng.randrange(1, 4)
    calls = [list(plan) for _ in range(ranks)]
    (name, size), rest = plan[at], plan[at + 1 :]
    calls[rank][at:] = {
        SWAPS: [rest[0], plan[at], *rest[1:]],
        SKIPS: rest,
        OTHER: [("broadcast", size + 8), *rest],
        RESIZES: [(name, size + 8), *rest],
        STOPS: plan[at : at + 1],
        ADDS: [*plan[at:], ("barrier", 0)],
        RENAMES: [("broadcast", size), *rest],
    }[does]
    if later == "changes":
        calls[other][at + 2] = ("all_reduce", 8000)
    elif later == "skips":
        del calls[other][at + 1]
    more = {"": "", "far": f", {len(plan)} calls each"}.get(later, f", and another rank {later} one later")
    return Case([(calls,)], about=f"{plural(ranks, 'rank')}, rank {rank} {does}{more}")


def culprit_cases(rng: Random) -> list[Case]:
    def apart(first: int, later: int) -> Case:
        """Three ranks, of which two bring another size once, one after the other."""
        calls = [planned(rng, 6)] * 3
        for rank, at in ((first, rng.randrange(1, 3)), (later, 4)):
            name, size = calls[rank][at]
            calls[rank] = [*calls[rank][:at], (name, size + 8), *calls[rank][at + 1 :]]
        return Case([(calls,)], about=f"3 ranks, rank {first} {RESIZES}, and another rank does so later")

    def ends(*lengths: int) -> Case:
        """The same calls on all ranks, so many on each."""
        plan = planned(rng, max(lengths))
        did = f"rank {lengths.index(4)} {STOPS}, and another rank makes one more than the others"
        return Case([([plan[:length] for length in lengths],)], about=f"{len(lengths)} ranks, {did}")

    a, b, end = ("all_gather", 8), ("all_gather", 16), ("barrier", 0)
    short = [
        [[a], [a], []],
        # The list of no one rank says how far to go.
        [[a], [a, end], [a]],
        [[a], [a], [a, end]],
        [[], [a], [a]],
        [[], [], []],
        # From each to the next, all lists but the first, or but the last, are alike, or they are the same in another
        # order.
        *([[one], [two], [three]] for one, two, three in ((a, a, b), (a, a, a), (b, a, a), (a, b, a))),
    ]
    return [
        *(culprit_case(rng, *how) for how in HOWS),
        Case([([planned(rng, 8)] * 4,)], about="4 ranks, all calls are alike"),
        *(Case([(calls,)]) for calls in short),
        # On three ranks two that depart leave no two lists alike, whichever of them is taken for the usual one.
        *(apart(first, later) for first, later in ((0, 1), (2, 0), (1, 2))),
        # Two lists have lengths of their own, and the longer or the shorter one comes first.
        *(ends(*lengths) for lengths in ((5, 6, 4), (4, 6, 5), (5, 6, 4, 5), (5, 4, 6, 5))),
    ]


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
