"""One collective call among ranks that share memory: where everybody's tensor lies, and until when."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zerolab.collectives.call import mismatch
from zerolab.collectives.shared.peers import DONE, HERE, WORDS, GroupPeers
from zerolab.errors import MismatchError

NOWHERE = -1


class SharedCall:
    """A rank's part in a call, in four steps: it announces its tensor, meets the others, does its share with all
    tensors in view, and takes its leave. A call is over for it when all others have left, too: until then its tensor is
    theirs to read."""

    def __init__(self, peers: GroupPeers, call: str, tensor: torch.Tensor) -> None:
        """Announce `tensor`, which lies in this rank's arena."""
        self.tensor = tensor
        self.at_the_end: Callable[[], object] | None = None
        """What this rank does when all others have left."""
        self._peers = peers
        self._call = call.encode("ascii", "replace")[:WORDS].decode()
        self._others = [(peers.rank + step) % peers.size for step in range(1, peers.size)]
        self._offsets: dict[int, int] = {}
        self._left: set[int] = set()
        offset = peers.arena.offset(tensor) if tensor.numel() else None
        peers.note(HERE, NOWHERE if offset is None else offset, self._call)

    def missing(self, kind: int) -> int | None:
        """A rank that is not known to be here (or to have left, if `kind` is DONE); None if all are. Does not wait."""
        known = self._offsets if kind == HERE else self._left
        if len(known) < len(self._others):
            for rank in self._others:
                if rank not in known and not self._heard(rank, kind):
                    return rank
        return None

    def view(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Elements `[start, stop)` of the tensor of `rank`."""
        if rank == self._peers.rank or start == stop:
            return self.tensor[start:stop]
        dtype = self.tensor.dtype
        return self._peers.view(rank, self._offsets[rank] + start * dtype.itemsize, stop - start, dtype)

    def views(self, start: int, stop: int) -> list[torch.Tensor]:
        """Those elements of all ranks' tensors, in the ring's order of addition: our right neighbour's first, our own
        last."""
        return [self.view(rank, start, stop) for rank in [*self._others, self._peers.rank]]

    def leave(self) -> None:
        """Tell the others that this rank needs their tensors no more, and has written what it had to."""
        self._peers.note(DONE, NOWHERE, self._call)

    def _heard(self, rank: int, kind: int) -> bool:
        note = self._peers.take(rank, kind)
        if note is None:
            return False
        offset, theirs = note
        if theirs != self._call:
            ranks = self._peers.ranks
            (one, this), (other, that) = sorted([(ranks[self._peers.rank], self._call), (ranks[rank], theirs)])
            raise MismatchError(mismatch(one, this, other, that))
        if kind == HERE:
            self._offsets[rank] = offset
        else:
            self._left.add(rank)
        return True
