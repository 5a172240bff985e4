"""Measured memory: every storage that torch's operations make or touch, while a block of code runs.

    with Tracker(engine_labels(engine)) as tracker:
        engine.backward(engine(tokens, targets))
        engine.step()
    tracker.peak        # {kind: bytes} at the moment of the highest total

The tracker stands between torch and its kernels (a dispatch mode), and hears of storages that are emptied or filled
behind its back (RESIZES). A storage counts from the operation that made it until nobody holds it, with the
size that it reports itself, once however many tensors view it; an older one from the start if a label names it, else
from its first use. What a kernel allocates and frees inside one operation is not seen.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.collectives.call import current_call, phase_now
from zerolab.memory.kinds import Labels
from zerolab.memory.timeline import Changes, MemoryTimeline, Sample, StorageRecord
from zerolab.ranks.lockstep.scheduler import Stopped

COUNT_EVERY = 4096
"""Operations after which the log is counted at the latest, with the kinds that storages have by then."""


Moments = defaultdict[float, Changes]
"""Changes by the clock; all at 0.0 if there is none."""


class Tracker(TorchDispatchMode):
    """Live and peak bytes of storages by kind. May be entered again; it goes on where it stopped.

    labels   says which tensors are parameters, gradients, ...; without it only the circumstances of a storage's
             birth tell kinds apart (`zerolab.memory.kinds`)
    samples  keep the course of memory, one entry for each operation that changed it
    clock    seconds, read at each change and kept in its sample: `comm.transport.now` is the world's own clock,
             real in processes, virtual in lockstep; see `memory.timeline.by_time`
    """

    def __init__(
        self, labels: Labels | None = None, samples: bool = True, clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__()
        self._labels = labels
        self._clock = clock or (lambda: 0.0)
        self._timeline = MemoryTimeline(samples)
        self._records: dict[int, StorageRecord] = {}
        # Filled by the weak references, from whichever thread lets a storage go.
        self._dead: deque[tuple[int, StorageRecord, float]] = deque()
        self._lock = threading.RLock()
        self._owner: int | None = None
        self._phase = ""
        self._order = 0
        # When the owner's last operation ended.
        self._left = 0.0

    def __enter__(self) -> Tracker:
        # A communication lane enters, too, from its own thread and while the rank is at work: that begins nothing.
        if self._owner in (None, threading.get_ident()):
            self._settle()
            self._timeline.reset_peak()
            self._owner = threading.get_ident()
        super().__enter__()
        hear_resizes(self._resized)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        ignore_resizes(self._resized)
        super().__exit__(*exc_info)
        if self._on_own_thread():
            self._settle()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            # A fake tensor is asked for its device by an operation, which makes and writes nothing.
            return func(*args, **kwargs)
        begun = self._clock()
        result = func(*args, **kwargs)
        with self._lock:
            self._after(func, args, kwargs, result, begun)
        return result

    # What was measured.

    def now(self) -> dict[str, int]:
        """Live bytes by kind."""
        self._settle()
        return dict(self._timeline.live)

    @property
    def peak(self) -> dict[str, int]:
        """Bytes by kind at the moment of the highest total."""
        self._settle()
        return dict(self._timeline.peak.bytes)

    def peak_of(self, kind: str) -> int:
        """The most bytes of one kind at any moment."""
        self._settle()
        return self._timeline.peak_of[kind]

    @property
    def samples(self) -> list[Sample]:
        """The course of memory: live bytes by kind after each operation that changed them."""
        self._settle()
        return self._timeline.samples

    # What happens after an operation. The lock is held.

    def _after(self, func: Any, args: Any, kwargs: Any, result: Any, begun: float) -> None:
        inside_call = current_call.get() is not None
        phase, moments = self._next(begun)
        # The memory of its results is taken when an operation starts.
        changes = moments[begun]
        for storage in storages((*args, *kwargs.values())):
            self._see(storage, "other", changes)
        for storage in storages(result):
            self._see(storage, default_kind(inside_call), changes)
        # A lane has a clock of its own, which says nothing of when the rank left its operation.
        if self._on_own_thread():
            self._left = self._clock()
        self._note(phase, moments)
        self._label_written(func, args, kwargs, inside_call)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """Told of each storage that changes its size, also of other ranks' that take turns in this process."""
        with self._lock:
            record = self._records.get(storage._cdata)
            known = record is not None and record.ref() is storage
            # One on the meta device that is known is that of a tensor in a virtual world; others hold no memory.
            if not known and (storage.device.type == "meta" or not self._on_own_thread()):
                return
            now, changes = self._time(), Changes()
            # This size first: if a phase ends here, `_next` reads all sizes, and would count it to that phase.
            self._see(storage, "other", changes)
            phase, moments = self._next(now)
            moments[now].extend(changes)
            self._note(phase, moments)

    def _next(self, now: float) -> tuple[str, Moments]:
        """The phase of what comes next, and the storages that were let go before it. Where a phase ends, count."""
        phase = phase_now()
        if current_call.get() is None and (phase != self._phase or len(self._timeline.log) >= COUNT_EVERY):
            self._settle(now)
            self._phase = phase
        self._order += 1
        return phase, self._collect_freed()

    def _note(self, phase: str, moments: Moments) -> None:
        for time, changes in sorted(moments.items()):
            self._timeline.note(self._order, phase, changes, time)

    def _see(self, storage: torch.UntypedStorage, kind: str, changes: Changes) -> StorageRecord:
        """The record of a storage, made if it is new; its size is read anew."""
        key = storage._cdata
        record = self._records.get(key)
        if record is None or record.ref() is not storage:
            ref = weakref.ref(storage, lambda _: self._dead.append((key, new, self._time())))
            record = self._records[key] = new = StorageRecord(kind, ref)
        self._read(record, changes)
        return record

    def _read(self, record: StorageRecord, changes: Changes) -> None:
        storage = record.ref()
        if storage is not None and (nbytes := storage.nbytes()) != record.nbytes:
            changes.append((record, nbytes - record.nbytes))
            record.nbytes = nbytes

    def _collect_freed(self) -> Moments:
        """Storages that nobody holds any more, by the time when they were let go."""
        moments: Moments = defaultdict(list)
        while self._dead:
            key, record, time = self._dead.popleft()
            moments[time].append((record, -record.nbytes))
            record.nbytes = 0
            if self._records.get(key) is record:
                del self._records[key]
        return moments

    def _time(self) -> float:
        """The clock, also where it has stopped: storages outlive a launch that failed."""
        try:
            return self._clock()
        except Stopped:
            return self._left

    def _on_own_thread(self) -> bool:
        return self._owner == threading.get_ident()

    def _label_written(self, func: Any, args: Any, kwargs: Any, inside_call: bool) -> None:
        """Storages without a label that are written in place are buffers: inside a collective its own; elsewhere the
        labels are asked again, since a buffer mostly gets its owner between its making and its first use."""
        for name, index in written_arguments(func):
            value = args[index] if index < len(args) else kwargs.get(name)
            for storage in storages(value):
                record = self._records[storage._cdata]
                if record.labelled:
                    continue
                if not inside_call:
                    self._ask(self._clock())
                    return
                self._timeline.rename(record, "communication_buffers")

    # What happens now and then.

    def _settle(self, now: float | None = None) -> None:
        """Read all sizes, ask for all labels, and count."""
        now = self._time() if now is None else now
        with self._lock:
            moments = self._collect_freed()
            # What changed its size while this tracker was not active.
            for record in self._records.values():
                self._read(record, moments[now])
            self._note(self._phase, moments)
            self._ask(now)
            self._timeline.count()

    def _ask(self, now: float) -> None:
        """Give storages the kinds that the labels say."""
        if self._labels is None:
            return
        changes: Changes = []
        named: set[int] = set()
        for kind, tensors in self._labels().items():
            for storage in storages(list(tensors)):
                if storage._cdata in named:
                    continue
                named.add(storage._cdata)
                record = self._see(storage, kind, changes)
                record.labelled = True
                if record.kind != kind:
                    self._timeline.rename(record, kind)
        self._timeline.note(self._order, self._phase, changes, now)


def default_kind(inside_call: bool) -> str:
    """What the circumstances of its birth say about a storage."""
    if inside_call:
        return "communication_buffers"
    return "activations" if torch.is_grad_enabled() else "other"


def storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Storages of all tensors in a value of an operation; meta tensors hold no memory."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            yield value.untyped_storage()
    elif isinstance(value, list | tuple):
        for part in value:
            yield from storages(part)


@cache
def written_arguments(func: Any) -> tuple[tuple[str, int], ...]:
    """Name and place of the arguments that an operation writes to."""
    arguments = enumerate(func._schema.arguments) if func._schema.is_mutable else ()
    return tuple((a.name, index) for index, a in arguments if a.alias_info is not None and a.alias_info.is_write)


# A change of a storage's size is no operation, and no dispatch mode sees it. So the methods themselves tell, as long as
# somebody listens. Of several trackers in several threads each hears all; it knows which storages are its own.
RESIZES = [name for name in ("resize_", "_swap_data_ptr_") if hasattr(torch.UntypedStorage, name)]
_listeners: list[Callable[[torch.UntypedStorage], None]] = []
_changing = threading.Lock()


def hear_resizes(listener: Callable[[torch.UntypedStorage], None]) -> None:
    """Call `listener(storage)` after each change, in the thread that made it, until `ignore_resizes(listener)`."""
    with _changing:
        _listeners.append(listener)
        for name in RESIZES:
            # Every kind of storage inherits the methods from here, so one place is enough.
            setattr(torch.UntypedStorage, name, make_telling(name))


def ignore_resizes(listener: Callable[[torch.UntypedStorage], None]) -> None:
    """Undo one `hear_resizes`."""
    with _changing:
        _listeners.remove(listener)
        for name in RESIZES if not _listeners else ():
            if vars(torch.UntypedStorage).get(name) is make_telling(name):
                delattr(torch.UntypedStorage, name)


@cache
def make_telling(name: str) -> Callable[..., Any]:
    """A method of storages that tells of the storage when it has run."""

    def change(storage: torch.UntypedStorage, *args: Any, **named: Any) -> Any:
        result = getattr(super(torch.UntypedStorage, storage), name)(*args, **named)
        for listener in tuple(_listeners):
            listener(storage)
        return result

    return change
