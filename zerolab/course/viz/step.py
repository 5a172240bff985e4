"""One training step of a small model as it really ran, in lockstep: who computed and who sent when, and what memory
held meanwhile.

Time is virtual and the same every time: messages take a link's time, operations that of a device of given speed
(`zerolab.ranks.SimulatedCompute`). Memory is measured on torch's storages by a tracker on each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives, Link, Span, overlap_seconds
from zerolab.errors import InputError
from zerolab.memory import Sample, Tracker
from zerolab.memory.timeline import by_time
from zerolab.models.llama import Llama, LlamaConfig
from zerolab.offload import Offload
from zerolab.ranks import SimulatedCompute, launch
from zerolab.zero import ZeroEngine
from zerolab.zero.zero_engine import engine_labels

MODEL = LlamaConfig(vocab_size=256, dim=64, layers=3, heads=4, kv_heads=2, ffn_dim=192, tied_head=False)
MOST_RANKS = 8


@dataclass(frozen=True)
class StepRun:
    """Settings of a step. `tokens` of each rank's one sequence; speeds of the simulated link and device. `bucket_numel`
    is the engine's: elements of a bucket of gradients, or whole units. `offload` has the optimizer's states rest on the
    host, which is the same machine here: a copy costs what it reads and writes."""

    stage: int = 3
    ranks: int = 4
    gbit_per_s: float = 10.0
    latency_us: float = 5.0
    prefetch: bool = True
    overlap: bool = True
    tokens: int = 32
    gflop_per_s: float = 50.0
    gbyte_per_s: float = 20.0
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


@lru_cache(maxsize=256)
def watch_step(run: StepRun) -> tuple[StepOfRank, ...]:
    """Run two steps and watch the second, by which the optimizer has its states and the engine knows the units' order.

    Raises:
        InputError: settings that the engine, the link or the pace refuse, or more than MOST_RANKS ranks.
    """
    if isinstance(run.ranks, bool) or not isinstance(run.ranks, int) or not 1 <= run.ranks <= MOST_RANKS:
        raise InputError(f"a step of {run.ranks!r} ranks cannot be drawn; take 1 to {MOST_RANKS}")
    link = Link(run.gbit_per_s, run.latency_us)
    ran = launch(
        step_on_rank, run, ranks=run.ranks, world="lockstep", device="cpu", link=link, trace=True, prints="quiet"
    )  # fmt: skip
    return tuple(ran)


Watch = Callable[[Collectives, ZeroEngine], Callable[[], float]]
"""What else is to be watched of the second step: given a rank's engine before it, the clock that the tracker reads at
each change of memory."""


def step_on_rank(comm: Collectives, run: StepRun, watch: Watch | None = None) -> StepOfRank:
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
    clock = watch(comm, engine) if watch else comm.transport.now
    tracker = Tracker(engine_labels(engine), clock=clock)
    with SimulatedCompute(comm, run.gflop_per_s, run.gbyte_per_s) as pace, tracker:
        for unit in engine.units:
            for module in unit.modules:
                _label(module, unit.name, pace)
        loss = engine(inputs, targets)
        pace.label = "backward loss"
        engine.backward(loss)
        pace.label = "update"
        engine.step()
    spans = [*pace.spans, *comm.tracer.spans[before:]]
    return StepOfRank(
        tuple(Span(span.rank, span.kind, span.name, span.start - start, span.stop - start) for span in spans),
        tuple(Sample(s.order, s.phase, s.bytes, s.time - start) for s in by_time(tracker.samples)),
        comm.transport.now() - start,
    )


def _label(module: nn.Module, unit: str, pace: SimulatedCompute) -> None:
    """Tell the pace which unit is at work, in forward and in backward."""

    def says(label: str) -> Any:
        def say(*_: Any) -> None:
            pace.label = label

        return say

    def watch_output(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(says(f"backward {unit}"))

    module.register_forward_pre_hook(says(f"forward {unit}"))
    module.register_forward_hook(watch_output)
