"""One step, replayed moment by moment in integers: what is alive besides the states, and when that is most.

Forward and backward come from a trace (`trace.py`); what the engine does at each of its marks is done here on numbers:

    gathers, prefetches and releases units at stage 3              zero/schedule.py, zero/units.py
    opens a bucket's gradients, reduces them, lets them go         zero/reducer.py, zero/bucket.py
    brings states and gradients to hand for the optimizer          zero/tiers/

Buffers of collectives are those of our rings; NCCL has its own, which torch's allocator does not see.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from zerolab.apps.plan.layout import RunLayout
from zerolab.apps.plan.trace import Computing, Mark, Swing, Trace
from zerolab.flat import BucketPlan
from zerolab.memory.predict import kept, ring_scratch
from zerolab.zero.limits import NO_LIMITS, Stage3Limits
from zerolab.zero.reducer import IN_FLIGHT


class StepMoment(NamedTuple):
    """The bytes of a moment by kind, beside the states, and where in a step it is, such as "backward of unit 3"."""

    where: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


class Widths(NamedTuple):
    """Bytes of a value in the gradients of a rank alone, as they travel, and as they are kept."""

    grads: int
    reduce: int
    main_grads: int


@dataclass(eq=False)
class BucketState:
    """A bucket during a step: its gradients' bytes while they wait, and how many of its parameters have brought one."""

    plan: BucketPlan
    missing: int = 0
    local: int = 0
    result: int = 0
    opened: bool = False
    summed: bool = False


@dataclass(eq=False)
class UnitState:
    """A unit during a step: how many modules it has, and what keeps it here (as in `zerolab.zero.units.Unit`)."""

    buckets: list[BucketState]
    modules: int
    here: bool = False
    ran: int = 0
    kept: bool = False

    @property
    def gathered(self) -> list[BucketPlan]:
        return [bucket.plan for bucket in self.buckets if not bucket.plan.persistent]

    @property
    def nbytes(self) -> int:
        return sum(map(kept, self.gathered))

    @property
    def numel(self) -> int:
        return sum(plan.layout.numel for plan in self.gathered)


@dataclass(eq=False)
class CallOnPaper:
    """A collective on its way: whose it is, the bytes that it receives into, whether it has begun, and when it ends
    (seconds; `clock.py`)."""

    what: UnitState | BucketState
    scratch: int = 0
    runs: bool = False
    end: float = 0.0


class Replay:
    """A rank's step on numbers.

    layout    the units, and what of them belongs to which module of the trace
    stage     3: units are gathered; 2 and 3: gradients are sharded
    on_host   the optimizer, and with it sharded gradients, rest on the host
    limits    what stays, comes ahead and is kept at stage 3
    live      bytes by kind that are there all the time: the states
    tops      the highest moment of each part of a step
    """

    def __init__(
        self,
        layout: RunLayout,
        stage: int,
        widths: Widths,
        prefetch: bool = True,
        on_host: bool = False,
        live: Mapping[str, int] = {},
        limits: Stage3Limits = NO_LIMITS,
    ) -> None:
        modules = Counter(layout.owner)
        self.units = [
            UnitState(list(map(BucketState, plans)), modules[number]) for number, plans in enumerate(layout.units)
        ]
        self.owner, self.slots = layout.owner, layout.slots
        self.stage, self.widths, self.prefetch, self.on_host = stage, widths, prefetch, on_host
        self.limits = limits
        self.live = {"activations": 0, "other": 0, **live}
        self.total = sum(self.live.values())
        self.tops: dict[str, StepMoment] = {}
        self.highest: dict[str, int] = {}
        self.order = [
            bucket for unit in reversed(self.units) for bucket in reversed(unit.buckets) if bucket.plan.trainable
        ]
        self.in_flight: deque[BucketState] = deque()
        self.queue: deque[CallOnPaper] = deque()
        self.part = ""

    def micro_batch(self, trace: Trace, reduce: bool) -> None:
        self.next, self.reducing, in_backward = 0, reduce, False
        for bucket in self.order:
            bucket.missing = len(bucket.plan.layout.slots)
        for unit in self.units:
            unit.ran = 0
        for part in trace.parts:
            if part.phase == "backward" and not in_backward:
                in_backward = True
                self.release_all(but_kept=True)
            self.part = f"{part.phase} {part.module}"
            for event in part.events:
                if isinstance(event, Swing):
                    self.swing(event)
                elif isinstance(event, Computing):
                    self.compute(event)
                else:
                    self.hear(event, in_backward)
        self.part = "end of backward"
        self.release_all()
        if reduce:
            while self.next < len(self.order):
                self.start(self.order[self.next])
            while self.in_flight:
                self.collect()

    def optimizer_step(self, step_buffers: int) -> None:
        """All gradients are reduced; what the optimizer needs at hand comes and goes."""
        self.part = "optimizer step"
        self.add("step_buffers", step_buffers)
        self.add("step_buffers", -step_buffers)

    # Memory.

    def add(self, kind: str, nbytes: int) -> None:
        self.live[kind] = self.live.get(kind, 0) + nbytes
        self.total += nbytes
        self.note(0, 0)

    def swing(self, swing: Swing) -> None:
        self.note(*swing.top)
        activations, other = swing.end
        self.live["activations"] += activations
        self.live["other"] += other
        self.total += activations + other

    def note(self, activations: int, other: int) -> None:
        """This moment, with so much on top, if it is its part's highest."""
        total = self.total + activations + other
        if total > self.highest.get(self.part, -1):
            self.highest[self.part] = total
            live = dict(self.live)
            live["activations"] += activations
            live["other"] += other
            self.tops[self.part] = StepMoment(self.part, live)

    # Time, which `clock.py` has.

    def compute(self, computing: Computing) -> None:
        """The device computes."""

    def issue(self, call: CallOnPaper) -> None:
        """A collective goes onto the lane."""
        self.queue.append(call)

    # What the engine does.

    def hear(self, mark: Mark, in_backward: bool) -> None:
        unit = self.units[self.owner[mark.module]]
        if mark.what == "gradient":
            self.gradient(unit.buckets[self.slots[mark.module][mark.parameter]])
        elif self.stage < 3:
            return
        elif mark.what == "enter":
            if not in_backward:
                self.make_room(unit)
            self.gather(unit)
            if not in_backward:
                self.ahead(self.owner[mark.module + 1 :])
        elif mark.what == "leave":
            unit.ran += 1
            if unit.ran % unit.modules == 0:
                following = [self.units[at] for at in self.owner[mark.module + 1 :]]
                unit.kept = self.limits.keeps(unit, following, attrgetter("numel"))
                if not unit.kept:
                    self.release(unit)
        elif mark.what == "return":
            for number in self.owner[mark.module + 1 : mark.module + 2]:
                if self.owner.index(number) > mark.module:
                    self.release(self.units[number])
            self.gather(unit)
            self.ahead(self.owner[: mark.module][::-1])

    def ahead(self, owners: Sequence[int]) -> None:
        """Gather some of the units that come next."""
        if self.prefetch:
            coming = [self.units[at] for at in owners]
            for unit in coming[: self.limits.ahead(((unit.numel, unit.here) for unit in coming), self.here())]:
                self.fill(unit)

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
            self.issue(CallOnPaper(unit))

    def gather(self, unit: UnitState) -> None:
        self.fill(unit)
        self.wait(unit)

    def release(self, unit: UnitState) -> None:
        unit.kept = False
        if unit.here:
            unit.here = False
            self.add("gathered_units", -unit.nbytes)

    def release_all(self, but_kept: bool = False) -> None:
        for unit in self.units:
            if not (but_kept and unit.kept):
                self.release(unit)

    # Gradients.

    def gradient(self, bucket: BucketState) -> None:
        if not bucket.opened:
            bucket.opened = True
            stays = self.stage < 2 and not bucket.summed and len(set(self.widths)) == 1
            bucket.local = 0 if stays else kept(bucket.plan, width=self.widths.grads)
            self.add("gradient_buffers", bucket.local)
        bucket.missing -= 1
        while self.reducing and self.next < len(self.order) and not self.order[self.next].missing:
            self.start(self.order[self.next])

    def start(self, bucket: BucketState) -> None:
        if bucket.local and len(self.in_flight) >= IN_FLIGHT:
            self.collect()
        if self.widths.reduce != self.widths.grads:
            wide = kept(bucket.plan, width=self.widths.reduce)
            self.add("gradient_buffers", wide)
            self.add("gradient_buffers", -bucket.local)
            bucket.local = wide
        if self.stage >= 2 and (bucket.summed or self.on_host or self.widths.reduce != self.widths.main_grads):
            bucket.result = kept(bucket.plan, sharded=True, width=self.widths.reduce)
            self.add("communication_buffers", bucket.result)
        self.in_flight.append(bucket)
        scratch = ring_scratch(bucket.plan) * self.widths.reduce // bucket.plan.itemsize
        self.issue(CallOnPaper(bucket, scratch))
        self.next += 1

    def wait(self, what: UnitState | BucketState) -> None:
        """Return once the call of a unit or of a bucket has ended: calls run one after the other, and once anybody
        waits the lane goes on to the next one, beside what is computed."""
        while any(call.what is what for call in self.queue):
            self.run_first()
            call = self.queue.popleft()
            self.add("communication_buffers", -call.scratch)
        self.run_first()

    def run_first(self) -> None:
        if self.queue and not self.queue[0].runs:
            self.queue[0].runs = True
            self.add("communication_buffers", self.queue[0].scratch)

    def collect(self) -> None:
        bucket = self.in_flight.popleft()
        self.wait(bucket)
        self.add("communication_buffers", -bucket.result)
        self.add("gradient_buffers", -bucket.local)
        bucket.local, bucket.result, bucket.opened, bucket.summed = 0, 0, False, True
