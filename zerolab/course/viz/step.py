"""One training step of a small model as it really ran, in lockstep: who computed and sent what when, and who had what.

Nothing is computed from what a stage should do. Messages are the events of the launch's trace, with a link's time;
operations take that of a device of given speed. A tracker on each rank measures memory; whenever it changes, the
engine's own buffers are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from zerolab.collectives import Collectives, Link, Span, overlap_seconds
from zerolab.course.viz.film import film
from zerolab.course.viz.picture import check_ranks
from zerolab.memory import Sample, Tracker
from zerolab.memory.timeline import by_time
from zerolab.models.llama import Llama, LlamaConfig
from zerolab.offload import Offload
from zerolab.ranks import SimulatedCompute, launch
from zerolab.zero import ZeroEngine
from zerolab.zero.zero_engine import engine_labels

MODEL = LlamaConfig(vocab_size=256, dim=64, layers=3, heads=4, kv_heads=2, ffn_dim=192, tied_head=False)


@dataclass(frozen=True)
class StepRun:
    """Settings of a step: `tokens` of each rank's one sequence, speed of the simulated link, elements of a bucket of
    gradients, or whole units. With `offload` the optimizer's states rest on the host."""

    stage: int = 3
    ranks: int = 4
    gbit_per_s: float = 10.0
    latency_us: float = 5.0
    prefetch: bool = True
    overlap: bool = True
    tokens: int = 32
    bucket_numel: int | None = None
    offload: bool = False


@dataclass(frozen=True)
class StepOfRank:
    """What one rank did. Times are in seconds from the step's start; `course` is its memory in the order of time."""

    spans: tuple[Span, ...]
    course: tuple[Sample, ...]
    seconds: float

    @cached_property
    def peak(self) -> Sample:
        """The first moment of the highest total."""
        return max(self.course, key=lambda sample: sample.total)

    @cached_property
    def peak_at(self) -> str:
        """What the rank computed at its peak, or would next, such as "backward blocks.1"."""
        spans = [span for span in self.spans if span.kind == "compute"]
        return next((span.name for span in spans if span.stop > self.peak.time), spans[-1].name)

    def busy(self, kind: str) -> list[tuple[float, float]]:
        """When it was at something of this kind, "compute" or "collective"."""
        return [(span.start, span.stop) for span in self.spans if span.kind == kind]

    def busy_seconds(self, kind: str) -> float:
        return overlap_seconds(self.busy(kind), self.busy(kind))

    @property
    def overlapped(self) -> float:
        """Seconds in which it computed and communicated at once."""
        return overlap_seconds(self.busy("compute"), self.busy("collective"))


class Change(NamedTuple):
    """From `time` on a rank has `what` of a unit: the memory of all its parameters ("whole"), its own gradients
    ("local"), or the mean over the ranks of what it keeps ("mean"); or has it no more."""

    time: float
    rank: int
    unit: str
    what: str
    there: bool


class Sent(NamedTuple):
    """A message: chunk `chunk` of the unit of collective number `call`, on its way from `start` to `stop`."""

    call: int
    src: int
    dst: int
    chunk: int
    nbytes: int
    start: float
    stop: float


class OfUnit(NamedTuple):
    """A collective on the buffers of one unit."""

    name: str
    unit: str
    start: float
    stop: float


@dataclass(frozen=True, eq=False)
class Flow:
    """A step of all ranks. `units` has the bytes of each unit's parameters in fp32, padding included."""

    run: StepRun
    ranks: tuple[StepOfRank, ...]
    units: dict[str, int]
    changes: list[Change]
    calls: list[OfUnit]
    messages: list[Sent]

    @property
    def seconds(self) -> float:
        return max(rank.seconds for rank in self.ranks)

    def sent(self, until: float, rank: int = 0) -> dict[str, int]:
        """Bytes by collective in messages of a rank that have arrived by then."""
        names = dict.fromkeys(call.name for call in self.calls)
        done = [one for one in self.messages if one.src == rank and one.stop <= until + 1e-12]
        return {name: sum(one.nbytes for one in done if self.calls[one.call].name == name) for name in names}


class Watcher:
    """On one rank: notes of which unit each collective is, and looks at the units whenever it is asked the time."""

    def __init__(self, comm: Collectives, engine: ZeroEngine) -> None:
        self.now: Callable[[], float] = comm.transport.now
        self.engine, self.rank, self.start = engine, comm.rank, self.now()
        self.calls: list[tuple[str, str]] = []
        self.changes: list[Change] = []
        self.seen: dict[tuple[str, str], bool] = {}
        for name in ("all_gather", "reduce_scatter", "all_reduce"):
            setattr(comm, f"{name}_async", self.noting(name, getattr(comm, f"{name}_async")))
        self.clock()

    def noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, self.unit_of(tensor if kwargs.get("out") is None else kwargs["out"], tensor)))
            return call(tensor, *args, **kwargs)

        return noted

    def unit_of(self, *tensors: Any) -> str:
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        for unit in self.engine.units:
            for bucket in unit.buckets:
                own = (bucket.whole, bucket.shard, bucket.gradients.local)
                if any(tensor is not None and tensor.untyped_storage().data_ptr() in storages for tensor in own):
                    return unit.name
        raise LookupError("a collective of no unit: only a step's own can be watched")

    def clock(self) -> float:
        now = self.now()
        for unit in self.engine.units:
            there = {
                "whole": all(bucket.whole.untyped_storage().nbytes() > 0 for bucket in unit.buckets),
                "local": any(bucket.gradients.local is not None for bucket in unit.buckets),
                "mean": any(bucket.gradients.summed for bucket in unit.buckets),
            }
            for what, is_there in there.items():
                if self.seen.get((unit.name, what), False) != is_there:
                    self.seen[unit.name, what] = is_there
                    self.changes.append(Change(now - self.start, self.rank, unit.name, what, is_there))
        return now


def on_rank(comm: Collectives, run: StepRun) -> tuple[Any, ...]:
    """What a rank gives back: its step, bytes of each unit, its collectives with their units, changes, the start."""
    torch.manual_seed(0)
    engine = ZeroEngine(
        Llama(MODEL), comm, run.stage, lr=1e-3, prefetch=run.prefetch, overlap=run.overlap,
        bucket_numel=run.bucket_numel, offload=Offload("host" if run.offload else "device"),
    )  # fmt: skip
    tokens = torch.randint(MODEL.vocab_size, (1, run.tokens + 1), generator=torch.Generator().manual_seed(comm.rank))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    engine.backward(engine(inputs, targets))
    engine.step()
    comm.barrier()
    assert comm.tracer is not None
    before, start = len(comm.tracer.spans), comm.transport.now()
    watcher = Watcher(comm, engine)
    tracker = Tracker(engine_labels(engine), clock=watcher.clock)
    with SimulatedCompute(comm, gflop_per_s=50, gbyte_per_s=20) as pace, tracker:
        for unit in engine.units:
            for module in unit.modules:
                _label(module, unit.name, pace)
        loss = engine(inputs, targets)
        pace.label = "backward loss"
        engine.backward(loss)
        pace.label = "update"
        engine.step()
    spans = [*pace.spans, *comm.tracer.spans[before:]]
    step = StepOfRank(
        tuple(replace(span, start=span.start - start, stop=span.stop - start) for span in spans),
        tuple(replace(sample, time=sample.time - start) for sample in by_time(tracker.samples)),
        comm.transport.now() - start,
    )
    units = {unit.name: 0 for unit in engine.units}
    for unit in engine.units:
        for bucket in unit.buckets:
            units[unit.name] += bucket.layout.numel * bucket.dtype.itemsize
    return step, units, watcher.calls, watcher.changes, start


def _label(module: nn.Module, unit: str, pace: SimulatedCompute) -> None:
    """Tell the pace which unit is at work, in forward and in backward."""

    def says(label: str) -> Callable[..., None]:
        return lambda *_: setattr(pace, "label", label)

    def watch_output(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(says(f"backward {unit}"))

    module.register_forward_pre_hook(says(f"forward {unit}"))
    module.register_forward_hook(watch_output)


def watch_step(run: StepRun) -> tuple[StepOfRank, ...]:
    """What each rank did in a step with these settings."""
    return watch_flow(run).ranks


@lru_cache(maxsize=256)
def watch_flow(run: StepRun) -> Flow:
    """Run two steps and watch the second, by which the engine knows the units' order.

    Raises InputError for settings that the engine, the link or the pace refuse, or more than 8 ranks.
    """
    check_ranks(run.ranks)
    ran = launch(
        on_rank, run, ranks=run.ranks, world="lockstep", device="cpu",
        link=Link(run.gbit_per_s, run.latency_us), trace=True, prints="quiet",
    )  # fmt: skip
    assert ran.trace is not None
    steps, (units, *_), (noted, *_), changes, (start, *_) = zip(*ran, strict=True)
    # A call's name begins with its number: the last ones are the step's.
    events = [(int(event.call[1:].split()[0]), event) for event in ran.trace if event.call]
    numbers = sorted({number for number, _ in events})[-len(noted) :]
    times: list[list[float]] = [[] for _ in numbers]
    done: Counter[tuple[int, int]] = Counter()
    messages = []
    for number, event in events:
        if number not in numbers:
            continue
        at = numbers.index(number)
        times[at] += [event.start - start, event.end - start]
        if event.kind == "send":
            moment = film(noted[at][0], run.ranks)[done[event.rank, at]]
            done[event.rank, at] += 1
            hop, sent, came = moment.messages[event.rank].hop, event.out - start, event.end - start
            messages.append(Sent(at, event.rank, event.peer, hop.chunk, event.nbytes, sent, came))
    calls = []
    for (name, unit), found in zip(noted, times, strict=False):
        calls.append(OfUnit(name, unit, min(found), max(found)))
    return Flow(run, steps, units, sorted(chain(*changes), key=itemgetter(0)), calls, messages)
