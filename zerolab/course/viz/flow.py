"""A step unit by unit, as it ran in lockstep: what each rank has of a unit's parameters and gradients, which collective
is of which unit, and each message of it.

Nothing is computed from what a stage should do. The tracker asks the time whenever memory changes; then the engine's
own buffers are looked at. Messages are the events of the launch's trace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from zerolab.collectives import Collectives, Link
from zerolab.course.viz.film import film
from zerolab.course.viz.step import StepOfRank, StepRun, step_on_rank
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine


class Change(NamedTuple):
    """From `time` on, in seconds from the step's start, a rank has `what` of a unit: the memory of all its parameters
    ("whole"), its own gradients ("local"), or the mean over the ranks of what it keeps ("mean"); or has it no more."""

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
    changes: tuple[Change, ...]
    calls: tuple[OfUnit, ...]
    messages: tuple[Sent, ...]

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


class Noted(NamedTuple):
    """What a rank gives back: its step, bytes of each unit, collectives with their units, changes, its beginning."""

    step: StepOfRank
    units: dict[str, int]
    calls: list[tuple[str, str]]
    changes: list[Change]
    start: float


def watched_on_rank(comm: Collectives, run: StepRun) -> Noted:
    watchers: list[Watcher] = []

    def watch(comm: Collectives, engine: ZeroEngine) -> Callable[[], float]:
        watchers.append(Watcher(comm, engine))
        return watchers[0].clock

    done = step_on_rank(comm, run, watch)
    watcher, units = watchers[0], watchers[0].engine.units
    sizes = {unit.name: sum(bucket.layout.numel * bucket.dtype.itemsize for bucket in unit.buckets) for unit in units}
    return Noted(done, sizes, watcher.calls, watcher.changes, watcher.start)


@lru_cache(maxsize=32)
def watch_flow(run: StepRun) -> Flow:
    """Run two steps with these settings and watch the second, as `watch_step` does.

    Raises InputError for settings that the engine, the link or the pace refuse.
    """
    ran = launch(
        watched_on_rank, run, ranks=run.ranks, world="lockstep", device="cpu",
        link=Link(run.gbit_per_s, run.latency_us), trace=True, prints="quiet",
    )  # fmt: skip
    assert ran.trace is not None
    of_ranks: list[Noted] = [*ran]
    noted, start = of_ranks[0].calls, of_ranks[0].start
    # A call's name begins with its number: the last ones are the step's.
    numbers = sorted({int(event.call[1:].split()[0]) for event in ran.trace if event.call})[-len(noted) :]
    place = {number: at for at, number in enumerate(numbers)}
    times: dict[int, list[float]] = {at: [] for at in place.values()}
    order: dict[tuple[int, int], int] = {}
    messages = []
    for event in ran.trace:
        at = place.get(int(event.call[1:].split()[0]) if event.call else -1)
        if at is None:
            continue
        assert event.call.split()[1] == noted[at][0], (event.call, noted[at])
        times[at].append(event.start - start)
        times[at].append(event.end - start)
        if event.kind == "send":
            step = order[event.rank, at] = order.get((event.rank, at), -1) + 1
            passing = next(one for one in film(noted[at][0], run.ranks)[step].messages if one.src == event.rank)
            assert passing.dst == event.peer
            messages.append(
                Sent(at, event.rank, event.peer, passing.hop.chunk, event.nbytes, event.out - start, event.end - start)
            )
    calls = [OfUnit(*noted[at], min(times[at]), max(times[at])) for at in sorted(times)]
    changes = sorted((change for rank in of_ranks for change in rank.changes), key=lambda change: change.time)
    return Flow(
        run, tuple(rank.step for rank in of_ranks), of_ranks[0].units, tuple(changes), tuple(calls), tuple(messages)
    )
