"""A disk for lesson 07's exercise: it does everything at the last moment that its contract allows, or at the first. A
read that nobody waits for has no last moment: it comes when it does most harm."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from random import Random

import torch

Tensor = torch.Tensor
RATE, MOMENTUM = 0.125, 0.5


class Ticket:
    """A transfer, which takes place when it is first waited for, or `at_once`; only `wait` tells of a failure. `left`
    holds what is to be done, and is empty when it is done."""

    def __init__(self, left: list[Callable[[], None]], at_once: bool) -> None:
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

    late = 0
    """Reads that came over an updated record, since nobody had waited for them."""

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
    last moment, and until then a buffer to be read into holds no numbers; or it does `at_once`. A read that was begun
    before a write from the same buffer, and not waited for till then, comes just before that write."""

    def __init__(self, file: File, at_once: bool) -> None:
        reads: list[tuple[int, list[Callable[[], None]]]] = []

        def read(k: int, buffer: Tensor) -> Ticket:
            buffer.fill_(torch.nan)
            left: list[Callable[[], None]] = [lambda: file.take(k, buffer)]
            reads.append((buffer.data_ptr(), left))
            return Ticket(left, at_once)

        def write(k: int, buffer: Tensor) -> Ticket:
            reads[:] = [(place, left) for place, left in reads if left]
            forgotten = [left for place, left in reads if place == buffer.data_ptr()]

            def put() -> None:
                for left in forgotten:
                    if left:
                        left.pop()()
                        file.late += 1
                file.put(k, buffer)

            return Ticket([put], at_once)

        self.count = len(file.records)
        self.read, self.write = read, write


def update(buffer: Tensor, gradient: Tensor) -> Tensor:
    """SGD with momentum on a record in a buffer, in place: parameters, then momentum. Returns the new parameters."""
    main, momentum = buffer.chunk(2)
    momentum.mul_(MOMENTUM).add_(gradient)
    main.sub_(RATE * momentum)
    return main


KINDS = {
    "plain": "plain",
    "inf": "an inf on one rank",
    "-inf": "a -inf on one rank",
    "nan": "a NaN on one rank",
    "first nan": "a NaN in the first element of all",
    "last nan": "a NaN in the last element of all",
    "huge": "a sum too large",
    "full": "a full disk",
    "first full": "a disk that is full at the first write",
    "early full": "a disk that is full at the second write",
    "nearly late full": "a disk that is full at the last write but one",
    "late full": "a disk that is full at the last write",
    "twice": "a disk that is full twice",
    "twice on": "a disk that is full twice, the second time one group further",
    "large": "large gradients with a finite mean",
    "zero": "gradients that are all zero",
}
"""What a step of a case brings, and its words for it."""


def full_at(rng: Random, kind: str, groups: int) -> list[int]:
    """Which write fails in the first call of a step of this kind, in the second, ..."""
    some = rng.randint(min(2, groups), groups)
    known = {"full": [some], "first full": [1], "early full": [2], "nearly late full": [groups - 1]}
    return (known | {"late full": [groups], "twice": [some, 1], "twice on": [2, 2]}).get(kind, [])
