"""How ranks of one machine find each other's memory and tell each other where they are.

Each rank has an arena and an inbox, which is a pipe. Once, over ordinary messages, every rank tells the others under
which process and descriptor numbers its arena and its inbox are; Linux lets processes of one user open each other's
descriptors through /proc. From then on ranks only write short notes into each other's inboxes. A note is one write of
fewer bytes than a pipe keeps whole, and it is a system call, so whatever its sender wrote to memory before is there
for whoever has read it.
"""

from __future__ import annotations

import hashlib
import os
import select
import struct
from collections import defaultdict, deque
from pathlib import Path

import torch

from zerolab.collectives.call import Group
from zerolab.collectives.shared.arena import Arena, PeerMemory
from zerolab.collectives.transport import Transport, tell_all
from zerolab.errors import DeadlockError, InputError
from zerolab.system import has

HERE, DONE = 0, 1
"""Kinds of notes: the sender is in a call, and its tensor is there; it has done its share, and left."""
WORDS = 224
NOTE = struct.Struct(f"<iiqq{WORDS}s")
"""Sender, kind, number of the group, offset of its tensor in its arena, and the call in words."""


def is_possible() -> bool:
    """Whether this system has what shared memory takes: anonymous files in memory, and /proc to find a peer's."""
    return has("memfd")


class Peers:
    """What one rank shares with the others on its machine. Its constructor is a collective of its own: it returns
    once all ranks have each other's memory."""

    def __init__(self, transport: Transport, arena: Arena) -> None:
        self.rank, self.size, self.arena = transport.rank, transport.size, arena
        inbox, door = os.pipe()
        os.set_blocking(inbox, False)
        addresses = tell_all(transport, [os.getpid(), arena.fd, door, host_number()])
        self._outboxes: dict[int, int] = {}
        self._peers: dict[int, PeerMemory] = {}
        self._inbox = inbox
        for rank, (pid, fd, peers_door, host) in enumerate(addresses):
            if rank != self.rank:
                self._open(rank, pid, fd, peers_door, alike=host == addresses[self.rank][3])
        # Nobody goes on, and perhaps ends, before everybody has opened what is his.
        tell_all(transport, [0])
        # Kept open: without a writer the inbox would be at its end once all peers have left, and `listen` never sleep.
        self._door = door
        # By sender, kind and group; a rank's notes come in the order in which it wrote them.
        self._notes: dict[tuple[int, int, int], deque[tuple[int, str]]] = defaultdict(deque)

    def view(self, rank: int, offset: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Another rank's memory."""
        return self._peers[rank].view(offset, numel, dtype)

    def note(self, kind: int, group: int, offset: int, call: str, peers: list[int]) -> None:
        """Write a note into the inboxes of `peers`. While a peer's inbox is full, this rank goes on reading its own:
        two ranks that each only waited for the other to read would wait for ever."""
        packed = NOTE.pack(self.rank, kind, group, offset, call.encode())
        for rank in peers:
            outbox = self._outboxes[rank]
            while True:
                try:
                    os.write(outbox, packed)
                    break
                except BrokenPipeError as error:
                    raise DeadlockError(
                        f"rank {self.rank} is in {call}, but rank {rank} has already returned; let every rank take "
                        "part in each collective"
                    ) from error
                except BlockingIOError:
                    wait_for((self._inbox, select.POLLIN), (outbox, select.POLLOUT))
                    self.listen()

    def notes(self, rank: int, kind: int, group: int) -> deque[tuple[int, str]]:
        """Where notes of that kind from `rank` come, the earliest first: the offset of its tensor, and its call."""
        return self._notes[rank, kind, group]

    def sleep(self, seconds: float) -> None:
        """Return when something has come, or after so long."""
        wait_for((self._inbox, select.POLLIN), seconds=seconds)

    def listen(self) -> None:
        """Read what has come."""
        try:
            packed = os.read(self._inbox, NOTE.size * 64)
        except BlockingIOError:
            return
        for sender, kind, group, offset, call in NOTE.iter_unpack(packed):
            self._notes[sender, kind, group].append((offset, call.rstrip(b"\0").decode()))

    def close(self) -> None:
        for fd in (self._inbox, self._door, *self._outboxes.values()):
            os.close(fd)
        self._peers.clear()

    def _open(self, rank: int, pid: int, fd: int, door: int, alike: bool) -> None:
        if not alike:
            raise InputError(
                f"rank {rank} runs on another machine than rank {self.rank} and shares no memory with it; use "
                'collectives="ring" or "torch"'
            )
        try:
            memory = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
            try:
                self._peers[rank] = PeerMemory(memory)
            finally:
                os.close(memory)
            self._outboxes[rank] = os.open(f"/proc/{pid}/fd/{door}", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            raise InputError(
                f"rank {self.rank} may not open the shared memory of rank {rank} ({error}); run all ranks as one user "
                'in one container, or use collectives="ring"'
            ) from None


class GroupPeers:
    """The peers as one group sees them: ranks are the group's, and its notes are its own."""

    def __init__(self, peers: Peers, group: Group | None) -> None:
        self._all, self.arena = peers, peers.arena
        self.ranks = tuple(range(peers.size)) if group is None else group.ranks
        """The world's numbers."""
        self.rank, self.size = self.ranks.index(peers.rank), len(self.ranks)
        self._number = 0 if group is None else group.number
        self._others = [rank for rank in self.ranks if rank != peers.rank]
        self._notes = {
            (place, kind): peers.notes(rank, kind, self._number)
            for place, rank in enumerate(self.ranks)
            for kind in (HERE, DONE)
        }

    def view(self, rank: int, offset: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Another rank's memory."""
        return self._all.view(self.ranks[rank], offset, numel, dtype)

    def note(self, kind: int, offset: int, call: str) -> None:
        """Tell all others."""
        self._all.note(kind, self._number, offset, call, self._others)

    def take(self, rank: int, kind: int) -> tuple[int, str] | None:
        """The next note of that kind from `rank`, if it has come: the offset of its tensor, and its call. Does not
        wait."""
        notes = self._notes[rank, kind]
        return notes.popleft() if notes else None


def wait_for(*events: tuple[int, int], seconds: float | None = None) -> None:
    """Sleep until one of the descriptors has its event, or for so long. (`select.select` knows no descriptor above
    1023.)"""
    sleeper = select.poll()
    for descriptor, event in events:
        sleeper.register(descriptor, event)
    sleeper.poll(None if seconds is None else 1e3 * seconds)


def host_number() -> int:
    """A number that processes share if they can see each other's /proc: machine, boot and process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    namespace = os.readlink("/proc/self/ns/pid")
    return int.from_bytes(hashlib.sha256(f"{boot}{namespace}".encode()).digest()[:7], "little")
