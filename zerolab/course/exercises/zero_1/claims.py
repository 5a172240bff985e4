"""What the exercises of lesson 03 share.

Adam runs here with a large epsilon, so that the size of a gradient counts: with the usual one a sum trains nearly as
a mean does, and a forgotten average would pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import each_rank, never
from zerolab.flat.layout import chunk_sizes


def adam(part: torch.Tensor, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW([part], lr=0.1, eps=1.0, weight_decay=weight_decay, fused=True)


def tolerance(dtype: torch.dtype) -> float:
    return 0.05 if dtype is torch.bfloat16 else 1e-5


class Kept:
    """The most elements that the optimizers of one rank kept in their states at a time, the optimizers, and whether one
    was `foreign`: not like those that `adam` makes."""

    def __init__(self) -> None:
        self.elements = 0
        self.foreign = False
        self.optimizers: list[weakref.ref[torch.optim.Optimizer]] = []

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
            self.foreign = self.foreign or (optimizer.defaults.get("lr"), optimizer.defaults.get("eps")) != (0.1, 1.0)
        alive = [kept for known in self.optimizers if (kept := known()) is not None]
        states = [value for kept in alive for state in kept.state.values() for value in state.values()]
        self.elements = max(self.elements, sum(value.numel() for value in states if value.dim()))


@contextmanager
def states_kept() -> Iterator[Kept]:
    """What every torch optimizer that this rank steps meanwhile keeps, whoever made it."""
    kept, me = Kept(), threading.get_ident()

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A rank is a thread in lockstep, and hooks are for all of them.
        if threading.get_ident() == me:
            kept.note(optimizer)

    hook = register_optimizer_step_post_hook(note)
    try:
        yield kept
    finally:
        hook.remove()


made_by_adam = never("foreign", "rank {rank} trains with another optimizer than adam() makes: call adam()")


@each_rank
def shard_alone(case: Case, rank: int, record: Record) -> str | None:
    """The optimizers of a rank keep two numbers for each element of its shard."""
    due = 2 * chunk_sizes(case.args[0][0].numel(), case.ranks)[rank]
    if record.value["states"] <= due:
        return None
    said = f"rank {rank}'s optimizers keep {record.value['states']} numbers, and {due} are due, two for each element"
    return f"{said} of its shard: does an optimizer know more than the shard?"
