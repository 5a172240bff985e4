"""Bytes over time by kind, from a log of changes.

A storage's kind is often known only after its birth: a buffer is allocated first and given to its owner next. So
changes are logged with the storage's record, and counted later, under the kind that the record has by then.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from zerolab.memory.kinds import KINDS, OFFLOADED


@dataclass(eq=False, slots=True)
class StorageRecord:
    """A storage as the tracker knows it.

    kind     of `zerolab.memory.kinds`
    ref      to the storage, weak
    labelled whether a label has named it; else its kind follows from the operation that made it
    nbytes   its size when it was last read
    counted  the bytes that the live totals have of it
    """

    kind: str
    ref: weakref.ref[torch.UntypedStorage]
    labelled: bool = False
    nbytes: int = 0
    counted: int = 0


@dataclass(frozen=True)
class Sample:
    """What was alive after one operation that changed it: the `order`-th from 1, at `time` of the tracker's clock."""

    order: int
    phase: str
    bytes: dict[str, int]
    time: float = 0.0

    @property
    def total(self) -> int:
        """On the device."""
        return sum(nbytes for kind, nbytes in self.bytes.items() if not kind.startswith(OFFLOADED))


Changes = list[tuple[StorageRecord, int]]


class MemoryTimeline:
    """Live bytes, their peaks, and if asked for their whole course."""

    def __init__(self, keep_samples: bool) -> None:
        self.log: list[tuple[int, str, float, Changes]] = []
        self._keep_samples = keep_samples
        self.samples: list[Sample] = []
        self.live = defaultdict(int, dict.fromkeys(KINDS, 0))
        self.reset_peak()

    def reset_peak(self) -> None:
        self.peak = Sample(0, "", dict(self.live))
        self.peak_of = self.live.copy()

    def note(self, order: int, phase: str, changes: Changes, time: float = 0.0) -> None:
        """Log what one operation changed. Growth and shrinkage of one operation count together."""
        if changes:
            self.log.append((order, phase, time, changes))

    def rename(self, record: StorageRecord, kind: str) -> None:
        """Count a storage under another kind from now on, and in what is still to be counted."""
        self.live[record.kind] -= record.counted
        self.live[kind] += record.counted
        record.kind = kind

    def count(self) -> None:
        """Count the log."""
        for order, phase, time, changes in self.log:
            for record, delta in changes:
                self.live[record.kind] += delta
                record.counted += delta
            for kind in {record.kind for record, _ in changes}:
                self.peak_of[kind] = max(self.peak_of[kind], self.live[kind])
            sample = Sample(order, phase, dict(self.live), time)
            if self._keep_samples:
                self.samples.append(sample)
            if sample.total > self.peak.total:
                self.peak = sample
        self.log.clear()


def by_time(samples: Iterable[Sample]) -> list[Sample]:
    """The same changes in the order of the clock.

    In lockstep a lane runs only when its rank waits: what it does comes late in the order of operations, but early on
    the virtual clock. There the course and its peak are those of ranks whose lanes run beside them.
    """
    changes, before = [], Counter[str]()
    for sample in samples:
        after = Counter(sample.bytes)
        changes.append((sample, after.copy()))
        changes[-1][1].subtract(before)
        before = after
    live, course = Counter[str](), []
    # Sorting keeps the order of operations where clocks agree.
    for sample, change in sorted(changes, key=lambda pair: pair[0].time):
        live.update(change)
        course.append(Sample(sample.order, sample.phase, dict(live), sample.time))
    return course
