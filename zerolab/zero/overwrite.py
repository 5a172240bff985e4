"""Whole tensors by name go into an engine's shards: a state_dict, a checkpoint. Each rank takes its own elements.

What an engine holds of a parameter is up to three copies: main parameters that its optimizer updates, the shard that
rests, and what forward computes with. A write goes to all, each rounded once from the value that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import _IncompatibleKeys

from zerolab.errors import InputError
from zerolab.flat import Layout
from zerolab.flat.layout import Slot
from zerolab.flat.views import address
from zerolab.zero.bucket import Bucket
from zerolab.zero.changing import all_hear, changing
from zerolab.zero.engine import Engine
from zerolab.zero.tiers.stored_step import StoredState

Tensor = torch.Tensor
Read = Callable[[Bucket, str, int, Tensor], None]
"""read(bucket, name, start, out) fills `out` (1-D) with the elements of a parameter from `start` on, cast to its
dtype."""


@dataclass(frozen=True)
class Overlap:
    """The elements of one parameter in a run of a bucket: `[start, stop)` of the parameter are `[first, last)` of the
    run."""

    slot: Slot
    start: int
    stop: int
    first: int
    last: int


def overlaps(layout: Layout, begin: int, end: int) -> Iterator[Overlap]:
    """Which parameters' elements lie in `[begin, end)` of a bucket."""
    for slot in layout.slots:
        low, high = max(slot.start, begin), min(slot.stop, end)
        if low < high:
            yield Overlap(slot, low - slot.start, high - slot.start, low - begin, high - begin)


def write_parameters(engine: Engine, read: Read, stays: Callable[[str], bool] = lambda name: False) -> None:
    """Overwrite this rank's part of the parameters that rest, but for those of which `read` writes nothing, since their
    name `stays`. What the others have of it changes by `gather_parameters`."""
    for bucket in engine.buckets:
        target = _opened(engine, bucket, stays) if engine.shards_parameters else bucket.shard
        for lap in overlaps(bucket.layout, *bucket.owned):
            read(bucket, lap.slot.name, lap.start, target[lap.first : lap.last])
    engine.tier.flush()


def gather_parameters(engine: Engine) -> None:
    """Bring what every rank has written to its part to all of them, where parameters are whole between steps. A
    collective: ranks call it once they know that none of them has failed."""
    for bucket in engine.buckets:
        if bucket.rows.owned > bucket.rows.parameters.depth:
            engine.comm.all_gather(bucket.shard, out=bucket.whole)


def _opened(engine: Engine, bucket: Bucket, stays: Callable[[str], bool]) -> Tensor:
    """Stage 3's shard of a bucket, to be written. What a disk hands out to be written is empty, so that what stays is
    read first."""
    store = engine.tier
    if not any(stays(slot.name) for slot in bucket.layout.slots):
        return store.open(bucket)
    device = engine.comm.device if engine.sharding.tiers[0] == "device" else torch.device("cpu")
    before = store.fetch(bucket, torch.empty(bucket.layout.shard_numel, dtype=bucket.dtypes.shard, device=device))
    target = store.open(bucket)
    return target if address(target) == address(before) else target.copy_(before)


def write_main(engine: Engine, state: StoredState, read: Read) -> None:
    """Overwrite the main parameters of a segment, as `OptimizerStep.stored` gives them."""
    segment, _, codec, raw = state
    values = codec.view(raw, segment.numel)
    begin = segment.begin
    for lap in overlaps(segment.bucket.layout, begin, begin + segment.numel):
        read(segment.bucket, lap.slot.name, lap.start, values[lap.first : lap.last])


def overwrite_by(engine: Any, state: Mapping[str, Tensor], strict: bool) -> _IncompatibleKeys:
    """What `Engine.load_state_dict` does."""
    model = engine.model
    wanted = model.state_dict(keep_vars=True)
    missing, unexpected = [name for name in wanted if name not in state], [name for name in state if name not in wanted]
    if strict and (missing or unexpected):
        said = [f"has no {name}" for name in missing[:1]]
        said += [f"has {name}, which the model has not" for name in unexpected[:1]]
        raise RuntimeError(
            f"the state_dict {' and '.join(said)} ({len(missing)} missing, {len(unexpected)} unexpected); give that of "
            "the same model, or say strict=False"
        )
    # A tied parameter may be given by any of its names.
    names: dict[int, str] = {}
    for name, tensor in wanted.items():
        if name in state:
            names.setdefault(id(tensor), name)
    first = {name: names.get(id(parameter)) for name, parameter in model.named_parameters()}
    buffers = [(buffer, names.get(id(buffer))) for buffer in model.buffers()]
    shapes = [(slot.shape, first[slot.name]) for bucket in engine.buckets for slot in bucket.layout.slots]
    shapes += [(tuple(buffer.shape), given) for buffer, given in buffers]
    for shape, given in shapes:
        if given is not None and tuple(state[given].shape) != shape:
            raise InputError(
                f"{given} has shape {tuple(state[given].shape)} in the state_dict and {shape} in the model; give that "
                "of the same model"
            )

    def read(bucket: Bucket, name: str, start: int, out: Tensor) -> None:
        given = first[name]
        if given is not None:
            out.copy_(state[given].detach().reshape(-1)[start : start + out.numel()])

    engine.synchronize()
    with changing(engine, "load_state_dict"):
        with all_hear(engine):
            write_parameters(engine, read, lambda name: first[name] is None)
            for states in engine.optimizer_step.stored(writing=True):
                for stored in states:
                    if stored.name == "main":
                        write_main(engine, stored, read)
        gather_parameters(engine)
    for buffer, given in buffers:
        if given is not None:
            buffer.copy_(state[given])
    engine.new_values()
    return _IncompatibleKeys(missing, unexpected)
