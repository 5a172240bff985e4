"""Stage 3: parameters are sharded too (ZeRO paper, section 5.3). A unit's parameters are gathered before its
forward and again before its backward, and released after each. 3Ψ elements on the wire; in memory, a shard of
everything and the one or two units at hand (`memory.Stage3Limits` has other limits). Persistent buckets are stage 2's:
they stay whole, and the new parameters are gathered after the step.

Releasing empties the storage of `bucket.whole` and keeps the tensor. Autograd saves views of parameters for
backward (a linear layer saves its weight transposed); those views share the storage, so they find the values
again when backward gathers the unit. In between, the parameters themselves have no elements, and whoever asks for
one outside its unit's forward is heard (`wrapped.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.errors import OffloadError
from zerolab.flat.views import nothings, point, shard_of, view
from zerolab.offload.places import NOWHERE, Offload
from zerolab.ranks.pages import Pages
from zerolab.zero.stage2 import Stage2
from zerolab.zero.units import Bucket, Presence, Unit


class Stage3(Stage2):
    number = 3
    shards_parameters = True

    def __init__(self, comm: Collectives, offload: Offload = NOWHERE, replicate: Collectives | None = None) -> None:
        super().__init__(comm, offload, replicate)
        # The memory of gathered units.
        self.pages = Pages(comm.device)

    def flatten(self, bucket: Bucket, initial: torch.Tensor | None = None) -> None:
        super().flatten(bucket, initial)
        if bucket.persistent:
            return
        del initial
        shard = bucket.shard
        if bucket.dtypes.shard != bucket.dtype and bucket.initial is not None:
            shard = bucket.initial
        elif bucket.trainable and bucket.initial is None and self.offload.parameters == "disk":
            bucket.initial = shard.clone()
        bucket.shard = self.store.keep(bucket, shard)
        # From here on the storage of `whole` is emptied and filled again. It is a new one: others may have the old one,
        # and they and the shard let go of it first, so that the two are never held at once.
        del shard
        bucket.nothings = nothings(bucket.parameters)
        point(bucket.parameters, bucket.nothings)
        bucket.whole = bucket.whole.new_empty(0)
        bucket.whole = bucket.whole.new_empty(bucket.layout.numel)
        bucket.views = [view(bucket.whole, slot) for slot in bucket.layout.slots]
        bucket.whole.untyped_storage().resize_(0)

    def prefetch(self, units: Sequence[Unit], count: int) -> None:
        for unit in units[:count]:
            self._start_gathering(unit)
        for unit in units[count : count + 1]:
            if unit.presence is Presence.AWAY:
                for bucket in unit.gathered:
                    self.store.prefetch(bucket)

    def _start_gathering(self, unit: Unit) -> None:
        if unit.presence is not Presence.AWAY:
            return
        for bucket in unit.gathered:
            self.pages.fill(bucket.whole.untyped_storage(), bucket.layout.numel * bucket.dtype.itemsize)
        with self.store.beside:
            shards = self._to_send(unit)
            # The unit's name keeps ranks that run different layers from taking each other's for their own.
            unit.gathering = [
                self.comm.all_gather_async(shard, out=bucket.whole, label=unit.name)
                for shard, bucket in zip(shards, unit.gathered, strict=True)
            ]
        unit.presence = Presence.COMING

    def gather(self, unit: Unit) -> None:
        if unit.presence is Presence.HERE:
            return
        self._start_gathering(unit)
        try:
            for handle in unit.gathering:
                # What the others sent is here. They may still read this rank's shard: whoever writes to it calls
                # `settle` first (`changing.py`).
                handle.arrived()
        except BaseException:
            # A failure is said once: nobody waits for these calls again.
            unit.presence, unit.gathering = Presence.AWAY, []
            raise
        for bucket in unit.gathered:
            point(bucket.parameters, bucket.views)
        unit.presence = Presence.HERE

    def settle(self, unit: Unit) -> None:
        try:
            for handle in unit.gathering:
                handle.wait()
        except BaseException:
            unit.gathering = []
            raise

    def release(self, unit: Unit) -> None:
        before, unit.presence = unit.presence, Presence.AWAY
        if before is Presence.AWAY:
            return
        if before is Presence.COMING:
            # A gather that nobody came for still writes; its buffer may go only when it has ended.
            self.settle(unit)
        for bucket in unit.gathered:
            self._empty(bucket)

    def publish(self, bucket: Bucket) -> Handle | None:
        return super().publish(bucket) if bucket.persistent else None

    def _to_send(self, unit: Unit) -> list[torch.Tensor]:
        """This rank's shards, all of them before the first is sent: one that cannot be read from the disk must not
        leave this rank half-way into a unit."""
        try:
            mine = [shard_of(bucket.whole, bucket.layout, self.comm.rank) for bucket in unit.gathered]
            return [self.store.fetch(bucket, part) for bucket, part in zip(unit.gathered, mine, strict=True)]
        except OffloadError:
            # Copies may still write to what is emptied.
            if self.store.copies is not None:
                self.store.copies.finish()
            for bucket in unit.gathered:
                self._empty(bucket)
            raise

    def _empty(self, bucket: Bucket) -> None:
        point(bucket.parameters, bucket.nothings)
        self.pages.empty(bucket.whole.untyped_storage())
