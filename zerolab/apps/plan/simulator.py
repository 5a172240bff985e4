"""One step of one rank on numbers: what is alive besides the states, when that is most, and how long it takes.

Forward and backward come from a trace (`trace.py`); what the engine does at each event of its hooks is done here:

    gathers, prefetches and releases units at stage 3              zero/schedule.py, zero/units.py
    opens a bucket's gradients, reduces them, lets them go         zero/reducer.py, zero/bucket.py
    brings states and gradients to hand for the optimizer          zero/stored_step.py

Buffers of collectives are those of our rings; NCCL has its own, which torch's allocator does not see.

With an `Interconnect` there is a clock, too. Three lanes: the device computes, collectives run one after the other in
the order of issue, and states come from the host or a disk.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

from zerolab.apps.cost import Machine, Network, Operation
from zerolab.apps.cost.machine import constant
from zerolab.apps.plan.layout import RunLayout
from zerolab.apps.plan.trace import AllocationDelta, Computing, HookEvent, TracedPart
from zerolab.collectives import Link
from zerolab.flat import BucketPlan
from zerolab.memory.predict import kept, ring_scratch
from zerolab.memory.traffic import NO_LIMITS, Stage3Limits
from zerolab.offload.places import NO_OFFLOAD, Offload
from zerolab.zero.reducer import IN_FLIGHT

SHOWN = 3
"""Of more micro-batches, those between the first and the last are taken to be alike."""


class Widths(NamedTuple):
    """Bytes of a gradient as backward leaves it, as it travels, and as it is kept."""

    grads: int
    reduce: int
    main_grads: int


class StepBytes(NamedTuple):
    """What a rank's share of the optimizer's step moves, in bytes.

    clipped  gradients read and written once more, where they are clipped
    touched  read and written by the step itself
    swapped  read from the disk and written there
    calls    calls of the optimizer's kernel
    """

    gradients: float
    clipped: float
    touched: float
    swapped: float
    published: float
    calls: int


class Interconnect(NamedTuple):
    """Ranks, what computes in each, and what is between them, if collectives do not take what the machine says."""

    ranks: int
    network: Network | Link | None
    machine: Machine

    def seconds(self, name: str, numel: int, itemsize: int) -> float:
        """Of a collective over `numel` elements, on the wire."""
        if self.ranks == 1 or self.network is None:
            return 0.0
        return self.network.ring_seconds(name, numel, itemsize, self.ranks)

    def local_seconds(self, name: str, numel: int, itemsize: int) -> float:
        """What it takes of a device that carries messages itself."""
        return 0.0 if self.ranks == 1 else self.machine.local_seconds(name, numel * itemsize)


NO_TIME = Interconnect(1, None, Machine("no time", {}, constant(inf)))


@dataclass(eq=False)
class BucketState:
    """A bucket during a step: bytes of its gradients, and how many of them are missing."""

    plan: BucketPlan
    missing: int = 0
    local: int = 0
    result: int = 0
    opened: bool = False
    summed: bool = False


@dataclass(eq=False)
class UnitState:
    """A unit during a step (as in `zerolab.zero.units.Unit`), and when its shard will have been read from the disk."""

    buckets: list[BucketState]
    modules: int
    here: bool = False
    ran: int = 0
    kept: bool = False
    read: float | None = None

    def __post_init__(self) -> None:
        self.gathered = [bucket.plan for bucket in self.buckets if not bucket.plan.persistent]
        self.nbytes = sum(map(kept, self.gathered))
        self.shard_bytes = sum(kept(plan, sharded=True) for plan in self.gathered)
        self.numel = sum(plan.layout.numel for plan in self.gathered)


@dataclass(eq=False)
class SimulatedCollective:
    """A collective on its way, and the bytes that it receives into."""

    what: UnitState | BucketState
    scratch: int
    end: float
    runs: bool = False


@dataclass(eq=False)
class StepSimulator:
    """A rank's step on numbers.

    live       bytes by kind that are there all the time: the states
    wire       what there is to compute and to send with; without it there is no clock
    overlap    reductions run while backward goes on

    What it finds:

    tops            of each part of a step the most bytes, and these by kind
    now             seconds since the step began
    time_breakdown  these by what they were spent on (`StepTime`)
    carried         seconds in which collectives ran, whoever waited

    A processor that carries messages does not compute meanwhile.
    """

    layout: RunLayout
    stage: int
    widths: Widths
    prefetch: bool = True
    places: Offload = NO_OFFLOAD
    limits: Stage3Limits = NO_LIMITS
    live: dict[str, int] = field(default_factory=dict)
    wire: Interconnect = NO_TIME
    reduction: str = "reduce_scatter"
    overlap: bool = True

    def __post_init__(self) -> None:
        modules = Counter(self.layout.owner)
        self.units = [
            UnitState([*map(BucketState, plans)], modules[number]) for number, plans in enumerate(self.layout.units)
        ]
        self.order = [
            bucket for unit in reversed(self.units) for bucket in reversed(unit.buckets) if bucket.plan.trainable
        ]
        self.owner = self.layout.owner
        self.on_host = self.places.optimizer != "device"
        whole = self.stage == 0 or (self.stage == 1 and self.reduction == "all_reduce")
        self.collective = "all_reduce" if whole else "reduce_scatter"
        self.in_flight: deque[BucketState] = deque()
        self.queue: deque[SimulatedCollective] = deque()
        # Memory.
        self.part = ""
        self.live = {"activations": 0, "other": 0, **self.live}
        self.total = sum(self.live.values())
        self.tops: dict[str, tuple[int, dict[str, int]]] = {}
        # Time.
        self.timed = self.wire is not NO_TIME
        self.now, self.lane, self.disk, self.carried = 0.0, 0.0, 0.0, 0.0
        self.time_breakdown: dict[str, float] = defaultdict(float)
        self.computing: dict[int, float] = {}

    def run(self, trace: Sequence[TracedPart], micro_batches: int, reduce_each: bool) -> None:
        """Forward and backward of a step's micro-batches."""
        shown = min(micro_batches, SHOWN)
        for number in range(shown):
            before, spent, carried = self.now, dict(self.time_breakdown), self.carried
            self.micro_batch(trace, reduce=reduce_each or number == shown - 1)
            if number == 1 and (more := micro_batches - shown):
                taken = self.now - before
                self.lane, self.disk = self.lane + more * taken, self.disk + more * taken
                self.now += more * taken
                self.carried += more * (self.carried - carried)
                for what, seconds in self.time_breakdown.items():
                    self.time_breakdown[what] = seconds + more * (seconds - spent.get(what, 0.0))

    def micro_batch(self, trace: Sequence[TracedPart], reduce: bool) -> None:
        self.next, self.reducing, in_backward = 0, reduce, False
        for bucket in self.order:
            bucket.missing = len(bucket.plan.layout.slots)
        for unit in self.units:
            unit.ran = 0
        for part in trace:
            if part.phase == "backward" and not in_backward:
                in_backward = True
                self.release_all(but_kept=True)
            self.part = f"{part.phase} {part.module}"
            for event in part.events:
                if isinstance(event, AllocationDelta):
                    self.allocate(event)
                elif isinstance(event, Computing):
                    self.compute(event)
                else:
                    self.on_hook(event, in_backward)
        self.part = "end of backward"
        self.release_all()
        if reduce:
            while self.next < len(self.order):
                self.start(self.order[self.next])
            while self.in_flight:
                self.collect()

    # Memory.

    def add(self, kind: str, nbytes: int) -> None:
        self.live[kind] = self.live.get(kind, 0) + nbytes
        self.total += nbytes
        self.note()

    def allocate(self, delta: AllocationDelta) -> None:
        self.note(*delta.top)
        activations, other = delta.end
        self.live["activations"] += activations
        self.live["other"] += other
        self.total += activations + other

    def note(self, activations: int = 0, other: int = 0) -> None:
        """This moment, with so much on top, if it is its part's highest."""
        total = self.total + activations + other
        if self.part not in self.tops or total > self.tops[self.part][0]:
            live = dict(self.live)
            live["activations"] += activations
            live["other"] += other
            self.tops[self.part] = total, live

    # Time.

    def spend(self, what: str, seconds: float) -> None:
        self.now += seconds
        self.time_breakdown[what] += seconds

    def until(self, moment: float, what: str) -> None:
        self.spend(what, max(0.0, moment - self.now))

    def compute(self, computing: Computing) -> None:
        if self.timed:
            # Layers that are alike share their events.
            if id(computing) not in self.computing:
                self.computing[id(computing)] = sum(map(self.wire.machine.seconds, computing.operations), 0.0)
            self.spend("compute", self.computing[id(computing)])

    def move(self, nbytes: float) -> None:
        """Read and write so many bytes, by an operation of the engine."""
        if self.timed:
            self.spend("compute", self.wire.machine.seconds(Operation("memory", 0, round(nbytes))))

    def carry(self, name: str, numel: int, itemsize: int) -> float:
        """A collective takes the wire when it is free; when it ends."""
        local, seconds = (price(name, numel, itemsize) for price in (self.wire.local_seconds, self.wire.seconds))
        self.spend("compute", local)
        self.lane = max(self.lane, self.now) + seconds
        self.carried += local + seconds
        return self.lane

    def read(self, unit: UnitState) -> float:
        """A unit's shard comes from the disk, unless it is on its way; when it is there."""
        if unit.read is None:
            self.disk = unit.read = max(self.disk, self.now) + unit.shard_bytes / self.wire.machine.disk
        return unit.read

    def fetch(self, unit: UnitState) -> None:
        """A unit's shard comes to the device from where it is kept."""
        if self.places.parameters == "device":
            return
        if self.places.parameters == "disk":
            self.until(self.read(unit), "offload")
            unit.read = None
        self.spend("offload", unit.shard_bytes / self.wire.machine.host)

    # Units.

    def on_hook(self, event: HookEvent, in_backward: bool) -> None:
        unit = self.units[self.owner[event.module]]
        if event.what == "gradient":
            self.gradient(unit.buckets[self.layout.slots[event.module][event.parameter]])
        elif self.stage < 3:
            return
        elif event.what == "pre_forward":
            if not in_backward:
                self.make_room(unit)
            self.gather(unit)
            if not in_backward:
                self.ahead(self.owner[event.module + 1 :])
        elif event.what == "post_forward":
            unit.ran += 1
            if unit.ran % unit.modules == 0:
                following = [self.units[at] for at in self.owner[event.module + 1 :]]
                unit.kept = self.limits.keeps(unit, following, attrgetter("numel"))
                if not unit.kept:
                    self.release(unit)
        elif event.what == "pre_backward":
            for number in self.owner[event.module + 1 : event.module + 2]:
                if self.owner.index(number) > event.module:
                    self.release(self.units[number])
            self.gather(unit)
            self.ahead(self.owner[: event.module][::-1])

    def ahead(self, owners: Sequence[int]) -> None:
        """Prefetch units that come next."""
        if not self.prefetch:
            return
        coming = [self.units[at] for at in owners]
        for unit in coming[: self.limits.ahead(((unit.numel, unit.here) for unit in coming), self.here())]:
            self.fill(unit)
        if self.places.parameters == "disk" and len(coming) > 1 and not coming[1].here:
            self.read(coming[1])

    def here(self) -> int:
        """Elements of units that are here, or on their way."""
        return sum(unit.numel for unit in self.units if unit.here) if self.limits.live_numel is not None else 0

    def make_room(self, unit: UnitState) -> None:
        if not unit.here and not self.limits.has_room(self.here(), unit.numel):
            for other in self.units:
                if other.kept:
                    self.release(other)

    def fill(self, unit: UnitState) -> None:
        if not unit.here:
            unit.here = True
            self.add("gathered_units", unit.nbytes)
            self.fetch(unit)
            self.spend("compute", self.wire.machine.per_unit_overhead)
            ends = [self.carry("all_gather", plan.layout.numel, plan.itemsize) for plan in unit.gathered]
            self.queue.append(SimulatedCollective(unit, 0, max(ends, default=self.now)))

    def gather(self, unit: UnitState) -> None:
        self.fill(unit)
        self.wait(unit)

    def release(self, unit: UnitState) -> None:
        unit.kept = False
        if unit.here:
            if self.timed:
                # A gather that nobody came for still writes.
                self.wait(unit)
            unit.here = False
            self.add("gathered_units", -unit.nbytes)

    def release_all(self, but_kept: bool = False) -> None:
        for unit in self.units:
            if not (but_kept and unit.kept):
                self.release(unit)

    # Gradients.

    def gradient(self, bucket: BucketState) -> None:
        # It is copied to its slot, or added to what is there.
        share = bucket.plan.layout.numel * self.widths.grads / len(bucket.plan.layout.slots)
        self.move(share * (3 if bucket.opened and not self.reducing else 2))
        if not bucket.opened:
            bucket.opened = True
            stays = self.stage < 2 and not bucket.summed and len(set(self.widths)) == 1
            bucket.local = 0 if stays else kept(bucket.plan, width=self.widths.grads)
            self.add("gradient_buffers", bucket.local)
        bucket.missing -= 1
        while self.reducing and self.next < len(self.order) and not self.order[self.next].missing:
            self.start(self.order[self.next])

    def start(self, bucket: BucketState) -> None:
        plan, widths = bucket.plan, self.widths
        if widths.reduce != widths.grads:
            self.move(plan.layout.numel * (widths.reduce + widths.grads))
        if bucket.local and len(self.in_flight) >= IN_FLIGHT:
            self.collect()
        if widths.reduce != widths.grads:
            wide = kept(plan, width=widths.reduce)
            self.add("gradient_buffers", wide)
            self.add("gradient_buffers", -bucket.local)
            bucket.local = wide
        if self.stage >= 2 and (bucket.summed or self.on_host or widths.reduce != widths.main_grads):
            bucket.result = kept(plan, sharded=True, width=widths.reduce)
            self.add("communication_buffers", bucket.result)
        self.in_flight.append(bucket)
        self.spend("compute", self.wire.machine.per_unit_overhead)
        end = self.carry(self.collective, plan.layout.numel, widths.reduce)
        self.queue.append(SimulatedCollective(bucket, ring_scratch(plan) * widths.reduce // plan.itemsize, end))
        if not self.overlap:
            self.until(end, "reduce")
        self.next += 1

    def wait(self, what: UnitState | BucketState) -> None:
        """Return once the call of a unit or of a bucket has ended. Calls run one after the other; once anybody waits,
        the next one begins."""
        while any(call.what is what for call in self.queue):
            self.run_first()
            call = self.queue.popleft()
            self.add("communication_buffers", -call.scratch)
            if call.what is what:
                self.until(call.end, "gather" if isinstance(what, UnitState) else "reduce")
        self.run_first()

    def run_first(self) -> None:
        if self.queue and not self.queue[0].runs:
            self.queue[0].runs = True
            self.add("communication_buffers", self.queue[0].scratch)

    def collect(self) -> None:
        bucket = self.in_flight.popleft()
        layout = bucket.plan.layout
        self.wait(bucket)
        shard = layout.numel if self.stage == 0 else layout.shard_numel
        if self.on_host:
            self.spend("offload", shard * self.widths.main_grads / self.wire.machine.host)
        elif bucket.result or bucket.summed:
            self.move(shard * (self.widths.reduce + 2 * self.widths.main_grads))
        self.add("communication_buffers", -bucket.result)
        self.add("gradient_buffers", -bucket.local)
        bucket.local, bucket.result, bucket.opened, bucket.summed = 0, 0, False, True

    # The step.

    def optimizer_step(self, step_buffers: int) -> None:
        """All gradients are reduced; what the optimizer needs at hand comes."""
        self.part = "optimizer step"
        self.add("step_buffers", step_buffers)

    def finish(self, step: StepBytes, clips: bool) -> None:
        """The time of the norm, of the optimizer's step, and of new parameters to everybody."""
        machine = self.wire.machine
        if clips:
            self.move(step.gradients)
            self.until(self.carry("all_gather", self.wire.ranks, 8), "norm")
        clipped = step.clipped if clips else 0.0
        if not self.on_host:
            if clips:
                self.move(clipped)
            rate = machine.optimizer or machine.memory
            self.spend("optimizer", step.calls * machine.overhead + rate.seconds(step.touched))
        else:
            on_host = (step.touched + clipped) / machine.host_step
            on_disk = step.swapped / machine.disk if self.places.optimizer == "disk" else 0.0
            self.spend("offload", max(on_host, on_disk) + step.published / machine.host)
        if self.stage >= 1:
            for bucket in self.order[::-1]:
                plan = bucket.plan
                if self.stage < 3 or plan.persistent:
                    self.spend("compute", self.wire.machine.per_unit_overhead)
                    self.carry("all_gather", plan.layout.numel, plan.itemsize)
            self.until(self.lane, "publish")
