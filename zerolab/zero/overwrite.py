"""Whole tensors by name go into an engine's shards: a state_dict, a checkpoint. Each rank takes its own elements.

An engine holds a parameter up to three times: as main parameters, as the shard that is stored, and as forward uses it.
A write goes to all, each rounded once from the value that is given. If a write ends half-way (a step, a load), some
values are new and some old, and the engine is broken: it refuses everything but `zerolab.checkpoint.load`, which
overwrites them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.nn.modules.module import _IncompatibleKeys

from zerolab.collectives import phase
from zerolab.collectives.observe.records import gather_records
from zerolab.errors import InputError, OffloadError
from zerolab.flat import Layout
from zerolab.flat.layout import Slot
from zerolab.flat.views import address, numbers
from zerolab.zero.bucket import Bucket
from zerolab.zero.engine import Engine
from zerolab.zero.tiers.stored_step import StoredState
from zerolab.zero.units import settle_all

Tensor = torch.Tensor
Read = Callable[[Bucket, str, int, Tensor], None]
"""read(bucket, name, start, out) fills `out` (1-D) with the elements of a parameter from `start` on, cast to its
dtype."""
REMEDY = "load a checkpoint, into this engine or a new one (zerolab.checkpoint.load)"


@dataclass(frozen=True)
class Overlap:
    """What a run of a bucket has of a parameter: its elements `[start, stop)` are `[first, last)` of the run."""

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
    """Overwrite this rank's part of the parameters as they are stored, but for those of which `read` writes nothing,
    since their name `stays`. What the others have of it changes by `gather_parameters`."""
    for bucket in engine.buckets:
        if any(stays(slot.name) for slot in bucket.layout.slots):
            # What a disk hands out to be written is empty.
            device = engine.comm.device if engine.sharding.tiers[0] == "device" else torch.device("cpu")
            room = torch.empty(bucket.layout.shard_numel, dtype=bucket.dtypes.shard, device=device)
            before = engine.tier.fetch(bucket, room)
            target = engine.tier.open(bucket)
            if address(target) != address(before):
                target.copy_(before)
        fill(bucket, bucket.owned[0], engine.tier.open(bucket), read)
    engine.tier.flush()


def gather_parameters(engine: Engine) -> None:
    """Bring what every rank has written to its part to all of them, where parameters are whole between steps. A
    collective: ranks call it once they know that none of them has failed."""
    for bucket in engine.buckets:
        if bucket.rows.owned > bucket.rows.parameters.depth:
            engine.comm.all_gather(bucket.shard, out=bucket.whole)


def fill(bucket: Bucket, begin: int, run: Tensor, read: Read) -> None:
    """Overwrite the parameters in a run of a bucket that begins at `begin`."""
    for lap in overlaps(bucket.layout, begin, begin + run.numel()):
        read(bucket, lap.slot.name, lap.start, run[lap.first : lap.last])


def write_main(state: StoredState, read: Read) -> None:
    """Overwrite the main parameters of a segment, as `StoredStep.stored` gives them."""
    segment, _, codec, raw = state
    fill(segment.bucket, segment.begin, codec.view(raw, segment.numel), read)


def overwrite_by(engine: Any, state: Mapping[str, Tensor], strict: bool) -> _IncompatibleKeys:
    """What `FullParameters.load_state_dict` does."""
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
    # A tied parameter may be given by any of its names: the first one counts.
    given = {id(tensor): name for name, tensor in reversed(wanted.items()) if name in state}
    named = {name: given.get(id(parameter)) for name, parameter in model.named_parameters()}
    buffers = [(buffer, given[id(buffer)]) for buffer in model.buffers() if id(buffer) in given]
    shapes = [(named[slot.name], slot.shape) for bucket in engine.buckets for slot in bucket.layout.slots]
    shapes += [(name, tuple(buffer.shape)) for buffer, name in buffers]
    for name, shape in shapes:
        if name is not None and tuple(state[name].shape) != shape:
            raise InputError(
                f"{name} has shape {tuple(state[name].shape)} in the state_dict and {shape} in the model; give that of "
                "the same model"
            )

    def read(bucket: Bucket, name: str, start: int, out: Tensor) -> None:
        if (own := named[name]) is not None:
            out.copy_(state[own].detach().reshape(-1)[start : start + out.numel()])

    engine.synchronize()
    with changing(engine, "load_state_dict"):
        with all_hear(engine):
            write_parameters(engine, read, lambda name: named[name] is None)
            for stored in chain.from_iterable(engine.optimizer_step.stored(writing=True)):
                if stored.name == "main":
                    write_main(stored, read)
        gather_parameters(engine)
    for buffer, name in buffers:
        buffer.copy_(state[name])
    engine.new_values()
    return _IncompatibleKeys(missing, unexpected)


@contextmanager
def changing(engine: Engine, what: str) -> Iterator[None]:
    """Within, `what` changes parameters or states; if it raises, the engine is broken. A collective at stage 3: other
    ranks may still read a shard of this one, and have done so before anything is written."""
    settle_all(engine.units)
    try:
        yield
    except BaseException:
        engine.broken = f"{what} ended half-way, so some values here are new and some old; {REMEDY}"
        engine.optimizer_step.forget()
        engine.tier.forget()
        engine.forget()
        raise


@contextmanager
def all_hear(engine: Engine) -> Iterator[None]:
    """Within, transfers may fail on one rank; then every rank raises the same OffloadError. A collective, where states
    rest on a disk: 8 bytes a rank travel if none failed."""
    error: OffloadError | None = None
    try:
        yield
    except OffloadError as failed:
        error = failed
    if "disk" not in engine.sharding.tiers:
        return
    groups = [group for group in (engine.comm, engine.replicate) if group is not None]
    with phase("norm"):
        flag = float(error is not None)
        for group in groups:
            own = torch.full((1,), flag, dtype=torch.float64, device=group.device)
            flag = max(numbers(group.all_gather(own), instead=[flag]))
        if not flag:
            return
        said: list[Any] | None = None if error is None else [engine.comm.ranks[engine.comm.rank], str(error)]
        for group in groups:
            said = next((row for row in gather_records(group, said) if row is not None), None)
    assert said is not None
    rank, text = said
    raise OffloadError(
        f"rank {rank} failed to swap ({text.rpartition('; ')[0]}), so some values are new and some old; see to the "
        f"disk, then {REMEDY}"
    ) from error
