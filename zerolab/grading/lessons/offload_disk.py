"""A disk for lesson 07's exercise: it does everything at the last moment that its contract allows, or at the first."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

import torch

Tensor = torch.Tensor
RATE, MOMENTUM = 0.125, 0.5


class Ticket:
    """A transfer, which takes place when it is first waited for, or `at_once`; only `wait` tells of a failure."""

    def __init__(self, move: Callable[[], None], at_once: bool) -> None:
        left = [move]

        def complain(error: OSError) -> None:
            raise error

        if at_once:
            try:
                left.pop()()
            except OSError as error:
                left.append(partial(complain, error))
        self.wait: Callable[[], None] = lambda: left.pop()() if left else None


class File:
    """Records of a rank, and which write is to fail, once. A write that fails has changed nothing."""

    def __init__(self, records: list[Tensor]) -> None:
        self.records = records
        self.prepare(None)

    def prepare(self, fails_at: int | None) -> None:
        self.writes, self.fails_at = 0, fails_at

    def take(self, k: int, buffer: Tensor) -> None:
        buffer.copy_(self.records[k])

    def put(self, k: int, buffer: Tensor) -> None:
        self.writes += 1
        if self.writes == self.fails_at:
            raise OSError(errno.ENOSPC, "the disk is full")
        self.records[k].copy_(buffer)


class Disk:
    """What an answer sees of a file. A transfer may happen at any time until its wait() returns. Here it does at the
    last moment, and until then a buffer to be read into holds no numbers; or it does `at_once`."""

    def __init__(self, file: File, at_once: bool) -> None:
        def read(k: int, buffer: Tensor) -> Ticket:
            buffer.fill_(torch.nan)
            return Ticket(lambda: file.take(k, buffer), at_once)

        self.count = len(file.records)
        self.read = read
        self.write: Callable[[int, Tensor], Ticket] = lambda k, buffer: Ticket(lambda: file.put(k, buffer), at_once)


def update(buffer: Tensor, gradient: Tensor) -> Tensor:
    """SGD with momentum on a record in a buffer, in place: parameters, then momentum. Returns the new parameters."""
    main, momentum = buffer.chunk(2)
    momentum.mul_(MOMENTUM).add_(gradient)
    main.sub_(RATE * momentum)
    return main
