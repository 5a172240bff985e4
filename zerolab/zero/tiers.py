"""Where states are stored off the device, and where they are on it beside others that are not.

    Tier        parameters on the device; what the optimizer has may be on the host
    HostTier    stage 3: a rank's shards in the host's memory
    DiskTier    stage 3: in a file of this rank's own

A read from a file that failed may be repeated; a write that failed breaks the engine. To and from a GPU shards are
copied beside what it computes (`zerolab/offload/copies.py`); until such a copy has ended nobody writes to the shard, or
the buffer, that it reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch

from zerolab.collectives import Collectives, phase
from zerolab.collectives.observe import gather_records
from zerolab.errors import InputError, OffloadError
from zerolab.flat.views import numbers, values_here
from zerolab.gpu import door
from zerolab.offload.buffers import aligned, host_empty
from zerolab.offload.copies import Copies
from zerolab.offload.files import open_file
from zerolab.offload.lane import Lane, Transfer
from zerolab.offload.places import Offload
from zerolab.zero.bucket import Bucket, DeviceTier
from zerolab.zero.engine import Engine
from zerolab.zero.units import settle_all

Tensor = torch.Tensor


MOST_SPARE = 3
"""Spare memory is at most so many times the largest storage."""


class Spares:
    """Memory of emptied storages, for the next ones that are filled.

    A gathered unit comes and goes in each step. Malloc would give it a new place
    whenever something small has settled in its old one.
    """

    def __init__(self, device: torch.device) -> None:
        swaps = hasattr(torch.UntypedStorage, "_swap_data_ptr_")  # older ones do not
        self._keeps = swaps and values_here() and device.type == "cpu"
        self._storages: list[torch.UntypedStorage] = []
        self._largest = 0

    def fill(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Give an empty storage `nbytes`; their content is arbitrary."""
        lengths = [spare.nbytes() for spare in self._storages]
        if nbytes in lengths:
            swap(storage, self._storages.pop(lengths.index(nbytes)))
        else:
            # Malloc gets them all, and may join some.
            self._storages.clear()
            storage.resize_(nbytes)

    def empty(self, storage: torch.UntypedStorage) -> None:
        """Leave a storage without bytes."""
        self._largest = max(self._largest, storage.nbytes())
        spare = sum(other.nbytes() for other in self._storages) + storage.nbytes()
        if self._keeps and storage.nbytes() and spare <= MOST_SPARE * self._largest:
            self._storages.append(torch.UntypedStorage(0))
            swap(storage, self._storages[-1])
        else:
            storage.resize_(0)


def swap(storage: torch.UntypedStorage, spare: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages, one of them empty. Views of both stay."""
    storage._swap_data_ptr_(spare)  # type: ignore[attr-defined]


class Tier(DeviceTier):
    """Parameters on the device.

    copies    between a GPU and the host
    lanes     what moves parameters to and from a disk
    buffers   memory of the host through which parameters pass
    """

    lanes: Sequence[Lane] = ()
    buffers: Sequence[Tensor] = ()

    def __init__(self, comm: Collectives, offload: Offload) -> None:
        super().__init__(comm)
        self.offload, self.copies, self._spares = offload, Copies(comm.device), Spares(comm.device)
        # Copies may be under way, of gradients to the host, and of parameters from it.
        self._brought = self._is_read = False

    def resize(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        if nbytes:
            self._spares.fill(storage, nbytes)
        else:
            self._spares.empty(storage)

    def put(self, target: Tensor, values: Tensor, stays: bool) -> None:
        self.copies.put(target, values, stays)

    def flush(self) -> None:
        self.copies.finish()

    forget = flush

    def allocate_gradients(self, numel: int, dtype: torch.dtype) -> Tensor:
        if self.offload.optimizer == "device":
            return super().allocate_gradients(numel, dtype)
        return host_empty(numel, dtype, self.comm.device)

    def add_gradients(self, total: Tensor, more: Tensor, begun: bool) -> None:
        if door.holds(more) and not door.holds(total):
            self._brought = True
            self.copies.bring(total, more, begun)
        else:
            super().add_gradients(total, more.to(total.device), begun)

    def await_gradients(self) -> None:
        if self._brought:
            self._brought = False
            self.copies.finish()


class HostTier(Tier):
    def __init__(self, comm: Collectives, offload: Offload) -> None:
        super().__init__(comm, offload)
        if door.drives(comm.device):
            self.beside = self.copies

    def keep(self, bucket: Bucket, shard: Tensor) -> Tensor:
        return host_empty(shard.numel(), bucket.dtypes.shard, self.comm.device).copy_(shard)

    def fetch(self, bucket: Bucket, mine: Tensor) -> Tensor:
        return self._send(mine, bucket.shard)

    def open(self, bucket: Bucket) -> Tensor:
        self._wait_for_readers()
        return super().open(bucket)

    def _send(self, mine: Tensor, shard: Tensor) -> Tensor:
        """A shard to where `mine` lies. To a GPU the host goes on at once, where the shard is cast."""
        if not door.holds(mine) or door.holds(shard):
            return mine.copy_(shard)
        self._is_read = True
        if shard.dtype != mine.dtype:
            shard = shard.to(self.comm.device, non_blocking=True)
        return mine.copy_(shard, non_blocking=True)

    def _wait_for_readers(self) -> None:
        """Before the host writes what copies to a GPU may still read."""
        if self._is_read:
            self._is_read = False
            self.copies.finish()


class DiskTier(HostTier):
    """Shards in a file; as many elements as `max_in_cpu` says, of the first buckets, stay on the host. A shard passes
    through a buffer. A copy to a GPU may still read the first of the free ones, which is taken last."""

    def __init__(self, comm: Collectives, offload: Offload) -> None:
        super().__init__(comm, offload)
        self._numbers: dict[Bucket, int] = {}
        self.free: list[Tensor] = []
        self._open: tuple[Bucket, Tensor] | None = None
        self._coming: dict[Bucket, tuple[Transfer, Tensor]] = {}
        self._leaving: dict[Bucket, tuple[Transfer, Tensor]] = {}

    def prepare(self, buckets: Sequence[Bucket]) -> None:
        on_disk = self.offload.shards_on_disk(bucket.layout.shard_numel for bucket in buckets)
        self._numbers = {buckets[at]: number for number, at in enumerate(on_disk)}
        if not on_disk:
            return
        numel = max(bucket.layout.shard_numel for bucket in self._numbers)
        if self.offload.buffer_numel is not None and self.offload.buffer_numel < numel:
            raise InputError(
                f"a buffer of {self.offload.buffer_numel} elements is shorter than the largest shard, {numel} "
                "elements; make buffers larger, or buckets smaller (bucket_numel)"
            )
        sizes = [bucket.layout.shard_numel * bucket.dtypes.shard.itemsize for bucket in self._numbers]
        self._file = open_file(self.offload.folder, f"parameters-rank{self.comm.rank}", sizes)
        self.lanes = [Lane([self._file])]
        count, pin = max(2, self.offload.buffer_count), door.drives(self.comm.device)
        self.buffers = [aligned(max(sizes), pin) for _ in range(count)]
        self.free = list(self.buffers)

    def keep(self, bucket: Bucket, shard: Tensor) -> Tensor:
        if bucket not in self._numbers:
            return super().keep(bucket, shard)
        self.open(bucket).copy_(shard)
        self.flush()
        return torch.empty(0, dtype=bucket.dtypes.shard)

    def prefetch(self, bucket: Bucket) -> None:
        if self.free and bucket in self._numbers and bucket not in self._coming:
            self._coming[bucket] = self._read(bucket)

    def fetch(self, bucket: Bucket, mine: Tensor) -> Tensor:
        if bucket not in self._numbers:
            return super().fetch(bucket, mine)
        self._wait_for_readers()
        transfer, buffer = self._coming.pop(bucket) if bucket in self._coming else self._read(bucket)
        self.free.insert(0, buffer)
        transfer.wait()
        return self._send(mine, self._values(bucket, buffer))

    def open(self, bucket: Bucket) -> Tensor:
        if bucket not in self._numbers:
            return super().open(bucket)
        if self._open is None or self._open[0] is not bucket:
            self._write_open()
            # Shards that were read ahead hold the values from before this step.
            self._drop_coming()
            self._open = (bucket, self._free_buffer().zero_())
        return self._values(*self._open)

    def flush(self) -> None:
        super().flush()
        self._write_open()
        self._end(self._leaving)

    def forget(self) -> None:
        super().forget()
        if self._open is not None:
            self.free.append(self._open[1])
            self._open = None
        with suppress(OffloadError):
            self._end(self._leaving)
        self._drop_coming()

    def _values(self, bucket: Bucket, buffer: Tensor) -> Tensor:
        dtype = bucket.dtypes.shard
        return buffer[: bucket.layout.shard_numel * dtype.itemsize].view(dtype)

    def _read(self, bucket: Bucket) -> tuple[Transfer, Tensor]:
        buffer = self._free_buffer()
        return self.lanes[0].read(self._file, self._numbers[bucket], buffer), buffer

    def _write_open(self) -> None:
        if self._open is not None:
            bucket, buffer = self._open
            self._open = None
            # What the GPU's optimizer wrote to the buffer has come.
            super().flush()
            self._leaving[bucket] = self.lanes[0].write(self._file, self._numbers[bucket], buffer), buffer

    def _free_buffer(self) -> Tensor:
        """If need be one that was read ahead for nothing."""
        if not self.free:
            self._end(self._leaving)
        if not self.free:
            self._drop_coming()
        if len(self.free) == 1:
            self._wait_for_readers()
        return self.free.pop()

    def _drop_coming(self) -> None:
        # Nobody needs what could not be read.
        with suppress(OffloadError):
            self._end(self._coming)

    def _end(self, transfers: dict[Bucket, tuple[Transfer, Tensor]]) -> None:
        """Wait for transfers and take their buffers back; raise what went wrong once all have ended."""
        with ExitStack() as stack:
            for transfer, buffer in transfers.values():
                stack.callback(transfer.wait)
                self.free.append(buffer)
            transfers.clear()


TIERS = {"device": Tier, "host": HostTier, "disk": DiskTier}
REMEDY = "load a checkpoint, into this engine or a new one (zerolab.checkpoint.load)"


@contextmanager
def changing(engine: Engine, what: str) -> Iterator[None]:
    """Within, `what` changes parameters or states; if it raises, the engine is broken. At stage 3 other ranks have
    read this one's shards before."""
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
    """Within, transfers may fail on one rank; then every rank raises the same OffloadError. A collective where states
    are on a disk, of 8 bytes a rank."""
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
