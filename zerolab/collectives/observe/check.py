"""All ranks' calls compared before each collective; those that differ are named."""

from __future__ import annotations

from zerolab.collectives.call import Call
from zerolab.collectives.transport import Grouped, WrappedTransport
from zerolab.errors import MismatchError


class Checked(WrappedTransport):
    """Before each collective, tells all ranks what this one is about to call; raises where they differ. Costs log N
    small messages a call, so it is for tests, lessons and hunting a hang under torchrun."""

    WIDTH = 160

    def entered(self, call: Call) -> None:
        super().entered(call)
        text = str(call).encode()[: self.WIDTH].ljust(self.WIDTH, b"\0")
        ranks = range(self.size) if call.group is None else call.group.ranks
        ring = self.inner if call.group is None else Grouped(self.inner, call.group)
        seen = [bytes(row).rstrip(b"\0").decode(errors="replace") for row in ring.all_gather_ints(list(text))]
        if any(said != seen[0] for said in seen):
            listed = "; ".join(f"rank {rank} is in {said}" for rank, said in zip(ranks, seen, strict=True))
            raise MismatchError(f"the ranks called different collectives: {listed}; make them call alike")
