"""The contract for one rank, which has nobody to talk to: the sum of one summand is the summand."""

from __future__ import annotations

import torch

from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Issuer
from zerolab.collectives.ring import put
from zerolab.collectives.transport import LocalTransport, Transport
from zerolab.errors import InputError

Tensor = torch.Tensor


class LocalCollectives(Collectives):
    """Every collective of one rank; moves no byte. It needs no launch: `LocalCollectives()` is a world."""

    def __init__(self, transport: Transport | None = None) -> None:
        super().__init__(transport or LocalTransport())
        self._issuer = Issuer(self.transport, queues=True)
        if self.size != 1:
            raise InputError(f"LocalCollectives serves one rank, not {self.size}; use RingCollectives")

    def _all_reduce(self, tensor: Tensor) -> None:
        pass

    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        put(tensor, out)

    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        put(shard, out)

    def _broadcast(self, tensor: Tensor, src: int) -> None:
        pass

    def _barrier(self) -> None:
        pass
