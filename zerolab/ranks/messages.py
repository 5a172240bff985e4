"""What messages of processes and of lockstep have in common: both are sends and receives that somebody waits for."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from zerolab.collectives.transport import Transport
from zerolab.errors import InputError
from zerolab.ranks.board import RECEIVE, SEND, format_bytes
from zerolab.ranks.failure import Unreturned


class MessageTransport(Transport):
    """A transport that keeps requests in `open` until somebody waits for them: none is thrown away with its message."""

    kind: ClassVar[Any]
    """The class of its messages."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.open: dict[PendingMessage, None] = {}

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Any:
        return self.kind(self, True, tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Any:
        return self.kind(self, False, tensor, src, tag)

    def check_waited(self) -> None:
        if self.open:
            first, *more = self.open
            what = (
                f"{'sending to' if first.sends else 'receiving from'} rank {first.peer} ({format_bytes(first.nbytes)})"
            )
            others = f", and for {len(more)} more" if more else ""
            raise Unreturned(
                f"returned before it had waited for what it is {what}{others}; keep the request that "
                f"{'isend' if first.sends else 'irecv'} returns, and wait() for it before you use the tensor again"
            )


class PendingMessage:
    """One side of a message: `tensor` to `peer` if it `sends`, else from it."""

    def __init__(self, transport: MessageTransport, sends: bool, tensor: torch.Tensor, peer: int, tag: int) -> None:
        transport.check_peer(peer)
        if not tensor.is_contiguous():
            raise InputError(
                f"a message of shape {tuple(tensor.shape)} is not contiguous; send tensor.contiguous(), or receive "
                "into a new tensor and copy"
            )
        self.rank, self.sends, self.peer, self.tag, self.nbytes = transport.rank, sends, peer, tag, tensor.nbytes
        self.kind = SEND if sends else RECEIVE
        transport.open[self] = None

    def sizes_differ(self, sent: int) -> str:
        """Of a receive, where the other side has sent so many bytes."""
        return (
            f"rank {self.peer} sends {sent} bytes to rank {self.rank}, which receives {self.nbytes}; make both tensors "
            "alike"
        )


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)
