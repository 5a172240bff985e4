"""A small shared file on which every rank notes what it is doing, so that the parent can say why a launch hangs.

A rank writes its own record and nobody else's; the parent only reads. A note takes about a microsecond, so ranks can
afford it at every blocking wait. A reader may catch a note half written, so it trusts only what it has read twice.
"""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from zerolab.collectives.call import Call

SLOTS = 8
GROUPS = 32
KINDS = ("", "send to", "receive from", "meet")
SLOT = numpy.dtype(
    [("number", "u4"), ("group", "u4"), ("call", "S224"), ("kind", "u1"), ("peer", "i4"), ("nbytes", "u8")]
)
"""What one thread of a rank does (its main line, a communication lane): the collective it is in, the peer it waits
for."""

HEAD, COUNT, GROUP = struct.Struct("<QI"), struct.Struct("<Q"), struct.Struct("<II")
CALL, WAIT = struct.Struct("<II224s"), struct.Struct("<BiQ")


def record(size: int) -> numpy.dtype[Any]:
    """What one of `size` ranks notes. `last` is the number of the last of the world's collectives that it entered;
    `groups` has the same of each group, by the group's number, in the order in which it first entered one."""
    peers = ("u8", (size,))
    fields = [("changes", "u8"), ("last", "u4"), ("sent", *peers), ("received", *peers)]
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
    """All that a rank has noted: how often it wrote, the number of the last collective it entered, the messages
    posted to and from each peer, what its threads are doing, and by group the last collective it entered there."""

    changes: int
    last: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    activities: tuple[Activity, ...]
    groups: tuple[tuple[int, int], ...] = ()

    def last_in(self, group: int) -> int | None:
        """The number of the last collective of a group that the rank entered, None if there was no room to note it."""
        if group == 0:
            return self.last
        return dict(self.groups).get(group, 0 if len(self.groups) < GROUPS else None)

    def describe(self) -> str:
        """All that the rank's threads are doing, "" if no thread waits or is in a collective."""
        return " and ".join(str(activity) for activity in self.activities)


class Board:
    """The board of one launch of `size` ranks; `create` it in the parent, open it by path in a rank."""

    def __init__(self, path: Path, size: int) -> None:
        self.size = size
        self.records = numpy.memmap(path, record(size), "r+", shape=(size,))
        """To read; they are written by `struct`, which takes a fifth of the time."""

    @classmethod
    def create(cls, path: Path, size: int) -> Board:
        path.write_bytes(bytes(record(size).itemsize * size))
        return cls(path, size)

    def read(self, rank: int) -> RankState:
        changes, last, sent, received, groups, slots = self.records[rank].tolist()
        activities = (
            Activity(call.decode(errors="replace"), number, KINDS[kind % len(KINDS)], peer, nbytes, group)
            for number, group, call, kind, peer, nbytes in slots
        )
        return RankState(
            changes,
            last,
            tuple(sent),
            tuple(received),
            tuple(activity for activity in activities if str(activity)),
            tuple((group, number) for group, number in groups if group),
        )

    def read_all(self) -> Sequence[RankState]:
        return [self.read(rank) for rank in range(self.size)]


class BoardPen:
    """A rank's own record, to write on."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        record = board.records.dtype
        self._bytes = memoryview(board.records.view("u1"))[rank * record.itemsize :][: record.itemsize]  # type: ignore
        self._at = {name: place[1] for name, place in (record.fields or {}).items()}
        self._changes = self._last = 0
        self._last_in: dict[int, int] = {}
        self._posted: Counter[tuple[str, int]] = Counter()
        self._calls: dict[int, list[Call]] = {}
        self._slot_of: dict[int, int] = {}
        self._noted: dict[int, tuple[int, int, int]] = {}
        self._lock = threading.Lock()

    def state(self) -> RankState:
        return self._board.read(self._rank)

    def entered(self, call: Call) -> None:
        """A thread enters a collective; one may be entered inside another."""
        self._calls.setdefault(threading.get_ident(), []).append(call)
        if call.group is None:
            self._last = max(self._last, call.number)
        else:
            self._note_group(call.group.number, call.number)
        self._write_call(call)

    def left(self, shown: bool = False) -> None:
        """A thread has left its collective, which stays on the board if it is still to be `shown`."""
        calls = self._calls.get(threading.get_ident())
        if calls:
            calls.pop()
            if not shown:
                self._write_call(calls[-1] if calls else None)

    def waits(self, kind: int, peer: int = -1, nbytes: int = 0) -> None:
        """A thread begins to wait for a peer (kind 1: send, 2: receive, 3: meet), or waits no more (0). Repeating the
        note that is already there counts as no change, or a rank that waits in a loop would never seem stuck."""
        slot, note = self._slot(), (kind, peer, nbytes)
        if self._noted.get(slot) != note:
            self._noted[slot] = note
            WAIT.pack_into(self._bytes, slot + CALL.size, *note)
            self._changed()

    def posted(self, name: str, peer: int) -> None:
        """A message was "sent" to a peer, or asked of it: "received"."""
        with self._lock:
            self._posted[name, peer] += 1
            COUNT.pack_into(self._bytes, self._at[name] + peer * COUNT.size, self._posted[name, peer])

    def _note_group(self, group: int, number: int) -> None:
        with self._lock:
            self._last_in[group] = max(self._last_in.get(group, 0), number)
            place = list(self._last_in).index(group)
            if place < GROUPS:
                GROUP.pack_into(self._bytes, self._at["groups"] + place * GROUP.size, group, self._last_in[group])

    def _write_call(self, call: Call | None) -> None:
        number, text = (call.number, str(call).encode()) if call else (0, b"")
        group = call.group.number if call and call.group else 0
        CALL.pack_into(self._bytes, self._slot(), number, group, text)
        self._changed()

    def _changed(self) -> None:
        self._changes += 1
        HEAD.pack_into(self._bytes, 0, self._changes, self._last)

    def _slot(self) -> int:
        """Where this thread writes. A ninth thread shares the eighth's slot: a blurred report beats none."""
        thread = threading.get_ident()
        if thread not in self._slot_of:
            self._slot_of[thread] = self._at["slots"] + min(len(self._slot_of), SLOTS - 1) * SLOT.itemsize
        return self._slot_of[thread]
