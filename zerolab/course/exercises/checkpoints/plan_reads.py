"""Exercise of lesson 08: which bytes of which files a new rank reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

from zerolab.course.exercises.twice import LEAVES_ITS_INPUT, REMEMBERS, snapshot
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import Mistakes, named
from zerolab.course.judge.same import alike, is_whole, short

TEXT = """
Which bytes of which files

Some ranks have saved a parameter, each the elements that it had, and other ranks load it: another number, with other
shards. Each of them needs the elements `[start, stop)`. Which bytes does it read?

`stretches` is a list of `(first, last, rank, offset)`: the elements `[first, last)` of the parameter lie in rank
`rank`'s file, end to end, from byte `offset` on. Every element has `itemsize` bytes. Return a list of
`(rank, first byte, one past the last byte)`, counted from the file's first byte.

- The reads come in the order of the elements, and bring every element once. A read stays within one stretch, and none
  is without bytes.
- Stretches come in any order, some without elements. A file may hold several.
- Stretches may overlap, as those of replicas do. An element may come from any that has it, as long as there are as
  few reads as there can be.
- If nobody saved an element that is needed, raise a `ValueError`. A range without elements needs nothing: return an
  empty list.

For example three ranks saved 12 elements of 4 bytes, and the second of two new ranks needs `[6, 12)`:

    rank 0's file, from byte 100 on     elements [0, 4)
    rank 1's file, from byte 160 on     elements [4, 8)       of these [6, 8): bytes [168, 176)
    rank 2's file, from byte 100 on     elements [8, 12)      all of these:    bytes [100, 116)

```{code-cell}
:name: shown_reads

def brought(files, reads):
    data = b"".join(files[rank][first:last] for rank, first, last in reads)
    return torch.frombuffer(bytearray(data), dtype=torch.int32)


elements = torch.arange(12, dtype=torch.int32)
files = [bytes(begin) + elements[4 * r : 4 * r + 4].numpy().tobytes() for r, begin in enumerate((100, 160, 100))]
brought(files, [(1, 168, 176), (2, 100, 116)])
```

The check draws stretches of up to 40 elements, some of one and some of none, overlaps and gaps; ranges at and between
borders, some of them empty; 2, 4 or 8 bytes an element. About twelve lines.
"""


def plan_reads(stretches: list[tuple[int, int, int, int]], start: int, stop: int, itemsize: int) -> list[tuple]:
    """(rank, first byte, one past the last byte) of each read."""
    ### BEGIN SOLUTION
    reads = []
    while start < stop:
        holding = [stretch for stretch in stretches if stretch[0] <= start < stretch[1]]
        if not holding:
            raise ValueError(f"nobody saved element {start}")
        first, last, rank, offset = max(holding, key=lambda stretch: stretch[1])
        end = min(stop, last)
        reads.append((rank, offset + itemsize * (start - first), offset + itemsize * (end - first)))
        start = end
    return reads
    ### END SOLUTION


Stretch = tuple[int, int, int, int]
"""The elements `[start, stop)` of the parameter lie in the file of `rank`, from byte `offset` on."""
Read = tuple[int, int, int]
RAISED = "ValueError"


def run_planner(fn: Callable[..., Any], comm: Any, *args: Any) -> dict[str, Any]:
    """What it returns or that it raises a ValueError, and the same of a second call."""
    given = deepcopy(args)
    first = snapshot(planned(fn, *args))
    return {"first": first, "again": planned(fn, *given)}


def planned(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except ValueError:
        return RAISED


# What is right.


def cut(stretches: Sequence[Stretch], start: int, stop: int) -> Iterator[tuple[int, int, Stretch]]:
    """[start, stop) in the fewest parts: where several have the next element, the one that goes furthest gives it.
    It ends at an element that none has."""
    at = start
    while at < stop:
        holding = [one for one in stretches if one[0] <= at < one[1]]
        if not holding:
            return
        source = max(holding, key=lambda one: one[1])
        yield at, min(stop, source[1]), source
        at = min(stop, source[1])


def missing(stretches: Sequence[Stretch], start: int, stop: int) -> int | None:
    """The first element that nobody saved, of those asked for."""
    return next((at for at in range(start, stop) if not any(one[0] <= at < one[1] for one in stretches)), None)


def due(stretches: Sequence[Stretch], start: int, stop: int, itemsize: int) -> list[Read]:
    return [in_bytes(itemsize, *part) for part in cut(stretches, start, stop)]


def in_bytes(itemsize: int, start: int, stop: int, source: Stretch) -> Read:
    first, _, rank, offset = source
    return rank, offset + itemsize * (start - first), offset + itemsize * (stop - first)


def brought(stretches: Sequence[Stretch], itemsize: int, read: Read) -> range | None:
    """The bytes of the parameter, counted from its own first, that a read gives; None if it leaves its stretch."""
    rank, first, last = read
    for start, stop, owner, offset in stretches:
        if owner == rank and offset <= first < last <= offset + itemsize * (stop - start):
            shift = itemsize * start - offset
            return range(first + shift, last + shift)
    return None


# What goes wrong.


def of_each(
    stretches: Sequence[Stretch],
    start: int,
    stop: int,
    itemsize: int,
    *,
    place: Callable[[int, int, int, Stretch], Read] = in_bytes,
    clip: bool = True,
    least: int = 1,
) -> list[Read]:
    """A read for each stretch that meets the range, in the order in which they stand."""
    reads = []
    for one in stretches:
        low, high = max(start, one[0]), min(stop, one[1])
        if high - low >= least:
            reads.append(place(itemsize, low, high, one) if clip else place(itemsize, one[0], one[1], one))
    return reads


def in_order(stretches: Sequence[Stretch], *args: Any, **slips: Any) -> list[Read]:
    return of_each(sorted(stretches), *args, **slips)


def placed(place: Callable[[int, int, int, Stretch], Read]) -> Callable[..., list[Read]]:
    """The right parts at wrong places in their files."""

    def plan(stretches: Sequence[Stretch], start: int, stop: int, itemsize: int) -> list[Read]:
        return [place(itemsize, *part) for part in cut(stretches, start, stop)]

    return plan


def one_by_one(stretches: Sequence[Stretch], start: int, stop: int, itemsize: int) -> list[Read]:
    singles = (next(cut(stretches, at, at + 1)) for at in range(start, stop))
    return [in_bytes(itemsize, *single) for single in singles]


def across_stretches(*args: Any) -> list[Read]:
    """One read for what lies end to end in a file, though it is of two stretches."""
    reads: list[Read] = []
    for rank, first, last in due(*args):
        if reads and (reads[-1][0], reads[-1][2]) == (rank, first):
            first = reads.pop()[1]
        reads.append((rank, first, last))
    return reads


def ascending(reads: Callable[..., list[Read]], *args: Any) -> list[Read]:
    return sorted(reads(*args))


MISTAKES: Mistakes = {
    "That is counted in elements; files are read in bytes": placed(
        lambda size, a, b, one: (one[2], one[3] + a - one[0], one[3] + b - one[0])
    ),
    "Where does the stretch begin in its file? Its offset is missing": placed(
        lambda size, a, b, one: (one[2], size * (a - one[0]), size * (b - one[0]))
    ),
    "The offset is already in bytes, and only elements are multiplied": placed(
        lambda size, a, b, one: (one[2], size * (one[3] + a - one[0]), size * (one[3] + b - one[0]))
    ),
    "You count from the parameter's first element; at its offset lies the stretch's first": placed(
        lambda size, a, b, one: (one[2], one[3] + size * a, one[3] + size * b)
    ),
    "A read is (rank, first byte, one past the last byte), and not the number of bytes": placed(
        lambda size, a, b, one: (one[2], one[3] + size * (a - one[0]), size * (b - a))
    ),
    "One past the last byte is due, as in range and in slices": placed(
        lambda size, a, b, one: (one[2], one[3] + size * (a - one[0]), one[3] + size * (b - one[0]) - 1)
    ),
    "You read from the beginning of each stretch on; of the first one the range may begin later": placed(
        lambda size, a, b, one: (one[2], one[3], one[3] + size * (b - a))
    ),
    "You read whole stretches; only [start, stop) is needed": partial(in_order, clip=False),
    "Each read brings one element; neighbours in a stretch come with one read": one_by_one,
    "A read stays within one stretch, also where the next one lies right behind it": across_stretches,
    "Reads come in the order of the elements, and not of the ranks": partial(ascending, due),
    "Stretches come in any order; reads come in that of the elements": of_each,
    "Where stretches overlap, some elements are read twice; where does the read before end?": in_order,
    "Reads of no bytes are left out": partial(in_order, least=0),
}


def reads_right(case: Case, seen: Observation) -> str | None:
    """A hint for the first reader that is wrong; a mistake is named if it gives what all wrong ones gave."""
    got = [record.value["first"] for record in seen.records]
    wrong = [rank for rank, value in enumerate(got) if not is_right(value, *case.args[rank])]
    if not wrong:
        return None
    says = named(MISTAKES, lambda mistake: all(alike(got[rank], mistake(*case.args[rank])) for rank in wrong))
    return said_of(got[wrong[0]], says, *case.args[wrong[0]])


def is_right(got: Any, stretches: Sequence[Stretch], start: int, stop: int, itemsize: int) -> bool:
    if missing(stretches, start, stop) is not None:
        return bool(got == RAISED)
    return (
        is_plan(got)
        and brings_all(got, stretches, start, stop, itemsize)
        and len(got) == len(due(stretches, start, stop, itemsize))
    )


def is_plan(got: Any) -> bool:
    return isinstance(got, list) and all(
        isinstance(one, list) and len(one) == 3 and all(map(is_whole, one)) for one in got
    )


def brings_all(got: Sequence[Any], stretches: Sequence[Stretch], start: int, stop: int, itemsize: int) -> bool:
    found = [brought(stretches, itemsize, (one[0], one[1], one[2])) for one in got]
    return [at for part in found for at in part or ()] == [*range(itemsize * start, itemsize * stop)] and all(found)


def said_of(got: Any, says: str, stretches: Sequence[Stretch], start: int, stop: int, itemsize: int) -> str:
    asked = f"elements [{start}, {stop}) of {itemsize} bytes, saved as {short(stretches)}"
    lacks = missing(stretches, start, stop)
    if lacks is not None:
        return f"{asked}: nobody saved element {lacks}, and you return {short(got)}: raise a ValueError"
    if got == RAISED:
        look = "a range without elements needs nothing" if start == stop else "which element does it miss?"
        return f"{asked}: all is there, and you raise a ValueError: {look}"
    want = due(stretches, start, stop, itemsize)
    if not is_plan(got):
        return f"{asked}: you return {short(got)}: return a list of (rank, first byte, one past the last)"
    if says:
        return f"{asked}: you return {short(got)}. {says}"
    if brings_all(got, stretches, start, stop, itemsize):
        enough = f"{plural(len(got), 'read')} where {len(want)} are enough"
        return f"{asked}: the bytes are right, in {enough}: of those that have an element, which goes furthest?"
    return f"{asked}: you return {short(got)}, and {short(want)} is due: which element comes with which read?"


# Cases.


def saved(rng: Random, numel: int, parts: int) -> list[list[int]]:
    """[start, stop) of each of so many parts of a parameter, some of them without elements."""
    inner = sorted(rng.choices(range(numel + 1), k=parts - 1))
    return [[a, b] for a, b in zip([0, *inner], [*inner, numel], strict=True)]


def in_files(rng: Random, parts: Sequence[Sequence[int]], itemsize: int, ranks: Sequence[int]) -> list[Stretch]:
    """Stretches in any order, each behind something else in its rank's file."""
    ends: dict[int, int] = {}
    stretches = []
    for (start, stop), rank in zip(parts, ranks, strict=True):
        offset = ends.get(rank, 8 * rng.randint(8, 40)) + 8 * rng.randint(1, 9)
        stretches.append((start, stop, rank, offset))
        ends[rank] = offset + -(-itemsize * (stop - start) // 8) * 8
    rng.shuffle(stretches)
    return stretches


def readers(numel: int, ranks: int) -> list[tuple[int, int]]:
    """What the new ranks need: equal shards, of which the last is shorter or empty."""
    shard = -(-numel // ranks)
    return [(min(rank * shard, numel), min((rank + 1) * shard, numel)) for rank in range(ranks)]


def case_of(
    rng: Random, about: str, parts: Sequence[Sequence[int]], ranks: Sequence[int], wanted: Sequence[tuple[int, int]]
) -> Case:
    itemsize = rng.choice((2, 4, 4, 8))
    stretches = in_files(rng, parts, itemsize, ranks)
    return Case([(list(stretches), start, stop, itemsize) for start, stop in wanted], about=about)


def cases(rng: Random) -> list[Case]:
    found = []
    for before, after in ((3, 2), (2, 4), (4, 3), (1, 3), (4, 1), (5, 4)):
        numel = rng.randint(8, 40)
        about = f"saved by {plural(before, 'rank')}, read by {after}"
        found.append(case_of(rng, about, saved(rng, numel, before), range(before), readers(numel, after)))
    # Small ranges, at borders and between them; and what fills a stretch exactly.
    parts = [[0, 1], [1, 2], [2, 7], [7, 7], [7, 12], [12, 13]]
    whole = [(a, b) for a, b in ((2, 7), (1, 2), (6, 8), (0, 13))]
    found.append(case_of(rng, "stretches of one element and of none", parts, range(6), whole))
    edges = [(7, 7), (0, 0), (13, 13), (3, 6)]
    found.append(case_of(rng, "ranges without elements", parts, range(6), edges))
    found.append(case_of(rng, "nothing saved, nothing needed", [], [], [(0, 0)]))
    # One rank's file holds several stretches of the parameter, which do not lie in the order of the elements.
    parts = saved(rng, 24, 4)
    rng.shuffle(parts)
    found.append(case_of(rng, "several stretches in one file", parts, [1, 0, 1, 0], readers(24, 3)))
    # Two of them lie end to end there.
    first, itemsize = rng.randint(3, 8), rng.choice((2, 4))
    begin = 8 * rng.randint(8, 40)
    joined = [(first, 12, 0, begin + itemsize * first), (0, first, 0, begin), (12, 20, 1, begin)]
    wanted = [(0, 20), (first - 2, first + 2), (first, 12)]
    about = "two stretches end to end in one file"
    found.append(Case([(list(joined), start, stop, itemsize) for start, stop in wanted], about=about))
    # Nor do the ranks' numbers say in which order their elements come.
    thirds = [[0, 7], [7, 15], [15, 24]]
    found.append(case_of(rng, "saved by rank 2 first", thirds, (2, 0, 1), [(0, 24), (5, 16), (7, 20)]))
    return [*found, *overlapping(rng), *lacking(rng)]


def overlapping(rng: Random) -> list[Case]:
    parts = [[0, 8], [8, 16], [16, 21]]
    found = [case_of(rng, "two replicas of each shard", [*parts, *parts], range(6), readers(21, 4))]
    nested = [[0, 9], [2, 5], [4, 14], [5, 6], [6, 19], [13, 21]]
    for sign, about in ((1, "the short ones first"), (-1, "the long ones first")):
        case = case_of(
            rng, f"stretches that overlap in part, {about}", nested, range(6), [(0, 21), (13, 21), (5, 6), (3, 20)]
        )
        for stretches, *_ in case.args:
            stretches.sort(key=lambda one: sign * (one[1] - one[0]))
        found.append(case)
    replicas = [*saved(rng, 30, 3), *saved(rng, 30, 4)]
    return [*found, case_of(rng, "replicas of two runs", replicas, range(7), readers(30, 3))]


def lacking(rng: Random) -> list[Case]:
    numel = rng.randint(20, 30)
    gap = rng.randint(8, 12)
    inner = [[0, gap], [gap + 1, numel]]
    about = "an element that nobody saved"
    return [
        case_of(rng, about, inner, (0, 1), [(0, numel), (gap, gap + 1), (0, gap), (gap + 1, numel)]),
        case_of(
            rng, "a last element that nobody saved", [[0, 5], [5, 9]], (0, 1), [(4, 10), (9, 10), (2, 9), (10, 10)]
        ),
        case_of(rng, "a first element that nobody saved", [[4, 4], [5, 9], [4, 4]], (0, 1, 2), [(4, 9), (5, 9)]),
        case_of(rng, "nothing saved", [], [], [(0, 3)]),
    ]


EXERCISE = Exercise(
    "plan_reads",
    cases,
    (
        Claim(
            "the reads bring the elements that are needed, in order, each once, in as few as there can be", reads_right
        ),
        REMEMBERS,
        LEAVES_ITS_INPUT,
    ),
    run=run_planner,
    hints=(
        "Stand at the first element that you still need. Which stretches have it, and which of those goes furthest?",
        "Take what it has of the range, count from its own start, and go on where it ends. Nobody has it? ValueError.",
    ),
    text=TEXT,
    answer=(plan_reads,),
    points=2,
)
