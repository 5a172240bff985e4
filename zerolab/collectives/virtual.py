"""The contract where the other ranks are only thought of: they do the same as this one, at the same time.

A tensor has no values there, so nothing is added up and nothing travels. What a call leaves to be seen is as in the
ring (`ring.py`): its buffers, for as long as it runs, the bytes that this rank would send, and its time on the world's
clock.
"""

from __future__ import annotations

import torch

from zerolab.collectives.contract import Collectives
from zerolab.collectives.cost import wire_bytes
from zerolab.flat.layout import chunk_bound
from zerolab.flat.values import address

Tensor = torch.Tensor


class VirtualCollectives(Collectives):
    """Every collective of a rank whose peers are virtual."""

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        if self.size == 1:
            out.copy_(tensor)
            return
        longest = chunk_bound(tensor.numel(), self.size, 0)[1]
        # Alive until the call has ended: of the ring's two, one arrives while the other leaves.
        buffers = tensor.new_empty(longest), tensor.new_empty(longest if self.size > 2 else 0)
        self._travel("reduce_scatter", tensor)
        del buffers

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        start, stop = chunk_bound(out.numel(), self.size, self.rank)
        if address(shard) != address(out) + start * out.element_size():
            out[start:stop].copy_(shard)
        self._travel("all_gather", out)

    def _all_reduce(self, tensor: Tensor) -> None:
        flat = tensor.view(-1)
        start, stop = chunk_bound(flat.numel(), self.size, self.rank)
        self._reduce_scatter(flat, flat[start:stop])
        self._all_gather(flat[start:stop], flat)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        self._travel("broadcast", tensor, src)

    def _barrier(self) -> None:
        self._all_reduce(torch.zeros(self.size, dtype=torch.uint8, device=self.device))

    def _travel(self, name: str, whole: Tensor, src: int = 0) -> None:
        """What the ring would send of a tensor."""
        if self.size > 1:
            sent = wire_bytes(name, whole.numel(), whole.element_size(), self.size, self.rank, src)
            self.transport.moved(sent)
