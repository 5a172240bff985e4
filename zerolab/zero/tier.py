"""The tier where states are stored: from where a unit is gathered, and to where a step writes new values.

Here it is the device itself. For the host and a disk other classes take its place (`tiers/`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from zerolab.collectives.contract import Collectives
from zerolab.flat.layout import Layout
from zerolab.zero.table import Dtypes

Tensor = torch.Tensor


class Stored(Protocol):
    """What a tier knows of a bucket."""

    layout: Layout
    dtypes: Dtypes
    shard: Tensor


class DeviceTier:
    """States on the device. Who fetches a shard, and starts what reads it, does both within `beside`: on the stream of
    the copies, where parameters are stored off the GPU."""

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.beside: AbstractContextManager[None] = nullcontext()

    def prepare(self, buckets: Sequence[Stored]) -> None:
        """Before the first `keep`: these buckets will come."""

    def keep(self, bucket: Stored, shard: Tensor) -> Tensor:
        """Take a shard of parameters; returns what of it stays in memory."""
        return self.comm.allocate(shard.numel(), bucket.dtypes.shard).copy_(shard)

    def prefetch(self, bucket: Stored) -> None:
        """The shard will soon be fetched: begin to read it, if that takes long."""

    def fetch(self, bucket: Stored, mine: Tensor) -> Tensor:
        """The shard as it travels when the unit is gathered. Where it is stored elsewhere or in a wider dtype that is a
        copy in `mine`, this rank's part of the gathered bucket."""
        return bucket.shard if bucket.shard.dtype == mine.dtype else mine.copy_(bucket.shard)

    def open(self, bucket: Stored) -> Tensor:
        """What this rank's optimizer updates of the parameters, to be written; buckets come one after the other."""
        return bucket.shard

    def put(self, target: Tensor, values: Tensor, stays: bool) -> None:
        """Write new values to what was opened; `stays`: nobody overwrites `values`, or lets them go, before `flush`."""
        target.copy_(values)

    def flush(self) -> None:
        """After the last one is written: return once all is where it is stored."""

    def forget(self) -> None:
        """When what writes here ends half-way: wait for transfers under way, and let their buffers go."""

    def allocate_gradients(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Memory for averaged gradients, where the optimizer uses them."""
        return self.comm.allocate(numel, dtype)

    def add_gradients(self, total: Tensor, more: Tensor, begun: bool) -> None:
        """Add to a sum of gradients, whatever its dtype; or begin it."""
        if begun:
            total.add_(more)
        else:
            total.copy_(more)

    def await_gradients(self) -> None:
        """Return once what was added is here."""
