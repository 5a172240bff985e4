"""A disk for lesson 07's exercise: it does everything at the last moment that its contract allows, or at the first. A
read that nobody waits for has no last moment: it comes when it does most harm."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import torch

from zerolab.collectives import Collectives

Tensor = torch.Tensor


class DiskStep:
    """What a step from a disk is given."""

    def __init__(self, comm: Collectives, disk: Any, buffers: list[Any], update: Callable[..., Any]) -> None:
        self.comm, self.disk, self.buffers, self.update = comm, disk, buffers, update
        self.notes: set[Any] = set()


def update(buffer: Tensor, gradient: Tensor) -> Tensor:
    """SGD with momentum on a record in a buffer, in place: parameters, then momentum. Returns the new parameters."""
    main, momentum = buffer.chunk(2)
    momentum.mul_(0.5).add_(gradient)
    return main.sub_(0.125 * momentum)


class Transfer:
    """It takes place when it is first waited for, or `at_once`; only `wait` tells of a failure."""

    def __init__(self, run: Callable[[], None], at_once: bool) -> None:
        self._run: Callable[[], None] | None = run
        self._error: OSError | None = None
        if at_once:
            try:
                self._end()
            except OSError as error:
                self._error = error

    def wait(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error
        self._end()

    def _end(self) -> bool:
        """Let it take place; whether it had not yet."""
        run, self._run = self._run, None
        if run:
            run()
        return run is not None


class Disk:
    """Records of a rank. A read that was begun before a write from the same buffer, and not waited for till then, comes
    just before that write. A write that fails has changed nothing."""

    def __init__(self, records: list[Tensor], at_once: bool) -> None:
        self.count, self._records, self._at_once = len(records), records, at_once
        self._reads: list[tuple[int, Transfer]] = []
        self._late = 0
        self._prepare(None)

    def _prepare(self, fails_at: int | None) -> None:
        """Which write is to fail, counted from here."""
        self._writes, self._fails_at, self._failed = 0, fails_at, False

    def read(self, k: int, buffer: Tensor) -> Transfer:
        # Until it has ended a buffer holds no numbers.
        buffer.fill_(torch.nan)
        reading = Transfer(lambda: buffer.copy_(self._records[k]), self._at_once)
        self._reads.append((buffer.data_ptr(), reading))
        return reading

    def write(self, k: int, buffer: Tensor) -> Transfer:
        forgotten = [reading for place, reading in self._reads if place == buffer.data_ptr() and reading._run]

        def put():
            for reading in forgotten:
                self._late += reading._end()
            self._writes += 1
            if self._writes == self._fails_at:
                self._failed = True
                raise OSError(errno.ENOSPC, "the disk is full")
            self._records[k].copy_(buffer)

        return Transfer(put, self._at_once)
