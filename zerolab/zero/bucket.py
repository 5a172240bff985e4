"""A bucket: one flat buffer of parameters, its states on one rank, and the moves of ZeRO between their depths.

    gather     before use: all-gather parameters that are stored as shards; `release` frees them after use
    reduce     from this rank's gradients to their average over the ranks, as deep as the optimizer needs it
    publish    all-gather updated parameters up to where they are stored
    overwrite  write given values to every state that holds parameters

(The fifth verb, update, goes over many buckets: `step.py`.) No verb knows a stage: each reads depths from the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch

from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Handle
from zerolab.flat.layout import BucketPlan
from zerolab.flat.views import address, nothings, point, point_at, shard_of, view, zero_gaps
from zerolab.zero.table import StateTable

Tensor = torch.Tensor


class DeviceTier:
    """States on the device. Within `beside` a shard is fetched, and what reads it started."""

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.beside: AbstractContextManager[None] = nullcontext()

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Give the storage of gathered parameters its memory, or, with 0 bytes, take it."""
        storage.resize_(nbytes)

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        """Before the first `keep`: these buckets will come."""

    def keep(self, bucket: Bucket, shard: Tensor) -> Tensor:
        """Take a shard of parameters; returns what of it stays in memory."""
        return self.comm.allocate(shard.numel(), bucket.dtypes.shard).copy_(shard)

    def prefetch(self, bucket: Bucket) -> None:
        """The shard will soon be fetched: begin to read it, if that takes long."""

    def fetch(self, bucket: Bucket, mine: Tensor) -> Tensor:
        """The shard as it travels: stored otherwise, it is copied to `mine`."""
        return bucket.shard if bucket.shard.dtype == mine.dtype else mine.copy_(bucket.shard)

    def open(self, bucket: Bucket) -> Tensor:
        """What this rank's optimizer updates, to be written."""
        return bucket.shard

    def put(self, target: Tensor, values: Tensor, stays: bool) -> None:
        """Write new values to what was opened. `stays`: they do, until `flush`."""
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


class Bucket:
    """One flat buffer of parameters of one dtype, and its tensors on this rank.

    whole      all parameters. Where they are stored as shards its storage is empty except while the unit is gathered
    shard      what this rank owns of them: a part of `whole` where they are stored whole, else what the tier says
    views      the parameters' places in `whole`. Where they are stored as shards they point there, or to `nothings`
    initial    the parameters as the model had them, where `whole` rounds them: until the main ones are made from it
    """

    comm: Collectives
    tier: DeviceTier
    whole: Tensor
    shard: Tensor

    def __init__(self, plan: BucketPlan, parameters: list[torch.nn.Parameter], rows: StateTable) -> None:
        self.plan, self.rows = plan, rows
        self.layout = plan.layout
        self.parameters = parameters
        self.slots = dict(zip(map(id, parameters), plan.layout.slots, strict=True))
        self.dtype = rows.dtypes.params
        self.dtypes = rows.dtypes
        self.trainable = plan.trainable
        self.persistent = plan.persistent
        self.holders: dict[str, int] = {}
        """How many ranks count a parameter's elements in the norm, if it is more than one."""
        self.views: list[Tensor] = []
        self.nothings: list[Tensor] = []
        self.initial: Tensor | None = None
        self.gradients = GradientBuffer()

    @property
    def complete(self) -> bool:
        return len(self.gradients.arrived) == len(self.layout.slots)

    @cached_property
    def owner(self) -> int | None:
        """The rank of `comm` whose shard this rank updates, and saves: its own; None: it updates all."""
        return self.comm.rank if self.rows.owned else None

    @cached_property
    def owned(self) -> tuple[int, int]:
        """Where what this rank updates, and saves, begins and ends."""
        return self.layout.shard(self.comm.rank) if self.rows.owned else (0, self.layout.numel)

    def own_part(self, whole: Tensor) -> Tensor:
        start, stop = self.owned
        return whole[start:stop]

    # The verbs.

    def gather(self, shard: Tensor, label: str) -> Handle:
        """Start to fill `whole` with all ranks' shards. Ranks meet under the same `label`."""
        return self.comm.all_gather_async(shard, out=self.whole, label=label)

    def release(self) -> None:
        """Free the gathered parameters. Views that autograd saves share the storage, so they find the values again
        when backward gathers the bucket."""
        point(self.parameters, self.nothings)
        self.tier.resize(self.whole.untyped_storage(), 0)

    def reduce(self, overlap: bool) -> Handle:
        """Start to average the local gradients over the ranks, as deep as the table says."""
        local = self.local_gradients()
        if local.dtype != self.dtypes.reduce:
            local = self.gradients.local = self.comm.allocate(local.numel(), self.dtypes.reduce).copy_(local)
        if not self.rows.reduced:
            return self.comm.all_reduce_async(local, average=True, now=not overlap)
        return self.comm.reduce_scatter_async(local, average=True, out=self._landing(local), now=not overlap)

    def publish(self) -> Handle:
        """Start to hand this rank's new parameters to the others."""
        return self.comm.all_gather_async(self.shard, out=self.whole)

    def overwrite(self, values: Tensor) -> None:
        """Give the parameters memory, and these values ([numel], `dtypes.main`) to every state that holds them."""
        rows = self.rows
        self.whole = values
        if self.dtypes.main != self.dtype:
            self.whole = self.comm.allocate(self.layout.numel, self.dtype).copy_(values)
            if self.trainable:
                self.initial = self.own_part(values).clone() if rows.owned else values
        point_at(self.whole, self.layout, self.parameters)
        self.shard = self.own_part(self.whole)
        if rows.parameters.depth:
            del values
            self._store_shard()

    def _store_shard(self) -> None:
        shard = self.shard
        if self.dtypes.shard != self.dtype and self.initial is not None:
            shard = self.initial
        elif self.trainable and self.initial is None and self.rows.parameters.tier == "disk":
            self.initial = shard.clone()
        self.shard = self.tier.keep(self, shard)
        # The storage of `whole` is a new one: others may have the old one, and let go of it first.
        del shard
        self.nothings = nothings(self.parameters)
        point(self.parameters, self.nothings)
        self.whole = self.whole.new_empty(0)
        self.whole = self.whole.new_empty(self.layout.numel)
        self.views = [view(self.whole, slot) for slot in self.layout.slots]
        self.whole.untyped_storage().resize_(0)

    # Gradients.

    def local_gradients(self) -> Tensor:
        """The buffer of this rank's own gradients, made where there is none."""
        gradients, dtypes, row = self.gradients, self.dtypes, self.rows.gradients
        assert row is not None
        if not row.depth and gradients.reduced is None:
            gradients.reduced = self._whole_buffer(dtypes.main_grads)
        if gradients.local is None:
            # The first gradients of a step may be reduced where they stay; later ones must not mix with their sum.
            alike = dtypes.grads == dtypes.reduce == dtypes.main_grads
            stays = alike and not (row.depth or gradients.summed)
            gradients.local = gradients.reduced if stays else self._whole_buffer(dtypes.grads)
        assert gradients.local is not None
        return gradients.local

    def fill_missing(self) -> None:
        local, gradients = self.local_gradients(), self.gradients
        for key, slot in self.slots.items() if not gradients.filled else ():
            if key not in gradients.arrived:
                view(local, slot).zero_()
        gradients.filled = True

    def collect(self, average: Tensor) -> None:
        """Add an average to the gradients of this step, and let the local ones go."""
        gradients = self.gradients
        if average is not gradients.reduced:
            assert gradients.reduced is not None
            total = gradients.reduced if average.numel() == self.layout.numel else self.for_step()
            if address(total) != address(average):
                self.tier.add_gradients(total, average, gradients.summed)
        gradients.local, gradients.filled, gradients.summed = None, False, True

    def for_step(self) -> Tensor:
        assert self.gradients.reduced is not None
        return self.reduced_shard() if self.rows.owned else self.gradients.reduced

    def reduced_shard(self) -> Tensor:
        """The averaged gradients of this rank's shard, whatever it owns."""
        reduced = self.gradients.reduced
        assert reduced is not None
        return shard_of(reduced, self.layout, self.comm.rank) if reduced.numel() == self.layout.numel else reduced

    def _whole_buffer(self, dtype: torch.dtype) -> Tensor:
        buffer = self.comm.allocate(self.layout.numel, dtype)
        zero_gaps(buffer, self.layout)
        return buffer

    def _landing(self, local: Tensor) -> Tensor:
        """Where the average of this rank's part is written."""
        gradients, row, numel = self.gradients, self.rows.gradients, self.layout.shard_numel
        assert row is not None
        if not row.depth:
            return shard_of(local, self.layout, self.comm.rank)
        if gradients.reduced is None:
            gradients.reduced = self.tier.allocate_gradients(numel, row.dtype)
        # The first sum of a step may come where it stays; later ones are added to it.
        stays = not gradients.summed and row.tier == "device" and row.dtype == self.dtypes.reduce
        return gradients.reduced if stays else local.new_empty(numel)


class GradientBuffer:
    """The gradients of one bucket in this step.

    local     those of this rank alone, in a buffer as long as the bucket, until they are reduced
    arrived   id of each parameter whose gradient this backward has brought: its slot of `local` is written
    filled    whether every slot is, with zeros where no gradient came: the next backward adds to them
    reduced   gradients averaged over the ranks, as deep as the table says. The memory stays from step to step
    summed    whether `reduced` holds gradients of this step, to which those of later micro-batches are added
    """

    def __init__(self) -> None:
        self.local: Tensor | None = None
        self.arrived: set[int] = set()
        self.filled = False
        self.reduced: Tensor | None = None
        self.summed = False

    @property
    def any(self) -> bool:
        return self.summed or self.local is not None

    def forget(self) -> None:
        """Drop the gradients of this step; the memory of `reduced` stays."""
        self.local, self.filled, self.summed = None, False, False
        self.arrived.clear()
