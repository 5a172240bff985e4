"""One step of one rank on numbers: what is alive, when that is most, and how long it takes.

Forward and backward come from a trace; what the engine does at each of its hooks is done here:

    gathers, prefetches and releases units at stage 3              zero/schedule.py, zero/units.py
    opens a bucket's gradients, reduces them, lets them go         zero/reducer.py, zero/bucket.py
    brings states and gradients to hand for the optimizer          zero/stored_step.py

Buffers of collectives are those of our rings.

With a `Machine` there is a clock, too. Three lanes: the device computes, collectives run one after the other in the
order of issue, and states come from the host or a disk.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import NamedTuple

from zerolab.apps.cost import Machine, Network
from zerolab.apps.cost.machine import Operation, constant_rate
from zerolab.apps.plan.layout import layout_of
from zerolab.apps.plan.trace import HookEvent, TracedPart, dtype_of, trace_layers, work_of
from zerolab.collectives import Link
from zerolab.flat import BucketPlan
from zerolab.memory.predict import kept, ring_scratch
from zerolab.memory.states import ADAM
from zerolab.offload.formats import format_of
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec
from zerolab.zero.reducer import IN_FLIGHT

SHOWN = 3
"""Of more micro-batches, those between are taken to be alike."""
NO_TIME = Machine("no time", {}, constant_rate(inf))


def sharding_stage(run: RunSpec) -> int:
    """The stage whose rules the engine follows: one rank has nothing to shard, so it copies nothing, unless parameters
    rest elsewhere or are cast when they are gathered."""
    alone = run.sharing == 1 and not run.places.moves and not (run.dtypes or Precision()).sharded_main
    return 0 if alone else run.stage


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
    """A unit during a step, and when its shard will have been read from the disk."""

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


class SimulatedCollective(NamedTuple):
    """A collective on its way, the bytes that it receives into, and when it ends."""

    what: UnitState | BucketState
    scratch: int
    end: float


@dataclass(eq=False)
class StepSimulator:
    """A rank's step on numbers.

    live     bytes by kind that are there all the time: the states
    machine  what computes; without it there is no clock
    network  what is between ranks; None: collectives take what the machine says
    overlap  reductions run while backward goes on

    It finds the most bytes of each part of a step (`tops`), the seconds since it began (`now`), and those in which
    collectives ran (`carried`). A processor that carries messages does not compute meanwhile.
    """

    run: RunSpec
    live: dict[str, int] = field(default_factory=dict)
    machine: Machine = NO_TIME
    network: Network | Link | None = None
    overlap: bool = True

    def __post_init__(self) -> None:
        run, recipe = self.run, self.run.dtypes or Precision()
        self.layout, self.stage, self.places = layout_of(run), sharding_stage(run), run.places
        self.owner, self.limits = self.layout.owner, run.limits.on(run.on_gpus)
        # Bytes of a gradient as backward leaves it, as it travels, and as it is kept.
        states = ("grads", "reduce", "main_grads")
        self.local_width, self.wire_width, self.kept_width = (recipe.itemsize(state) for state in states)
        modules = Counter(self.owner)
        self.units = [
            UnitState([*map(BucketState, plans)], modules[number]) for number, plans in enumerate(self.layout.units)
        ]
        self.order = [
            bucket for unit in reversed(self.units) for bucket in reversed(unit.buckets) if bucket.plan.trainable
        ]
        self.on_host = self.places.optimizer != "device"
        whole = self.stage == 0 or (self.stage == 1 and run.reduction == "all_reduce")
        self.collective = "all_reduce" if whole else "reduce_scatter"
        self.in_flight: deque[BucketState] = deque()
        self.queue: deque[SimulatedCollective] = deque()
        self.first_runs = False
        self.here = 0
        # Memory.
        self.part = ""
        self.live = {"activations": 0, "other": 0, **self.live}
        self.total = sum(self.live.values())
        self.tops: dict[str, tuple[int, dict[str, int]]] = {}
        # Time.
        self.timed = self.machine is not NO_TIME
        self.now, self.lane, self.disk, self.carried = 0.0, 0.0, 0.0, 0.0
        self.time_breakdown: dict[str, float] = defaultdict(float)
        self.computing: dict[int, float] = {}

    def run_micro_batches(self) -> None:
        """Forward and backward of a step's micro-batches."""
        run, trace = self.run, trace_layers(self.run.architecture, work_of(self.run))
        shown = min(run.micro_batches, SHOWN)
        for number in range(shown):
            before, spent, carried = self.now, dict(self.time_breakdown), self.carried
            self.run_micro_batch(trace, reduce=not run.defer_reduction or number == shown - 1)
            if number == 1 and (more := run.micro_batches - shown):
                taken = self.now - before
                self.lane, self.disk = self.lane + more * taken, self.disk + more * taken
                self.now += more * taken
                self.carried += more * (self.carried - carried)
                for what, seconds in self.time_breakdown.items():
                    self.time_breakdown[what] = seconds + more * (seconds - spent.get(what, 0.0))

    def run_micro_batch(self, trace: Sequence[TracedPart], reduce: bool) -> None:
        self.next, self.reducing, in_backward = 0, reduce, False
        last = self.run.architecture.layers + 1
        names = {
            "forward": {0: "the embedding", last: "the head and the loss"},
            "backward": {0: "the embedding", last: "the loss and the head"},
        }
        for bucket in self.order:
            bucket.missing = len(bucket.plan.layout.slots)
        for unit in self.units:
            unit.ran = 0
        for part in trace:
            if part.phase == "backward" and not in_backward:
                in_backward = True
                self.release_all(lambda unit: not unit.kept)
            self.part = f"{part.phase} of {names[part.phase].get(part.module, f'layer {part.module}')}"
            for event in part.events:
                self.follow(event)
                self.on_hook(event, in_backward)
        self.part = "end of backward"
        self.release_all(lambda unit: True)
        if reduce:
            while self.next < len(self.order):
                self.start_reduction(self.order[self.next])
            while self.in_flight:
                self.end_reduction()

    # Memory.

    def add(self, kind: str, nbytes: int) -> None:
        self.live[kind] = self.live.get(kind, 0) + nbytes
        self.total += nbytes
        self.note()

    def follow(self, event: HookEvent) -> None:
        """What the model itself makes, lets go and computes."""
        if event.top is not None:
            self.note(*event.top)
            activations, other = event.end
            self.live["activations"] += activations
            self.live["other"] += other
            self.total += activations + other
        if self.timed and event.operations:
            # Layers that are alike share their operations.
            key = id(event.operations)
            if key not in self.computing:
                self.computing[key] = sum(map(self.machine.seconds, event.operations), 0.0)
            self.spend("compute", self.computing[key])

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

    def wait_until(self, moment: float, what: str) -> None:
        self.spend(what, max(0.0, moment - self.now))

    def move(self, nbytes: float) -> None:
        """Read and write so many bytes, by an operation of the engine."""
        if self.timed:
            self.spend("compute", self.machine.seconds(Operation("memory", 0, round(nbytes))))

    def carry(self, name: str, numel: int, itemsize: int) -> float:
        """A collective takes the wire when it is free; when it ends."""
        local = seconds = 0.0
        if (ranks := self.run.ranks) > 1:
            local = self.machine.local_seconds(name, numel * itemsize)
            seconds = 0.0 if self.network is None else self.network.ring_seconds(name, numel, itemsize, ranks)
        self.spend("compute", local)
        self.lane = max(self.lane, self.now) + seconds
        self.carried += local + seconds
        return self.lane

    def read_shard(self, unit: UnitState) -> float:
        """When a unit's shard has come from the disk; it may be on its way."""
        if unit.read is None:
            self.disk = unit.read = max(self.disk, self.now) + unit.shard_bytes / self.machine.disk
        return unit.read

    def fetch_shard(self, unit: UnitState) -> None:
        """A unit's shard comes to the device from where it is kept."""
        if self.places.parameters == "device":
            return
        if self.places.parameters == "disk":
            self.wait_until(self.read_shard(unit), "offload")
            unit.read = None
        self.spend("offload", unit.shard_bytes / self.machine.host)

    # Units.

    def on_hook(self, event: HookEvent, in_backward: bool) -> None:
        unit = self.units[self.owner[event.module]]
        if event.hook == "gradient":
            self.take_gradient(unit.buckets[self.layout.slots[event.module][event.parameter]])
        if self.stage < 3 or event.hook in ("", "gradient"):
            return
        before, after = self.owner[: event.module][::-1], self.owner[event.module + 1 :]
        if event.hook == "post_forward":
            unit.ran += 1
            if unit.ran % unit.modules == 0:
                unit.kept = self.limits.keeps(unit, [self.units[at] for at in after], attrgetter("numel"))
                if not unit.kept:
                    self.release(unit)
            return
        goes_back = event.hook == "pre_backward"
        if goes_back and after and after[0] not in before:
            self.release(self.units[after[0]])
        if not in_backward and not unit.here and not self.limits.has_room(self.here, unit.numel):
            self.release_all(attrgetter("kept"))
        self.fill(unit)
        self.wait(unit)
        if self.run.prefetch and (goes_back or not in_backward):
            self.prefetch([self.units[at] for at in (before if goes_back else after)])

    def prefetch(self, coming: Sequence[UnitState]) -> None:
        for unit in coming[: self.limits.ahead(((unit.numel, unit.here) for unit in coming), self.here)]:
            self.fill(unit)
        if self.places.parameters == "disk" and len(coming) > 1 and not coming[1].here:
            self.read_shard(coming[1])

    def fill(self, unit: UnitState) -> None:
        if not unit.here:
            unit.here = True
            self.here += unit.numel
            self.add("gathered_units", unit.nbytes)
            self.fetch_shard(unit)
            self.spend("compute", self.machine.per_unit_overhead)
            ends = [self.carry("all_gather", plan.layout.numel, plan.itemsize) for plan in unit.gathered]
            self.queue.append(SimulatedCollective(unit, 0, max(ends, default=self.now)))

    def release(self, unit: UnitState) -> None:
        unit.kept = False
        if unit.here:
            if self.timed:
                # A gather that nobody came for still writes.
                self.wait(unit)
            unit.here = False
            self.here -= unit.numel
            self.add("gathered_units", -unit.nbytes)

    def release_all(self, chosen: Callable[[UnitState], bool]) -> None:
        for unit in filter(chosen, self.units):
            self.release(unit)

    # Gradients.

    def take_gradient(self, bucket: BucketState) -> None:
        # It is copied to its slot, or added to what is there.
        share = bucket.plan.layout.numel * self.local_width / len(bucket.plan.layout.slots)
        self.move(share * (3 if bucket.opened and not self.reducing else 2))
        if not bucket.opened:
            bucket.opened = True
            stays = self.stage < 2 and not bucket.summed and self.local_width == self.wire_width == self.kept_width
            bucket.local = 0 if stays else kept(bucket.plan, width=self.local_width)
            self.add("gradient_buffers", bucket.local)
        bucket.missing -= 1
        while self.reducing and self.next < len(self.order) and not self.order[self.next].missing:
            self.start_reduction(self.order[self.next])

    def start_reduction(self, bucket: BucketState) -> None:
        plan, local, wire = bucket.plan, self.local_width, self.wire_width
        if wire != local:
            self.move(plan.layout.numel * (wire + local))
        if bucket.local and len(self.in_flight) >= IN_FLIGHT:
            self.end_reduction()
        if wire != local:
            wide = kept(plan, width=wire)
            self.add("gradient_buffers", wide)
            self.add("gradient_buffers", -bucket.local)
            bucket.local = wide
        if self.stage >= 2 and (bucket.summed or self.on_host or wire != self.kept_width):
            bucket.result = kept(plan, sharded=True, width=wire)
            self.add("communication_buffers", bucket.result)
        self.in_flight.append(bucket)
        self.spend("compute", self.machine.per_unit_overhead)
        end = self.carry(self.collective, plan.layout.numel, wire)
        self.queue.append(SimulatedCollective(bucket, ring_scratch(plan) * wire // plan.itemsize, end))
        if not self.overlap:
            self.wait_until(end, "reduce")
        self.next += 1

    def wait(self, what: UnitState | BucketState) -> None:
        """Until the call of a unit or of a bucket has ended. Once anybody waits, the next one begins."""
        while any(call.what is what for call in self.queue):
            self.run_first()
            who, scratch, end = self.queue.popleft()
            self.first_runs = False
            self.add("communication_buffers", -scratch)
            if who is what:
                self.wait_until(end, "gather" if isinstance(what, UnitState) else "reduce")
        self.run_first()

    def run_first(self) -> None:
        if self.queue and not self.first_runs:
            self.first_runs = True
            self.add("communication_buffers", self.queue[0].scratch)

    def end_reduction(self) -> None:
        bucket = self.in_flight.popleft()
        self.wait(bucket)
        shard = self.shard_numel(bucket.plan)
        if self.on_host:
            self.spend("offload", shard * self.kept_width / self.machine.host)
        elif bucket.result or bucket.summed:
            self.move(shard * (self.wire_width + 2 * self.kept_width))
        self.add("communication_buffers", -bucket.result)
        self.add("gradient_buffers", -bucket.local)
        bucket.local, bucket.result, bucket.opened, bucket.summed = 0, 0, False, True

    def step_optimizer(self, clips: bool) -> None:
        """The time of the norm, of AdamW's step on this rank's share, and of new parameters to everybody."""
        run, machine, grads = self.run, self.machine, self.kept_width
        numel = sum(self.shard_numel(bucket.plan) for bucket in self.order)
        form, width = format_of(dtype_of(run), run.dtypes, self.places, ADAM), dtype_of(run).itemsize
        hand, resting = form.step_dtype.itemsize, [codec.dtype.itemsize for codec in form.codecs]
        # Parameters and moments are read and written, gradients read.
        touched = hand * (2 + 2 * 2 + 1) + sum(2 * (rest + hand) for rest in resting if rest != hand)
        touched += 0 if form.main is None else hand + width
        clipped = 2 * hand * numel if clips else 0
        if clips:
            self.move(numel * grads)
            self.wait_until(self.carry("all_gather", run.ranks, 8), "norm")
        if self.on_host:
            on_disk = numel * 2 * sum(resting) / machine.disk if self.places.optimizer == "disk" else 0.0
            published = numel * width if self.places.parameters == "device" else 0
            on_host = (numel * touched + clipped) / machine.host_step
            self.spend("offload", max(on_host, on_disk) + published / machine.host)
        else:
            if clips:
                self.move(clipped)
            rate = machine.optimizer or machine.memory
            self.spend("optimizer", len(self.order) * machine.overhead + rate.seconds(numel * touched))
        if self.stage == 0:
            return
        for bucket in reversed(self.order):
            if self.stage < 3 or bucket.plan.persistent:
                self.spend("compute", machine.per_unit_overhead)
                self.carry("all_gather", bucket.plan.layout.numel, bucket.plan.itemsize)
        self.wait_until(self.lane, "publish")

    def shard_numel(self, plan: BucketPlan) -> int:
        """Elements of which this rank has gradients and states after a reduction."""
        return plan.layout.numel if self.stage == 0 else plan.layout.shard_numel
