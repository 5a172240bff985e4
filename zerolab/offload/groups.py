"""What an optimizer step updates at a time, in plain integers: segments of buckets, cut and packed into sub-groups."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from zerolab.flat import Segment
from zerolab.flat.layout import round_up

PAGE = 4096
"""Direct I/O moves whole pages."""


class BucketSegment(NamedTuple):
    """A segment, or a part of one, of a bucket, by whatever its owner calls it."""

    bucket: Any
    segment: Segment


def sub_groups(segments: Iterable[tuple[Any, Segment, int]], limit: int | None) -> list[list[BucketSegment]]:
    """(bucket, segment, align) in order, packed into groups of at most `limit` elements; None packs all into one.

    A segment that does not fit is cut at a multiple of its `align`, so that a kernel does the same arithmetic on the
    parts as on the whole. A limit below `align` counts as `align`.
    """
    groups: list[list[BucketSegment]] = []
    room = 0
    for bucket, segment, align in segments:
        start = segment.start
        while start < segment.stop:
            size = min(segment.stop - start, room // align * align)
            if size == 0:
                groups.append([])
                room = sys.maxsize if limit is None else max(limit, align)
                continue
            groups[-1].append(BucketSegment(bucket, Segment(segment.group, start, start + size)))
            start += size
            room -= size
    return groups


def count_parts(segments: Iterable[tuple[int, Segment, int]], limit: int | None) -> Iterator[tuple[int, Segment, int]]:
    """(bucket, segment, parts): into how many `sub_groups` cuts each, of which it may make a hundred thousand."""
    room = sys.maxsize if limit is None else 0
    for bucket, segment, align in segments:
        first = min(segment.numel, room // align * align)
        parts, rest, room = int(first > 0), segment.numel - first, room - first
        if rest:
            assert limit is not None
            whole = max(limit, align)
            taken = whole // align * align
            more = -(-rest // taken)
            parts, room = parts + more, whole - (rest - (more - 1) * taken)
        yield bucket, segment, parts


def round_up_to_page(nbytes: int) -> int:
    """Bytes that a record of so many takes in a file."""
    return round_up(nbytes, PAGE)
