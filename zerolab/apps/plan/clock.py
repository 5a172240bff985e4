"""The replay of a step with a clock: what computes, what travels beside it, and what waits for what.

Three lanes: the device computes, collectives run one after the other in the order of issue, and states come from the
host or a disk. The order of everything is the replay's, which is the engine's; here each thing gets its seconds, from a
`Machine` and a `Network`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from zerolab.apps.cost import Machine, Network, Operation
from zerolab.apps.plan.layout import RunLayout
from zerolab.apps.plan.replay import BucketState, CallOnPaper, Replay, UnitState, Widths
from zerolab.apps.plan.trace import Computing, Mark, Trace
from zerolab.collectives import Link
from zerolab.flat import BucketPlan
from zerolab.memory.predict import kept
from zerolab.offload.places import NO_OFFLOAD, Offload
from zerolab.zero.limits import NO_LIMITS, Stage3Limits


class Carrier(NamedTuple):
    """Ranks and what is between them. Without a network calls take what they take on the machine alone."""

    ranks: int
    network: Network | Link | None
    machine: Machine

    def seconds(self, name: str, numel: int, itemsize: int) -> float:
        """Of a collective over the whole of `numel` elements, on the wire."""
        if self.ranks == 1 or self.network is None:
            return 0.0
        return self.network.ring_seconds(name, numel, itemsize, self.ranks)

    def local_seconds(self, name: str, numel: int, itemsize: int) -> float:
        """What it takes of the device besides, where that carries the messages itself, as a processor does."""
        return 0.0 if self.ranks == 1 else self.machine.local_seconds(name, numel * itemsize)


class StepBytes(NamedTuple):
    """What the optimizer's step of a rank moves, in bytes.

    gradients  its share of the gradients
    clipped    these read and written once more, as the step has them, where they are clipped
    touched    read and written by the step itself
    swapped    read from the disk and written there
    published  its share of the new parameters
    calls      calls of the optimizer's kernel
    """

    gradients: float
    clipped: float
    touched: float
    swapped: float
    published: float
    calls: int


class TimedReplay(Replay):
    """A rank's step on numbers, with a clock.

    now      seconds since the step began
    spent    seconds of `now` by what they were spent on: "compute", "optimizer", "offload", and waiting for "gather",
             "reduce", "norm" and "publish"
    carried  seconds in which collectives ran, whoever waited

    A processor that carries messages does not compute meanwhile, so that part of a collective is beside nothing.
    """

    def __init__(
        self,
        layout: RunLayout,
        stage: int,
        widths: Widths,
        wire: Carrier,
        prefetch: bool = True,
        places: Offload = NO_OFFLOAD,
        limits: Stage3Limits = NO_LIMITS,
        reduction: str = "reduce_scatter",
        overlap: bool = True,
    ) -> None:
        super().__init__(layout, stage, widths, prefetch, places.optimizer != "device", {}, limits)
        self.wire, self.machine, self.places, self.overlap = wire, wire.machine, places, overlap
        self.collective = "all_reduce" if stage == 0 or (stage == 1 and reduction == "all_reduce") else "reduce_scatter"
        self.now, self.lane, self.disk, self.carried = 0.0, 0.0, 0.0, 0.0
        self.spent: dict[str, float] = defaultdict(float)
        self.computing: dict[int, float] = {}
        self.reads: dict[int, float] = {}

    # The device.

    def spend(self, what: str, seconds: float) -> None:
        self.now += seconds
        self.spent[what] += seconds

    def until(self, moment: float, what: str) -> None:
        self.spend(what, max(0.0, moment - self.now))

    def compute(self, computing: Computing) -> None:
        # Layers that are alike share their events.
        if (seconds := self.computing.get(id(computing))) is None:
            seconds = sum(map(self.machine.seconds, computing.operations), 0.0)
            self.computing[id(computing)] = seconds
        self.spend("compute", seconds)

    def move(self, nbytes: float) -> None:
        """Read and write so many bytes, by an operation of the engine."""
        self.spend("compute", self.machine.seconds(Operation("memory", 0, round(nbytes))))

    # The wire.

    def issue(self, call: CallOnPaper) -> None:
        if isinstance(call.what, UnitState):
            self.fetch(call.what)
            self.spend("compute", self.machine.hook)
            call.end = max([self.bring(plan) for plan in call.what.gathered], default=self.now)
        else:
            self.spend("compute", self.machine.hook)
            call.end = self.carry(self.collective, call.what.plan.layout.numel, self.widths.reduce)
        super().issue(call)
        if isinstance(call.what, BucketState) and not self.overlap:
            self.until(call.end, "reduce")

    def bring(self, plan: BucketPlan) -> float:
        return self.carry("all_gather", plan.layout.numel, plan.itemsize)

    def carry(self, name: str, numel: int, itemsize: int) -> float:
        """A collective takes the wire when it is free; when it ends."""
        local, seconds = (price(name, numel, itemsize) for price in (self.wire.local_seconds, self.wire.seconds))
        self.spend("compute", local)
        self.lane = max(self.lane, self.now) + seconds
        self.carried += local + seconds
        return self.lane

    def wait(self, what: UnitState | BucketState) -> None:
        for call in self.queue:
            if call.what is what:
                self.until(call.end, "gather" if isinstance(what, UnitState) else "reduce")
        super().wait(what)

    def release(self, unit: UnitState) -> None:
        # A gather that nobody came for still writes.
        if unit.here:
            self.wait(unit)
        super().release(unit)

    # Other places.

    def ahead(self, owners: Sequence[int]) -> None:
        super().ahead(owners)
        if self.prefetch and self.places.parameters == "disk" and len(owners) > 1:
            self.read(self.units[owners[1]])

    def read(self, unit: UnitState) -> None:
        """A unit's shard begins to come from the disk."""
        if not unit.here and id(unit) not in self.reads:
            nbytes = sum(kept(plan, sharded=True) for plan in unit.gathered)
            self.disk = self.reads[id(unit)] = max(self.disk, self.now) + nbytes / self.machine.disk

    def fetch(self, unit: UnitState) -> None:
        """A unit's shard comes to the device from where it rests."""
        if self.places.parameters == "device":
            return
        if self.places.parameters == "disk":
            nbytes = sum(kept(plan, sharded=True) for plan in unit.gathered)
            ready = self.reads.pop(id(unit), None)
            if ready is None:
                self.disk = ready = max(self.disk, self.now) + nbytes / self.machine.disk
            self.until(ready, "offload")
        self.spend("offload", sum(kept(plan, sharded=True) for plan in unit.gathered) / self.machine.host)

    # Gradients.

    def hear(self, mark: Mark, in_backward: bool) -> None:
        if mark.what == "gradient":
            # It is copied to its slot, or added to what is there.
            bucket = self.units[self.owner[mark.module]].buckets[self.slots[mark.module][mark.parameter]]
            share = bucket.plan.layout.numel * self.widths.grads / len(bucket.plan.layout.slots)
            self.move(share * (3 if bucket.opened and not self.reducing else 2))
        super().hear(mark, in_backward)

    def start(self, bucket: BucketState) -> None:
        if self.widths.reduce != self.widths.grads:
            self.move(bucket.plan.layout.numel * (self.widths.reduce + self.widths.grads))
        super().start(bucket)

    def collect(self) -> None:
        bucket = self.in_flight[0]
        adds = bool(bucket.result) or bucket.summed
        super().collect()
        shard = bucket.plan.layout.numel if self.stage == 0 else bucket.plan.layout.shard_numel
        if self.on_host:
            self.spend("offload", shard * self.widths.main_grads / self.machine.host)
        elif adds:
            self.move(shard * (self.widths.reduce + 2 * self.widths.main_grads))

    # The step.

    def finish(self, step: StepBytes, clips: bool) -> None:
        """All gradients are reduced: their norm, the optimizer's step, and new parameters to everybody."""
        if clips:
            self.move(step.gradients)
            self.until(self.carry("all_gather", self.wire.ranks, 8), "norm")
        clipped = step.clipped if clips else 0.0
        if self.places.optimizer == "device":
            if clips:
                self.move(clipped)
            rate = self.machine.optimizer or self.machine.memory
            self.spend("optimizer", step.calls * self.machine.overhead + rate.seconds(step.touched))
        else:
            on_host = (step.touched + clipped) / self.machine.host_step
            on_disk = step.swapped / self.machine.disk if self.places.optimizer == "disk" else 0.0
            self.spend("offload", max(on_host, on_disk) + step.published / self.machine.host)
        if self.stage >= 1:
            for bucket in self.order[::-1]:
                if self.stage < 3 or bucket.plan.persistent:
                    self.spend("compute", self.machine.hook)
                    self.bring(bucket.plan)
            self.until(self.lane, "publish")


def seconds_of(trace: Trace, replay: TimedReplay, micro_batches: int, reduce_each: bool) -> float:
    """Run a step's micro-batches; of more than three those between the first and the last are taken to be alike."""
    shown = min(micro_batches, 3)
    for number in range(shown):
        before, spent, carried = replay.now, dict(replay.spent), replay.carried
        replay.micro_batch(trace, reduce=reduce_each or number == shown - 1)
        if number == 1 and (more := micro_batches - shown):
            taken, busy = replay.now - before, replay.carried - carried
            replay.lane, replay.disk = replay.lane + more * taken, replay.disk + more * taken
            replay.now += more * taken
            replay.carried += more * busy
            for what, seconds in replay.spent.items():
                replay.spent[what] = seconds + more * (seconds - spent.get(what, 0.0))
    return replay.now
