"""What the exercises of lesson 03 should give, and what else people make of them, each with a hint of its own.

Adam runs here with a large epsilon, so that the size of a gradient counts: with the usual one a sum trains nearly as
a mean does, and a forgotten average would pass.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import each_rank, never, ring_bytes
from zerolab.flat.layout import chunk_sizes

Tensor = torch.Tensor
Spans = Sequence[tuple[int, int, float]]
"""Parts of a row as (start, stop, weight decay)."""

# What people make of the gradients, in words that fit every exercise.
SUM = "what the sum of the gradients gives: take their mean"
TWICE = "what gradients give that are divided by N twice: average=True has divided them already"
FIXED = "what gradients give that are divided by {by} on any number of ranks: by comm.size, or say average=True"
UNSHARED = "shards that were trained without those of the other ranks' gradients: reduce before you update"
ANEW = "what an optimizer gives that forgets its states after each step: make it once"


def adam(part: Tensor, weight_decay: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.AdamW([part], lr=0.1, eps=1.0, weight_decay=weight_decay, fused=True)


def trained(row: Tensor, gradients: Sequence[Tensor], spans: Spans = (), anew: bool = False) -> Tensor:
    """The row after an optimizer for each span has had these gradients; with `anew`, a fresh one in each step."""
    row = row.clone()
    spans = spans or [(0, row.numel(), 0.0)]
    optimizers = [adam(row[start:stop], decay) for start, stop, decay in spans]
    for gradient in gradients:
        for (start, stop, decay), kept in zip(spans, optimizers, strict=True):
            optimizer = adam(row[start:stop], decay) if anew else kept
            optimizer.param_groups[0]["params"][0].grad = gradient[start:stop].clone()
            optimizer.step()
    return row


def patched(ranks: int, base: Tensor, shards: Sequence[Tensor | None]) -> Tensor:
    """`base`, with shard r taken from `shards[r]`, a whole row, where there is one."""
    row = base.clone()
    for rank, source in enumerate(shards):
        if source is not None:
            row.tensor_split(ranks)[rank].copy_(source.tensor_split(ranks)[rank])
    return row


def only(ranks: int, rank: int, source: Tensor) -> list[Tensor | None]:
    return [source if other == rank else None for other in range(ranks)]


def uncut(ranks: int, base: Tensor, good: Tensor) -> Tensor:
    """`good`, but for the elements that are left over where each rank takes numel // ranks: they are as in `base`."""
    even = base.numel() // ranks * ranks
    return torch.cat([good[:even], base[even:]])


# What a check looks at, beside values.


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
        self.elements = max(self.elements, sum(map(elements_of, alive)))


def elements_of(optimizer: torch.optim.Optimizer) -> int:
    """Elements in the states of an optimizer."""
    return sum(value.numel() for state in optimizer.state.values() for value in state.values() if value.dim())


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


@each_rank
def own_dtype(case: Case, rank: int, record: Record) -> str | None:
    """Rows and gradients travel in the row's dtype."""
    dtype = case.args[0][0].dtype
    if any(name not in ("reduce_scatter", "all_gather", "all_reduce") for name, _ in record.calls):
        return None
    due = ring_bytes(record.calls, dtype.itemsize, case.ranks, rank)
    if record.nbytes == due:
        return None
    said = f"rank {rank} sends {record.nbytes:,} bytes, and its calls take {due:,} in {dtype}"
    few = "few" if record.nbytes < due else "many"
    return f"{said}: too {few}: gradients and parameters travel in their own dtype"
