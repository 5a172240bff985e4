"""The optimizer step where states are stored elsewhere or otherwise than it uses them, and what a checkpoint keeps.

    stored     main parameters (master weights) and moments: in their storage format (`zerolab/offload/formats.py`), on
               the device, the host or a disk
    at hand    transient: a sub-group of them in fp32, with its gradients, where the step is computed

A step brings one sub-group after the other to hand, gives it its gradients, lets torch's optimizer update it, writes
the new parameters to the rank's shard and puts the states back. Where states are stored as the step uses them, all
sub-groups are at hand all the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from zerolab.gpu import door
from zerolab.offload.copies import Copies
from zerolab.offload.formats import StateSize, StorageFormat, format_of, sub_group_limit
from zerolab.offload.groups import sub_groups
from zerolab.offload.lane import Lane
from zerolab.offload.places import Offload, host_empty
from zerolab.precision.codec import Codec
from zerolab.precision.recipe import Precision
from zerolab.ranks.pages import hand_back
from zerolab.zero.bucket import Bucket
from zerolab.zero.step import Factory, OptimizerStep, ShardSegment
from zerolab.zero.tier import DeviceTier
from zerolab.zero.tiers.in_parts import StepInParts


class StoredState(NamedTuple):
    """One state of a segment as it rests: its name ("main", "exp_avg", ...), its codec, and its bytes (uint8, on the
    device or the host)."""

    segment: StoredSegment
    name: str
    codec: Codec
    raw: torch.Tensor


@dataclass(eq=False)
class StoredSegment(ShardSegment):
    """One whose states are stored in a format. `gaps`: the padding in it, as ranges of its elements."""

    format: StorageFormat
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @property
    def dtype(self) -> torch.dtype:
        return self.format.step_dtype


class StoredStep(OptimizerStep):
    """The step where states are in memory as it uses them; `EncodedStep` and `DiskStep` are the other two ways."""

    segments: Sequence[StoredSegment]
    hand: Sequence[StoredSegment]

    def __init__(
        self,
        tier: DeviceTier,
        offload: Offload,
        buckets: Sequence[Bucket],
        factory: Factory,
        precision: Precision | None,
        state_size: StateSize,
    ) -> None:
        self.offload, self._settings = offload, (precision, state_size)
        self.device = tier.comm.device if offload.optimizer == "device" else torch.device("cpu")
        super().__init__(tier, buckets, factory)
        # What the whole model took does not come again.
        hand_back()
        self._parts = StepInParts(self.optimizer)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update all parameters with their gradients, times `factor`."""
        if not self.groups:
            # A rank that owns no parameters steps its optimizer, too: learning-rate schedulers count the steps.
            self.optimizer.step()
            return
        self._parts.begin(len(self.groups))
        super().step(factor)
        self._parts.end()

    def call(self, group: Sequence[ShardSegment]) -> None:
        with self._parts.only([segment.tensor for segment in group]):
            self.optimizer.step()

    def cut(self, buckets: Sequence[Bucket]) -> list[StoredSegment]:
        precision, state_size = self._settings
        self.groups = cut_segments(self.offload, buckets, precision, state_size, self.device)
        return [segment for group in self.groups for segment in group]

    def begin(self) -> None:
        self.prepare()
        for group in self.groups:
            self.begin_group(group)

    # Where states are stored: three ways.

    def prepare(self) -> None:
        """Before the first `begin_group`."""

    def begin_group(self, group: list[StoredSegment]) -> None:
        """Make the main parameters of a group from the parameters."""
        for segment in group:
            source = self.initial(segment)
            if segment.format.main is None:
                # `data` has a count of writes of its own (`guards/optimizer.py`).
                segment.tensor = segment.part(self._kept(segment.bucket)).data
            else:
                segment.tensor = self._main_memory(segment, segment.format.main.dtype).copy_(source)

    def at_hand(self) -> Iterable[list[StoredSegment]]:
        return self.groups

    def resting(self) -> list[torch.Tensor]:
        """States that rest in memory, for the ledger."""
        main = [segment.tensor for segment in self.segments if segment.format.main is not None]
        states = (value for state in self.optimizer.state.values() for value in state.values())
        return [*main, *(value for value in states if isinstance(value, torch.Tensor))]

    def transient(self) -> list[torch.Tensor | None]:
        """What is in memory only while a step goes on, for the ledger."""
        return [segment.tensor.grad for segment in self.hand]

    # What a checkpoint keeps.

    def stored(self, writing: bool = False) -> Iterator[list[StoredState]]:
        """All states as they rest, a sub-group at a time, each until the next is asked for. With `writing`, what is
        written to their bytes stays."""
        for group in self.groups:
            of_group = []
            for segment in group:
                state = self.optimizer.state.get(segment.tensor, {})
                named = {name: state[name] for name in segment.format.states if name in state}
                if segment.format.main is not None:
                    named["main"] = segment.tensor
                of_group += [
                    StoredState(segment, name, Codec(tensor.dtype), tensor.detach().view(torch.uint8))
                    for name, tensor in named.items()
                ]
            yield of_group

    def counters(self, segment: StoredSegment) -> dict[str, Any]:
        """What the optimizer keeps of a segment beside its long states: the step counter. Empty before its first
        step."""
        state = self.optimizer.state.get(segment.tensor, {})
        return {name: value for name, value in state.items() if name not in segment.format.states}

    def has_begun(self, segment: StoredSegment) -> bool:
        """Whether the optimizer has made its long states for a segment."""
        return segment.format.states.keys() <= self.optimizer.state.get(segment.tensor, {}).keys()

    def go_on(self, segment: StoredSegment, counters: dict[str, Any]) -> None:
        """Have states for a segment as after some steps, of which `counters` are known. The long ones are zero until
        they are written (`stored`)."""
        long = {name: torch.zeros_like(segment.tensor) for name in segment.format.states}
        self.optimizer.state[segment.tensor] = {**counters, **long}

    def disk_bytes(self) -> int:
        """Bytes of states on the disk, as the file system has them."""
        return 0

    @property
    def lanes(self) -> list[Lane]:
        """What moves states to and from a disk."""
        return []

    # Helpers.

    def _main_memory(self, segment: StoredSegment, dtype: torch.dtype) -> torch.Tensor:
        """Memory for main parameters on the step's device: on the host page-locked only if a GPU's shard is copied from
        them as they are (`Copies.put`)."""
        shard = segment.bucket.shard
        if self.offload.optimizer != "device" and door.holds(shard) and shard.dtype == dtype:
            return host_empty(segment.numel, dtype, self.comm.device)
        return torch.empty(segment.numel, dtype=dtype, device=self.device)

    def _kept(self, bucket: Bucket) -> torch.Tensor:
        """What this rank updates of the parameters."""
        return self.tier.open(bucket)

    def gradients_of(self, group: Sequence[ShardSegment]) -> list[torch.Tensor]:
        copies = getattr(self.tier, "copies", None)
        if copies is None or not group or group[0].bucket.gradients_stay_apart:
            return [self._reduced(segment).to(self.device, segment.dtype) for segment in group]
        if group is self.groups[0]:
            self._arriving = self._bring(copies)
        arrived = next(self._arriving)
        return [arrived.pop(0).to(segment.dtype) for segment in group]

    def _reduced(self, segment: ShardSegment) -> torch.Tensor:
        return segment.part(segment.bucket.for_step())

    def _bring(self, copies: Copies) -> Iterator[list[torch.Tensor]]:
        """Sub-group by sub-group, its gradients from a GPU on the host, to be taken out of the list; while one steps,
        those of the next come."""
        coming: deque[tuple[list[torch.Tensor], torch.cuda.Event | None]] = deque()
        for group in [*self.groups, []]:
            gradients, came = [], None
            for segment in group:
                reduced = self._reduced(segment)
                gradients.append(door.locked(segment.numel, reduced.dtype))
                came = copies.move(gradients[-1], reduced)
            coming.append((gradients, came))
            if len(coming) > 1:
                gradients, came = coming.popleft()
                assert came is not None
                door.finish(came)
                yield gradients


def cut_segments(
    offload: Offload,
    buckets: Sequence[Bucket],
    precision: Precision | None,
    state_size: StateSize,
    device: torch.device,
) -> list[list[StoredSegment]]:
    """What this rank updates, by sub-groups: its shards' segments, or all of them at stage 0."""

    def runs() -> Iterator[Any]:
        for number, bucket in enumerate(buckets):
            for run in bucket.plan.segments(bucket.owner):
                yield number, run, bucket.layout.align

    groups = []
    for parts in sub_groups(runs(), sub_group_limit(precision, offload)):
        group = []
        for number, run in parts:
            bucket = buckets[number]
            offset = bucket.owned[0]
            form = format_of(bucket.dtype, precision, offload, state_size.names, bucket.persistent)
            nothing = torch.empty(0, dtype=form.step_dtype, device=device)
            start, stop = run.start - offset, run.stop - offset
            inside = ((max(a, run.start), min(b, run.stop)) for a, b in bucket.layout.gaps())
            gaps = [(a - run.start, b - run.start) for a, b in inside if a < b]
            group.append(StoredSegment(bucket, run.group, start, stop, nothing, form, gaps))
        groups.append(group)
    return groups
