"""Memory that all ranks of one machine can address: a rank's own arena, and views of its peers'.

An arena is an anonymous file in memory (memfd): nothing is left of it when the last process that maps it has ended, and
the size of /dev/shm, which containers keep small, does not limit it. It is as large as the machine's memory from the
start; pages come into being when they are first used, and stay to be used again.

Once, over ordinary messages, ranks tell each other where their descriptors are in /proc. From then on they write short
notes into each other's inboxes, which are pipes: what a sender wrote to memory before is there for who has read it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import select
import struct
import weakref
from bisect import bisect
from collections import defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from threading import RLock
from typing import Any

import torch

from zerolab.collectives.transport import Transport
from zerolab.errors import DeadlockError, InputError
from zerolab.flat.layout import round_up
from zerolab.system import has

GRAIN = 256
"""Bytes. Every block starts at a multiple of it: cache lines of two blocks never meet, nor do vector registers."""


class Arena:
    """This rank's shared memory. A block is free again when the last tensor on it is gone."""

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = capacity or os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        self.fd = os.memfd_create(f"zerolab-{os.getpid()}")
        os.ftruncate(self.fd, self._capacity)
        self.memory = memoryview(mmap.mmap(self.fd, self._capacity))
        self._base = torch.frombuffer(self.memory, dtype=torch.uint8, count=1).data_ptr()
        self.gaps = [(0, self._capacity)]
        """What is free, in order."""
        self._reserved = 0
        # Blocks whose tensors are gone. Python's search for circles may end one at any moment, also while the gaps are
        # being looked at.
        self._freed: deque[tuple[int, int]] = deque()

    def allocate(self, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A 1-D tensor with a storage of its own; its content is arbitrary."""
        nbytes = numel * dtype.itemsize
        if nbytes == 0:
            return torch.empty(0, dtype=dtype)
        self.collect()
        start, stop = self._take(round_up(nbytes, GRAIN))
        piece = self.memory[start : start + nbytes]
        # The tensor's storage holds `piece` and nobody else does.
        weakref.finalize(piece, self._freed.append, (start, stop)).atexit = False
        return torch.frombuffer(piece, dtype=dtype)

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Where in the arena a tensor begins, None if it lies elsewhere."""
        at = tensor.data_ptr() - self._base
        return at if 0 <= at < self._capacity and tensor.device.type == "cpu" else None

    def collect(self) -> None:
        """Make gaps of the blocks whose tensors are gone, joined with their neighbours."""
        while self._freed:
            start, stop = self._freed.popleft()
            at = bisect(self.gaps, (start, stop))
            if at < len(self.gaps) and self.gaps[at][0] == stop:
                stop = self.gaps.pop(at)[1]
            if at > 0 and self.gaps[at - 1][1] == start:
                at -= 1
                start = self.gaps.pop(at)[0]
            self.gaps.insert(at, (start, stop))

    def _take(self, nbytes: int) -> tuple[int, int]:
        """Cut a block from the smallest gap that fits. Pages are taken now: a lack would end the process later."""
        sizes = [(stop - start, start) for start, stop in self.gaps if stop - start >= nbytes]
        try:
            if not sizes:
                raise OSError(None, f"{self._capacity} bytes, all memory of this machine, are the limit")
            size, start = min(sizes)
            block = start, start + nbytes
            if block[1] > self._reserved:
                os.posix_fallocate(self.fd, self._reserved, block[1] - self._reserved)
                self._reserved = block[1]
        except OSError as error:
            raise InputError(
                f"there is no room for {nbytes} bytes of shared memory ({error.strerror}); use fewer ranks or a "
                "smaller model, or give this machine or container more memory"
            ) from None
        at = self.gaps.index((start, start + size))
        self.gaps[at : at + 1] = [(block[1], start + size)] if nbytes < size else []
        return block

    def close(self) -> None:
        """Give back the descriptor. Tensors keep the memory that they lie in, each until it is gone."""
        if self.fd >= 0:
            os.close(self.fd)
            self.memory.release()
            self.fd = -1


HERE, DONE = 0, 1
"""Kinds of notes: the sender is in a call, and its tensor is there; it has done its share, and left."""
WORDS = 224
NOTE = struct.Struct(f"<iiqq{WORDS}s")
"""Sender, kind, number of the group, offset of its tensor in its arena, and the call in words."""


def is_possible() -> bool:
    """Whether this system has anonymous files in memory, and /proc to find a peer's."""
    return has("memfd")


class Peers:
    """What a rank shares with the others on its machine: memory, an inbox, and calls in all its groups."""

    def __init__(self, transport: Transport) -> None:
        self.rank, self._transport = transport.rank, transport
        self.arena = Arena()
        self.lock = RLock()
        self.queues: list[Any] = []
        self.is_open = self.closed = False
        self._inbox, self._door = os.pipe()
        self._outboxes: dict[int, int] = {}
        self._memories: dict[int, mmap.mmap] = {}
        self.notes: dict[tuple[int, int, int], deque[tuple[int, str]]] = defaultdict(deque)
        """By sender, kind and group, the earliest first: the offset of its tensor, and its call."""

    def open(self) -> None:
        """Return once all ranks have each other's memory. A collective."""
        os.set_blocking(self._inbox, False)
        addresses = self._transport.all_gather_ints([os.getpid(), self.arena.fd, self._door, host_number()])
        for rank, (pid, fd, door, host) in enumerate(addresses):
            if rank == self.rank:
                continue
            if host != addresses[self.rank][3]:
                raise InputError(
                    f"rank {rank} runs on another machine than rank {self.rank} and shares no memory with it; use "
                    'collectives="ring" or "torch"'
                )
            memory = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
            self._memories[rank] = mmap.mmap(memory, 0)
            os.close(memory)
            self._outboxes[rank] = os.open(f"/proc/{pid}/fd/{door}", os.O_WRONLY | os.O_NONBLOCK)
        # Nobody goes on, and perhaps ends, before everybody has opened what is his. (Our door stays open: without a
        # writer the inbox would be at its end once all peers have left, and `sleep` never sleep.)
        self._transport.all_gather_ints([0])
        self.is_open = True

    def poll(self) -> None:
        """Do what can be done without waiting, for all groups."""
        with self.lock:
            if self.is_open:
                self.listen()
                while any([queue.go_on() for queue in self.queues]):
                    pass

    def view(self, rank: int, offset: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """Another rank's bytes from `offset` on, for the collective in which it said so."""
        return torch.frombuffer(self._memories[rank], dtype=dtype, count=numel, offset=offset)

    def write(self, kind: int, group: int, offset: int, call: str, ranks: Iterable[int]) -> None:
        """Write a note to `ranks`. While a peer's inbox is full, this rank goes on reading its own, as that does."""
        packed = NOTE.pack(self.rank, kind, group, offset, call.encode())
        for rank in ranks:
            while True:
                try:
                    os.write(self._outboxes[rank], packed)
                    break
                except BrokenPipeError as error:
                    raise DeadlockError(
                        f"rank {self.rank} is in {call}, but rank {rank} has already returned; let every rank take "
                        "part in each collective"
                    ) from error
                except BlockingIOError:
                    wait_for((self._inbox, select.POLLIN), (self._outboxes[rank], select.POLLOUT))
                    self.listen()

    def sleep(self, seconds: float) -> None:
        wait_for((self._inbox, select.POLLIN), seconds=seconds)

    def listen(self) -> None:
        try:
            packed = os.read(self._inbox, NOTE.size * 64)
        except BlockingIOError:
            return
        for sender, kind, group, offset, call in NOTE.iter_unpack(packed):
            self.notes[sender, kind, group].append((offset, call.rstrip(b"\0").decode()))

    def close(self) -> None:
        if not self.closed:
            self.is_open, self.closed = False, True
            for fd in (self._inbox, self._door, *self._outboxes.values()):
                os.close(fd)
            self._memories.clear()
            self.arena.close()


def wait_for(*events: tuple[int, int], seconds: float | None = None) -> None:
    """Sleep until one of the descriptors has its event, or for so long. (`select` knows none above 1023.)"""
    sleeper = select.poll()
    for descriptor, event in events:
        sleeper.register(descriptor, event)
    sleeper.poll(None if seconds is None else 1e3 * seconds)


def host_number() -> int:
    """A number that processes share if they can see each other's /proc: machine, boot and process namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    namespace = os.readlink("/proc/self/ns/pid")
    return int.from_bytes(hashlib.sha256(f"{boot}{namespace}".encode()).digest()[:7], "little")
