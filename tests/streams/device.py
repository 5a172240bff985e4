"""The fakes: the library's door to a GPU, NCCL's collectives on its streams, and lanes that are no threads."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

import zerolab
from streams.clocks import GPU, Checker, Clock, Memory, where
from zerolab.collectives import Collectives, torch_
from zerolab.collectives.handle import Handle
from zerolab.collectives.ring import RingCollectives
from zerolab.collectives.torch_ import TorchCollectives
from zerolab.collectives.transport import Request, Transport
from zerolab.gpu import door
from zerolab.offload import lane as swap

Tensor = torch.Tensor
LIBRARY = Path(zerolab.__file__).parent
Site = tuple[str, int]
"""A file of the library and a line in it."""


class Stream:
    def __init__(self, name: str) -> None:
        self.name, self.device = name, GPU

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        """As torch has it: `None != stream` is False, too."""
        return other is not None and self is not other

    __hash__ = object.__hash__


class Event:
    """What had happened when it was recorded, and which of whose operations recorded it."""

    clock: Clock | None = None
    by = ("", 0)


class FakeDoor:
    """The door's methods on a checker. Calls at the site `without` do nothing; `sites` counts the others, `calls`
    NCCL's on each stream."""

    SILENCED = ("record", "wait", "finish", "keep", "drain")

    def __init__(self, checker: Checker, without: Site | None = None) -> None:
        self.checker, self.without = checker, without
        self.sites: Counter[Site] = Counter()
        self.calls: Counter[tuple[str, str]] = Counter()
        self.pages: list[tuple[str, Memory]] = []
        self.streams = {"computing": Stream("computing")}

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("drives", "holds", "stream", "current", "on", "event", "happened", *self.SILENCED, "locked"):
            patch.setattr(door, name, self.watched(name) if name in self.SILENCED else getattr(self, name))
        patch.setattr(Handle, "wait", self.waiting(Handle.wait))
        patch.setattr(Handle, "arrived", self.waiting(Handle.arrived))
        patch.setattr(torch.Tensor, "tolist", self.listing(torch.Tensor.tolist))
        patch.setattr(swap.Lane, "_move", lambda *given: self.transfer(*given))
        for name in ("all_reduce", "broadcast"):
            patch.setattr(dist, name, getattr(self, name))
        patch.setattr(torch_, "_reduce_scatter_single", self.reduce_scatter)
        patch.setattr(torch_, "_all_gather_single", self.all_gather)

    def is_left_out(self) -> bool:
        """Whether the library's line that calls is the one to be left out."""
        frame: Any = sys._getframe(2)
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(LIBRARY):
            return False
        site = path.relative_to(LIBRARY).as_posix(), frame.f_lineno
        self.sites[site] += 1
        return site == self.without

    def watched(self, name: str) -> Callable[..., Any]:
        method = getattr(self, name)

        def call(*args: Any) -> Any:
            return None if self.is_left_out() else method(*args)

        return call

    def waiting(self, method: Callable[[Handle], Any]) -> Callable[[Handle], Any]:
        def wait(handle: Handle) -> Any:
            # Of a call that has ended already there is nothing to leave out.
            under_way = handle._pending is not None
            return handle._result if under_way and self.is_left_out() else method(handle)

        return wait

    def listing(self, method: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """`tolist` reads memory without an operation."""

        def tolist(tensor: Tensor) -> Any:
            checker = self.checker
            on_device = checker.memory(tensor).place == "device"
            checker.touch(f"tolist {where()}", checker.stream if on_device else checker.host, [tensor], [])
            if on_device:
                checker.wait_for_device(f"tolist {where()}")
            with _disable_current_modes():
                return method(tensor)

        return tolist

    def transfer(self, lane: swap.Lane, kind: str, file: Any, i: int, buffer: Tensor) -> swap.Transfer:
        """A record goes to a file or comes from it, at once: as early as a thread might do it."""
        reads, writes = ([], [buffer]) if kind == "read" else ([buffer], [])
        self.checker.touch(f"a transfer {where()}", self.checker.host, reads, writes)
        transfer = swap.Transfer()
        with _disable_current_modes():
            transfer.run(lambda: getattr(file, kind)(i, buffer))
        return transfer

    # The door.

    def drives(self, device: torch.device) -> bool:
        return device.index is not None

    def holds(self, tensor: Tensor) -> bool:
        return self.checker.memory(tensor).place == "device"

    def stream(self, device: torch.device) -> Stream:
        name = f"stream {len(self.streams)}"
        return self.streams.setdefault(name, Stream(name))

    def current(self, device: torch.device) -> Stream:
        return self.streams[self.checker.stream]

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.checker.stream = self.checker.stream, stream.name
        try:
            yield
        finally:
            self.checker.stream = before

    def event(self) -> Event:
        return Event()

    def record(self, event: Event, stream: Stream) -> None:
        # What the stream has done, and what the host had done before.
        self.checker.join(stream.name, self.checker.clock(self.checker.host))
        event.clock = dict(self.checker.clock(stream.name))
        event.by = self.checker.host, self.checker.act(self.checker.host)

    def wait(self, stream: Stream, event: Event) -> None:
        self.checker.join(stream.name, self.recorded(event))

    def happened(self, event: Event) -> bool:
        """No event happens before somebody waits: the device is as slow as it may be."""
        return False

    def finish(self, event: Event) -> None:
        self.checker.wait_for_device(f"event {where()}", self.recorded(event))

    def recorded(self, event: Event) -> Clock:
        """An event that was not recorded is taken to have happened."""
        host, tick = event.by
        if self.checker.clock(self.checker.host).get(host, 0) < tick:
            self.checker.race(f"an event is awaited {where()}, perhaps before {host} has recorded it")
            return {}
        return event.clock or {}

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        self.checker.memory(tensor).kept.add(stream.name)

    def drain(self, device: torch.device) -> None:
        for stream in self.streams:
            self.checker.wait_for_device(f"drain {where()}", self.checker.clock(stream))

    def locked(self, numel: int, dtype: torch.dtype) -> Tensor:
        memory = torch.empty(numel, dtype=dtype, pin_memory=True)
        self.pages.append((f"{numel} of {dtype} {where()}", self.checker.memory(memory)))
        return memory

    def begin_training(self) -> None:
        """An engine is built: what was copied for that does not count."""
        for _, memory in self.pages:
            memory.crossed = False

    def idle_pages(self) -> list[str]:
        """Page-locked memory that is still held, and that nobody copied to or from the device in training."""
        return [what for what, memory in self.pages if memory.ref() is not None and not memory.crossed]

    # NCCL's collectives, queued on the stream that computes. Other ranks are taken to give what this one gives.

    def nccl(self, name: str, reads: list[Tensor], writes: list[Tensor], run: Callable[[], Any]) -> None:
        checker = self.checker
        self.calls[name, checker.stream] += 1
        checker._adopt([*reads, *writes])
        for tensor in (*reads, *writes):
            if checker.memory(tensor).place != "device":
                checker.race(f"{name} {where()} is given a tensor of the host, which NCCL does not take")
        checker.touch(f"{name} {where()}", checker.stream, reads, writes)
        with _disable_current_modes():
            run()

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        times = 1 if op == dist.ReduceOp.AVG else SIZE
        self.nccl("all_reduce", [tensor], [tensor], lambda: tensor.detach().mul_(times))

    def broadcast(self, tensor: Tensor, group_src: int, group: Any = None) -> None:
        self.nccl("broadcast", [tensor], [tensor], lambda: None)

    def reduce_scatter(self, out: Tensor, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        times = 1 if op == dist.ReduceOp.AVG else SIZE
        mine = tensor.detach().chunk(SIZE)[RANK]
        self.nccl("reduce_scatter", [tensor], [out], lambda: out.detach().copy_(mine * times))

    def all_gather(self, out: Tensor, shard: Tensor, group: Any = None) -> None:
        self.nccl("all_gather", [shard], [out], lambda: out.detach().copy_(shard.detach().repeat(SIZE)))


RANK, SIZE = 0, 2


class FakeNccl(Transport):
    """The transport of rank 0 of 2 that NCCL joins. The other is only thought of."""

    rank, size, device = RANK, SIZE, GPU
    queues = True

    def __init__(self, fake: FakeDoor) -> None:
        self.fake = fake

    def all_gather_ints(self, numbers: list[int], *_: Any) -> list[list[int]]:  # type: ignore[override]
        return [numbers] * self.size

    def lane(self) -> Lane:
        return Lane(self.fake.checker)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        self.fake.nccl("send", [tensor], [], lambda: None)
        return Submitted(self.fake.checker, {})

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Request:
        self.fake.nccl("receive", [], [tensor], lambda: tensor.detach().zero_())
        return Submitted(self.fake.checker, {})

    def exchange(self, outgoing: Tensor, dst: int, incoming: Tensor, src: int, tag: int = 0) -> None:
        self.fake.nccl("exchange", [outgoing], [incoming], lambda: incoming.detach().copy_(outgoing.detach()))


class Lane:
    """Another thread of the host, whose calls take place at once, as early as they may."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def submit(self, call: Callable[[], Any]) -> Submitted:
        checker = self.checker
        asked = dict(checker.clock(checker.host))
        with checker.named("lane"):
            checker.join("lane", asked)
            call()
            checker.act("lane")
            return Submitted(checker, dict(checker.clock("lane")))

    def close(self) -> None:
        pass


class Submitted:
    def __init__(self, checker: Checker, ended: Clock) -> None:
        self.checker, self.ended = checker, ended

    def wait(self) -> None:
        self.checker.join(self.checker.host, self.ended)


def comm_of_one_rank(fake: FakeDoor, ring: bool = False) -> Collectives:
    transport = FakeNccl(fake)
    if ring:
        return RingCollectives(transport)
    return TorchCollectives(transport, group=dist.GroupMember.NON_GROUP_MEMBER)  # type: ignore[arg-type]
