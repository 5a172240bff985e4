"""A small shared file on which every rank notes what it is doing, so that the parent can say why a launch hangs.

A note takes about a microsecond, so ranks can afford it at every blocking wait. A reader may catch it half written, so
it trusts only what it has read twice.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from zerolab.collectives.call import Call, mismatch
from zerolab.errors import DeadlockError, MismatchError, RankError

SLOTS, GROUPS = 8, 32
SEND, RECEIVE, MEET, LANE = 1, 2, 3, 4
WAITS = ("", "to send to", "to receive from", "to meet", "for its own communication lane")
_u4, _i4, _u8, _text = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_char * 224


class Note(ctypes.Structure):
    """What a thread of a rank is in and waits for; group 0 is the world."""

    _fields_ = (("number", _u4), ("group", _u4), ("kind", _u4), ("peer", _i4), ("nbytes", _u8), ("call", _text))

    def enter(self, call: Call | None) -> None:
        self.number = call.number if call else 0
        self.group = call.group.number if call and call.group else 0
        self.call = str(call or "").encode()[:224]

    def wait(self, kind: int, peer: int, nbytes: int) -> None:
        self.kind, self.peer, self.nbytes = kind, peer, nbytes

    def __str__(self) -> str:
        rank = f" rank {self.peer}" if self.peer >= 0 else ""
        size = f" ({format_bytes(self.nbytes)})" if self.kind in (SEND, RECEIVE) else ""
        wait = f"waits {WAITS[self.kind]}{rank}{size}" if self.kind else "is"
        return f"{wait} in {self.call.decode(errors='replace')}" if self.call else wait * bool(self.kind)


def format_bytes(nbytes: int) -> str:
    return f"{nbytes} byte{'s' * (nbytes != 1)}"


class RankNotes(ctypes.Structure):
    """All that a rank has noted: how often it wrote; messages posted to and from each peer; the last collective that it
    entered, by group; its threads."""

    changes: int
    sent: Sequence[int]
    received: Sequence[int]
    groups: Any
    slots: Sequence[Note]

    def copy(self) -> RankNotes:
        return type(self).from_buffer_copy(self)

    @property
    def notes(self) -> list[Note]:
        """Of threads that wait or are in a collective."""
        return [note for note in self.slots if note.call or note.kind]

    def describe(self) -> str:
        """What the rank's threads are doing, "" if that is only to compute."""
        return " and ".join(map(str, self.notes))

    def entered(self) -> dict[int, int]:
        """The last collective that the rank entered, by group."""
        return {group: number for group, number in self.groups if number}


@cache
def make_record(size: int) -> type[RankNotes]:
    """The record of one of `size` ranks."""
    peers, groups = _u8 * size, _u4 * 2 * GROUPS
    fields = (("changes", _u8), ("sent", peers), ("received", peers), ("groups", groups), ("slots", Note * SLOTS))
    return type("NotesOfSize", (RankNotes,), {"_fields_": fields})


class Board:
    """The board of `size` ranks: in a file that their parent makes, or in memory."""

    def __init__(self, size: int, path: Path | None = None) -> None:
        self.size = size
        kind: Any = make_record(size) * size
        if path is None:
            self.records = kind()
            return
        if not path.exists():
            path.write_bytes(bytes(ctypes.sizeof(kind)))
        with path.open("r+b") as file:
            self.records = kind.from_buffer(mmap.mmap(file.fileno(), 0))

    def read(self, rank: int) -> RankNotes:
        return self.records[rank].copy()  # type: ignore[no-any-return]

    def read_all(self) -> Sequence[RankNotes]:
        return [self.read(rank) for rank in range(self.size)]


class BoardPen:
    """A rank's own record, to write on."""

    def __init__(self, board: Board, rank: int) -> None:
        self.record: RankNotes = board.records[rank]
        self._entered: dict[int, int] = {}
        # By thread: where it notes, and the calls that it is in.
        self._lines: dict[int, tuple[Note, list[Call]]] = {}
        self._lock = threading.Lock()

    def enter(self, call: Call) -> None:
        """A thread enters a collective; one may be entered inside another."""
        group = call.group.number if call.group else 0
        with self._lock:
            self._entered[group] = number = max(self._entered.get(group, 0), call.number)
            place = list(self._entered).index(group)
            if place < GROUPS:
                self.record.groups[place][:] = group, number
        note, calls = self._line()
        calls.append(call)
        note.enter(call)
        self.record.changes += 1

    def leave(self, shown: bool = False) -> None:
        """A thread has left its collective, which stays on the board if it is still to be `shown`."""
        note, calls = self._line()
        if calls:
            calls.pop()
            if not shown:
                note.enter(calls[-1] if calls else None)
                self.record.changes += 1

    def wait(self, kind: int, peer: int = -1, nbytes: int = 0) -> None:
        """A thread begins to wait for a peer, or waits no more (kind 0). Repeating the note that is already there
        counts as no change, or a rank that waits in a loop would never seem stuck."""
        note, _ = self._line()
        if (note.kind, note.peer, note.nbytes) != (kind, peer, nbytes):
            note.wait(kind, peer, nbytes)
            self.record.changes += 1

    def post(self, name: str, peer: int) -> None:
        """A message was "sent" to a peer, or asked of it: "received"."""
        with self._lock:
            getattr(self.record, name)[peer] += 1

    def _line(self) -> tuple[Note, list[Call]]:
        """This thread's. A ninth thread shares the eighth's place: a blurred report beats none."""
        thread = threading.get_ident()
        if thread not in self._lines:
            self._lines[thread] = self.record.slots[min(len(self._lines), SLOTS - 1)], []
        return self._lines[thread]


# What its parent concludes from it: that ranks can never finish, and why


def find_failure(earlier: Sequence[RankNotes], now: Sequence[RankNotes], finished: Collection[int]) -> RankError | None:
    """An error if ranks are stuck for good: only what two readings have alike is trusted."""
    waiting = [rank for rank in range(len(now)) if rank not in finished]
    still = {rank: now[rank] for rank in waiting if bytes(earlier[rank]) == bytes(now[rank])}
    if found := find_mismatch(still):
        return found
    for rank, state in still.items():
        for note in state.notes:
            for gone in sorted(finished):
                if _never_comes(rank, state, note, gone, now[gone]):
                    return DeadlockError(
                        f"rank {rank} {note}, but rank {gone} has already returned; let every rank take part in "
                        "each collective; each send needs a receive that is posted, and the other way round"
                    )
    return None


def find_mismatch(still: dict[int, RankNotes]) -> MismatchError | None:
    """Two ranks that are in different collectives of the same group and number."""
    first: dict[tuple[int, int], tuple[int, str]] = {}
    for rank, state in still.items():
        for note in state.notes:
            if call := note.call.decode(errors="replace"):
                other, its = first.setdefault((note.group, note.number), (rank, call))
                if its != call:
                    return MismatchError(mismatch(other, its, rank, call))
    return None


def _never_comes(rank: int, state: RankNotes, note: Note, gone: int, gone_state: RankNotes) -> bool:
    """Whether a rank waits for one that has returned: in a call that this one never entered, or for more messages than
    it ever posted. Who is waited for in a group's call, or has entered an earlier one, belongs to the group."""
    waited_for = note.peer == gone
    entered = gone_state.entered()
    known = len(entered) < GROUPS or note.group in entered
    last = entered.get(note.group, 0)
    if known and note.number > last and (note.group == 0 or waited_for or last):
        return True
    if note.kind == RECEIVE:
        return waited_for and state.received[gone] > gone_state.sent[rank]
    return waited_for and state.sent[gone] > gone_state.received[rank]


class Hangs:
    """Finds a collective, or a wait for a message, that lasts for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: dict[tuple[int, bytes, int], float] = {}

    def find(self, states: Sequence[RankNotes], now: float) -> bool:
        """Whether there is such a thread. `states` is the board as read at time `now`, in seconds."""
        # A rank has each collective once; a message may be like the one before, and then the rank has noted more since.
        keys = [
            (rank, bytes(note), 0 if note.call else state.changes)
            for rank, state in enumerate(states)
            for note in state.notes
        ]
        self._since = {key: self._since.get(key, now) for key in keys}
        return any(now - since >= self.seconds for since in self._since.values())


def report_overdue(
    states: Sequence[RankNotes],
    finished: Collection[int],
    frames: dict[int, str],
    seconds: float,
    what: str = "the ranks did not finish",
) -> RankError:
    """The report of a launch that did not end in time; `frames` says where ranks compute."""
    does = {rank: state.describe() for rank, state in enumerate(states)} | dict.fromkeys(finished, "has returned")
    lines = [f"rank {rank} {does[rank] or frames.get(rank, 'computes')}" for rank in does]
    return (DeadlockError if all(does.values()) else RankError)(f"{what} within {seconds:g} s: {'; '.join(lines)}")
