"""Whole tensors by name go into an engine's shards: a state_dict, a checkpoint. Each rank takes its own elements.

An engine holds a parameter up to three times: as main parameters, as the shard that is stored, and as forward uses it.
A write goes to all, each rounded once from the value that is given. If a write ends half-way (a step, a load), some
values are new and some old, and the engine is broken: it refuses everything but `zerolab.checkpoint.load`, which
overwrites them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from zerolab.collectives import phase
from zerolab.collectives.observe.records import gather_records
from zerolab.errors import OffloadError
from zerolab.flat import Layout
from zerolab.flat.layout import Slot
from zerolab.flat.views import numbers
from zerolab.zero.bucket import Bucket
from zerolab.zero.engine import Engine
from zerolab.zero.tiers.stored_step import StoredState
from zerolab.zero.units import settle_all

Tensor = torch.Tensor
Read = Callable[[Bucket, str, int, Tensor], None]
"""read(bucket, name, start, out) fills `out` (1-D) with the elements of a parameter from `start` on, cast to its
dtype."""
REMEDY = "load a checkpoint, into this engine or a new one (zerolab.checkpoint.load)"


class Overlap(NamedTuple):
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
        if bucket.rows.parameters.tier == "disk" and any(stays(slot.name) for slot in bucket.layout.slots):
            # What a disk hands out to be written is empty.
            room = torch.empty(bucket.layout.shard_numel, dtype=bucket.dtypes.shard, device="cpu")
            before = engine.tier.fetch(bucket, room)
            engine.tier.open(bucket).copy_(before)
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
    flag, said = float(error is not None), None
    if error is not None:
        said = f"rank {engine.comm.ranks[engine.comm.rank]} failed to swap ({str(error).rpartition('; ')[0]})"
    groups = [group for group in (engine.comm, engine.replicate) if group and "disk" in engine.sharding.tiers]
    with phase("norm"):
        for group in groups:
            own = torch.full((1,), flag, dtype=torch.float64, device=group.device)
            flag = max(numbers(group.all_gather(own), instead=[flag]))
        for group in groups if flag else []:
            said = next(filter(None, gather_records(group, said)), None)
    if flag:
        raise OffloadError(f"{said}, so some values are new and some old; see to the disk, then {REMEDY}") from error
