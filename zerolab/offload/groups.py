"""What an optimizer step updates at a time, in plain integers: segments of buckets, cut and packed into sub-groups."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

from zerolab.flat import Segment
from zerolab.flat.layout import round_up

PAGE = 4096
"""Direct I/O moves whole pages."""


class BucketSegment(NamedTuple):
    """A segment, or a part of one, of the bucket number `bucket`."""

    bucket: int
    segment: Segment


def sub_groups(segments: Iterable[tuple[int, Segment, int]], limit: int | None) -> list[list[BucketSegment]]:
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


def on_disk(nbytes: int) -> int:
    """Bytes that a record of so many takes in a file."""
    return round_up(nbytes, PAGE)
