"""What a rank calls and sends, counted at the place where bytes go on the wire."""

from __future__ import annotations

from collections import Counter

import torch

from zerolab.collectives.call import Call, Group, current_call, current_group, current_phase
from zerolab.collectives.cost import RINGS, wire_bytes
from zerolab.collectives.transport import Request, Transport, WrappedTransport

Tensor = torch.Tensor


class Meter(WrappedTransport):
    """Counts this rank's calls and the bytes it sends, by phase and collective, in all its groups. A message that the
    rank function sends itself counts as "send"."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.bytes: Counter[tuple[str, str]] = Counter()
        self.group_bytes: Counter[tuple[str, str]] = Counter()
        """By phase and group; what is not here went through the world's own collectives."""
        self.nominal = False

    def entered(self, call: Call) -> None:
        self.calls[call.phase, call.name] += 1
        if call.nominal:
            self.nominal = True
            if call.name in RINGS:
                rank, size = call.place_of(self.rank, self.size)
                nbytes = wire_bytes(call.name, call.numel, call.itemsize, size, rank, call.src)
                self._add((call.phase, call.name), call.group, nbytes)
        super().entered(call)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Request:
        self._count(tensor.nbytes)
        return super().isend(tensor, dst, tag)

    def exchange(self, outgoing: Tensor, dst: int, incoming: Tensor, src: int, tag: int = 0) -> None:
        self._count(outgoing.nbytes)
        super().exchange(outgoing, dst, incoming, src, tag)

    def moved(self, nbytes: int) -> None:
        self._count(nbytes)
        super().moved(nbytes)

    def _count(self, nbytes: int) -> None:
        call = current_call.get()
        if call is not None:
            self._add((call.phase, call.name), call.group, nbytes)
        else:
            self._add((current_phase.get(), "send"), current_group.get(), nbytes)

    def _add(self, key: tuple[str, str], group: Group | None, nbytes: int) -> None:
        self.bytes[key] += nbytes
        if group is not None:
            self.group_bytes[key[0], group.title] += nbytes

    def reset(self) -> None:
        """Count from zero again."""
        self.calls.clear()
        self.bytes.clear()
        self.group_bytes.clear()

    def calls_by_collective(self, *phases: str) -> dict[str, int]:
        """Calls of each collective, of the named phases or of all."""
        return _by_collective(self.calls, phases)

    def bytes_by_collective(self, *phases: str) -> dict[str, int]:
        """Bytes this rank sent in each collective, of the named phases or of all."""
        return _by_collective(self.bytes, phases)

    def bytes_by_group(self, *phases: str) -> dict[str, int]:
        """Bytes this rank sent in each group, by its name or its ranks ("ranks 0, 2"), of the named phases or of all.
        "world" is what all ranks sent each other."""
        found = _by_collective(self.group_bytes, phases)
        world = sum(self.bytes_by_collective(*phases).values()) - sum(found.values())
        return {"world": world, **found} if world else found


def _by_collective(counts: Counter[tuple[str, str]], phases: tuple[str, ...]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (phase, name), count in counts.items():
        if not phases or phase in phases:
            total[name] += count
    return dict(sorted(total.items()))
