"""What ranks of a mesh exchange inside a model: collectives that autograd
knows, each with its counterpart in backward.

    verbs        forward            backward           at the border of a parallel region
    COPY         as it is           all-reduce         every rank uses the tensor for a part of the sum (Megatron's f)
    SUM          all-reduce         as it is           the parts are added up (Megatron's g)
    GATHER       all-gather         reduce-scatter     the same two where the sequence is sharded outside the region
    SCATTER      reduce-scatter     all-gather
    SPLIT        own part           all-gather         a tensor that all have becomes one of which each has a part
    JOIN         all-gather         own part

Shoeybi et al., arXiv 1909.08053 (COPY, SUM); Korthikanti et al., arXiv
2205.05198 (GATHER, SCATTER).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zerolab.collectives.contract import Collectives
from zerolab.errors import InputError

COPY = ("keep", "all_reduce")
SUM = ("all_reduce", "keep")
GATHER = ("all_gather", "reduce_scatter")
SCATTER = ("reduce_scatter", "all_gather")
SPLIT = ("split", "all_gather")
JOIN = ("all_gather", "split")


def exchange(x: Tensor, comm: Collectives, verbs: tuple[str, str], dim: int = -1) -> Tensor:
    """Run the first of `verbs` on `x`, and the second on its gradient; `dim`
    is what ranks cut evenly, or join."""
    if comm.size == 1:
        return x
    made: Tensor = _apply(_Exchange, x, comm, verbs, dim)
    return made


def _apply(function: Any, *given: Any) -> Any:
    return function.apply(*given)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Collectives, verbs: tuple[str, str], dim: int) -> Tensor:
        ctx.rest = comm, verbs[1], dim
        return move(x, comm, verbs[0], dim)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        comm, verb, dim = ctx.rest
        return move(gradient[0], comm, verb, dim), None, None, None


def move(x: Tensor, comm: Collectives, verb: str, dim: int = 0) -> Tensor:
    """The result of one collective, in memory of its own."""
    if verb in ("reduce_scatter", "split") and x.shape[dim] % comm.size:
        raise InputError(
            f"{comm.size} ranks cannot share {x.shape[dim]} places of a tensor of shape {tuple(x.shape)} evenly; "
            "choose a length that they divide"
        )
    if verb == "all_reduce":
        return comm.all_reduce(x.clone(memory_format=torch.contiguous_format))
    if verb == "all_gather":
        parts = comm.all_gather(x.contiguous().view(-1)).view(comm.size, *x.shape)
        return torch.cat(parts.unbind(), dim)
    if verb == "reduce_scatter":
        parts = torch.stack(x.chunk(comm.size, dim))
        return comm.reduce_scatter(parts.view(-1)).view(parts.shape[1:])
    return x.chunk(comm.size, dim)[comm.rank].contiguous() if verb == "split" else x.view_as(x)


def maximum(x: Tensor, comm: Collectives) -> Tensor:
    """The largest of all ranks' elements, place by place; no gradient."""
    if comm.size == 1:
        return x
    return comm.all_gather(x.detach().contiguous().view(-1)).view(comm.size, *x.shape).amax(0)


def all_to_all(rows: Tensor, comm: Collectives, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """Send the first `sent[0]` rows [rows, ...] to rank 0, the next `sent[1]`
    to rank 1, and so on; returns the rows that came, `received[r]` of them
    from rank r, in rank order. Gradients go the same ways back."""
    made: Tensor = _apply(_AllToAll, rows, comm, sent, received)
    return made


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, comm: Collectives, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        ctx.rest = comm, received, sent
        return swap(rows, comm, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        return swap(gradient[0], *ctx.rest), None, None, None


def swap(rows: Tensor, comm: Collectives, sent: Sequence[int], received: Sequence[int]) -> Tensor:
    """A message between each two ranks that have rows for each other."""
    parts = [part.contiguous() for part in rows.split([*sent])]
    come = [rows.new_empty(count, *rows.shape[1:]) for count in received]
    come[comm.rank] = parts[comm.rank]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    waiting = [comm.irecv(come[rank], rank) for rank in others if come[rank].numel()]
    waiting += [comm.isend(parts[rank], rank) for rank in others if parts[rank].numel()]
    for message in waiting:
        message.wait()
    return torch.cat(come)
