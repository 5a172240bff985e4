"""The optimizer step where states are stored elsewhere or otherwise than it uses them, and what a checkpoint keeps.

    stored     main parameters (master weights) and moments: in their storage format (`zerolab/offload/formats.py`), on
               the device, the host or a disk
    at hand    transient: a sub-group of them in fp32, with its gradients, where the step is computed

Where states are stored as the step uses them, all sub-groups are at hand all the time. Else each has a record of bytes:

    record     for each segment:  main parameters | exp_avg | exp_avg_sq | ...      in the codecs of its storage format

The widest dtypes stand first, so that each begins at a multiple of its own width. A state that is stored as the step
uses it is used where it lies; others are decoded, and encoded when they go back. Main parameters that are not in the
record are the rank's shard itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import torch

from zerolab.flat import Segment
from zerolab.flat.views import address
from zerolab.gpu import door
from zerolab.offload.buffers import aligned, host_empty
from zerolab.offload.files import open_file
from zerolab.offload.formats import StateSize, StorageFormat, format_of, sub_group_limit
from zerolab.offload.groups import sub_groups
from zerolab.offload.lane import Lane, Trace, Transfer, pipeline
from zerolab.offload.places import Offload
from zerolab.precision.codec import Codec
from zerolab.precision.recipe import Precision
from zerolab.ranks.malloc import hand_back
from zerolab.zero.bucket import Bucket
from zerolab.zero.step import Factory, OptimizerStep, ShardSegment
from zerolab.zero.tiers import Tier

Tensor = torch.Tensor


@dataclass(eq=False)
class StoredSegment(ShardSegment):
    format: StorageFormat

    def zero_gaps(self, values: Tensor) -> None:
        for start, stop in self.bucket.layout.gaps():
            values[max(start - self.begin, 0) : max(stop - self.begin, 0)] = 0


class StoredState(NamedTuple):
    """One state of a segment as it is stored: its name ("main", "exp_avg", ...), its codec, and its bytes (uint8)."""

    segment: StoredSegment
    name: str
    codec: Codec
    raw: Tensor


class StoredStep(OptimizerStep):
    """The step where states are in memory; `DiskStep` has them on a disk."""

    _records: Sequence[Tensor] = ()

    tier: Tier
    segments: Sequence[StoredSegment]
    hand: Sequence[StoredSegment]
    lanes: Sequence[Lane] = ()

    def __init__(
        self,
        tier: Tier,
        offload: Offload,
        buckets: Sequence[Bucket],
        factory: Factory,
        precision: Precision | None,
        state_size: StateSize,
    ) -> None:
        self.offload, self._limit = offload, sub_group_limit(precision, offload)
        self.device = offload.step_device(tier.comm.device)
        self._formats = {
            bucket: format_of(bucket.dtype, precision, offload, state_size.names, bucket.persistent)
            for bucket in buckets
            if bucket.trainable
        }
        # Whether all states are stored as the step uses them.
        self.stays = offload.optimizer != "disk" and all(
            form.is_plain and (form.main is not None or bucket.dtypes.shard == form.step_dtype)
            for bucket, form in self._formats.items()
        )
        super().__init__(tier, buckets, factory)
        if not self.stays:
            for segment in self.segments:
                segment.tensor.data = segment.tensor.data.new_empty(0)
        # What the whole model took does not come again.
        hand_back()

    def cut(self, buckets: Sequence[Bucket]) -> list[StoredSegment]:
        runs = ((bucket, run, bucket.layout.align) for bucket in buckets for run in bucket.plan.segments(bucket.owner))
        self.groups = [[self._segment(*part) for part in parts] for parts in sub_groups(runs, self._limit)]
        return [segment for group in self.groups for segment in group]

    def _segment(self, bucket: Bucket, run: Segment) -> StoredSegment:
        place = run.start - bucket.owned[0], run.stop - bucket.owned[0]
        return StoredSegment(bucket, run.group, *place, torch.empty(0), self._formats[bucket])

    def begin(self) -> None:
        if self.stays:
            super().begin()
            return
        self.lay_out([sum(segment.format.nbytes(segment.numel) for segment in group) for group in self.groups])
        for segment, name, codec, raw in chain.from_iterable(self.stored(writing=True)):
            if name == "main":
                codec.view(raw, segment.numel).copy_(self.initial(segment))
        for segment in self.segments:
            # An optimizer that makes its states at once (Adagrad) shows on one element what they begin with.
            segment.tensor = torch.zeros(1, dtype=segment.format.step_dtype, device=self.device)

    def memory(self, segment: ShardSegment) -> Tensor:
        """On the host page-locked only if a GPU's shard is copied from them as they are (`Copies.put`)."""
        shard, dtype = segment.bucket.shard, segment.bucket.dtypes.main
        if self.offload.optimizer != "device" and door.holds(shard) and shard.dtype == dtype:
            return host_empty(segment.numel, dtype, self.comm.device)
        return torch.empty(segment.numel, dtype=dtype, device=self.device)

    def at_hand(self) -> Iterator[list[StoredSegment]]:
        with in_parts(self.optimizer, len(self.groups)) as self._call:
            # A rank that owns no parameters steps its optimizer, too: learning-rate schedulers count the steps.
            for group, record in self.walk() if self.groups else [([], None)]:
                if record is not None:
                    self.decode(group, record)
                yield group
                if record is not None:
                    self.encode(group, record)

    def call(self, group: Sequence[ShardSegment]) -> None:
        self._call([segment.tensor for segment in group])

    def walk(self) -> Iterator[tuple[list[StoredSegment], Tensor | None]]:
        return zip_longest(self.groups, self._records)

    # Where records are.

    def lay_out(self, sizes: Sequence[int]) -> None:
        self._records = [torch.empty(size, dtype=torch.uint8, device=self.device) for size in sizes]

    def read(self, number: int) -> Tensor:
        """The bytes of a record, until the next is read."""
        return self._records[number]

    def write(self, number: int) -> None:
        """Keep what was written to the bytes of a record that was read last."""

    # For the ledger.

    def resting(self) -> list[Tensor]:
        long = [value for segment in self.segments if self.stays for value in self._long(segment).values()]
        short = [value for segment in self.segments for value in self.counters(segment).values()]
        return [*self._records, *long, *(value for value in short if isinstance(value, Tensor))]

    def transient(self) -> list[Tensor | None]:
        tensors = [tensor for segment in self.hand for tensor in (segment.tensor, segment.tensor.grad)]
        return [*tensors, *(value for segment in self.hand for value in self._long(segment).values())]

    # What a checkpoint keeps.

    def stored(self, writing: bool = False) -> Iterator[list[StoredState]]:
        """All states, a sub-group at a time, each until the next is asked for; with `writing`, to be written."""
        for number, group in enumerate(self.groups):
            if self.stays:
                yield [
                    StoredState(segment, name, Codec(value.dtype), value.detach().view(torch.uint8))
                    for segment in group
                    for name, value in self._long(segment).items()
                ]
            else:
                yield list(split_record(group, self.read(number)))
                if writing:
                    self.write(number)

    def counters(self, segment: StoredSegment) -> dict[str, Any]:
        """What the optimizer keeps of a segment beside its long states: the step counter."""
        state = self.optimizer.state.get(segment.tensor, {})
        return {name: value for name, value in state.items() if name not in segment.format.states}

    def has_begun(self, segment: StoredSegment) -> bool:
        state, numel = self.optimizer.state.get(segment.tensor, {}), segment.tensor.numel()
        return all(name in state and state[name].numel() == numel for name in segment.format.states)

    def go_on(self, segment: StoredSegment, counters: dict[str, Any]) -> None:
        """Have states for a segment as after some steps; the long ones are zero until they are written (`stored`)."""
        long = {name: torch.zeros_like(segment.tensor) for name in segment.format.states}
        self.optimizer.state[segment.tensor] = {**counters, **long}

    def _long(self, segment: StoredSegment) -> dict[str, Tensor]:
        """The main parameters, if they are kept apart, and the long states that the optimizer has of a segment."""
        state = self.optimizer.state.get(segment.tensor, {})
        main = {} if segment.format.main is None else {"main": segment.tensor}
        return main | {name: state[name] for name in segment.format.states if name in state}

    # Between a record and the hand.

    def decode(self, group: list[StoredSegment], record: Tensor) -> None:
        self.hand = group
        for segment in group:
            if segment.format.main is None:
                stored = segment.part(self.tier.open(segment.bucket))
                segment.tensor.data = stored.to(self.device, segment.format.step_dtype)
        for segment, name, codec, raw in split_record(group, record):
            state: dict[str, Any] = self.optimizer.state[segment.tensor]
            if name == "main":
                segment.tensor.data = decode_state(codec, raw, segment)
            elif state:
                beginning = state[name]
                state[name] = decode_state(codec, raw, segment)
                if beginning.numel() == 1:
                    state[name].fill_(beginning.view(()))

    def encode(self, group: list[StoredSegment], record: Tensor) -> None:
        for segment, name, codec, raw in split_record(group, record):
            state = self.optimizer.state[segment.tensor]
            value = segment.tensor.detach() if name == "main" else state[name]
            if address(value) != address(raw):
                if codec.scaled:
                    # Padding is in no gradient; where something else put it there, it must not share a scale.
                    segment.zero_gaps(value)
                codec.encode(value, raw)
            if name != "main":
                state[name] = value.new_empty(0)
        for segment in group:
            segment.tensor.data = segment.tensor.data.new_empty(0)

    # Gradients that are whole on a GPU, to a step on the host.

    def gradients_of(self, group: Sequence[ShardSegment]) -> list[Tensor]:
        row = group[0].bucket.rows.gradients if group else None
        if self.device == self.comm.device or row is None or row.depth:
            return super().gradients_of(group)
        if group is self.groups[0]:
            self._arriving = self._bring()
        arrived = next(self._arriving)
        return [arrived.pop(0).to(segment.tensor) for segment in group]

    def _bring(self) -> Iterator[list[Tensor]]:
        """Those of one sub-group after the other; while one steps, those of the next come."""
        coming: list[tuple[list[Tensor], torch.cuda.Event]] = []
        for group in [*self.groups, []]:
            reduced = [segment.part(segment.bucket.for_step()) for segment in group]
            gradients = [door.locked(part.numel(), part.dtype) for part in reduced]
            events = [*map(self.tier.copies.move, gradients, reduced)]
            for arrived, came in coming:
                door.finish(came)
                yield arrived
            coming = [(gradients, came) for came in events[-1:]]


def split_record(group: list[StoredSegment], record: Tensor) -> Iterator[StoredState]:
    states = [
        (codec, segment, name)
        for segment in group
        for name, codec in {"main": segment.format.main, **segment.format.states}.items()
        if codec is not None
    ]
    at = 0
    for codec, segment, name in sorted(states, key=lambda state: -state[0].width):
        nbytes = codec.nbytes(segment.numel)
        yield StoredState(segment, name, codec, record[at : at + nbytes])
        at += nbytes


def decode_state(codec: Codec, raw: Tensor, segment: StoredSegment) -> Tensor:
    """A state at hand: in the record itself if it is stored as the step uses it, else decoded."""
    if codec.dtype == segment.format.step_dtype:
        return codec.view(raw, segment.numel)
    out = raw.new_empty(segment.numel, dtype=segment.format.step_dtype)
    codec.decode(raw, out)
    return out


@contextmanager
def in_parts(optimizer: torch.optim.Optimizer, calls: int) -> Iterator[Callable[[Sequence[Tensor]], None]]:
    """One step of an optimizer in so many calls of the function that this gives, each over some of its parameters.

    (It would look through thousands at each.) Some optimizers count steps in the options of a group
    (`group["step"] += 1`): each call begins with the options as they were before the step, and in the end a group has
    those that the last call with a parameter of it left.
    """
    if calls < 2:
        yield lambda _: optimizer.step()
        return
    # The list stays the same object, and so do groups and tensors in them: others may hold those as well.
    groups = optimizer.param_groups
    whole, after = list(groups), dict[int, dict[str, Any]]()
    before = [copy.deepcopy({**group, "params": []}) for group in whole]
    place_of = {tensor: place for place, group in enumerate(whole) for tensor in group["params"]}

    def call(tensors: Sequence[Tensor]) -> None:
        groups[:] = map(copy.deepcopy, before)
        for tensor in tensors:
            groups[place_of[tensor]]["params"].append(tensor)
        try:
            optimizer.step()
            after.update((at, group) for at, group in enumerate(groups) if group["params"] or at not in after)
        finally:
            groups[:] = whole

    yield call
    for at, left in after.items():
        for name in left.keys() - {"params"}:
            there = whole[at].get(name)
            if isinstance(there, Tensor):
                there.copy_(left[name])
            else:
                whole[at][name] = left[name]


class DiskStep(StoredStep):
    """The step where states rest in a file of this rank's own. `trace` is called with the times of each part."""

    trace: Trace[int] | None = None
    _buffers: Sequence[Tensor] = ()
    _walk: Generator[tuple[int, int]] | None = None

    def lay_out(self, sizes: Sequence[int]) -> None:
        if sizes:
            self.file = open_file(self.offload.folder, f"optimizer-rank{self.comm.rank}", sizes)
            self.lanes = [Lane([self.file])]
            self._buffers = [aligned(max(sizes)) for _ in sizes[: self.offload.buffer_count]]

    def walk(self) -> Iterator[tuple[list[StoredSegment], Tensor]]:
        self._walk = pipeline(range(len(self.groups)), self._read, self._write, len(self._buffers), self.trace)
        for number, at in self._walk:
            # The walk begins to write the buffer at its next turn.
            yield self.groups[number], self._buffers[at]

    def forget(self) -> None:
        super().forget()
        if self._walk is not None:
            self._walk.close()

    def read(self, number: int) -> Tensor:
        self._read(number, 0).wait()
        return self._buffers[0]

    def write(self, number: int) -> None:
        self._write(number, 0).wait()

    def transient(self) -> list[Tensor | None]:
        return [*self._buffers, *super().transient()]

    def _read(self, number: int, at: int) -> Transfer:
        return self.lanes[0].read(self.file, number, self._buffers[at])

    def _write(self, number: int, at: int) -> Transfer:
        return self.lanes[0].write(self.file, number, self._buffers[at])
