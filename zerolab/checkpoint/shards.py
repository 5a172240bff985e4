"""What one rank has to write of an engine: its own elements of each parameter, with their states, by name and range.

Each rank writes the shard that the layout gives it, whatever the stage: where several ranks hold the same elements, as
at stage 0, they share the writing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerolab.checkpoint.manifest import SavedParameter, Stretch, tensor_name
from zerolab.errors import CheckpointError
from zerolab.precision.codec import BLOCK, Codec
from zerolab.zero import ZeroEngine
from zerolab.zero.overwrite import overlaps
from zerolab.zero.tiers.stored_step import StoredSegment

Tensor = torch.Tensor
Shape = tuple[torch.dtype, list[int]]


def split(codec: Codec, raw: Tensor, numel: int) -> tuple[Tensor, Tensor | None]:
    """The codes of a state at rest, and the scales of its blocks if it has some."""
    end = numel * codec.dtype.itemsize
    scales = raw[end : end + numel // BLOCK * 4].view(torch.float32) if codec.scaled else None
    return raw[:end].view(codec.dtype), scales


def blocks_of(start: int, stop: int) -> tuple[int, int]:
    """The blocks with a scale of their own that have the elements `[start, stop)`."""
    return start // BLOCK, -(-stop // BLOCK)


class Shards:
    """The tensors of this rank's two files, in advance by dtype and shape, then part by part."""

    def __init__(self, engine: ZeroEngine, begun: bool) -> None:
        self.engine, self.begun = engine, begun
        self.rank = engine.comm.rank
        self._formats = {segment.bucket: segment.format for segment in engine.optimizer_step.segments}

    def shapes(self) -> tuple[dict[str, Shape], dict[str, Shape]]:
        """Of the parameters as forward uses them, or as stage 3 keeps them; of main parameters that are kept apart, and
        the optimizer's long states."""
        model: dict[str, Shape] = {}
        optimizer: dict[str, Shape] = {}
        for bucket in self.engine.buckets:
            form, codecs = self._formats.get(bucket), {}
            if form is not None:
                codecs = {**(form.states if self.begun else {}), **({} if form.main is None else {"main": form.main})}
            for lap in overlaps(bucket.layout, *bucket.layout.shard(self.rank)):
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
            first, last = bucket.layout.shard(self.rank)
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
        codes, scales = split(codec, raw, segment.numel)
        begin = segment.begin
        low, high = layout.shard(self.rank)
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
    """The optimizer's long states: the dtype in which each is stored, and whether in scaled blocks and as a root."""
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
        stretches: dict[str, list[Stretch]] = {slot.name: [] for slot in layout.slots}
        for rank in range(layout.ranks):
            for lap in overlaps(layout, *layout.shard(rank)):
                stretches[lap.slot.name].append(Stretch(lap.start, lap.stop, rank))
        dtype = str(bucket.dtypes.shard).removeprefix("torch.")
        for slot in layout.slots:
            found[slot.name] = SavedParameter(
                slot.shape, dtype, bucket.trainable, bucket.plan.unit, tuple(stretches[slot.name])
            )
    return found


def buffers_of(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that a state_dict has, by their first names."""
    tied = tied_names(model)
    return {name: buffer for name, buffer in _kept_buffers(model) if name not in tied}


def _kept_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
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
    named = [*model.named_parameters(remove_duplicate=False), *_kept_buffers(model)]
    return {name: first[id(tensor)] for name, tensor in named if first.setdefault(id(tensor), name) != name}


def digest(buffer: Tensor) -> str:
    """Of a tensor's bytes."""
    flat = buffer.detach().contiguous().view(-1).view(torch.uint8).cpu()
    return hashlib.blake2b(flat.numpy().data, digest_size=16).hexdigest()
