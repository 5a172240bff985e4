"""A ring collective as a film: what every rank holds before each step, and which messages then pass.

The library's own ring runs in lockstep; messages are the events of its trace. Rank r brings (c+1) * 10^r as chunk c:
303 is chunk 2 with the summands of ranks 0 and 2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch

from zerolab.collectives import RingCollectives, Transport
from zerolab.collectives.ring import split
from zerolab.collectives.transport import WrappedTransport
from zerolab.course.viz.picture import check_ranks
from zerolab.errors import InputError
from zerolab.ranks import launch

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
NUMEL = 840
"""Elements of the tensor: 2 to 8 ranks all divide it."""


class Hop(NamedTuple):
    """What a rank holds of a chunk: it, and the ranks whose summands are in it."""

    chunk: int
    ranks: tuple[int, ...]

    def sum(self, ranks: int) -> str:
        """Its sum so far, such as "g3+g0"; "complete" once all `ranks` are in it."""
        # Chunk c sets out from rank c+1, so this is the order in which its summands came.
        came = sorted(self.ranks, key=lambda rank: (rank - self.chunk - 1) % ranks)
        return "complete" if len(came) == ranks else "+".join(f"g{rank}" for rank in came)


class Message(NamedTuple):
    """What rank `src` sends to rank `dst` in a step: `hop`, in `nbytes` bytes."""

    src: int
    dst: int
    nbytes: int
    hop: Hop


class Moment(NamedTuple):
    """`held[rank][chunk]` is what lies there before the messages of this step (None: nothing yet); `sent[rank]` the
    bytes that a rank has sent until then. The last moment of a film has no messages."""

    held: tuple[tuple[Hop | None, ...], ...]
    messages: tuple[Message, ...]
    sent: tuple[int, ...]


class Camera(WrappedTransport):
    """Notes what each payload is, all elements of which are alike, and before it the chunks of a tensor."""

    def __init__(self, inner: Transport, tensor: torch.Tensor) -> None:
        super().__init__(inner)
        self.chunks = split(tensor, inner.size)
        self.payloads: list[int] = []
        self.frames: list[list[int]] = []

    def look(self) -> None:
        self.frames.append([int(chunk[0]) for chunk in self.chunks])

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.look()
        self.payloads.append(int(outgoing[0]))
        super().exchange(outgoing, dst, incoming, src, tag)


def decode(value: int) -> Hop:
    """Which chunk a number is, and whose summands are in it."""
    digits = [int(digit) for digit in reversed(str(value))]
    return Hop(max(digits) - 1, tuple(rank for rank, digit in enumerate(digits) if digit))


def _on_rank(transport: Transport, collective: str, numel: int) -> tuple[list[list[int]], list[int]]:
    """Frames of the tensor, one more than there are steps, and the payload of each step."""
    rank, size = transport.rank, transport.size
    tensor = torch.zeros(numel, dtype=torch.int32)
    camera = Camera(transport, tensor)
    comm = RingCollectives(camera)
    own = camera.chunks[rank]
    if collective == "all_gather":
        # What is gathered is complete: the sum over all ranks.
        own.fill_((rank + 1) * sum(10**other for other in range(size)))
        comm.all_gather(own, out=tensor)
    else:
        for number, chunk in enumerate(camera.chunks):
            chunk.fill_((number + 1) * 10**rank)
        comm.reduce_scatter(tensor, out=own) if collective == "reduce_scatter" else comm.all_reduce(tensor)
    camera.look()
    return camera.frames, camera.payloads


@lru_cache(maxsize=64)
def film(collective: str = "reduce_scatter", ranks: int = 4, numel: int = NUMEL) -> tuple[Moment, ...]:
    """The moments of a ring `collective` over `numel` int32 elements, one before each step and the end. Raises
    InputError for another collective than COLLECTIVES, or ranks outside 2 to 8."""
    if collective not in COLLECTIVES:
        raise InputError(f"there is no film of {collective!r}; name one of {', '.join(COLLECTIVES)}")
    check_ranks(ranks, 2)
    ran = launch(
        _on_rank, collective, numel, ranks=ranks, world="lockstep", collectives="transport", device="cpu",
        prints="quiet", trace=True,
    )  # fmt: skip
    assert ran.trace is not None
    sends = [[event for event in ran.trace if event.kind == "send" and event.rank == rank] for rank in range(ranks)]
    moments = []
    for step in range(len(sends[0]) + 1):
        held = [[decode(value) if value else None for value in frames[step]] for frames, _ in ran]
        messages = [
            Message(rank, events[step].peer, events[step].nbytes, decode(ran[rank][1][step]))
            for rank, events in enumerate(sends)
            if step < len(events)
        ]
        for message in messages:
            # What travels lies in a buffer beside the tensor; the rank holds it all the same.
            held[message.src][message.hop.chunk] = message.hop
        sent = tuple(sum(event.nbytes for event in events[:step]) for events in sends)
        moments.append(Moment(tuple(map(tuple, held)), tuple(messages), sent))
    return tuple(moments)
