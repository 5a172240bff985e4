"""How ranks of one machine find each other's memory and tell each other where they are.

Each rank has an arena and an inbox, which is a pipe. Once, over ordinary messages, every rank tells the others under
which process and descriptor numbers its arena and its inbox are; Linux lets processes of one user open each other's
descriptors through /proc. From then on ranks only write short notes into each other's inboxes. A note is one write of
fewer bytes than a pipe keeps whole, and it is a system call, so whatever its sender wrote to memory before is there
for whoever has read it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections import defaultdict, deque
from pathlib import Path

import torch

from zerolab.collectives.call import mismatch
from zerolab.collectives.shared.arena import Arena
from zerolab.collectives.transport import Transport
from zerolab.errors import DeadlockError, InputError, MismatchError
from zerolab.system import has

HERE, DONE = 0, 1
"""Kinds of notes: the sender is in a call, and its tensor is there; it has done its share, and left."""
WORDS = 224
NOTE = struct.Struct(f"<iiq{WORDS}s")
"""Sender, kind, offset of its tensor in its arena, and the call in words."""


def is_possible() -> bool:
    """Whether this system has what shared memory takes: anonymous files in memory, and /proc to find a peer's."""
    return has("memfd")


class Peers:
    """The other ranks of a group. Its constructor is a collective of its own: it returns once all ranks have each
    other's memory."""

    def __init__(self, transport: Transport, arena: Arena) -> None:
        self._transport, self._arena = transport, arena
        rank, size = transport.rank, transport.size
        self.others = [(rank + step) % size for step in range(1, size)]
        """In the ring's order: our right neighbour first."""
        self._inbox, self._door = os.pipe()
        addresses = transport.all_gather_ints([os.getpid(), arena.fd, self._door, host_number()])
        self._outboxes: dict[int, int] = {}
        self._memories: dict[int, mmap.mmap] = {}
        for peer in self.others:
            pid, fd, door, host = addresses[peer]
            if host != addresses[rank][3]:
                raise InputError(
                    f"rank {peer} runs on another machine than rank {rank} and shares no memory with it; use "
                    'collectives="ring" or "torch"'
                )
            memory = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
            self._memories[peer] = mmap.mmap(memory, 0)
            os.close(memory)
            self._outboxes[peer] = os.open(f"/proc/{pid}/fd/{door}", os.O_WRONLY)
        # Nobody goes on, and perhaps ends, before everybody has opened what is his. The door stays open: without a
        # writer the inbox would be at its end once all peers have left, and nobody would wait at it.
        transport.all_gather_ints([0])
        # By sender and kind, the earliest first: the offset of its tensor, and its call.
        self._notes: dict[tuple[int, int], deque[tuple[int, str]]] = defaultdict(deque)
        self._offsets: dict[int, int] = {}

    def meet(self, kind: int, call: str, tensor: torch.Tensor) -> None:
        """Tell the others that this rank is in a call, with this tensor in its arena, or has left it, and wait until
        all of them have told the same."""
        call, offset = call.encode("ascii", "replace")[:WORDS].decode(), self._arena.offset(tensor) or 0
        for rank in self.others:
            try:
                os.write(self._outboxes[rank], NOTE.pack(self._transport.rank, kind, offset, call.encode()))
            except BrokenPipeError as error:
                raise DeadlockError(
                    f"rank {self._transport.rank} is in {call}, but rank {rank} has already returned; let every rank "
                    "take part in each collective"
                ) from error
        for rank in self.others:
            self._offsets[rank], theirs = self._next(rank, kind)
            if theirs != call:
                ranks = self._transport.within.ranks if self._transport.within else range(self._transport.size)
                (one, this), (other, that) = sorted([(ranks[self._transport.rank], call), (ranks[rank], theirs)])
                raise MismatchError(mismatch(one, this, other, that))

    def views(self, own: torch.Tensor, start: int, stop: int) -> list[torch.Tensor]:
        """Elements `[start, stop)` of all ranks' tensors, in the ring's order of addition: our own last."""
        return [*(self.view(rank, start, stop, own.dtype) for rank in self.others), own[start:stop]]

    def view(self, rank: int, start: int, stop: int, dtype: torch.dtype) -> torch.Tensor:
        """Elements `[start, stop)` of another rank's tensor, between the two meetings of a call."""
        if start == stop:
            return torch.empty(0, dtype=dtype)
        offset = self._offsets[rank] + start * dtype.itemsize
        return torch.frombuffer(self._memories[rank], dtype=dtype, count=stop - start, offset=offset)

    def close(self) -> None:
        for fd in (self._inbox, self._door, *self._outboxes.values()):
            os.close(fd)
        self._memories.clear()

    def _next(self, rank: int, kind: int) -> tuple[int, str]:
        """The next note of that kind from `rank`."""
        notes = self._notes[rank, kind]
        if not notes:
            self._transport.waits(rank)
            while not notes:
                for sender, its, offset, call in NOTE.iter_unpack(os.read(self._inbox, NOTE.size * 64)):
                    self._notes[sender, its].append((offset, call.rstrip(b"\0").decode()))
            self._transport.waits(None)
        return notes.popleft()


def host_number() -> int:
    """A number that processes share if they can see each other's /proc: machine, boot and process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    namespace = os.readlink("/proc/self/ns/pid")
    return int.from_bytes(hashlib.sha256(f"{boot}{namespace}".encode()).digest()[:7], "little")
