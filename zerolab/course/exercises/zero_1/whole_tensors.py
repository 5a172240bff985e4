"""Exercise of lesson 03: whole tensors shared out, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import named
from zerolab.course.judge.same import short

TEXT = """
Whole tensors

The lesson asked torch's classes how full a rank gets. Say yourself who owns what: share out whole tensors, the
largest first (of several of equal size, the first in the list), each to the rank that has least so far (of several,
the first). `numels` are the tensors' sizes, in any order; leave the list as it is.

Return a list with the owner of each tensor, in the order of `numels`, and how many bytes of Adam's states the fullest
rank keeps: two fp32 numbers for each element. The check draws sizes, some of them equal, zero or of billions, and
tensors fewer than ranks, or none. About six lines.
"""


def whole_tensors(numels: list[int], ranks: int) -> tuple[list[int], int]:
    """The owner of each tensor, and the bytes of Adam's states on the fullest rank."""
    ### BEGIN SOLUTION
    owners, loads = [0] * len(numels), [0] * ranks
    for number in sorted(range(len(numels)), key=lambda number: -numels[number]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += numels[number]
    return owners, 8 * max(loads)
    ### END SOLUTION


STATE_BYTES = 8
"""Adam's two fp32 numbers for each element."""


def owners_of(numels: Sequence[int], ranks: int, order: Iterable[int]) -> list[int]:
    """The owner of each tensor where they go, in this order, to the first rank that has least."""
    owners, loads = [0] * len(numels), [0] * ranks
    for number in order:
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += numels[number]
    return owners


def falling(numels: Sequence[int]) -> list[int]:
    """The numbers of the tensors, the largest first."""
    return sorted(range(len(numels)), key=lambda number: -numels[number])


def loads_of(numels: Sequence[int], ranks: int, owners: Sequence[int]) -> list[int]:
    """Elements on each rank."""
    return [sum(numel for numel, owner in zip(numels, owners, strict=True) if owner == rank) for rank in range(ranks)]


def wrong_owners(numels: Sequence[int], ranks: int) -> dict[str, list[int]]:
    """What people make of the owners, by what to say of it."""
    order = falling(numels)
    late = sorted(range(len(numels)), key=lambda number: (-numels[number], -number))
    last, loads, fewest, counts = [0] * len(numels), [0] * ranks, [0] * len(numels), [0] * ranks
    for number in order:
        last[number] = max(range(ranks), key=lambda rank: (-loads[rank], rank))
        loads[last[number]] += numels[number]
        fewest[number] = counts.index(min(counts))
        counts[fewest[number]] += 1
    good = owners_of(numels, ranks, order)
    found, filled = [0] * len(numels), [0] * ranks
    for number in order:
        least = filled.index(min(filled))
        found[numels.index(numels[number])] = least
        filled[least] += numels[number]
    return {
        "You took them as they came; the largest goes first": owners_of(numels, ranks, range(len(numels))),
        "You began with the smallest; the largest goes first": owners_of(numels, ranks, reversed(late)),
        "You dealt them out in turn; each goes to the rank that has least": [n % ranks for n in range(len(numels))],
        "You sorted them and dealt them out in turn; each goes to the rank that has the fewest elements": fewest,
        "That is right, but in the order of sizes; item i is the owner of tensor i of the list that you were given": (
            [good[number] for number in order]
        ),
        "Of tensors of equal size, the one that comes first in the list goes first": owners_of(numels, ranks, late),
        "numels.index finds the first of two tensors of equal size, and both need an owner": found,
        "Of several ranks that have least, the first gets the tensor": last,
    }


def spread(numels: Sequence[int], ranks: int) -> list[int]:
    """The owners where, of several ranks that have least, the one with the fewest tensors gets the next."""
    owners, loads = [0] * len(numels), [(0, 0)] * ranks
    for number in falling(numels):
        owners[number] = loads.index(min(loads))
        elements, tensors = loads[owners[number]]
        loads[owners[number]] = elements + numels[number], tensors + 1
    return owners


def wrong_bytes(numels: Sequence[int], ranks: int, loads: Sequence[int]) -> dict[str, float]:
    """What people make of the bytes, by what to say of it; the owners are right."""
    most = max(loads)
    return {
        "You count elements; Adam keeps two fp32 numbers for each": most,
        "You count one number for each element; Adam keeps two": 4 * most,
        "You count parameters, too; only Adam's states are asked for": 12 * most,
        "You count parameters and gradients, too; only Adam's states are asked for": 16 * most,
        "That is rank 0; memory has to suffice for the fullest": STATE_BYTES * loads[0],
        "That is the emptiest rank; memory has to suffice for the fullest": STATE_BYTES * min(loads),
        "That is the largest tensor; a rank may have others besides": STATE_BYTES * max(numels, default=0),
        "That is all ranks together; the fullest alone is asked for": STATE_BYTES * sum(numels),
        "That is an equal share, which whole tensors cannot reach": STATE_BYTES * sum(numels) / ranks,
    }


def whole_cases(rng: Random) -> list[Case]:
    drawn = [(telling(rng, ranks), ranks) for ranks in (3, 4)]
    drawn += [([rng.randint(0, 60) for _ in range(ranks + rng.randint(0, 6))], ranks) for ranks in (2, 3, 8, 1)]
    # On two of them, another way to share comes to less. Of the others, some ranks get nothing, and a tensor without
    # elements leaves its rank the first of those that have least.
    drawn += [([100, 3, 2, 1], 4), ([3, 3, 2, 2, 2], 2), ([7, 0, 7], 5), ([0, 8, 0, 1, 1], 3), ([], 2)]
    # Of real models: floats of 32 bits count no odd numbers here, and whole numbers of 32 bits end before.
    drawn += [([2**24 + 1], 1), ([2**24 + 1, 2**33 + 1, 5, 2**33, 2**24], 2)]
    # From each to the next ranks or sizes differ, of which sum, beginning or end stay: what is kept by the rest shows.
    drawn += [([5, 3, 4, 1], 2), ([5, 3, 4, 1], 3), ([3, 5, 1, 4], 3), ([9, 5, 1, 4], 3), ([9, 5, 1, 8], 3)]
    return [Case([args], about=f"tensors of {args[0]} elements, {plural(args[1], 'rank')}") for args in drawn]


def telling(rng: Random, ranks: int) -> list[int]:
    """Sizes of tensors on which all mistakes give different answers, so that a hint names the one that was made."""
    while True:
        numels = [rng.randint(1, 60) for _ in range(2 * ranks + 2)]
        numels[rng.randrange(2 * ranks)] = numels[-1]
        good = owners_of(numels, ranks, falling(numels))
        owners = [good, *wrong_owners(numels, ranks).values()]
        loads = loads_of(numels, ranks, good)
        nbytes = [STATE_BYTES * max(loads), *wrong_bytes(numels, ranks, loads).values()]
        if len(set(map(tuple, owners))) == len(owners) and len(set(nbytes)) == len(nbytes):
            return numels


def whole_right(case: Case, seen: Observation) -> str | None:
    numels, ranks = case.args[0]
    owners = owners_of(numels, ranks, falling(numels))
    loads = loads_of(numels, ranks, owners)
    got, nbytes = seen.records[0].value, STATE_BYTES * max(loads)
    want = [owners, nbytes]
    said = f"you say {short(got)}, and it is {want}"
    if not isinstance(got, list) or len(got) != 2:
        return f"{said}. Two things are asked for: the owners, and the bytes on the fullest rank"
    if got[0] != owners or any(isinstance(owner, bool) for owner in got[0]):
        return f"{said}. {about_owners(numels, ranks, got[0])}"
    if got[1] == nbytes:
        return None if type(got[1]) is int else f"{said}. The number is right, but bytes are whole"
    if says := named(wrong_bytes(numels, ranks, loads), lambda mistake: bool(got[1] == mistake)):
        return f"{said}. {says}"
    if isinstance(got[1], int | float) and abs(got[1] - nbytes) < 1e-6 * nbytes:
        return f"{said}. That is nearly right: a float of 32 bits counts no odd numbers above 2**24; add whole numbers"
    return f"{said}. The owners are right; eight bytes for each element of the fullest rank are asked for"


def about_owners(numels: Sequence[int], ranks: int, got: Any) -> str:
    """What is wrong with a list of owners."""
    if not isinstance(got, list) or len(got) != len(numels) or any(isinstance(owner, list) for owner in got):
        return "The first of the two is a list with one rank for each tensor, in the order of numels"
    if says := named(wrong_owners(numels, ranks), lambda mistake: got == mistake):
        return says
    if got == spread(numels, ranks):
        return "Tensors do not count, elements do: of several ranks that have the fewest elements, the first gets it"
    return "Write down how much each rank has after each tensor, the largest first"


EXERCISE = Exercise(
    "whole_tensors",
    whole_cases,
    (
        Claim("it says who owns which tensor, and what the fullest rank keeps", whole_right),
        Claim("the list it is given stays as it was", untouched(0)),
    ),
    run=alone,
    hints=(
        "Sort the numbers of the tensors, not their sizes: sorted(range(len(numels)), key=...).",
        "Keep a list of what each rank has; the next tensor goes to the one that has least.",
    ),
    text=TEXT,
    answer=(whole_tensors,),
    points=1,
)
