"""Collectives of ranks that share a machine: nobody sends anything, everybody reads where the others' tensors lie.

    reduce_scatter   rank r adds up chunk r, straight from all ranks' tensors
    all_gather       rank r copies every shard from where it lies
    all_reduce       rank r adds up chunk r and writes it into all ranks' tensors

Each call begins with a note to all others (I am here, and my tensor is there) and ends with another (I have done with
yours). Between the two a rank reads all tensors and writes only what nobody else reads: in an all-reduce, chunk r of
every tensor is rank r's business alone, so no wait is needed between adding and writing back.

Summands are added in the ring's order, chunk c as g[c+1] + g[c+2] + ... + g[c] from the left, so the results are
those of `RingCollectives` to the bit. No collective can move fewer bytes from one rank's memory to another's; where N
divides the tensor they are as many as the ring sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes, _len_torch_dispatch_stack

from zerolab.collectives.call import current_call
from zerolab.collectives.contract import Collectives
from zerolab.collectives.shared.arena import Arena
from zerolab.collectives.shared.peers import DONE, HERE, Peers, is_possible
from zerolab.collectives.transport import Transport
from zerolab.errors import InputError, StateError
from zerolab.flat.layout import check_count, chunk_bound, chunk_sizes

Tensor = torch.Tensor

BLOCK_BYTES = 1 << 20
"""A sum is made in blocks of this size: its parts are still in a core's cache when the last summand comes."""


class SharedMemoryCollectives(Collectives):
    """The contract on memory that all ranks can address. Tensors from `allocate` are used where they lie; others are
    copied to shared memory first, and back."""

    def __init__(self, transport: Transport, arena: Arena | None = None) -> None:
        """`arena`: that of the ranks of which `transport` has some."""
        super().__init__(transport)
        if self.device.type != "cpu" or not is_possible():
            raise InputError(
                f'collectives="shared" needs Linux, and ranks on the CPU, not on {self.device}; use "ring" or "torch"'
            )
        self._arena = arena or Arena()
        self._owns = arena is None
        self._peers: Peers | None = None

    def _in_group(self, transport: Transport) -> SharedMemoryCollectives:
        return SharedMemoryCollectives(transport, self._arena)

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A 1-D tensor in shared memory; its content is arbitrary, as that of torch.empty."""
        check_count("numel", numel, least=0)
        return self._arena.allocate(numel, dtype)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if self._peers is not None:
                self._peers.close()
            self._peers = None
            if self._owns:
                self._arena.close()

    def _all_reduce(self, tensor: Tensor, divisor: int = 1) -> None:
        flat = tensor.view(-1)
        shared = self._placed(flat)
        with self._in_view(shared) as peers:
            *others, own = peers.views(shared, *chunk_bound(flat.numel(), self.size, self.rank))
            add_up([*others, own], own, divisor, copies=others)
            for _ in range(2 * len(others)):
                self.transport.moved(own.nbytes)
        if shared is not flat:
            flat.copy_(shared)

    def _all_reduce_mean(self, tensor: Tensor) -> None:
        self._all_reduce(tensor, self.size)

    def _reduce_scatter(self, tensor: Tensor, out: Tensor, divisor: int = 1) -> None:
        shared = self._placed(tensor)
        with self._in_view(shared) as peers:
            add_up(peers.views(shared, *chunk_bound(tensor.numel(), self.size, self.rank)), out, divisor)
            for _ in peers.others:
                self.transport.moved(out.nbytes)

    def _reduce_scatter_mean(self, tensor: Tensor, out: Tensor) -> None:
        self._reduce_scatter(tensor, out, self.size)

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        chunks = out.split(chunk_sizes(out.numel(), self.size))
        # The shard is wanted in the whole anyway.
        shared = self._placed(shard, chunks[self.rank])
        with self._in_view(shared) as peers:
            if chunks[self.rank].data_ptr() not in (shard.data_ptr(), shared.data_ptr()):
                chunks[self.rank].copy_(shard)
            for rank in peers.others:
                chunks[rank].copy_(peers.view(rank, 0, chunks[rank].numel(), shard.dtype))
                self.transport.moved(chunks[rank].nbytes)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        flat = tensor.view(-1)
        with self._in_view(self._placed(flat)) as peers:
            if self.rank != src:
                flat.copy_(peers.view(src, 0, flat.numel(), flat.dtype))
                self.transport.moved(flat.nbytes)

    def _barrier(self) -> None:
        with self._in_view(self._placed(torch.empty(0))):
            pass

    def _placed(self, tensor: Tensor, place: Tensor | None = None) -> Tensor:
        """Where the others find a tensor: itself if they can address it, else a copy in `place`, or in new memory."""
        if self._arena.fd < 0:
            raise StateError(f"{current_call.get()} was called after comm.close(); close it when all calls are made")
        if not tensor.numel() or self._arena.offset(tensor) is not None:
            return tensor
        if place is None or self._arena.offset(place) is None:
            place = self._arena.allocate(tensor.numel(), tensor.dtype)
        return place.copy_(tensor)

    @contextmanager
    def _in_view(self, tensor: Tensor) -> Iterator[Peers]:
        """Inside, the tensors of all ranks, of which this is our own, can be viewed; afterwards nobody reads them."""
        call = str(current_call.get())
        if self._peers is None:
            self._peers = Peers(self.transport, self._arena)
        self._peers.meet(HERE, call, tensor)
        # Peers' memory is no memory of this rank, and a tracker must not count it.
        with _disable_current_modes() if _len_torch_dispatch_stack() else nullcontext():
            yield self._peers
        self._peers.meet(DONE, call, tensor)


def add_up(parts: list[Tensor], out: Tensor, divisor: int, copies: list[Tensor] | None = None) -> None:
    """Sum `parts` from the left into `out` and divide; write the result over `copies`, too. The last part may be
    `out` itself, and the others may be `copies`: they are read before they are written."""
    step = BLOCK_BYTES // out.element_size()
    scratch = out.new_empty(min(step, out.numel()) if len(parts) > 2 else 0)
    # Half of a number, a quarter, ... is the same to the bit by either way, and a product takes half as long.
    factor = 1 / divisor if divisor & (divisor - 1) == 0 else None
    for at in range(0, out.numel(), step):
        total, *rest = [part[at : at + step] for part in parts]
        target = out[at : at + step]
        for part in rest:
            # The last summand may be the target's own memory, so nothing is written there before it is added.
            total = torch.add(total, part, out=target if part is rest[-1] else scratch[: target.numel()])
        if not rest:
            target.copy_(total)
        if factor is None:
            target.div_(divisor)
        elif factor != 1:
            target.mul_(factor)
        for copy in copies or ():
            copy[at : at + step].copy_(target)
