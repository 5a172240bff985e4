"""A small shared file on which every rank notes what it is doing, so that the parent can say why a launch hangs.

A rank writes its own record and nobody else's; the parent only reads. A note takes about a microsecond, so ranks can
afford it at every blocking wait. A reader may catch a note half written, so it trusts only what it has read twice.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy

from zerolab.collectives.call import Call

SLOTS, GROUPS = 8, 32
KINDS = ("", "send to", "receive from", "meet")
SLOT = numpy.dtype(
    [("number", "u4"), ("group", "u4"), ("call", "S224"), ("kind", "u1"), ("peer", "i4"), ("nbytes", "u8")]
)
"""What one thread of a rank does (its main line, a communication lane): the collective it is in, the peer it waits
for."""
COUNT, GROUP = struct.Struct("<Q"), struct.Struct("<II")
CALL, WAIT = struct.Struct("<II224s"), struct.Struct("<BiQ")


def record(size: int) -> numpy.dtype[Any]:
    """What one of `size` ranks notes: how often it wrote; messages posted to and from each peer; of the world (0) and
    of each group, by its number, in the order in which it first entered one, the last collective that it entered."""
    peers = ("u8", (size,))
    fields = [("changes", "u8"), ("sent", *peers), ("received", *peers)]
    return numpy.dtype([*fields, ("groups", "u4", (GROUPS, 2)), ("slots", SLOT, (SLOTS,))])


@dataclass(frozen=True)
class Activity:
    """What one thread of a rank is doing: the collective that it is in, and the peer that it waits for, if any."""

    call: str = ""
    number: int = 0
    wait_kind: str = ""
    peer: int = -1
    nbytes: int = 0
    group: int = 0
    """The number of the call's group, 0 for the world."""

    def __str__(self) -> str:
        unit = "byte" if self.nbytes == 1 else "bytes"
        size = "" if self.wait_kind == "meet" else f" ({self.nbytes} {unit})"
        wait = f"waits to {self.wait_kind} rank {self.peer}{size}" if self.wait_kind else ""
        if self.call and wait:
            return f"{wait} in {self.call}"
        return wait or (f"is in {self.call}" if self.call else "")


@dataclass(frozen=True)
class RankState:
    """All that a rank has noted. `groups` has the last collective that it entered, by group."""

    changes: int
    sent: list[int]
    received: list[int]
    groups: dict[int, int]
    activities: list[Activity]

    def describe(self) -> str:
        """All that the rank's threads are doing, "" if no thread waits or is in a collective."""
        return " and ".join(map(str, self.activities))


class Board:
    """The board of one launch of `size` ranks: in a file that its parent makes and its ranks open, or in memory."""

    def __init__(self, size: int, path: Path | None = None) -> None:
        self.size = size
        if path is not None and not path.exists():
            path.write_bytes(bytes(record(size).itemsize * size))
        # To read; they are written by `struct`, which takes a fifth of the time.
        self.records: numpy.ndarray[Any, Any] = (
            numpy.zeros(size, record(size)) if path is None else numpy.memmap(path, record(size), "r+", shape=(size,))
        )

    def read(self, rank: int) -> RankState:
        changes, sent, received, groups, slots = self.records[rank].tolist()
        activities = (
            Activity(call.decode(errors="replace"), number, KINDS[kind % len(KINDS)], peer, nbytes, group)
            for number, group, call, kind, peer, nbytes in slots.tolist()
        )
        entered = {group: number for group, number in groups.tolist() if number}
        active = [activity for activity in activities if str(activity)]
        return RankState(changes, sent.tolist(), received.tolist(), entered, active)

    def read_all(self) -> Sequence[RankState]:
        return [self.read(rank) for rank in range(self.size)]


@dataclass
class Line:
    """What a thread has noted, and where."""

    place: int
    calls: list[Call] = field(default_factory=list)
    wait: tuple[int, int, int] = (0, -1, 0)


class BoardPen:
    """A rank's own record, to write on."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        record = board.records.dtype
        self._bytes = memoryview(board.records.view("u1"))[rank * record.itemsize :][: record.itemsize]  # type: ignore
        self._at = {name: place[1] for name, place in (record.fields or {}).items()}
        self._changes = 0
        self._entered: dict[int, int] = {}
        self._posted: Counter[tuple[str, int]] = Counter()
        self._lines: dict[int, Line] = {}
        self._lock = threading.Lock()

    def state(self) -> RankState:
        return self._board.read(self._rank)

    def entered(self, call: Call) -> None:
        """A thread enters a collective; one may be entered inside another."""
        group = call.group.number if call.group else 0
        with self._lock:
            self._entered[group] = number = max(self._entered.get(group, 0), call.number)
            place = list(self._entered).index(group)
            if place < GROUPS:
                GROUP.pack_into(self._bytes, self._at["groups"] + place * GROUP.size, group, number)
        line = self._line()
        line.calls.append(call)
        self._write_call(line)

    def left(self, shown: bool = False) -> None:
        """A thread has left its collective, which stays on the board if it is still to be `shown`."""
        line = self._line()
        if line.calls:
            line.calls.pop()
            if not shown:
                self._write_call(line)

    def waits(self, kind: int, peer: int = -1, nbytes: int = 0) -> None:
        """A thread begins to wait for a peer (kind 1: send, 2: receive, 3: meet), or waits no more (0). Repeating the
        note that is already there counts as no change, or a rank that waits in a loop would never seem stuck."""
        line, wait = self._line(), (kind, peer, nbytes)
        if line.wait != wait:
            line.wait = wait
            WAIT.pack_into(self._bytes, line.place + CALL.size, *wait)
            self._changed()

    def posted(self, name: str, peer: int) -> None:
        """A message was "sent" to a peer, or asked of it: "received"."""
        with self._lock:
            self._posted[name, peer] += 1
            COUNT.pack_into(self._bytes, self._at[name] + peer * COUNT.size, self._posted[name, peer])

    def _write_call(self, line: Line) -> None:
        call = line.calls[-1] if line.calls else None
        group = call.group.number if call and call.group else 0
        CALL.pack_into(self._bytes, line.place, call.number if call else 0, group, str(call or "").encode())
        self._changed()

    def _changed(self) -> None:
        self._changes += 1
        COUNT.pack_into(self._bytes, 0, self._changes)

    def _line(self) -> Line:
        """This thread's. A ninth thread shares the eighth's place: a blurred report beats none."""
        thread = threading.get_ident()
        if thread not in self._lines:
            self._lines[thread] = Line(self._at["slots"] + min(len(self._lines), SLOTS - 1) * SLOT.itemsize)
        return self._lines[thread]
