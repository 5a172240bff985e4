"""Messages between processes, over torch.distributed: gloo between CPUs, NCCL between GPUs of their own.

Several ranks on one GPU cannot use NCCL. Their messages travel over gloo, through page-locked host memory.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives.call import Call, current_call
from zerolab.errors import MismatchError
from zerolab.gpu import door
from zerolab.ranks.board import MEET, Board, BoardPen
from zerolab.ranks.failure import PeerLost, is_secondary
from zerolab.ranks.messages import MessageTransport, PendingMessage, as_bytes

made: Counter[str] = Counter()
"""How many transports this process has made in each group, by its name."""


class ProcessMessage(PendingMessage):
    """A message under way, which keeps its buffer alive.

    The size of a rank function's own message travels ahead of it: gloo fills a part of a tensor in silence, and ends
    the process where a message is too long. (Tags of a collective's messages hold it. NCCL knows no tags.)"""

    transport: ProcessTransport

    def __init__(self, transport: ProcessTransport, sends: bool, tensor: torch.Tensor, peer: int, tag: int) -> None:
        super().__init__(transport, sends, tensor, peer, tag)
        self.transport, self._tensor, self._buffer = transport, tensor, tensor
        self._size: torch.Tensor | None = None
        if tensor.is_cuda and transport.nccl:
            # NCCL does not know every dtype, and a message needs none.
            self._buffer = as_bytes(tensor)
        elif tensor.is_cuda:
            self._buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            if sends:
                self._buffer.copy_(tensor)
        try:
            if not transport.nccl and current_call.get() is None:
                with _disable_current_modes():
                    self._size = torch.tensor([self.nbytes], device="cpu")
                    self._sized = self._post(self._size, hash_tag(f"the size of {tag}"))
                tag = hash_tag(f"{tag} of {self.nbytes} bytes")
            self._work = self._post(self._buffer, tag)
        except RuntimeError as error:
            raise self._lost() from error
        transport.pen.post("sent" if sends else "received", peer)

    def wait(self) -> None:
        if self not in self.transport.open:
            return
        del self.transport.open[self]
        self.transport.pen.wait(self.kind, self.peer, self.nbytes)
        sent = self.nbytes
        try:
            if self._size is not None:
                self._sized.wait()
                with _disable_current_modes():
                    sent = int(self._size)
            if sent == self.nbytes:
                self._work.wait()
        except RuntimeError as error:
            raise self._lost() from error
        if sent != self.nbytes:
            raise MismatchError(self.sizes_differ(sent))
        self.transport.pen.wait(0)
        if not self.sends and self._buffer.device != self._tensor.device:
            self._tensor.copy_(self._buffer)
        del self._tensor, self._buffer, self._work

    def _post(self, buffer: torch.Tensor, tag: int) -> Any:
        transport = self.transport
        if transport.nccl and buffer.is_cuda:
            # Torch gives NCCL's single messages other connections than batches, and where one rank's neighbour posts
            # a batch (`exchange`) the two would never meet. So each message is a batch.
            post = dist.isend if self.sends else dist.irecv
            return dist.batch_isend_irecv([dist.P2POp(post, buffer, group=transport.group, group_peer=self.peer)])[0]
        group = transport.group if buffer.is_cuda else transport.host
        if self.sends:
            return dist.isend(buffer, group=group, tag=tag, group_dst=self.peer)
        return dist.irecv(buffer, group=group, tag=tag, group_src=self.peer)

    def _lost(self) -> PeerLost:
        verb = "send to" if self.sends else "receive from"
        return PeerLost(f"rank {self.rank} could not {verb} rank {self.peer}, which is gone or hangs")


class ProcessTransport(MessageTransport):
    """One rank's messages in torch's process group. `nccl` says that the device has a NCCL group of its own; `host` is
    the group of messages between hosts, if `group` has no backend for them; `pen` writes on the launch's board."""

    kind = ProcessMessage

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device | None = None,
        nccl: bool = False,
        pen: BoardPen | None = None,
        host: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group), device or torch.device("cpu"))
        self.group = group
        self.host = host or group
        self.nccl = self.queues = nccl
        # NCCL runs the messages between two ranks in the order in which they are posted.
        self.posts_ahead = not nccl
        self.pen = pen or BoardPen(Board(self.size), self.rank)
        made[group.group_name] += 1

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        if not self.nccl or not outgoing.is_cuda:
            super().exchange(outgoing, dst, incoming, src, tag)
            return
        # NCCL runs the messages of a pair in order, so a send and a receive that wait for each other must go as one.
        receiving = dist.P2POp(dist.irecv, as_bytes(incoming), group=self.group, group_peer=src)
        sending = dist.P2POp(dist.isend, as_bytes(outgoing), group=self.group, group_peer=dst)
        for work in dist.batch_isend_irecv([receiving, sending]):
            work.wait()

    def entered(self, call: Call) -> None:
        self.pen.enter(call)

    def left(self, call: Call) -> None:
        error = sys.exc_info()[1]
        # Whoever died may have died of what this rank called: gloo ends a process where sizes differ.
        self.pen.leave(shown=error is not None and is_secondary(error))

    def waits(self, peer: int | None) -> None:
        self.pen.wait(*((0,) if peer is None else (MEET, peer)))

    def check_waited(self) -> None:
        super().check_waited()
        if door.drives(self.device):
            # What went wrong there shows now, and nobody ends NCCL while another rank's GPU waits for this one's.
            door.drain(self.device)


def hash_tag(words: str) -> int:
    return zlib.crc32(words.encode()) & 0x3FFFFFFF
