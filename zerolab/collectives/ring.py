"""Ring collectives from messages between neighbours (Patarasuk and Yuan, 2009; Thakur et al., 2005).

Rank r sends to r+1 and receives from r-1. In N-1 steps of a reduce-scatter each chunk travels once around the
ring and gathers one summand at each rank. Chunk c sets out from rank c+1 and ends, complete, at rank c:

    N = 3          step 0                step 1                  result
    rank 0   sends chunk 2 to 1    sends chunk 1 to 1      chunk 0 = (g1 + g2) + g0
    rank 1   sends chunk 0 to 2    sends chunk 2 to 2      chunk 1 = (g2 + g0) + g1
    rank 2   sends chunk 1 to 0    sends chunk 0 to 0      chunk 2 = (g0 + g1) + g2

The order of addition is fixed: chunk c is g[c+1] + g[c+2] + ... + g[c], from the left, whatever the timing and
whether the call came alone or as the first half of an all-reduce. ZeRO's stages are bitwise equal because of it.

Each rank sends (N-1)/N of the tensor in a reduce-scatter, as much in an all-gather, twice as much in an
all-reduce, which is the one after the other.
"""

from __future__ import annotations

import torch

from zerolab.collectives.call import Group, current_call
from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Issuer
from zerolab.collectives.transport import LocalTransport, Transport
from zerolab.errors import InputError
from zerolab.flat.layout import chunk_bound, chunk_sizes

Tensor = torch.Tensor


class RingCollectives(Collectives):
    def _reduce_scatter(self, tensor: Tensor, out: Tensor, average: bool) -> None:
        if self.size == 1:
            put(tensor, out)
            return
        chunks = split(tensor, self.size)
        longest = chunks[0].numel()
        # One buffer to receive into while the other, which arrived a step before, leaves; two ranks need only one.
        arriving, leaving = tensor.new_empty(longest), tensor.new_empty(longest if self.size > 2 else 0)
        travelling = chunks[self.rank - 1]
        for step in range(self.size - 1):
            # One chunk behind the one that just left, so that after N-1 steps the chunk in hand is our own.
            mine = chunks[self.rank - 2 - step]
            received = arriving[: mine.numel()]
            self._pass_on(travelling, received)
            last = step == self.size - 2
            # The sum so far + our summand, in this order.
            travelling = torch.add(received, mine, out=out if last else received)
            arriving, leaving = leaving, arriving
        if average:
            out.div_(self.size)

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        if self.size == 1:
            put(shard, out)
            return
        chunks = split(out, self.size)
        if self.transport.posts_ahead:
            self._relay(shard, chunks)
            return
        put(shard, chunks[self.rank])
        for step in range(self.size - 1):
            # First our own shard, then always what came last.
            self._pass_on(chunks[self.rank - step], chunks[self.rank - step - 1])

    def _relay(self, shard: Tensor, chunks: tuple[Tensor, ...]) -> None:
        """The same steps, sooner: receives are posted first, and our own shard is put in its place while it travels."""
        right, left, tag = self.ranks[(self.rank + 1) % self.size], self.ranks[self.rank - 1], call_tag()
        coming = [chunks[self.rank - step] for step in range(1, self.size)]
        arriving = [(chunk, self.transport.irecv(chunk, left, tag)) for chunk in coming if chunk.numel()]
        leaving = [self.transport.isend(shard, right, tag)] if shard.numel() else []
        put(shard, chunks[self.rank])
        for chunk, arrival in arriving:
            arrival.wait()
            if chunk is not coming[-1]:
                leaving.append(self.transport.isend(chunk, right, tag))
        for departure in leaving:
            departure.wait()

    def _all_reduce(self, tensor: Tensor, average: bool = False) -> None:
        if self.size == 1:
            return
        flat = tensor.view(-1)
        start, stop = chunk_bound(flat.numel(), self.size, self.rank)
        self._reduce_scatter(flat, flat[start:stop], average)
        self._all_gather(flat[start:stop], flat)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        """Scatter the chunks of `src`, then gather them: at any N, `src` sends less than two tensors, others one."""
        flat = tensor.view(-1)
        chunks = split(flat, self.size)
        if self.rank == src:
            others = [rank for rank in range(self.size) if rank != src]
            sent = [
                self.transport.isend(chunks[rank], self.ranks[rank], call_tag())
                for rank in others
                if chunks[rank].numel()
            ]
            for message in sent:
                message.wait()
        elif chunks[self.rank].numel():
            self.transport.irecv(chunks[self.rank], self.ranks[src], call_tag()).wait()
        self._all_gather(chunks[self.rank], flat)

    def _barrier(self) -> None:
        # An element for each rank, so that everybody hears from everybody.
        self._all_reduce(torch.zeros(self.size, dtype=torch.uint8, device=self.device))

    def _pass_on(self, outgoing: Tensor, incoming: Tensor) -> None:
        """One step of the ring: to the right, from the left. An empty chunk is not sent; its receiver knows."""
        right, left = self.ranks[(self.rank + 1) % self.size], self.ranks[self.rank - 1]
        if outgoing.numel() and incoming.numel():
            self.transport.exchange(outgoing, right, incoming, left, call_tag())
        elif outgoing.numel():
            self.transport.isend(outgoing, right, call_tag()).wait()
        elif incoming.numel():
            self.transport.irecv(incoming, left, call_tag()).wait()


class LocalCollectives(RingCollectives):
    """The ring of one rank, which moves no byte. It needs no launch: `LocalCollectives()` is a world."""

    def __init__(self, transport: Transport | None = None, within: Group | None = None) -> None:
        super().__init__(transport or LocalTransport(), within)
        self._issuer = Issuer(self.transport, queues=True)
        if self.size != 1:
            raise InputError(f"LocalCollectives serves one rank, not {self.size}; use RingCollectives")


def split(flat: Tensor, ranks: int) -> tuple[Tensor, ...]:
    """The chunks of a 1-D tensor, as views; `[-1]` is the last rank's, which is rank 0's left neighbour."""
    return flat.split(chunk_sizes(flat.numel(), ranks))


def put(shard: Tensor, chunk: Tensor) -> None:
    """Copy a shard to its chunk, unless it lies there already."""
    if shard.data_ptr() != chunk.data_ptr():
        chunk.copy_(shard)


def call_tag() -> int:
    call = current_call.get()
    return call.tag if call else 0
