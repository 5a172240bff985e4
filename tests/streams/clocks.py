"""The checker: each read and write of memory against those before it, by what happened before what.

Who acts is the host or a stream. An operation of a stream comes after all that was queued on the stream, and after all
that the host did before it queued it. The host comes after an operation of a stream only if it waited: for an event,
for the device, or for a value. Each actor has a vector clock, that is, for every actor the last of its operations that
are known to be over.

What is asked of two accesses to the same bytes of which one writes: did one happen before the other? And of memory that
goes back to the allocator: are all operations of other streams over, as seen by the stream that the memory came from?
That stream may be handed it at once; or was the allocator told of the other stream (`record_stream`)?

A copy to the host that nobody waits for takes effect late: until the host has waited its bytes are garbage.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from zerolab.memory.track import hear_resizes, ignore_resizes, written_arguments

GPU = torch.device("cpu:0")
HOST = "host"
GARBAGE = 0xCC
UNKNOWN = "unknown"

MAKES = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")
"""Operations that give memory and write nothing."""
MOVES = ("copy_", "_to_copy")
"""Operations whose tensors may lie in two memories."""
READS = ("_local_scalar_dense", "equal", "nonzero", "is_nonzero", "masked_select")
"""Operations that give the host what the device must have computed."""

Tensor = torch.Tensor
Clock = dict[str, int]


class Access(NamedTuple):
    """Bytes [start, stop) of a storage, by the operation number `tick` of `actor`."""

    start: int
    stop: int
    writes: bool
    actor: str
    tick: int
    what: str


class Memory:
    """A storage: where it lies, the stream it was given to, what was done to it, whether it was copied between host
    and device, and what the allocator was told."""

    ref: weakref.ref[torch.UntypedStorage]

    def __init__(self, place: str, stream: str) -> None:
        self.place, self.stream = place, stream
        self.accesses: list[Access] = []
        self.crossed = False
        self.kept: set[str] = set()


class Late(NamedTuple):
    """A copy to the host that has not taken effect."""

    actor: str
    tick: int
    target: Tensor
    values: Tensor


class Checker(TorchDispatchMode):
    """`races` are sentences; `waits` counts how often the host waited for the device since `begin_step`, by
    what made it wait."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks: dict[str, Clock] = {}
        self.memories: dict[int, Memory] = {}
        self.races: dict[str, None] = {}
        self.waits: Counter[str] = Counter()
        self.host, self.hosts = HOST, {HOST}
        self.stream = "computing"
        self.late: list[Late] = []
        self._before: Clock = {}
        self._thread = threading.get_ident()

    def __enter__(self) -> Checker:
        super().__enter__()
        hear_resizes(self._resized)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        ignore_resizes(self._resized)
        super().__exit__(*exc_info)

    # Order.

    def clock(self, actor: str) -> Clock:
        return self.clocks.setdefault(actor, {})

    def join(self, actor: str, other: Clock) -> None:
        """What `actor` does next comes after all that `other` knows to be over."""
        mine = self.clock(actor)
        for name, tick in other.items():
            if mine.get(name, 0) < tick:
                mine[name] = tick
        if actor == self.host:
            self._take_effect(mine)

    def act(self, actor: str) -> int:
        """The number of the actor's next operation."""
        if actor != self.host and actor not in self.hosts:
            self.join(actor, self.clock(self.host))
        clock = self.clock(actor)
        clock[actor] = clock.get(actor, 0) + 1
        return clock[actor]

    def wait_for_device(self, why: str, clock: Clock | None = None) -> None:
        """The host waits: for an event with this clock, or for the stream that computes."""
        clock = self.clock(self.stream) if clock is None else clock
        self.count_wait(why, clock)
        self.join(self.host, clock)

    def count_wait(self, why: str, clock: Clock) -> None:
        mine = self.clock(self.host)
        if any(max(mine.get(name, 0), self._before.get(name, 0)) < tick for name, tick in clock.items()):
            self.waits[why] += 1

    def begin_step(self) -> None:
        """Count anew. What the host waits for from here on counts if it was queued from here on: only then is nothing
        left that the device could do meanwhile."""
        self.waits = Counter()
        self._before = {actor: clock.get(actor, 0) for actor, clock in self.clocks.items()}

    # Memory.

    def memory(self, tensor: Tensor, place: str | None = None) -> Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata
        found = self.memories.get(key)
        if found is None or found.ref() is not storage:
            found = self.memories[key] = Memory(place or "pageable", self.stream)
            known = found
            found.ref = weakref.ref(storage, lambda _: self._freed(known))
        return found

    def touch(self, what: str, actor: str, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> int:
        """An operation of `actor`; returns its number."""
        tick = self.act(actor)
        self._take_effect(self.clock(actor))
        for tensors, writing in ((reads, False), (writes, True)):
            for tensor in tensors:
                self._access(tensor, writing, actor, tick, what)
        return tick

    def _access(self, tensor: Tensor, writes: bool, actor: str, tick: int, what: str) -> None:
        if not tensor.numel():
            return
        memory, clock = self.memory(tensor), self.clock(actor)
        start = tensor.storage_offset() * tensor.element_size()
        spans = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        stop = start + (spans + 1) * tensor.element_size()
        left = []
        for other in memory.accesses:
            before = clock.get(other.actor, 0) >= other.tick
            apart = other.stop <= start or stop <= other.start
            if not apart and not before and (writes or other.writes):
                self.race(f"{what} of {actor} and {other.what} of {other.actor} touch the same memory in no order")
            # What this one hides need not be kept: who comes after this comes after that.
            if not (before and start <= other.start and other.stop <= stop and (writes or not other.writes)):
                left.append(other)
        left.append(Access(start, stop, writes, actor, tick, what))
        memory.accesses = left

    def _adopt(self, tensors: Iterable[Tensor]) -> None:
        """Tensors are used beside one of the device. Those of which nobody could say where they lie do, too: they were
        made with the device of another tensor, which is the CPU, whatever was meant."""
        for tensor in tensors:
            memory = self.memory(tensor)
            if memory.place == UNKNOWN:
                memory.place = "device"
                memory.accesses = [access._replace(actor=self.stream, tick=0) for access in memory.accesses]

    def _freed(self, memory: Memory) -> None:
        """Given back: the stream that it came from may be handed it at once, and so may the host its own. (Locked
        memory is safe: torch frees it once the copies of it have ended.)"""
        if memory.place == "locked" or (memory.place != "device" and not memory.crossed):
            return
        owner = memory.stream if memory.place == "device" else self.host
        # It is kept until the streams that the allocator was told of have done what they were given.
        seen = [self.clock(actor) for actor in (owner, self.host, *memory.kept)]
        for access in memory.accesses:
            if not any(clock.get(access.actor, 0) >= access.tick for clock in seen):
                self.race(f"memory is given back to {owner} while {access.what} of {access.actor} uses it")
        memory.accesses, memory.kept = [], set()

    def _resized(self, storage: torch.UntypedStorage) -> None:
        memory = self.memories.get(storage._cdata)
        if memory is None or memory.ref() is not storage or threading.get_ident() != self._thread:
            return
        # Emptied, or given other memory, by the stream that computes now.
        self._freed(memory)
        memory.stream = self.stream

    def race(self, sentence: str) -> None:
        self.races[sentence] = None

    # Copies that take effect late.

    def delay(self, target: Tensor, actor: str, tick: int) -> None:
        with _disable_current_modes():
            self.late.append(Late(actor, tick, target.detach(), target.detach().clone()))
            target.detach().view(-1).view(torch.uint8).fill_(GARBAGE)

    def _take_effect(self, clock: Clock) -> None:
        for copy in [copy for copy in self.late if clock.get(copy.actor, 0) >= copy.tick]:
            self.late.remove(copy)
            with _disable_current_modes():
                copy.target.copy_(copy.values)

    # Operations of torch.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        inputs = list(tensors_of((*args, *kwargs.values())))
        before = {tensor.untyped_storage()._cdata for tensor in inputs}
        if func.is_view or name in ("set_", "detach", "alias", "lift_fresh"):
            result = func(*args, **kwargs)
            for tensor in tensors_of(result):
                self.memory(tensor)
            return result
        result = func(*args, **{**kwargs, "pin_memory": False} if kwargs.get("pin_memory") else kwargs)
        made = [tensor for tensor in tensors_of(result) if tensor.untyped_storage()._cdata not in before]
        if name not in MOVES and any(self.memory(tensor).place == "device" for tensor in inputs):
            self._adopt(inputs)
        places = {self.memory(tensor).place for tensor in inputs if tensor.numel() and not self._is_number(tensor)}
        place = self._place(name, kwargs, places or {self.memory(tensor).place for tensor in inputs})
        for tensor in made:
            self.memory(tensor, place)
        self._operation(name, func, args, kwargs, inputs, made, places | {place})
        return result

    def _is_number(self, tensor: Tensor) -> bool:
        """Whether it is a tensor of the host that may stand beside those of the device, as a number."""
        return tensor.dim() == 0 and self.memory(tensor).place != "device"

    def _place(self, name: str, kwargs: dict[str, Any], places: set[str]) -> str:
        """Where the results of an operation lie."""
        device = kwargs.get("device")
        if device is not None and (device == GPU and device.index == 0):
            return "device"
        if kwargs.get("pin_memory"):
            return "locked"
        if device is not None and not places:
            return UNKNOWN
        return next((place for place in ("device", UNKNOWN) if place in places), "pageable")

    def _operation(
        self, name: str, func: Any, args: Any, kwargs: Any, inputs: list[Tensor], made: list[Tensor], places: set[str]
    ) -> None:
        writes = list(made)
        for argument, index in written_arguments(func):
            writes += tensors_of(args[index] if index < len(args) else kwargs.get(argument))
        what = f"{name} {where()}"
        if name in MAKES:
            return
        if "device" not in places:
            self.touch(what, self.host, inputs, writes)
            return
        if len(places) > 1 and name not in MOVES:
            self.race(f"{what} takes tensors of the device and of the host")
        if name == "copy_" and not is_overwriting(args):
            inputs = [tensor for tensor in inputs if tensor is not args[0]]
        tick = self.touch(what, self.stream, inputs, writes)
        if name in MOVES:
            self._copied(what, args, kwargs, (args[0] if name == "copy_" else made[0]), inputs[-1], tick)
        elif name in READS:
            self.wait_for_device(what)

    def _copied(self, what: str, args: Any, kwargs: Any, target: Tensor, source: Tensor, tick: int) -> None:
        to, of = self.memory(target).place, self.memory(source).place
        if to == of == "device":
            return
        self.memory(target).crossed = self.memory(source).crossed = True
        waits_not = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
        if not waits_not:
            self.wait_for_device(what)
            return
        locked = (of if to == "device" else to) == "locked"
        # Another dtype takes a detour by pageable memory.
        if not locked or target.dtype != source.dtype:
            # That counts as a wait, which it is on most machines. But nobody may rely on it: a GPU that uses the host's
            # pageable memory by itself (GH200, HMM) copies it beside the host, too.
            self.count_wait(what, self.clock(self.stream))
        if to != "device":
            self.delay(target, self.stream, tick)

    @contextmanager
    def named(self, host: str) -> Any:
        """What is done inside is done by another thread of the host."""
        self.hosts.add(host)
        before, self.host = self.host, host
        try:
            yield
        finally:
            self.host = before


def tensors_of(value: Any) -> Iterable[Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type == "cpu":
            yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)


def is_overwriting(args: Any) -> bool:
    """Whether the source of a copy lies in the same storage as its target."""
    return args[0].untyped_storage()._cdata == args[1].untyped_storage()._cdata


def where() -> str:
    """The line of the library that is at work."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if f"{os.sep}zerolab{os.sep}" in path and "site-packages" not in path:
            return f"({path.split(f'{os.sep}zerolab{os.sep}')[-1]}:{frame.f_lineno})"
        frame = frame.f_back
    return ""
