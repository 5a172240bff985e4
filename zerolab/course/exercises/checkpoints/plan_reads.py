"""Exercise of lesson 08: which bytes of which files a new rank reads. Any plan is right that takes as few reads."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Record, plural
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import is_whole, short

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


MISTAKES = r"""
That is counted in elements; files are read in bytes
    itemsize * (start - first), offset + itemsize * (end - first) => start - first, offset + end - first
Where does the stretch begin in its file? Its offset is missing
    offset + itemsize * (start - first), offset + itemsize * => itemsize * (start - first), itemsize *
You count from the parameter's first element; at its offset lies the stretch's first
    (start - first), offset + itemsize * (end - first) => start, offset + itemsize * end
A read is (rank, first byte, one past the last byte), and not the number of bytes
    offset + itemsize * (end - first) => itemsize * (end - start)
You read from the beginning of each stretch on; of the first one the range may begin later
    offset + itemsize * (start - first), offset + itemsize * (end - first) => offset, offset + itemsize * (end - start)
You read whole stretches; only [start, stop) is needed
    offset + itemsize * (start - first), offset + itemsize * (end => offset, offset + itemsize * (last
Each read brings one element; neighbours in a stretch come with one read
    min(stop, last) => start + 1
A read stays within one stretch, also where the next one lies right behind it
    stop, last => stop, max(s[1] for s in stretches if s[2] == rank and s[3] - offset == (s[0] - first) * itemsize)
Reads come in the order of the elements, and not of the ranks
    return reads => return sorted(reads)
Where stretches overlap, some elements are read twice; where does the read before end?
    def plan_reads(stretches, start, stop, itemsize):
        met = [(max(start, a), min(stop, b), a, r, o) for a, b, r, o in sorted(stretches)]
        return [(r, o + itemsize * (low - a), o + itemsize * (high - a)) for low, high, a, r, o in met if low < high]
"""
RAISED = "ValueError"


def run_planner(fn: Any, comm: Any, stretches: list[Any], start: int, stop: int, itemsize: int) -> dict[str, Any]:
    """What it is given and what it returns, or that it raises a ValueError."""
    given = deepcopy((stretches, start, stop, itemsize))
    try:
        return {"given": given, "reads": fn(stretches, start, stop, itemsize)}
    except ValueError:
        return {"given": given, "reads": RAISED}


def plan_of(record: Record) -> Any:
    """The reads, or those of the model answer where they are as good."""
    reads, given = record.value["reads"], record.value["given"]
    due = run_planner(plan_reads, None, *given)["reads"]
    return due if isinstance(reads, list) and len(reads) == len(due) and bring_all(reads, *given) else reads


def bring_all(reads: Any, stretches: Any, start: int, stop: int, itemsize: int) -> bool:
    """Whether reads, each within a stretch, bring all bytes, in order, each once."""
    at = start * itemsize
    for read in reads:
        if not isinstance(read, list | tuple) or len(read) != 3 or not all(map(is_whole, read)):
            return False
        rank, low, high = read
        # Where the element lies that comes next, and where its stretch ends, in the files that have it.
        there = [(r, o + at - a * itemsize, o + (b - a) * itemsize) for a, b, r, o in stretches if a * itemsize <= at]
        if not any(rank == r and low == first < high <= last for r, first, last in there):
            return False
        at += high - low
    return at == stop * itemsize


def said(args: tuple[Any, ...], got: Any, want: Any) -> str:
    stretches, start, stop, itemsize = args
    needs = f"needs elements [{start}, {stop}) of {itemsize} bytes, saved as {short(stretches)}"
    if isinstance(got, list) and want != RAISED and bring_all(got, *args):
        enough = f"{plural(len(got), 'read')} where {len(want)} would do"
        return f"{needs}: the bytes are right, in {enough} (of those that have an element, which goes furthest?)"
    did, due = ("raise a ValueError" if one == RAISED else f"return {short(one)}" for one in (got, want))
    return f"{needs}: you {did}, and should {due}"


def saved(rng: Random, numel: int, parts: int) -> list[list[int]]:
    """[start, stop) of each of so many parts of a parameter, some of them without elements."""
    inner = sorted(rng.choices(range(numel + 1), k=parts - 1))
    return [[a, b] for a, b in zip([0, *inner], [*inner, numel], strict=True)]


def shards(numel: int, ranks: int) -> list[tuple[int, int]]:
    """What new ranks need: equal shards, of which the last is shorter or empty."""
    shard = -(-numel // ranks)
    return [(min(rank * shard, numel), min((rank + 1) * shard, numel)) for rank in range(ranks)]


def cases(rng: Random) -> list[Case]:
    def case(about: str, parts: Any, wanted: Any, ranks: Any = ()) -> Case:
        """The stretches come in any order, each behind something else in its rank's file."""
        itemsize = rng.choice((2, 4, 4, 8))
        ends = [8 * rng.randint(8, 40) for _ in parts]
        stretches = []
        for (start, stop), rank in zip(parts, ranks or range(len(parts)), strict=True):
            offset = ends[rank] + 8 * rng.randint(1, 9)
            stretches.append((start, stop, rank, offset))
            ends[rank] = offset + -(-itemsize * (stop - start) // 8) * 8
        rng.shuffle(stretches)
        return Case([(list(stretches), start, stop, itemsize) for start, stop in wanted], about=about)

    found = []
    for before, after in ((3, 2), (2, 4), (4, 3), (1, 3), (4, 1), (5, 4)):
        parts, wanted = saved(rng, numel := rng.randint(8, 40), before), shards(numel, after)
        found.append(case(f"saved by {plural(before, 'rank')}, read by {after}", parts, wanted))
    found.append(case("two replicas of each shard", [[0, 8], [8, 16], [16, 21]] * 2, shards(21, 4)))
    # Stretches that are nested, in the two orders in which the first or the last that has an element is a short one.
    nested, wanted = [[0, 9], [2, 5], [4, 14], [5, 6], [6, 19], [13, 21]], [(0, 21), (13, 21), (5, 6), (3, 20)]
    for sign, which in ((1, "short"), (-1, "long")):
        found.append(case(f"stretches that overlap in part, the {which} ones first", nested, wanted))
        for stretches, *_ in found[-1].args:
            stretches.sort(key=lambda one: sign * (one[1] - one[0]))
    # Two stretches lie end to end in one file.
    first, itemsize, begin = rng.randint(3, 8), rng.choice((2, 4)), 8 * rng.randint(8, 40)
    joined = [(first, 12, 0, begin + itemsize * first), (0, first, 0, begin), (12, 20, 1, begin)]
    wanted = [(0, 20), (first - 2, first + 2), (first, 12)]
    args: list[Any] = [(list(joined), start, stop, itemsize) for start, stop in wanted]
    parts, gap = [[0, 1], [1, 2], [2, 7], [7, 7], [7, 12], [12, 13]], rng.randint(8, 12)
    return [
        *found,
        Case(args, about="two stretches end to end in one file"),
        case("stretches of one element and of none", parts, [(2, 7), (1, 2), (6, 8), (0, 13)]),
        case("ranges without elements", parts, [(7, 7), (0, 0), (13, 13), (3, 6)]),
        # Neither in a file nor by the ranks' numbers do stretches lie in the order of the elements.
        case("several stretches in one file", rng.sample(saved(rng, 24, 4), 4), shards(24, 3), (1, 0, 1, 0)),
        case("saved by rank 2 first", [[0, 7], [7, 15], [15, 24]], [(0, 24), (5, 16), (7, 20)], (2, 0, 1)),
        case("replicas of two runs", [*saved(rng, 30, 3), *saved(rng, 30, 4)], shards(30, 3)),
        case("a missing element", [[0, gap], [gap + 1, 25]], [(0, 25), (gap, gap + 1), (0, gap), (gap + 1, 25)]),
        case("a missing last element", [[0, 5], [5, 9]], [(4, 10), (9, 10), (2, 9), (10, 10)]),
        case("a missing first element", [[4, 4], [5, 9], [4, 4]], [(4, 9), (5, 9)]),
        case("nothing saved", [], [(0, 0), (0, 3)]),
    ]


EXERCISE = Exercise(
    "plan_reads",
    cases,
    (
        Claim(
            "the reads bring the elements that are needed, in order, each once, in as few as there can be",
            Gives(plan_of, say=said),
        ),
    ),
    run=run_planner,
    hints=(
        "Stand at the first element that you still need. Which stretches have it, and which of those goes furthest?",
        "Take what it has of the range, count from its own start, and go on where it ends. Nobody has it? ValueError.",
    ),
    mistakes=MISTAKES,
    # A read may be a list, too.
    without=frozenset({"shape"}),
    text=TEXT,
    answer=(plan_reads,),
    points=2,
)
