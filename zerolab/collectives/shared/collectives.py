"""Collectives of ranks that share a machine: nobody sends anything, everybody reads where the others' tensors lie.
A rank's calls come in order (`queue.py`); its memory is an arena, which the others find (`peers.py`).

    reduce_scatter   rank r adds up chunk r, straight from all ranks' tensors
    all_gather       rank r copies every shard from where it lies
    all_reduce       rank r adds up chunk r and writes it into all ranks' tensors

Each call begins with a note to all others (I am here, and my tensor is there) and ends with another (I have done with
yours). Between the two a rank reads all tensors and writes only what nobody else reads: in an all-reduce, chunk r of
every tensor. Summands are added in the ring's order, so the results are those of `RingCollectives` to the bit; where N
divides the tensor the bytes are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace

import torch

from zerolab.collectives.call import Call, Group
from zerolab.collectives.contract import Collectives
from zerolab.collectives.shared.peers import Peers, is_possible
from zerolab.collectives.shared.queue import CallQueue
from zerolab.collectives.transport import Request, Transport
from zerolab.errors import InputError
from zerolab.flat.layout import check_count, chunk_bound, chunk_sizes

Tensor = torch.Tensor

BLOCK_BYTES = 1 << 20
"""A sum is made in blocks of this size: its parts are still in a core's cache when the last summand comes."""


class SharedMemoryCollectives(Collectives):
    """The contract on memory that all ranks can address. Tensors from `allocate` are used where they lie; others are
    copied to shared memory first, and back."""

    def __init__(self, transport: Transport, within: Group | None = None, peers: Peers | None = None) -> None:
        super().__init__(transport, within)
        if self.device.type != "cpu" or not is_possible():
            raise InputError(
                f'collectives="shared" needs Linux, and ranks on the CPU, not on {self.device}; use "ring" or "torch"'
            )
        self._peers = peers or Peers(transport)
        self._issuer = self._queue = CallQueue(self, self._peers, self._place)

    def _in_group(self, group: Group) -> SharedMemoryCollectives:
        return SharedMemoryCollectives(self.transport, group, self._peers)

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A 1-D tensor in shared memory, with arbitrary content."""
        check_count("numel", numel, least=0)
        return self._peers.arena.allocate(numel, dtype)

    def isend(self, tensor: Tensor, dst: int) -> Request:
        return self._attended(super().isend(tensor, dst))

    def irecv(self, tensor: Tensor, src: int) -> Request:
        return self._attended(super().irecv(tensor, src))

    def _attended(self, request: Request) -> Request:
        """A message of the rank function's own. Who waits for one goes on with the calls under way."""
        return SimpleNamespace(wait=partial(self._queue.attend, request))

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self.within is None:
                self._peers.close()

    # What a rank does in a call, once all have announced their tensors.

    def _all_reduce(self, tensor: Tensor, average: bool) -> None:
        call, flat = self._queue.running, tensor.view(-1)
        shared = call.announced
        assert shared is not None
        *others, own = call.views(*chunk_bound(flat.numel(), self.size, self.rank))
        add_up([*others, own], own, self.size if average else 1, copies=others)
        for _ in range(2 * len(others)):
            self.transport.moved(own.nbytes)
        if shared.data_ptr() != flat.data_ptr():
            call.at_the_end = lambda: flat.copy_(shared)

    def _reduce_scatter(self, tensor: Tensor, out: Tensor, average: bool) -> None:
        views = self._queue.running.views(*chunk_bound(tensor.numel(), self.size, self.rank))
        add_up(views, out, self.size if average else 1)
        for _ in self._queue.others:
            self.transport.moved(out.nbytes)

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        running, chunks = self._queue.running, out.split(chunk_sizes(out.numel(), self.size))
        assert running.announced is not None
        if chunks[self.rank].data_ptr() not in (shard.data_ptr(), running.announced.data_ptr()):
            chunks[self.rank].copy_(shard)
        for rank in self._queue.others:
            chunk = chunks[self.ranks.index(rank)]
            chunk.copy_(running.view(rank, 0, chunk.numel()))
            self.transport.moved(chunk.nbytes)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        if self.rank != src:
            flat = tensor.view(-1)
            flat.copy_(self._queue.running.view(self.ranks[src], 0, flat.numel()))
            self.transport.moved(flat.nbytes)

    def _barrier(self) -> None:
        pass

    # Before that.

    def _place(self, call: Call, tensors: list[Tensor]) -> Tensor:
        """Where the others find what this rank brings: the tensor itself if they can address it, else a copy."""
        tensor, arena = tensors[0].view(-1), self._peers.arena
        if not tensor.numel() or arena.offset(tensor) is not None:
            return tensor
        if call.name == "all_gather" and arena.offset(tensors[1]) is not None:
            # The shard is wanted in the whole anyway.
            start, stop = chunk_bound(call.numel, self.size, self.rank)
            return tensors[1][start:stop].copy_(tensor)
        return arena.allocate(tensor.numel(), tensor.dtype).copy_(tensor)


def add_up(parts: list[Tensor], out: Tensor, divisor: int, copies: Sequence[Tensor] = ()) -> None:
    """Sum `parts` from the left into `out` and divide; write the result over `copies`, too. The last part may be `out`
    itself, and the others `copies`: each block is read before it is written."""
    step = BLOCK_BYTES // out.element_size()
    scratch = out.new_empty(min(step, out.numel()) if len(parts) > 2 else 0)
    # Half of a number, a quarter, ... is the same to the bit by either way, and a product takes half as long.
    factor = 1 / divisor if divisor & (divisor - 1) == 0 else None
    for at in range(0, out.numel(), step):
        total, *rest = [part[at : at + step] for part in parts]
        target = out[at : at + step]
        for part in rest:
            total = torch.add(total, part, out=target if part is rest[-1] else scratch[: target.numel()])
        if not rest:
            target.copy_(total)
        if factor is None:
            target.div_(divisor)
        elif factor != 1:
            target.mul_(factor)
        for copy in copies:
            copy[at : at + step].copy_(target)
