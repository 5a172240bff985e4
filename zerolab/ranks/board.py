"""A small shared file on which every rank notes what it is doing, so that the parent can say why a launch hangs.

A rank writes its own region and nobody else's; the parent only reads. A note is one `pack_into` on a memory map,
about a microsecond, so that ranks can afford it at every blocking wait. A reader may catch a note half written,
which is why it trusts only what it has read twice.

Region of a rank, bytes:

    0        8      12            12 + 8 N             12 + 16 N        12 + 16 N + 8 G    12 + 16 N + 8 G + slots
    | changes | last | sent to 0..N | received from 0..N | group 0..G | slot 0 | slot 1 | ... |

`last` is the number of the last of the world's collectives that the rank entered; each group, in the order in which the
rank first entered one of its collectives, has a number of its own. A slot belongs to a thread of the rank (the main
line, a communication lane): the collective it is in, and the peer it waits for.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zerolab.collectives.call import Call

SLOTS = 8
GROUPS = 32
_HEAD = struct.Struct("<QI")
_COUNT = struct.Struct("<Q")
_GROUP = struct.Struct("<II")
_CALL = struct.Struct("<II224s")
_WAIT = struct.Struct("<BiQ")
_SLOT = _CALL.size + _WAIT.size
KINDS = ("", "send to", "receive from", "meet")


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
        self._region = region_bytes(size)
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), self._region * size)

    @classmethod
    def create(cls, path: Path, size: int) -> Board:
        path.write_bytes(bytes(region_bytes(size) * size))
        return cls(path, size)

    def close(self) -> None:
        self._map.close()

    def read(self, rank: int) -> RankState:
        start = rank * self._region
        changes, last = _HEAD.unpack_from(self._map, start)
        counts = struct.unpack_from(f"<{2 * self.size}Q", self._map, start + _HEAD.size)
        groups = start + _HEAD.size + 2 * self.size * _COUNT.size
        slots = groups + GROUPS * _GROUP.size
        last_in = _GROUP.iter_unpack(self._map[groups:slots])
        activities = tuple(self._read_slot(slots + index * _SLOT) for index in range(SLOTS))
        return RankState(
            changes,
            last,
            counts[: self.size],
            counts[self.size :],
            tuple(a for a in activities if str(a)),
            tuple((group, number) for group, number in last_in if group),
        )

    def read_all(self) -> Sequence[RankState]:
        return [self.read(rank) for rank in range(self.size)]

    def _read_slot(self, offset: int) -> Activity:
        number, group, text = _CALL.unpack_from(self._map, offset)
        kind, peer, nbytes = _WAIT.unpack_from(self._map, offset + _CALL.size)
        call = text.rstrip(b"\0").decode(errors="replace")
        return Activity(call, number, KINDS[kind % len(KINDS)], peer, nbytes, group)


def region_bytes(size: int) -> int:
    return _HEAD.size + 2 * size * _COUNT.size + GROUPS * _GROUP.size + SLOTS * _SLOT


class BoardPen:
    """A rank's own region, to write on."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._map = board._map
        self._start = rank * board._region
        self._counts = self._start + _HEAD.size
        self._received = self._counts + board.size * _COUNT.size
        self._groups = self._received + board.size * _COUNT.size
        self._slots = self._groups + GROUPS * _GROUP.size
        self._changes = 0
        self._last = 0
        self._last_in: dict[int, int] = {}
        self._sent_to = [0] * board.size
        self._received_from = [0] * board.size
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
            _WAIT.pack_into(self._map, slot + _CALL.size, *note)
            self._changed()

    def posted_send(self, peer: int) -> None:
        with self._lock:
            self._sent_to[peer] += 1
            _COUNT.pack_into(self._map, self._counts + peer * _COUNT.size, self._sent_to[peer])

    def posted_receive(self, peer: int) -> None:
        with self._lock:
            self._received_from[peer] += 1
            _COUNT.pack_into(self._map, self._received + peer * _COUNT.size, self._received_from[peer])

    def _note_group(self, group: int, number: int) -> None:
        with self._lock:
            self._last_in[group] = max(self._last_in.get(group, 0), number)
            place = list(self._last_in).index(group)
            if place < GROUPS:
                _GROUP.pack_into(self._map, self._groups + place * _GROUP.size, group, self._last_in[group])

    def _write_call(self, call: Call | None) -> None:
        number, text = (call.number, str(call).encode()[:224]) if call else (0, b"")
        group = call.group.number if call and call.group else 0
        _CALL.pack_into(self._map, self._slot(), number, group, text)
        self._changed()

    def _changed(self) -> None:
        self._changes += 1
        _HEAD.pack_into(self._map, self._start, self._changes, self._last)

    def _slot(self) -> int:
        """Where this thread writes. A ninth thread shares the eighth's slot: a blurred report beats none."""
        thread = threading.get_ident()
        slot = self._slot_of.get(thread)
        if slot is None:
            slot = self._slot_of[thread] = min(len(self._slot_of), SLOTS - 1)
        return self._slots + slot * _SLOT
