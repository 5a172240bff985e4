"""All ranks' calls compared before each collective; those that differ are named."""

from __future__ import annotations

import torch

from zerolab.collectives.call import Call
from zerolab.collectives.transport import Grouped, WrappedTransport
from zerolab.errors import MismatchError


class Checked(WrappedTransport):
    """Before each collective, tells all ranks what this one is about to call; raises where they differ. Costs
    N-1 small messages a call, so it is for tests, lessons and hunting a hang under torchrun."""

    WIDTH = 160

    def entered(self, call: Call) -> None:
        super().entered(call)
        ring = self.inner if call.group is None else Grouped(self.inner, call.group)
        texts = torch.zeros(ring.size, self.WIDTH, dtype=torch.uint8)
        own = str(call).encode()[: self.WIDTH]
        texts[ring.rank, : len(own)] = torch.tensor(list(own), dtype=torch.uint8)
        texts = texts.to(self.device)
        for step in range(ring.size - 1):
            right, left = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
            ring.exchange(texts[ring.rank - step], right, texts[ring.rank - step - 1], left, tag=1)
        seen = [bytes(row.tolist()).rstrip(b"\0").decode(errors="replace") for row in texts.cpu()]
        if any(text != seen[0] for text in seen):
            ranks = range(ring.size) if call.group is None else call.group.ranks
            listed = "; ".join(f"rank {rank} is in {text}" for rank, text in zip(ranks, seen, strict=True))
            raise MismatchError(f"the ranks called different collectives: {listed}; make them call alike")
