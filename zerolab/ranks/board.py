"""A small shared file on which every rank notes what it is doing, so that the parent can say why a launch hangs.

A rank writes its own record and nobody else's; the parent only reads. A note takes about a microsecond, so ranks can
afford it at every blocking wait. A reader may catch a note half written, so it trusts only what it has read twice.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from zerolab.collectives.call import Call, mismatch
from zerolab.errors import DeadlockError, MismatchError, RankError

SLOTS, GROUPS = 8, 32
KINDS = ("", "send to", "receive from", "meet")
_u4, _i4, _u8, _text = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_char * 224


class ThreadNote(ctypes.Structure):
    """What one thread of a rank does (its main line, a communication lane): the collective it is in, the peer it waits
    for."""

    _fields_ = (("number", _u4), ("group", _u4), ("kind", _u4), ("peer", _i4), ("nbytes", _u8), ("call", _text))


@cache
def record(size: int) -> Any:
    """What one of `size` ranks notes: how often it wrote; messages posted to and from each peer; of the world (0) and
    of each group, by its number, in the order in which it first entered one, the last collective that it entered."""
    peers, groups = _u8 * size, _u4 * 2 * GROUPS
    fields = (("changes", _u8), ("sent", peers), ("received", peers), ("groups", groups), ("slots", ThreadNote * SLOTS))
    return type("Record", (ctypes.Structure,), {"_fields_": fields})


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
        size = "" if self.wait_kind == "meet" else f" ({in_bytes(self.nbytes)})"
        wait = f"waits to {self.wait_kind} rank {self.peer}{size}" if self.wait_kind else ""
        if self.call and wait:
            return f"{wait} in {self.call}"
        return wait or (f"is in {self.call}" if self.call else "")


def in_bytes(nbytes: int) -> str:
    return f"{nbytes} byte{'s' * (nbytes != 1)}"


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
        kind = record(size) * size
        if path is None:
            self.records = kind()
            return
        if not path.exists():
            path.write_bytes(bytes(ctypes.sizeof(kind)))
        with path.open("r+b") as file:
            self.records = kind.from_buffer(mmap.mmap(file.fileno(), 0))

    def read(self, rank: int) -> RankState:
        noted = record(self.size).from_buffer_copy(self.records[rank])
        active = [
            Activity(
                slot.call.decode(errors="replace"), slot.number, KINDS[slot.kind], slot.peer, slot.nbytes, slot.group
            )
            for slot in noted.slots
            if slot.call or slot.kind
        ]
        entered = {group: number for group, number in noted.groups if number}
        return RankState(noted.changes, [*noted.sent], [*noted.received], entered, active)

    def read_all(self) -> Sequence[RankState]:
        return [self.read(rank) for rank in range(self.size)]


class BoardPen:
    """A rank's own record, to write on."""

    def __init__(self, board: Board, rank: int) -> None:
        self._board, self._rank = board, rank
        self._record = board.records[rank]
        self._entered: dict[int, int] = {}
        # By thread: where it notes, and the calls that it is in.
        self._lines: dict[int, tuple[Any, list[Call]]] = {}
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
                self._record.groups[place][:] = group, number
        slot, calls = self._line()
        calls.append(call)
        self._write(slot, call)

    def left(self, shown: bool = False) -> None:
        """A thread has left its collective, which stays on the board if it is still to be `shown`."""
        slot, calls = self._line()
        if calls:
            calls.pop()
            if not shown:
                self._write(slot, calls[-1] if calls else None)

    def waits(self, kind: int, peer: int = -1, nbytes: int = 0) -> None:
        """A thread begins to wait for a peer (kind 1: send, 2: receive, 3: meet), or waits no more (0). Repeating the
        note that is already there counts as no change, or a rank that waits in a loop would never seem stuck."""
        slot, _ = self._line()
        if (slot.kind, slot.peer, slot.nbytes) != (kind, peer, nbytes):
            slot.kind, slot.peer, slot.nbytes = kind, peer, nbytes
            self._record.changes += 1

    def posted(self, name: str, peer: int) -> None:
        """A message was "sent" to a peer, or asked of it: "received"."""
        with self._lock:
            getattr(self._record, name)[peer] += 1

    def _write(self, slot: Any, call: Call | None) -> None:
        slot.number = call.number if call else 0
        slot.group = call.group.number if call and call.group else 0
        slot.call = str(call or "").encode()[:224]
        self._record.changes += 1

    def _line(self) -> tuple[Any, list[Call]]:
        """This thread's. A ninth thread shares the eighth's place: a blurred report beats none."""
        thread = threading.get_ident()
        if thread not in self._lines:
            self._lines[thread] = self._record.slots[min(len(self._lines), SLOTS - 1)], []
        return self._lines[thread]


# What its parent concludes from it: that ranks can never finish, and why


def certain_failure(
    earlier: Sequence[RankState], now: Sequence[RankState], finished: Collection[int]
) -> RankError | None:
    """An error if ranks are stuck for good; None as long as that is not certain. `earlier` and `now` are two readings
    of the board, in the order of ranks: only what has not moved between them is trusted."""
    still = {rank: now[rank] for rank in range(len(now)) if rank not in finished and earlier[rank] == now[rank]}
    if found := different_calls(still):
        return found
    for rank, state in still.items():
        for activity in state.activities:
            for gone in sorted(finished):
                if _never_comes(rank, state, activity, gone, now[gone]):
                    return DeadlockError(
                        f"rank {rank} {activity}, but rank {gone} has already returned; let every rank take part in "
                        "each collective; each send needs a receive that is posted, and the other way round"
                    )
    return None


def different_calls(still: dict[int, RankState]) -> MismatchError | None:
    """Two ranks that sit in collectives of the same group and number, and of another name, size or dtype."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for rank, state in still.items():
        for activity in state.activities:
            if activity.call:
                other, call = first.setdefault((activity.group, activity.number), (rank, activity.call))
                if call != activity.call:
                    return MismatchError(mismatch(other, call, rank, activity.call))
    return None


def _never_comes(rank: int, state: RankState, activity: Activity, gone: int, gone_state: RankState) -> bool:
    """Whether a rank waits for one that has returned: in a call that this one never entered, or for more messages than
    it ever posted. The board does not say who is in a group; but a rank that another waits for in a group's call
    belongs to it, and so does one that has entered an earlier call of it."""
    waited_for = activity.peer == gone
    known = len(gone_state.groups) < GROUPS or activity.group in gone_state.groups
    last = gone_state.groups.get(activity.group, 0)
    if known and activity.number > last and (activity.group == 0 or waited_for or last):
        return True
    if activity.wait_kind == "receive from":
        return waited_for and state.received[gone] > gone_state.sent[rank]
    return waited_for and state.sent[gone] > gone_state.received[rank]


class Hangs:
    """Finds what a thread of a rank has been in for `seconds`: one collective, or one wait for a message."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[tuple[int, Activity, int], float] = {}

    def found(self, states: Sequence[RankState], now: float) -> bool:
        """Whether there is such a thread. `states` is the board as read at time `now`, in seconds; each call goes on
        from the one before."""
        # A rank has each collective once; a message may be like the one before, and then the rank has noted more since.
        keys = [
            (rank, activity, 0 if activity.call else state.changes)
            for rank, state in enumerate(states)
            for activity in state.activities
        ]
        self._since = {key: self._since.get(key, now) for key in keys}
        return any(now - since >= self.seconds for since in self._since.values())


def overdue(
    states: Sequence[RankState],
    finished: Collection[int],
    frames: dict[int, str],
    seconds: float,
    what: str = "the ranks did not finish",
) -> RankError:
    """The report of a launch that did not end in time, or of `what` did not. `frames` says where ranks that wait for
    nobody compute."""
    does = {rank: state.describe() for rank, state in enumerate(states)} | dict.fromkeys(finished, "has returned")
    lines = [f"rank {rank} {does[rank] or frames.get(rank, 'computes')}" for rank in does]
    return (DeadlockError if all(does.values()) else RankError)(f"{what} within {seconds:g} s: {'; '.join(lines)}")
