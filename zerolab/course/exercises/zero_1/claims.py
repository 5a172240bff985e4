"""What the exercises of lesson 03 share.

Adam runs here with a large epsilon, so that the size of a gradient counts: with the usual one a sum trains nearly as
a mean does, and a forgotten average would pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import each_rank, never
from zerolab.course.judge.exercise import Test
from zerolab.flat.layout import chunk_sizes


def adam(part: torch.Tensor, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW([part], lr=0.1, eps=1.0, weight_decay=weight_decay, fused=True)


def tolerance(dtype: torch.dtype) -> float:
    return 0.05 if dtype is torch.bfloat16 else 1e-5


def row_dtype(ranks: int, numel: int) -> torch.dtype:
    """Where the ranks do not divide the row, some have another dtype than fp32."""
    uneven = {2: torch.bfloat16, 3: torch.float64}.get(ranks, torch.float32)
    return uneven if numel % ranks else torch.float32


@contextmanager
def states_kept(made: Sequence[torch.optim.Optimizer] | None = None) -> Iterator[dict[str, Any]]:
    """Of the optimizers that this rank steps meanwhile, whoever made them: the most elements that their `states` have
    at a time, and whether one is `foreign`: not one of those `made`, or not like those that `adam` makes."""
    kept, me = {"states": 0, "foreign": False}, threading.get_ident()
    known: WeakSet[torch.optim.Optimizer] = WeakSet()

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A rank is a thread in lockstep, and hooks are for all of them.
        if threading.get_ident() != me:
            return
        known.add(optimizer)
        size = optimizer.defaults.get("lr"), optimizer.defaults.get("eps")
        kept["foreign"] |= size != (0.1, 1.0) if made is None else optimizer not in made
        states = [value for one in known for state in one.state.values() for value in state.values()]
        kept["states"] = max(kept["states"], sum(value.numel() for value in states if value.dim()))

    hook = register_optimizer_step_post_hook(note)
    try:
        yield kept
    finally:
        hook.remove()


made_by_adam = never("foreign", "rank {rank} trains with another optimizer than adam() makes: call adam()")


def states_at_most(due: Callable[[Case, int], int], look: str) -> Test:
    """The optimizers of a rank keep two numbers for each of so many elements."""

    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        kept, most = record.value["states"], 2 * due(case, rank)
        said = f"rank {rank}'s optimizers keep {kept} numbers, and {most} are due, two for each element of its part"
        return None if kept <= most else f"{said}: {look}"

    return test


shard_alone = states_at_most(
    lambda case, rank: chunk_sizes(case.args[0][0].numel(), case.ranks)[rank],
    "does an optimizer know more than the shard?",
)
