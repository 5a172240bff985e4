"""The optimizer step over what one rank owns, wherever that rests and in whatever dtype.

    at rest    main parameters (master weights) and moments: in their storage format (`zerolab/offload/formats.py`), on
               the device, the host or a disk
    at hand    transient: a sub-group of them in fp32, with its gradients, where the step is computed

A step brings one sub-group after the other to hand, gives it its gradients, lets torch's optimizer update it, writes
the new parameters to the rank's shard and puts the states back to rest. Where states rest as the step uses them, all
sub-groups are at hand all the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from zerolab.flat.values import address
from zerolab.gpu import door
from zerolab.memory import StateSize
from zerolab.memory.kinds import state_tensors
from zerolab.offload.copies import Copies
from zerolab.offload.formats import StorageFormat, format_of, sub_group_limit
from zerolab.offload.groups import sub_groups
from zerolab.offload.lane import Lane
from zerolab.precision.codec import Codec
from zerolab.precision.recipe import Precision
from zerolab.ranks.pages import hand_back
from zerolab.zero import optimizer as optimizers
from zerolab.zero.in_parts import StepInParts
from zerolab.zero.stage import Stage
from zerolab.zero.units import Bucket


class StoredState(NamedTuple):
    """One state of a segment as it rests: its name ("main", "exp_avg", ...), its codec, and its bytes (uint8, on the
    device or the host)."""

    segment: ShardSegment
    name: str
    codec: Codec
    raw: torch.Tensor


@dataclass(eq=False)
class ShardSegment:
    """What torch's optimizer updates as one tensor: the elements `[start, stop)` of this rank's shard of a bucket.

    group   the optimizer's options for its parameters
    format  how its states are stored
    tensor  its main parameters while they are at hand, else without elements
    gaps    the padding in it, as ranges of its elements
    """

    bucket: Bucket
    group: Any
    start: int
    stop: int
    format: StorageFormat
    tensor: torch.Tensor
    gaps: list[tuple[int, int]]

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def part(self, flat: torch.Tensor) -> torch.Tensor:
        """This segment of a tensor as long as the rank's shard of the bucket."""
        return flat[self.start : self.stop]


class OptimizerStep:
    """The step where states rest in memory as it uses them; `EncodedStep` and `DiskStep` are the other two ways."""

    stays = True
    """Whether main parameters keep their memory after the step of their sub-group, so that a copy may still read it."""
    hand: Sequence[ShardSegment] = ()
    """The sub-group that is stepped now: only its segments have gradients and decoded states at this moment."""

    def __init__(
        self,
        stage: Stage,
        buckets: Sequence[Bucket],
        factory: optimizers.Factory,
        precision: Precision | None,
        state_size: StateSize,
    ) -> None:
        self.stage = stage
        self.device = stage.comm.device if stage.offload.optimizer == "device" else torch.device("cpu")
        self.groups = cut_segments(stage, buckets, precision, state_size, self.device)
        self.segments = [segment for group in self.groups for segment in group]
        self.prepare()
        for group in self.groups:
            self.begin(group)
        for bucket in buckets:
            bucket.initial = None
        # What the whole model took does not come again.
        hand_back()
        in_order = [group for bucket in buckets if bucket.trainable for group in bucket.plan.groups]
        tensors = [(segment.group, segment.tensor) for segment in self.segments]
        self.optimizer = optimizers.build(factory, in_order, tensors)
        self._parts = StepInParts(self.optimizer)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update all parameters with their gradients, times `factor`."""
        self._parts.begin(len(self.groups))
        # A rank that owns no parameters steps its optimizer, too: learning-rate schedulers count the steps.
        for group in self.at_hand() if self.groups else [[]]:
            self.hand = group
            gradients = self._gradients(group)
            if gradients and factor != 1.0:
                torch._foreach_mul_(gradients, factor)
            for segment in reversed(group):
                # The list gives its reference up, so that the gradient's memory is free before the next sub-group's.
                segment.tensor.grad = gradients.pop()
            with self._parts.only([segment.tensor for segment in group]):
                self.optimizer.step()
            for segment in group:
                segment.tensor.grad = None
                target = segment.part(self.stage.store.open(segment.bucket))
                if address(target) != address(segment.tensor):
                    self._put(target, segment.tensor)
        self._parts.end()
        self.hand = ()
        self.stage.store.flush()

    # Where states rest: three ways.

    def prepare(self) -> None:
        """Before the first `begin`."""

    def begin(self, group: list[ShardSegment]) -> None:
        """Make the main parameters of a group from the parameters."""
        for segment in group:
            source = self.initial(segment)
            if segment.format.main is None:
                # `data` has a count of writes of its own (`owned.py`).
                segment.tensor = segment.part(self._kept(segment.bucket)).data
            else:
                segment.tensor = self._main_memory(segment, segment.format.main.dtype).copy_(source)

    def at_hand(self) -> Iterable[list[ShardSegment]]:
        """The sub-groups, each at hand until the next is asked for."""
        return self.groups

    def resting(self) -> list[torch.Tensor]:
        """States that rest in memory, for the ledger."""
        main = [segment.tensor for segment in self.segments if segment.format.main is not None]
        return [*main, *state_tensors(self.optimizer)]

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

    def counters(self, segment: ShardSegment) -> dict[str, Any]:
        """What the optimizer keeps of a segment beside its long states: the step counter. Empty before its first
        step."""
        state = self.optimizer.state.get(segment.tensor, {})
        return {name: value for name, value in state.items() if name not in segment.format.states}

    def has_begun(self, segment: ShardSegment) -> bool:
        """Whether the optimizer has made its long states for a segment."""
        return segment.format.states.keys() <= self.optimizer.state.get(segment.tensor, {}).keys()

    def go_on(self, segment: ShardSegment, counters: dict[str, Any]) -> None:
        """Have states for a segment as after some steps, of which `counters` are known. The long ones are zero until
        they are written (`stored`)."""
        long = {name: torch.zeros_like(segment.tensor) for name in segment.format.states}
        self.optimizer.state[segment.tensor] = {**counters, **long}

    def forget(self) -> None:
        """When a step ends half-way: let go what it had begun."""
        for segment in self.segments:
            segment.tensor.grad = None

    def disk_bytes(self) -> int:
        """Bytes of states on the disk, as the file system has them."""
        return 0

    @property
    def lanes(self) -> list[Lane]:
        """What moves states to and from a disk."""
        return []

    def close(self) -> None:
        """Let go what outlives tensors."""

    # Helpers.

    def initial(self, segment: ShardSegment) -> torch.Tensor:
        """The parameters of a segment as the model had them."""
        bucket = segment.bucket
        return segment.part(self._kept(bucket) if bucket.initial is None else bucket.initial)

    def _main_memory(self, segment: ShardSegment, dtype: torch.dtype) -> torch.Tensor:
        """Memory for main parameters on the step's device: on the host page-locked only if a GPU's shard is copied from
        them as they are (`Copies.put`)."""
        shard = segment.bucket.shard
        if self.stage.offload.optimizer != "device" and door.holds(shard) and shard.dtype == dtype:
            return self.stage.host_memory(segment.numel, dtype)
        return torch.empty(segment.numel, dtype=dtype, device=self.device)

    def _kept(self, bucket: Bucket) -> torch.Tensor:
        """What this rank updates of the parameters."""
        return self.stage.store.open(bucket)

    def _gradients(self, group: list[ShardSegment]) -> list[torch.Tensor]:
        """The gradients of a sub-group for the step, on its device and in its dtype."""
        copies = self.stage.store.copies
        if copies is None or self.stage.shards_gradients or not group:
            return [self._reduced(segment).to(self.device, segment.format.step_dtype) for segment in group]
        if group is self.groups[0]:
            self._arriving = self._bring(copies)
        arrived = next(self._arriving)
        return [arrived.pop(0).to(segment.format.step_dtype) for segment in group]

    def _reduced(self, segment: ShardSegment) -> torch.Tensor:
        return segment.part(segment.bucket.gradients.for_step(self.stage.shard_rank))

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

    def _put(self, target: torch.Tensor, values: torch.Tensor) -> None:
        """Write new parameters to where they rest."""
        copies = self.stage.store.copies
        if copies is None:
            target.copy_(values)
        else:
            copies.put(target, values, self.stays)


def cut_segments(
    stage: Stage,
    buckets: Sequence[Bucket],
    precision: Precision | None,
    state_size: StateSize,
    device: torch.device,
) -> list[list[ShardSegment]]:
    """What this rank updates, by sub-groups: its shards' segments, or all of them at stage 0."""
    rank = stage.shard_rank

    def runs() -> Iterator[Any]:
        for number, bucket in enumerate(buckets):
            for run in bucket.plan.segments(rank):
                yield number, run, bucket.layout.align

    groups = []
    for parts in sub_groups(runs(), sub_group_limit(precision, stage.offload)):
        group = []
        for number, run in parts:
            bucket = buckets[number]
            offset = 0 if rank is None else bucket.layout.shard(rank)[0]
            form = format_of(bucket.dtype, precision, stage.offload, state_size.names, bucket.persistent)
            nothing = torch.empty(0, dtype=form.step_dtype, device=device)
            start, stop = run.start - offset, run.stop - offset
            inside = ((max(a, run.start), min(b, run.stop)) for a, b in bucket.layout.gaps())
            gaps = [(a - run.start, b - run.start) for a, b in inside if a < b]
            group.append(ShardSegment(bucket, run.group, start, stop, form, nothing, gaps))
        groups.append(group)
    return groups
