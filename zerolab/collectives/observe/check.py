"""All ranks' calls compared before each collective; those that differ are named."""

from __future__ import annotations

from zerolab.collectives.call import Call
from zerolab.collectives.transport import WrappedTransport
from zerolab.errors import MismatchError


class Checked(WrappedTransport):
    """Before each collective, tells all ranks what this one is about to call; raises where they differ. Costs log N
    small messages a call, so it is for tests, lessons and hunting a hang under torchrun."""

    def entered(self, call: Call) -> None:
        super().entered(call)
        ranks = range(self.size) if call.group is None else call.group.ranks
        seen = self.all_gather_text(str(call), call.group)
        if any(said != seen[0] for said in seen):
            listed = "; ".join(f"rank {rank} is in {said}" for rank, said in zip(ranks, seen, strict=True))
            raise MismatchError(f"the ranks called different collectives: {listed}; make them call alike")
