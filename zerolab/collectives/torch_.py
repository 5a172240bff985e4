"""The contract on torch's own collectives (gloo on CPUs, NCCL on GPUs): the reference, and the fast path on GPUs
that have one rank each, where "auto" takes it. NCCL's order of addition is not fixed; ask for the ring to compare bits.

What gloo or NCCL put on the wire cannot be seen from here, so the meter states what the ring algorithm needs
(`cost.wire_bytes`) and marks it as nominal; gloo is free to send more.
"""

from __future__ import annotations

import zlib
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.utils.rnn import pad_sequence

from zerolab.collectives.call import Group
from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Issuer
from zerolab.collectives.transport import Transport
from zerolab.errors import InputError
from zerolab.flat.layout import chunk_sizes

Tensor = torch.Tensor

# torch 2.13 renamed both and warns about the old names; torch 2.11 knows only those.
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


FLOATS = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
KNOWN = FLOATS | {torch.int8, torch.uint8, torch.int32, torch.int64}
"""The dtypes that both libraries move and add, whatever their version. Others travel as bytes."""


class TorchCollectives(Collectives):
    """The contract on a torch process group; a length that N does not divide is padded on the way."""

    nominal = True

    def __init__(
        self, transport: Transport, within: Group | None = None, group: dist.ProcessGroup | None = None
    ) -> None:
        super().__init__(transport, within)
        self._issuer = Issuer(transport, transport.queues)
        while group is None and (inner := getattr(transport, "inner", None)) is not None:
            transport = inner
        # The transport's own, which may be a part of the world.
        self.group: dist.ProcessGroup | None = group or getattr(transport, "group", None)

    def _in_group(self, group: Group) -> TorchCollectives:
        whole = self.group or dist.group.WORLD
        assert whole is not None
        ranks = [dist.get_global_rank(whole, self.ranks.index(rank)) for rank in group.ranks]
        return TorchCollectives(self.transport, group, new_group(ranks, group.number) if len(ranks) > 1 else None)

    def _operation(self, tensor: Tensor, average: bool) -> Any:
        """What the library is asked for. Gloo has no mean. NCCL's divides before it adds, so nothing overflows; but it
        multiplies by 1/N in the tensor's dtype, and in bf16 1/3 is 0.2 % more than a third."""
        exact = tensor.dtype != torch.bfloat16 or self.size & (self.size - 1) == 0
        return dist.ReduceOp.AVG if average and self.transport.queues and exact else dist.ReduceOp.SUM

    def _all_reduce(self, tensor: Tensor, average: bool) -> None:
        op = self._operation(tensor, average)
        if self.size > 1 and tensor.numel():
            dist.all_reduce(as_summed("all_reduce", tensor), op, group=self.group)
        if average and op == dist.ReduceOp.SUM:
            tensor.div_(self.size)

    def _reduce_scatter(self, tensor: Tensor, out: Tensor, average: bool) -> None:
        if self.size == 1:
            out.copy_(tensor)
            return
        op, sizes = self._operation(tensor, average), chunk_sizes(tensor.numel(), self.size)
        even = sizes[0] == sizes[-1]
        whole = tensor if even else pad_sequence(tensor.split(sizes), batch_first=True).view(-1)
        # gloo may write its output while it still reads: never hand it a view of the input. NCCL may.
        target = out if even and (out.is_cuda or not share_storage(out, tensor)) else tensor.new_empty(sizes[0])
        if sizes[0]:
            name = "reduce_scatter"
            _reduce_scatter_single(as_summed(name, target), as_summed(name, whole), op, group=self.group)
        if target is not out:
            out.copy_(target[: out.numel()])
        if average and op == dist.ReduceOp.SUM:
            out.div_(self.size)

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        if self.size == 1:
            out.copy_(shard)
            return
        sizes = chunk_sizes(out.numel(), self.size)
        if sizes[0] > sizes[-1]:
            padded, whole = shard.new_empty(sizes[0]), shard.new_empty(sizes[0] * self.size)
            padded[: shard.numel()] = shard
            self._bring(padded, whole)
            for chunk, filled in zip(out.split(sizes), whole.split(sizes[0]), strict=True):
                chunk.copy_(filled[: chunk.numel()])
        elif sizes[0]:
            self._bring(shard.clone() if not out.is_cuda and share_storage(out, shard) else shard, out)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        if self.size > 1 and tensor.numel():
            dist.broadcast(as_carried(tensor), group_src=src, group=self.group or dist.group.WORLD)

    def _barrier(self) -> None:
        if self.size > 1:
            dist.all_reduce(torch.zeros(1, device=self.device), group=self.group)

    def _bring(self, shard: Tensor, out: Tensor) -> None:
        _all_gather_single(as_carried(out), as_carried(shard), group=self.group)


def share_storage(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def as_carried(tensor: Tensor) -> Tensor:
    """The same memory in a dtype that NCCL and gloo know: bytes, if they may not know the tensor's own."""
    return tensor if tensor.dtype in KNOWN else tensor.view(-1).view(torch.uint8)


def as_summed(name: str, tensor: Tensor) -> Tensor:
    """The same memory as numbers that NCCL and gloo add: a complex number is two. Raises InputError for others."""
    if tensor.is_complex():
        return torch.view_as_real(tensor).view(-1)
    if tensor.dtype not in KNOWN:
        raise InputError(
            f"{name} of {tensor.dtype}, which NCCL and gloo do not add; convert it with .float() or .int()"
        )
    return tensor


_made: Counter[str] = Counter()


def new_group(ranks: list[int], number: int, backend: str | None = None) -> dist.ProcessGroup:
    """A process group of torch's among `ranks` of its world, in that order; only they call it. `number` is theirs."""
    name = f"zerolab-{number}-{'-'.join(map(str, ranks))}"
    _made[name] += 1
    world = dist.group.WORLD
    assert world is not None
    # Torch would name the group by how many this process has made, which its ranks need not have in common. And a world
    # whose GPU is known would make it by splitting NCCL's communicator, which takes all ranks of the world.
    named, device = distributed_c10d._process_group_name, world.bound_device_id
    distributed_c10d._process_group_name = lambda *_, **__: f"{name}-{_made[name]}"  # type: ignore[assignment, return-value]
    world.bound_device_id = None
    try:
        return dist.new_group(
            ranks, timeout_of(world), backend, use_local_synchronization=True, sort_ranks=ranks == sorted(ranks)
        )
    finally:
        distributed_c10d._process_group_name, world.bound_device_id = named, device


def timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long a call of the group may take by torch's own count; None where its backends differ or do not say."""
    times: set[timedelta] = set()
    for device in group._device_types:
        with suppress(RuntimeError, AttributeError):
            times.add(group._get_backend(device).options._timeout)
    return times.pop() if len(times) == 1 else None


_beside: dict[tuple[str, str], dist.ProcessGroup] = {}


def beside(group: dist.ProcessGroup, backend: str) -> dist.ProcessGroup:
    """A group of the same ranks on another backend, made once; all of them call it."""
    key = group.group_name, backend
    # One of an earlier world ended with it.
    if key not in _beside or _beside[key] not in distributed_c10d._world.pg_map:
        _beside[key] = new_group(dist.get_process_group_ranks(group), zlib.crc32(repr(key).encode()), backend)
    return _beside[key]


def connect(group: dist.ProcessGroup, device: torch.device) -> None:
    """Let all ranks of a NCCL group meet: the first call must not be a message which two of them pass alone."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)


def backends_of(group: dist.ProcessGroup) -> dict[str, str]:
    """The group's backend for each type of device, such as {"cpu": "gloo", "cuda": "nccl"}."""
    return dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))


def carriers(group: dist.ProcessGroup, nccl: bool) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """What carries these ranks' tensors, NCCL if `nccl`, and those on the host, gloo: `group`, or one beside it."""
    backends = backends_of(group)
    host = group if backends.get("cpu") == "gloo" else beside(group, "gloo")
    if not nccl:
        return host, host
    return group if backends.get("cuda") == "nccl" else beside(group, "nccl"), host
