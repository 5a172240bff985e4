"""The exercise of lesson 07 on sub-groups: what is updated at a time, and where its record lies in the file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import untouched
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import Mistakes, answers, both
from zerolab.course.judge.same import alike, short
from zerolab.flat import Segment
from zerolab.offload import groups as library
from zerolab.offload.groups import round_up_to_page

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


Span = tuple[int, int]
Spans = Sequence[Span]
Record = tuple[int, list[Span]]


def wanted(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    """What the library does, with the place of each record in its file."""
    cut = library.sub_groups([(0, Segment(None, *segment), align) for segment in segments], limit)
    return placed([[(part.segment.start, part.segment.stop) for part in group] for group in cut], width)


def full_each(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    """Offsets as if every sub-group were full."""
    step = round_up_to_page(width * max(limit, align))
    return [(step * number, group) for number, (_, group) in enumerate(wanted(segments, limit, align, width))]


def page_more(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    records, offset = [], 0
    for _, group in wanted(segments, limit, align, width):
        records.append((offset, group))
        offset += width * sum(stop - start for start, stop in group) // 4096 * 4096 + 4096
    return records


def placed(groups: Sequence[list[Span]], width: int, rounded: bool = True) -> list[Record]:
    records, offset = [], 0
    for group in groups:
        records.append((offset, group))
        nbytes = width * sum(stop - start for start, stop in group)
        offset += round_up_to_page(nbytes) if rounded else nbytes
    return records


def cut_up(segments: Spans, limit: int, align: int, width: int, slip: str = "") -> list[Record]:
    """The rule, open to slips."""
    groups: list[list[Span]] = []
    room = 0
    limit = max(limit, align) // align * align if slip in ("limit", "both") else limit
    align = min(limit, align) if slip == "small" else align
    for start, stop in segments:
        if slip == "anew":
            room = 0
        if slip == "uncut" and stop - start > room:
            room = 0
        while start < stop or (slip == "empty" and start == stop):
            size = min(stop - start, room // align * align)
            if slip == "bits":
                size = min(stop - start, room & ~(align - 1))
            if slip in ("unaligned", "limit"):
                size = min(stop - start, room)
            if slip == "absolute":
                size = min(stop - start, (start + room) // align * align - start) if room >= align else 0
            if slip == "fits" and stop - start <= room:
                size = stop - start
            if slip == "always aligned":
                size = min(stop - start, room) // align * align or (stop - start if room >= stop - start else 0)
            if size == 0 and not (start == stop and groups):
                groups.append([])
                room = max(limit, align)
                continue
            if slip == "merged" and groups[-1] and groups[-1][-1][1] == start:
                groups[-1][-1] = (groups[-1][-1][0], start + size)
            else:
                groups[-1].append((start, start + size))
            start, room = start + size, room - (-(-size // align) * align if slip == "padded" else size)
            if slip == "empty" and start == stop:
                break
    return placed(groups, width, rounded=slip != "unrounded")


def in_pages(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    return [(offset // 4096, group) for offset, group in wanted(segments, limit, align, width)]


def one_page_each(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    return [(4096 * number, group) for number, (_, group) in enumerate(wanted(segments, limit, align, width))]


def of_all_before(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    """Offsets that round the bytes of all records before, once."""
    records, elements_before = [], 0
    for _, group in wanted(segments, limit, align, width):
        records.append((round_up_to_page(width * elements_before), group))
        elements_before += sum(stop - start for start, stop in group)
    return records


def in_elements(segments: Spans, limit: int, align: int, width: int) -> list[Record]:
    return wanted(segments, limit, align, 1)


SLIPS: Mistakes = {
    "A sub-group may have `limit` elements, also where `align` does not divide that: only the room is rounded": partial(
        cut_up, slip="both"
    ),
    "A part takes the room of its own elements: that is not rounded up to `align`": partial(cut_up, slip="padded"),
    "Every sub-group but the last has room left: does each segment begin a new one?": partial(cut_up, slip="anew"),
    "A segment that does not fit is cut, and its first part fills the room that is left": partial(cut_up, slip="uncut"),
    "A cut lies a multiple of `align` elements behind the part's start": partial(cut_up, slip="unaligned"),
    "`align` need not be a power of two, and & ~(align - 1) rounds to nothing else: use // and *": partial(
        cut_up, slip="bits"
    ),
    "Room counts in whole multiples of `align`, also for a rest that would just fit": partial(cut_up, slip="fits"),
    "It is the length of a part that is a multiple of `align`, wherever the part begins": partial(
        cut_up, slip="absolute"
    ),
    "The end of a segment stays with the rest of it if there is room: no cut without need": partial(
        cut_up, slip="always aligned"
    ),
    "It is the room that is left that is rounded down, each time anew, and not the limit alone": partial(
        cut_up, slip="limit"
    ),
    "A limit below `align` counts as `align`": partial(cut_up, slip="small"),
    "Segments that touch stay two parts": partial(cut_up, slip="merged"),
    "A segment without elements has no part": partial(cut_up, slip="empty"),
    "A record begins where a page does: how many bytes does the one before take, with the rest of its page?": partial(
        cut_up, slip="unrounded"
    ),
    "Each record before takes whole pages: round up its bytes, and not once those of all together": of_all_before,
    "You count offsets in pages; they are bytes": in_pages,
    "A record may take several pages": one_page_each,
    "Not every sub-group is full: a record takes the bytes of its own parts": full_each,
    "A record that fills its pages leaves no rest": page_more,
    "You count offsets in elements; each has `width` bytes": in_elements,
    "The last sub-group is missing: it is kept even if it is not full": lambda *args: wanted(*args)[:-1],
    "Parts alone are not enough: each sub-group comes with its offset": lambda *args: [g for _, g in wanted(*args)],
}


def nothing_lost(case: Case, seen: Observation) -> str | None:
    """What can be said of any answer before its numbers are looked at."""
    segments, limit, align, _ = case.args[0]
    got = seen.records[0].value
    if not shaped(got):
        return f"you return {short(got)}: a list of (offset, parts) is due, parts being (start, stop)"
    parts = [tuple(part) for _, group in got for part in group]
    if any(not group for _, group in got):
        return "a sub-group has no parts: begin one when there is something to put into it"
    most = max((sum(stop - start for start, stop in group) for _, group in got), default=0)
    if most > max(limit, align):
        said = f"a sub-group has {most} elements, and {max(limit, align)} are allowed"
        return f"{said}: how much room is left after each part?"
    due, there = (elements([span for span in spans if span[0] < span[1]]) for spans in (segments, parts))
    if there == due:
        return None
    missing, twice = len(set(due) - set(there)), len(there) - len(set(there))
    if missing and alike(got, wanted(*case.args[0])[:-1]):
        return "the last sub-group is missing: it is kept even if it is not full"
    if missing:
        first = min(set(due) - set(there))
        return f"{plural(missing, 'element')} in no sub-group, {first} the first: what follows a cut?"
    if twice:
        return f"{plural(twice, 'element')} are in two sub-groups: where does the part after a cut begin?"
    return f"the parts come in another order than the segments, or hold what is in none: {short(got)}"


def first_apart(args: tuple[Any, ...], got: Any, want: list[Record]) -> str:
    """Where two lists of sub-groups part ways; short ones whole."""
    if len(want) < 3 or not shaped(got):
        return both(args, got, want)
    at = next((at for at in range(min(len(got), len(want))) if not alike(got[at], want[at])), None)
    if at is None:
        return f"you return {plural(len(got), 'sub-group')}, and {len(want)} are due"
    return f"item {at} of your list is {short(got[at])}, and {short(want[at])} is due"


def shaped(value: Any) -> bool:
    def whole(item: Any) -> bool:
        return type(item) is int

    def pair(item: Any) -> bool:
        return isinstance(item, list | tuple) and len(item) == 2

    return isinstance(value, list | tuple) and all(
        pair(record)
        and whole(record[0])
        and isinstance(record[1], list | tuple)
        and all(pair(part) and all(map(whole, part)) for part in record[1])
        for record in value
    )


def elements(spans: Any) -> list[int]:
    return [at for start, stop in spans for at in range(start, stop)]


def drawn(rng: Random, numels: Sequence[int], limit: int, align: int) -> Case:
    segments, at = [], rng.randint(0, 5) * 16
    for numel in numels:
        segments.append((at, at + numel))
        at += numel + rng.choice((0, 0, 16, 48))
    args = (segments, limit, align, rng.choice((12, 14)))
    return Case([args], about=f"sub_groups({segments}, limit={limit}, align={align}, width={args[3]})")


def group_cases(rng: Random) -> list[Case]:
    def some(count: int, most: int) -> list[int]:
        return [rng.randint(1, most) for _ in range(count)]

    whole = rng.randint(4, 9)
    shapes = [
        ([whole * 16 + 5, 7, 40 + whole], 64, 1),
        ([rng.randint(15, 20), rng.randint(25, 30), rng.randint(38, 45)], 64, 1),
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
    cases = [drawn(rng, *shape) for shape in shapes]
    return [*cases[:2], short_parts(rng), *cases[2:]]


def short_parts(rng: Random) -> Case:
    """Two short parts and a long one tell a rounded limit from parts that are rounded up."""
    ends = [16 * rng.choice((1, 2, 4, 5))]
    for numel in (rng.randint(3, 4), 3, rng.randint(90, 120)):
        ends.append(ends[-1] + numel)
    segments = list(pairwise(ends))
    args = (segments, 71, 12, rng.choice((12, 14)))
    return Case([args], about=f"sub_groups({segments}, limit=71, align=12, width={args[3]})")


LOOK = "Go through the rule by hand here: how much room is left before each part, and how much of that rounded down?"
EXERCISE = Exercise(
    "sub_groups",
    group_cases,
    (
        Claim("every element is in one sub-group, and no sub-group is too large or empty", nothing_lost),
        Claim("segments are cut, and records laid out, as the rule says", answers(wanted, SLIPS, LOOK, first_apart)),
        Claim("the list of segments stays as it was", untouched(0)),
    ),
    run=alone,
    hints=(
        "Keep the room that is left in the last sub-group. At first there is none.",
        "While a segment has elements left: how many fit? The smaller of what is left, and of the room rounded down to "
        "`align`. If none fit, begin a new sub-group.",
        "When you begin one, its offset is that of the one before plus the bytes of that one, rounded up to 4,096.",
    ),
    text=TEXT,
    answer=(sub_groups,),
    points=2,
)
