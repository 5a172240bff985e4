"""Messages between processes, over torch.distributed: gloo between CPUs, NCCL between GPUs of their own.

Several ranks on one GPU cannot use NCCL. Their messages travel over gloo, through page-locked host memory.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _disable_current_modes

from zerolab.collectives.call import Call, current_call
from zerolab.collectives.torch_ import new_group
from zerolab.collectives.transport import Request, Transport
from zerolab.errors import MismatchError
from zerolab.gpu import door
from zerolab.ranks.board import BoardPen, RankState
from zerolab.ranks.failure import OpenRequests, PeerLost, check_message, is_secondary

SEND, RECEIVE, MEET = 1, 2, 3
_carried: Counter[str] = Counter()
"""How many transports this process has made in each group, by its name."""


class _Work(Protocol):
    def wait(self) -> object: ...


class ProcessTransport(Transport):
    """One rank's messages in torch's process group. `nccl` says that the device has a NCCL group of its own; `host` is
    the group that carries messages between hosts, if `group` has no backend for them; `pen` writes what the rank waits
    for on the launch's board."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device | None = None,
        nccl: bool = False,
        pen: BoardPen | None = None,
        host: dist.ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self.host = host or group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.device = device or torch.device("cpu")
        self._nccl = nccl
        # NCCL runs the messages between two ranks in the order in which they are posted.
        self.posts_ahead = not nccl
        self.queues = nccl
        self._pen = pen
        self._open = OpenRequests()
        _carried[self.group.group_name] += 1

    def isend(self, tensor: torch.Tensor, dst: int, tag: int = 0) -> Request:
        return self._begin(SEND, tensor, dst, tag)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int = 0) -> Request:
        return self._begin(RECEIVE, tensor, src, tag)

    def exchange(self, outgoing: torch.Tensor, dst: int, incoming: torch.Tensor, src: int, tag: int = 0) -> None:
        if not self._nccl or not outgoing.is_cuda:
            super().exchange(outgoing, dst, incoming, src, tag)
            return
        # NCCL runs the messages of a pair in order, so a send and a receive that wait for each other must go as one.
        check_message(self, outgoing, dst)
        check_message(self, incoming, src)
        receiving = dist.P2POp(dist.irecv, _as_bytes(incoming), group=self.group, group_peer=src)
        sending = dist.P2POp(dist.isend, _as_bytes(outgoing), group=self.group, group_peer=dst)
        for work in dist.batch_isend_irecv([receiving, sending]):
            work.wait()

    def entered(self, call: Call) -> None:
        if self._pen is not None:
            self._pen.entered(call)

    def left(self, call: Call) -> None:
        if self._pen is not None:
            error = sys.exc_info()[1]
            # Whoever died may have died of what this rank called: gloo ends a process where sizes differ. So the board
            # keeps what a rank was in when it lost another one, for who looks into that death.
            self._pen.left(shown=error is not None and is_secondary(error))

    def waits(self, peer: int | None) -> None:
        if self._pen is not None:
            self._pen.waits(*((0,) if peer is None else (MEET, peer)))

    def check_waited(self) -> None:
        self._open.check()
        if door.drives(self.device):
            # What went wrong on the GPU shows now, as this rank's error; and nobody ends NCCL while another rank's GPU
            # still waits for this one's.
            door.drain(self.device)

    def state(self) -> RankState | None:
        """What this rank does according to its board, if it has one."""
        return None if self._pen is None else self._pen.state()

    def pending(self) -> str:
        """The same in words, such as "waits to receive from rank 3 (40 bytes)"."""
        state = self.state()
        return "" if state is None else state.describe()

    def _begin(self, kind: int, tensor: torch.Tensor, peer: int, tag: int) -> Request:
        check_message(self, tensor, peer)
        message = tensor
        if tensor.is_cuda:
            # NCCL does not know every dtype, and a message needs none.
            message = _as_bytes(tensor) if self._nccl else _pinned(tensor)
            if kind == SEND and not self._nccl:
                message.copy_(tensor)
        try:
            size, tag = self._announce(kind, peer, tag, message.nbytes)
            work = self._post(kind, message, peer, tag)
        except RuntimeError as error:
            raise self._lost(kind, peer) from error
        if self._pen is not None:
            (self._pen.posted_send if kind == SEND else self._pen.posted_receive)(peer)
        return _Message(self, kind, peer, work, message, tensor, size)

    def _post(self, kind: int, message: torch.Tensor, peer: int, tag: int) -> dist.Work | None:
        group, (post, to) = self._carrier(message), _post_of(kind)
        if self._nccl and message.is_cuda:
            # Torch gives NCCL's single messages other connections than batches, and where one rank's neighbour posts
            # a batch (`exchange`) the two would never meet. So each message is a batch.
            return dist.batch_isend_irecv([dist.P2POp(post, message, group=group, group_peer=peer)])[0]
        return post(message, group=group, tag=tag, **{to: peer})

    def _carrier(self, message: torch.Tensor) -> dist.ProcessGroup:
        return self.group if message.is_cuda else self.host

    def _announce(self, kind: int, peer: int, tag: int, nbytes: int) -> tuple[_Size | None, int]:
        """Let the size of a message travel ahead of it, and give the message a tag that holds it: gloo fills a part of
        a tensor without a word, and ends the process where a message is too long. (Tags of a collective's messages
        hold the size anyhow. NCCL knows no tags.)"""
        if self._nccl or current_call.get() is not None:
            return None, tag
        post, to = _post_of(kind)
        with _disable_current_modes():
            number = torch.tensor([nbytes], device="cpu")
            work = post(number, group=self.host, tag=_tag(f"the size of {tag}"), **{to: peer})
        return _Size(number, work), _tag(f"{tag} of {nbytes} bytes")

    def _lost(self, kind: int, peer: int) -> PeerLost:
        verb = "send to" if kind == SEND else "receive from"
        return PeerLost(f"rank {self.rank} could not {verb} rank {peer}, which is gone or hangs")


class _Size:
    """The bytes of a message, which travel ahead of it."""

    def __init__(self, number: torch.Tensor, work: _Work | None) -> None:
        self._number, self._work = number, work

    def wait(self) -> int:
        if self._work is not None:
            self._work.wait()
        with _disable_current_modes():
            return int(self._number)


class _Message:
    """A message under way, which keeps its buffer alive. What is received in a host buffer belongs in `target`."""

    def __init__(
        self,
        transport: ProcessTransport,
        kind: int,
        peer: int,
        work: _Work | None,
        message: torch.Tensor,
        target: torch.Tensor,
        size: _Size | None,
    ) -> None:
        self._size = size
        self._transport = transport
        self._kind = kind
        self._peer = peer
        self._work = work
        self._message: torch.Tensor | None = message
        self._target: torch.Tensor | None = target if target.is_cuda and not message.is_cuda else None
        transport._open.add(self, kind == SEND, peer, message.nbytes)

    def wait(self) -> None:
        self._transport._open.drop(self)
        if self._work is None or self._message is None:
            return
        pen = self._transport._pen
        if pen is not None:
            pen.waits(self._kind, self._peer, self._message.nbytes)
        try:
            sent = self._message.nbytes if self._size is None else self._size.wait()
            if sent == self._message.nbytes:
                self._work.wait()
        except RuntimeError as error:
            raise self._transport._lost(self._kind, self._peer) from error
        if sent != self._message.nbytes:
            raise MismatchError(
                f"rank {self._peer} sends {sent} bytes to rank {self._transport.rank}, which receives "
                f"{self._message.nbytes}; make both tensors alike"
            )
        if pen is not None:
            pen.waits(0)
        if self._target is not None and self._kind == RECEIVE:
            self._target.copy_(self._message)
        self._work = self._message = self._target = None


def own_carrier(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group itself, or, where another transport uses it, a new one of the same ranks: calls of two comms carry the
    same numbers, and would take each other's messages. All of its ranks call it, alike often."""
    used = _carried[group.group_name]
    if not used:
        return group
    _carried[group.group_name] += 1
    number = zlib.crc32(f"{group.group_name} {used}".encode())
    return new_group(dist.get_process_group_ranks(group), number, dist.get_backend_config(group))


def _tag(words: str) -> int:
    return zlib.crc32(words.encode()) & 0x3FFFFFFF


def _post_of(kind: int) -> tuple[Callable[..., dist.Work | None], str]:
    return (dist.isend, "group_dst") if kind == SEND else (dist.irecv, "group_src")


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
