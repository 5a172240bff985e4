"""A ring collective as a film: what every rank holds before each step, and which messages then pass.

Nothing here is computed from a formula. The library's own ring runs in lockstep; messages are the events of its trace,
and what a rank holds is read from its tensor, where numbers tell by their digits whose summands are in them
(`ring.py` says how).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from zerolab.collectives import RingCollectives, Transport
from zerolab.collectives.ring import split
from zerolab.course.viz.ring import MOST_RANKS, Hop, Witness, decode
from zerolab.errors import InputError
from zerolab.ranks import launch

COLLECTIVES = ("reduce_scatter", "all_gather", "all_reduce")
NUMEL = 840
"""Elements of the tensor: 2 to 8 ranks all divide it."""


@dataclass(frozen=True)
class Message:
    """What rank `src` sends to rank `dst` in a step: `hop`, in `nbytes` bytes."""

    src: int
    dst: int
    nbytes: int
    hop: Hop


@dataclass(frozen=True)
class Moment:
    """`held[rank][chunk]` is what lies there before the messages of this step (None: nothing yet); `sent[rank]` the
    bytes that a rank has sent until then. The last moment of a film has no messages."""

    held: tuple[tuple[Hop | None, ...], ...]
    messages: tuple[Message, ...]
    sent: tuple[int, ...]


class Camera(Witness):
    """A witness that also reads a tensor, chunk by chunk, before each of its rank's steps."""

    def __init__(self, inner: Transport, tensor: torch.Tensor) -> None:
        super().__init__(inner)
        self.chunks = split(tensor, inner.size)
        self.frames: list[list[int]] = []

    def look(self) -> None:
        self.frames.append([int(chunk[0]) for chunk in self.chunks])

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        self.look()
        super().exchange(outgoing, dst, incoming, src, tag)


def _on_rank(transport: Transport, collective: str, numel: int) -> tuple[list[list[int]], list[int]]:
    """Frames of the tensor, one more than there are steps, and the payload of each step."""
    rank, size = transport.rank, transport.size
    tensor = torch.zeros(numel, dtype=torch.int32)
    camera = Camera(transport, tensor)
    comm = RingCollectives(camera)
    for number, chunk in enumerate(camera.chunks):
        if collective != "all_gather":
            chunk.fill_((number + 1) * 10**rank)
        elif number == rank:
            # What is gathered is complete: the sum over all ranks.
            chunk.fill_((number + 1) * sum(10**other for other in range(size)))
    if collective == "reduce_scatter":
        comm.reduce_scatter(tensor, out=camera.chunks[rank])
    elif collective == "all_gather":
        comm.all_gather(camera.chunks[rank], out=tensor)
    else:
        comm.all_reduce(tensor)
    camera.look()
    return camera.frames, camera.payloads


@lru_cache(maxsize=64)
def film(collective: str = "reduce_scatter", ranks: int = 4, numel: int = NUMEL) -> tuple[Moment, ...]:
    """The moments of a ring `collective` over a tensor of `numel` int32 elements, one before each step and the end.

    Raises:
        InputError: another collective than COLLECTIVES, ranks outside 2 to 8, fewer elements than ranks.
    """
    if collective not in COLLECTIVES:
        raise InputError(f"there is no film of {collective!r}; name one of {', '.join(COLLECTIVES)}")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 2 <= ranks <= MOST_RANKS:
        raise InputError(f"a ring of {ranks!r} ranks cannot be drawn; take 2 to {MOST_RANKS}")
    if isinstance(numel, bool) or not isinstance(numel, int) or numel < ranks:
        raise InputError(f"a tensor of {numel!r} elements leaves a rank without a chunk; take {ranks} or more")
    ran = launch(
        _on_rank, collective, numel, ranks=ranks, world="lockstep", collectives="transport", device="cpu",
        prints="quiet", trace=True,
    )  # fmt: skip
    assert ran.trace is not None
    sends = [[event for event in ran.trace if event.kind == "send" and event.rank == rank] for rank in range(ranks)]
    moments = []
    for step in range(len(sends[0]) + 1):
        held = [[decode(value) if value else None for value in frames[step]] for frames, _ in ran]
        messages = []
        for rank, (_, payloads) in enumerate(ran):
            if step < len(payloads):
                event, hop = sends[rank][step], decode(payloads[step])
                messages.append(Message(rank, event.peer, event.nbytes, hop))
                # What travels lies in a buffer beside the tensor; the rank holds it all the same.
                held[rank][hop.chunk] = hop
        sent = tuple(sum(event.nbytes for event in events[:step]) for events in sends)
        moments.append(Moment(tuple(map(tuple, held)), tuple(messages), sent))
    return tuple(moments)
