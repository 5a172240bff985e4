"""What a collective call is called while it runs, so that meters, tracers and reports can name it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Group:
    """Some ranks of a world, by its numbers. `path` tells the group from others of the same ranks and name."""

    name: str
    ranks: tuple[int, ...]
    path: str = ""

    @property
    def size(self) -> int:
        return len(self.ranks)

    @cached_property
    def number(self) -> int:
        """The same on all its ranks, and never 0, which stands for the world."""
        return zlib.crc32(f"{self.path} {self.name} {self.ranks}".encode()) or 1

    @property
    def title(self) -> str:
        """What a count by groups calls it: its name, else its ranks."""
        return self.name or self._members

    def __str__(self) -> str:
        return f"in {self.name} ({self._members})" if self.name else f"among {self._members}"

    @cached_property
    def _members(self) -> str:
        ranks = [str(rank) for rank in self.ranks]
        if self.size > 8:
            return f"{self.size} ranks {', '.join(ranks[:6])}, ..., {ranks[-1]}"
        return f"{'ranks' if self.size > 1 else 'rank'} {', '.join(ranks)}"


@dataclass(frozen=True)
class Call:
    """One collective of one rank. `number` counts this rank's calls in its group from 1; the bytes of a `nominal` one
    come from the ring's formula; `group` is None for all ranks."""

    name: str
    numel: int = 0
    dtype: str = ""
    itemsize: int = 0
    number: int = 0
    phase: str = ""
    label: str = ""
    src: int = 0
    nominal: bool = False
    group: Group | None = None
    average: bool = False

    def place_of(self, rank: int, size: int) -> tuple[int, int]:
        """Rank `rank` of the world's `size` as the call's group numbers it, and the size of the group."""
        return (rank, size) if self.group is None else (self.group.ranks.index(rank), self.group.size)

    @cached_property
    def what(self) -> str:
        """What ranks that meet must agree on."""
        what = f"{self.name} of {self.numel} {self.dtype}" if self.dtype else self.name
        if self.average:
            what = f"{what}, averaged"
        if self.name == "broadcast":
            what = f"{what} from {self.src}"
        if self.group is not None:
            what = f"{what} {self.group}"
        return f"{what} ({self.label})" if self.label else what

    @property
    def tag(self) -> int:
        """The tag of its messages: ranks in different calls never take each other's."""
        text = str(self) if self.group is None else f"{self.group.number} {self}"
        return zlib.crc32(text.encode()) & 0x3FFFFFFF

    def __str__(self) -> str:
        return f"#{self.number} {self.what}"


current_call: ContextVar[Call | None] = ContextVar("zerolab_call", default=None)
"""The call that runs on this thread, or None: then a message was sent by the rank function itself."""

current_group: ContextVar[Group | None] = ContextVar("zerolab_group", default=None)
"""The group in which a rank function's own message is sent; a call knows its group itself."""

current_phase: ContextVar[str] = ContextVar("zerolab_phase", default="")
"""The phase of the training step; a call keeps the phase in which it was issued."""


class Whole(str):
    """The name of a phase that has no others within."""


@contextmanager
def phase(name: str, whole: bool = False) -> Iterator[None]:
    """Calls issued inside belong to phase `name` ("forward", "backward", "step", ...); where it is `whole`, also those
    of the phases inside, such as the forward of an evaluation."""
    around = current_phase.get()
    if isinstance(around, Whole):
        name = around
    elif whole:
        name = Whole(name)
    token = current_phase.set(name)
    try:
        yield
    finally:
        current_phase.reset(token)


_of_autograd = ""
"""The phase of a backward, for the threads of autograd's that run its work on a GPU: they have no context."""


@contextmanager
def backward_phase(name: str) -> Iterator[None]:
    """The phase `name`, here and on autograd's own threads, which a process has for one backward at a time."""
    global _of_autograd
    before, _of_autograd = _of_autograd, name
    try:
        with phase(name):
            yield
    finally:
        _of_autograd = before


def phase_now() -> str:
    """The phase of what this thread does now; "" outside all phases."""
    name = current_phase.get()
    if not name and _of_autograd and torch._C._current_graph_task_id() >= 0:
        return _of_autograd
    return name


def mismatch(one: int, this: str, other: int, that: str) -> str:
    """The message for two ranks that met in different calls, given as text."""
    said = (
        f"rank {one} is in {this} while rank {other} is in {that}; every rank must call the same collectives in the "
        "same order, with the same sizes and dtypes"
    )
    if this.endswith(")") and this.rpartition(" (")[0] == that.rpartition(" (")[0]:
        # The labels differ alone, which are a stage's names of its units.
        said += "; where ranks run different layers, as experts, make the module around them one unit (units=[...])"
    return said
