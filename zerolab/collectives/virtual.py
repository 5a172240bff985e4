"""Collectives of a virtual world: one rank, the bytes that it would send, and the time that it would take."""

from __future__ import annotations

from torch import Tensor

from zerolab.collectives.cost import wire_bytes
from zerolab.collectives.ring import RingCollectives
from zerolab.flat.layout import chunk_bound
from zerolab.flat.views import address


class VirtualCollectives(RingCollectives):
    """The contract where the other ranks are only thought of: they do the same as this one, at the same time. No tensor
    has values, and nothing travels. What is left are buffers, for as long as a call runs, bytes, and time."""

    def _reduce_scatter(self, tensor: Tensor, out: Tensor, average: bool) -> None:
        if self.size == 1:
            out.copy_(tensor)
            return
        longest = chunk_bound(tensor.numel(), self.size, 0)[1]
        # Alive until the call has ended: of the ring's two, one arrives while the other leaves.
        buffers = tensor.new_empty(longest), tensor.new_empty(longest if self.size > 2 else 0)
        self._travel("reduce_scatter", tensor)
        del buffers
        if average:
            out.div_(self.size)

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        start, stop = chunk_bound(out.numel(), self.size, self.rank)
        if address(shard) != address(out) + start * out.element_size():
            out[start:stop].copy_(shard)
        self._travel("all_gather", out)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        self._travel("broadcast", tensor, src)

    def _travel(self, name: str, whole: Tensor, src: int = 0) -> None:
        """What the ring would send of a tensor."""
        if self.size > 1:
            sent = wire_bytes(name, whole.numel(), whole.element_size(), self.size, self.rank, src)
            self.transport.moved(sent)
