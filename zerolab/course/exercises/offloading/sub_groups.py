"""The exercise of lesson 07 on sub-groups: what is updated at a time, and where its record lies in the file."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives, both
from zerolab.course.judge.same import alike, short

TEXT = """
Sub-groups

A shard's states do not fit into a buffer at once. So its segments, `(start, stop)` in elements, are packed into
sub-groups of at most `limit` elements, and each sub-group's states become one record of a file. The rule:

- Go through the segments in order, and fill one sub-group after the other. A part of a segment is a `(start, stop)`
  as well; parts of two segments stay two, also where they touch.
- From a segment take as much as there is left of it, but at most the room in the sub-group *rounded down to a
  multiple of* `align`. The rest of the segment goes on in the next part. (So kernels do the same arithmetic on the
  parts as on the whole.)
- When nothing can be taken, because the rounded room is 0, begin a new sub-group. No sub-group is empty, and a
  segment without elements has no part.
- A `limit` below `align` counts as `align`.

A record has `width` bytes an element. For direct I/O it begins at a multiple of 4,096 bytes: the first at 0, each of
the others at the first such place at which the record before it has ended. Return the list of `(offset, parts)`.

The check draws segments with gaps between them and without, some of them empty, no segments at all, an `align` that
need not be a power of two, and limits of 1 to thousands of elements. About eighteen lines.
"""


def sub_groups(segments: list[tuple[int, int]], limit: int, align: int, width: int) -> list[tuple[int, list]]:
    """(where its record begins in the file, its parts) of each sub-group."""
    ### BEGIN SOLUTION
    groups = []
    room = offset = nbytes = 0
    for start, stop in segments:
        while start < stop:
            size = min(stop - start, room // align * align)
            if size == 0:
                offset += -(-nbytes // 4096) * 4096
                groups.append((offset, []))
                room, nbytes = max(limit, align), 0
                continue
            groups[-1][1].append((start, start + size))
            start, room, nbytes = start + size, room - size, nbytes + width * size
    return groups
    ### END SOLUTION


MISTAKES = r"""
A sub-group may have `limit` elements, also where `align` does not divide that: only the room is rounded
    max(limit, align), 0 => max(limit, align) // align * align, 0
Every sub-group but the last has room left: does each segment begin a new one?
    while start => room = 0\n        while start
A segment that does not fit is cut, and its first part fills the room that is left
    while start => room = room if stop - start <= room else 0\n        while start
A cut lies a multiple of `align` elements behind the part's start
    room // align * align => room
A limit below `align` counts as `align`
    groups = [] => align = min(limit, align)\n    groups = []
A segment without elements has no part
    while start => if start == stop and groups:\n            groups[-1][1].append((start, stop))\n        while start
A record begins where a page does: how many bytes does the one before take, with the rest of its page?
    -(-nbytes // 4096) * 4096 => nbytes
Each record before takes whole pages: round up its bytes, and not once those of all together
    offset += => offset =
    max(limit, align), 0 => max(limit, align), nbytes
You count offsets in pages; they are bytes
    -(-nbytes // 4096) * 4096 => -(-nbytes // 4096)
Not every sub-group is full: a record takes the bytes of its own parts
    -(-nbytes // 4096) * 4096 => -(-width * max(limit, align) // 4096) * 4096 * bool(groups)
A record that fills its pages leaves no rest
    -(-nbytes // 4096) * 4096 => (nbytes // 4096 + 1) * 4096 * bool(groups)
You count offsets in elements; each has `width` bytes
    width * size => size
"""


def say_groups(args, got, want):
    """Where the lists part ways; short ones whole."""
    pairs = zip(got, want, strict=False) if isinstance(got, list) else ()
    at = next((at for at, pair in enumerate(pairs) if not alike(*pair)), None)
    if len(want) < 3 or at is None:
        return both(args, got, want)
    return f"item {at} of your list is {short(got[at])}, and {short(want[at])} is due"


def drawn(rng: Random, numels: Sequence[int], limit: int, align: int, touching: bool = False) -> Case:
    segments, at = [], 16 * rng.choice((1, 2, 4, 5) if touching else range(6))
    for numel in numels:
        segments.append((at, at + numel))
        at += numel + (0 if touching else rng.choice((0, 0, 16, 48)))
    return Case([(segments, limit, align, rng.choice((12, 14)))])


def group_cases(rng: Random) -> list[Case]:
    def some(count: int, most: int) -> list[int]:
        return [rng.randint(1, most) for _ in range(count)]

    whole = rng.randint(4, 9)
    shapes: list[tuple[Any, ...]] = [
        ([whole * 16 + 5, 7, 40 + whole], 64, 1),
        ([rng.randint(15, 20), rng.randint(25, 30), rng.randint(38, 45)], 64, 1),
        # Two short parts and a long one tell a rounded limit from parts that are rounded up.
        ([rng.randint(3, 4), 3, rng.randint(90, 120)], 71, 12, True),
        ([rng.randint(70, 90), 30], 50, 16),
        ([rng.randint(110, 160), 45], 71, 12),
        ([30, rng.randint(17, 19), 40], 50, 16),
        ([rng.randint(9000, 9500)], 5000, 16),
        ([rng.randint(3990, 4090), rng.randint(3000, 4000)], 5000, 1024),
        ([rng.randint(2100, 3000)], 2048, 16),
        ([10, 0, 12, 400], 360, 16),
        ([rng.randint(900, 1500), *some(3, 200)], 350, 16),
        (some(6, 100), rng.randint(30, 90), 8),
        (some(4, 40), 1000, 16),
        ([rng.randint(20, 50)], 5, 16),
        ([64, 64, 64], 64, 16),
        ([0, 0], 32, 4),
        ([], 32, 4),
        (some(8, 30), 1, 1),
        ([33], 16, 16),
    ]
    return [drawn(rng, *shape) for shape in shapes]


LOOK = "Go through the rule by hand here: how much room is left before each part, and how much of that rounded down?"
EXERCISE = Exercise(
    "sub_groups",
    group_cases,
    (Claim("segments are cut, and records laid out, as the rule says", Gives("", LOOK, say=say_groups)),),
    run=alone,
    hints=(
        "Keep the room that is left in the last sub-group. At first there is none.",
        "While a segment has elements left: how many fit? The smaller of what is left, and of the room rounded down to "
        "`align`. If none fit, begin a new sub-group.",
        "When you begin one, its offset is that of the one before plus the bytes of that one, rounded up to 4,096.",
    ),
    mistakes=MISTAKES,
    # Parts may be a tuple, too.
    without=frozenset({"shape"}),
    text=TEXT,
    answer=(sub_groups,),
    points=2,
)
