"""What one rank has to write of an engine: its own elements of each parameter, with their states, by name and range
(at stage 0 ranks share the writing); and what is not sharded: buffers, groups with their options, the loss scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zerolab.checkpoint import plain
from zerolab.checkpoint.manifest import SavedParameter, ShardRange, tensor_name
from zerolab.errors import CheckpointError
from zerolab.precision.codec import BLOCK, Codec
from zerolab.zero import ZeroEngine
from zerolab.zero.full_parameters import overlaps
from zerolab.zero.stored_step import StoredSegment

Tensor = torch.Tensor
Shape = tuple[torch.dtype, list[int]]


def blocks_of(start: int, stop: int) -> tuple[int, int]:
    """The blocks with a scale of their own that have the elements `[start, stop)`."""
    return start // BLOCK, -(-stop // BLOCK)


@dataclass
class Shards:
    """The tensors of this rank's two files; of states there is something once the optimizer has `begun`."""

    engine: ZeroEngine
    begun: bool

    def shapes(self) -> tuple[dict[str, Shape], dict[str, Shape]]:
        model: dict[str, Shape] = {}
        optimizer: dict[str, Shape] = {}
        formats = {segment.bucket: segment.format for segment in self.engine.optimizer_step.segments}
        for bucket in self.engine.buckets:
            form, codecs = formats.get(bucket), {}
            if form is not None:
                codecs = {**(form.states if self.begun else {}), **({} if form.main is None else {"main": form.main})}
            for lap in overlaps(bucket.layout, *bucket.layout.shard(self.engine.comm.rank)):
                place = lap.slot.name, lap.start, lap.stop
                model[tensor_name("model", *place)] = bucket.dtypes.shard, [lap.stop - lap.start]
                for name, codec in codecs.items():
                    optimizer[tensor_name(name, *place)] = codec.dtype, [lap.stop - lap.start]
                    if codec.scaled:
                        first, last = blocks_of(lap.start, lap.stop)
                        optimizer[tensor_name(f"{name}.scale", *place)] = torch.float32, [last - first]
        return model, optimizer

    def model_parts(self) -> Iterator[tuple[str, Tensor]]:
        """Each is valid until the next is asked for."""
        for bucket in self.engine.buckets:
            first, last = bucket.layout.shard(self.engine.comm.rank)
            if self.engine.shards_parameters:
                device = self.engine.comm.device if self.engine.offload.parameters == "device" else "cpu"
                room = torch.empty(bucket.layout.shard_numel, dtype=bucket.dtypes.shard, device=device)
                shard = self.engine.tier.fetch(bucket, room)
            else:
                shard = bucket.whole[first:last]
            for lap in overlaps(bucket.layout, first, last):
                yield tensor_name("model", lap.slot.name, lap.start, lap.stop), shard[lap.first : lap.last]

    def optimizer_parts(self) -> Iterator[tuple[str, Tensor]]:
        """Of a tensor that sub-groups cut, in order; each part is valid until the next is asked for."""
        for states in self.engine.optimizer_step.stored():
            for state in states:
                if state.name == "main" or self.begun:
                    yield from self._parts_of(*state)

    def _parts_of(self, segment: StoredSegment, name: str, codec: Codec, raw: Tensor) -> Iterator[tuple[str, Tensor]]:
        layout = segment.bucket.layout
        codes, scales = codec.split(raw, segment.numel)
        begin = segment.begin
        low, high = layout.shard(self.engine.comm.rank)
        # At stage 0 a segment may lie in the shards of several ranks.
        first, last = max(begin, low), min(begin + segment.numel, high)
        for lap in overlaps(layout, first, last):
            # The piece that the tensor is named for: all that this rank has of the parameter.
            start, stop = max(low - lap.slot.start, 0), min(high - lap.slot.start, lap.slot.numel)
            at, end = lap.first + first - begin, lap.last + first - begin
            yield tensor_name(name, lap.slot.name, start, stop), codes[at:end]
            if scales is not None:
                yield tensor_name(f"{name}.scale", lap.slot.name, start, stop), scales[slice(*blocks_of(at, end))]


def states_of(engine: ZeroEngine) -> dict[str, dict[str, Any]]:
    """The optimizer's long states, and how each is stored."""
    found: dict[str, dict[str, Any]] = {}
    for segment in engine.optimizer_step.segments:
        for name, codec in segment.format.states.items():
            dtype = str(codec.dtype).removeprefix("torch.")
            found.setdefault(name, {"dtype": dtype, "scaled": codec.scaled, "root": codec.root})
    return found


def parameters_of(engine: ZeroEngine) -> dict[str, SavedParameter]:
    """All parameters, and who writes which elements."""
    found = {}
    for bucket in engine.buckets:
        layout = bucket.layout
        stretches: dict[str, list[ShardRange]] = {slot.name: [] for slot in layout.slots}
        for rank in range(layout.ranks):
            for lap in overlaps(layout, *layout.shard(rank)):
                stretches[lap.slot.name].append(ShardRange(lap.start, lap.stop, rank))
        dtype = str(bucket.dtypes.shard).removeprefix("torch.")
        for slot in layout.slots:
            found[slot.name] = SavedParameter(
                slot.shape, dtype, bucket.trainable, bucket.plan.unit, tuple(stretches[slot.name])
            )
    return found


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state_dict has, by their first names."""
    tied = tied_names(model)
    return {name: buffer for name, buffer in _find_buffers(model) if name not in tied}


def _find_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All names of the buffers that a state_dict has."""
    kept = model.state_dict(keep_vars=True)
    extra = next((name for name in kept if name.endswith("_extra_state")), None)
    if extra is not None:
        raise CheckpointError(
            f"{extra} of the model is extra state, which may be any object; a checkpoint keeps tensors: register what "
            "it needs as buffers"
        )
    return ((name, buffer) for name, buffer in model.named_buffers(remove_duplicate=False) if name in kept)


def tied_names(model: nn.Module) -> dict[str, str]:
    """Other names of parameters and buffers: {name: the first name}."""
    first: dict[int, str] = {}
    named = [*model.named_parameters(remove_duplicate=False), *_find_buffers(model)]
    return {name: first[id(tensor)] for name, tensor in named if first.setdefault(id(tensor), name) != name}


# What is not sharded.


def groups_of(engine: ZeroEngine) -> dict[Any, list[str]]:
    """The names of the parameters of the optimizer's groups, in their order, by the options that were given."""
    found: dict[Any, list[str]] = {}
    for bucket in engine.buckets:
        if bucket.trainable:
            for slot, key in zip(bucket.layout.slots, bucket.plan.groups, strict=True):
                found.setdefault(key, []).append(slot.name)
    return found or {None: []}


def check_complete(engine: ZeroEngine) -> None:
    """Raise a CheckpointError if the optimizer keeps more than a checkpoint has of it."""
    if not engine.state_size.complete:
        raise CheckpointError(
            f"{type(engine.optimizer).__name__} keeps something outside of its state and its options that its next "
            "steps depend on: keep it there, such as a count in group['step'], or take the weights alone "
            "(zerolab.apps.interop.huggingface.whole.export, load(weights_only=True))"
        )


def groups_record(engine: ZeroEngine) -> list[Any]:
    """For each group, whether this rank has something of it, its options, and the counts of its steps."""
    counts: dict[Any, list[Any]] = {}
    for segment in engine.optimizer_step.segments:
        said = plain.encode(engine.optimizer_step.counters(segment), "the optimizer's counters")
        if said not in counts.setdefault(segment.group, []):
            counts[segment.group].append(said)
    rows = []
    for key, group in zip(groups_of(engine), engine.optimizer.param_groups, strict=True):
        options = {name: value for name, value in group.items() if name != "params"}
        rows.append([bool(group["params"]), plain.encode(options, "the optimizer's options"), counts.get(key, [])])
    return rows


def nonparam_text(engine: ZeroEngine, of_ranks: Sequence[list[Any]]) -> str:
    """`optimizer_nonparam.json`: each group's parameters by name, its options and its counters; the loss scaler."""
    groups = []
    for names, rows in zip(groups_of(engine).values(), zip(*of_ranks, strict=True), strict=True):
        # An optimizer may count steps in the options, and pass over a group that it has nothing of.
        options = next((said for owns, said, _ in rows if owns), rows[0][1])
        counts = [said for *_, of_rank in rows for said in of_rank]
        if any(said != counts[0] for said in counts):
            raise CheckpointError(
                f"the steps of the optimizer's group of {names[0]} are counted differently ({counts}), which no "
                "checkpoint can say; begin again from a checkpoint"
            )
        groups.append({"parameters": names, "options": options, "counters": counts[0] if counts else {}})
    scaler = None if engine.scaler is None else engine.scaler.state()
    return json.dumps({"groups": groups, "loss_scaler": scaler}, indent=1) + "\n"
