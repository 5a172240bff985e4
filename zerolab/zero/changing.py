"""What changes parameters and states, and may end half-way: a step, a load, a write from outside.

If one ends half-way, some values are new and some old, and the engine is broken: it refuses everything but
`zerolab.checkpoint.load`, which overwrites them all. When a rank's disk fails in a step, all ranks hear of it before a
new parameter is handed around, and all their engines are broken.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zerolab.collectives import phase
from zerolab.collectives.observe.records import gather_records
from zerolab.errors import OffloadError
from zerolab.flat.views import numbers
from zerolab.zero.engine import Engine
from zerolab.zero.units import settle_all

REMEDY = "load a checkpoint, into this engine or a new one (zerolab.checkpoint.load)"


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
