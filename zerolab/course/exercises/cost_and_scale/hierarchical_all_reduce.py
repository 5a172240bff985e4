"""The exercise of lesson 09 on ranks that stand in several machines: few bytes between them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import each_rank, most
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.observe import Notes
from zerolab.course.judge.same import by_dtype

TEXT = """
Between machines

Ranks of one machine, a *node*, have quick links; between nodes they are slow. An all-reduce should send as little as
possible between nodes, and spread that over all ranks.

Write `hierarchical_all_reduce(comm, tensor, node_size)`, which sums `tensor` over all ranks, in place. The N ranks
stand in G nodes of `node_size` each, in order: rank r is in node r // node_size, and has seat r % node_size there.

**Groups.** `group = comm.split(color)`, an integer, is called by all ranks. It returns a `comm` for the ranks that
gave the same color: `group.rank` and `group.size` count these ranks alone, in order, and its collectives run among
them. Groups are made anew in each call; what ranks tell each other to make them is not counted.

    6 ranks, node_size 2            node 0      node 1      node 2
    rank                            0   1       2   3       4   5
    comm.split(rank // 2)           0   1       0   1       0   1     its rank in the group, of its node
    comm.split(rank % 2)            0   0       1   1       2   2     its rank in the group, of its seat

**Collectives.** `group.all_reduce(t)` sums in place. `part = group.reduce_scatter(flat)` returns chunk `group.rank`
of the sum of 1-D tensors, and leaves `flat` as it is; chunks are those of `flat.tensor_split(group.size)`, which may
differ by one element or have none. `group.all_gather(part, out=flat)` writes all ranks' chunks into `flat`.

The tensor has n elements. No rank may send more to other nodes than 2 (G - 1) messages of n / N elements, rounded up.
A plain ring over all ranks sends more. By hand: with 4 ranks in 2 nodes and 8 elements, ranks 1 and 3 stand at a
border, and each sends 2 (N - 1) = 6 messages of 2 elements across: 12. You send 2 (2 - 1) messages of 2 elements from
every rank: 4.

The check draws 1 to 8 ranks, one node, several, nodes of one rank, contiguous tensors of any shape, in float32,
float64, bfloat16 and int64, some with fewer elements than ranks. The scoreboard counts bytes between nodes and inside
them, where no rank should send more than in one reduce-scatter and one all-gather. About six lines.
"""


def hierarchical_all_reduce(comm, tensor: torch.Tensor, node_size: int) -> None:
    """Sum `tensor` over all ranks, in place; inside a node first, so that little goes to other nodes."""
    ### BEGIN SOLUTION
    node, seat = comm.split(comm.rank // node_size), comm.split(comm.rank % node_size)
    flat = tensor.view(-1)
    part = node.reduce_scatter(flat)
    seat.all_reduce(part)
    node.all_gather(part, out=flat)
    ### END SOLUTION


MISTAKES = r"""
its own numbers, as they were: is the sum written into `tensor` itself?
    tensor.view(-1) => tensor.flatten().clone()
the sum of its node alone: who tells the other nodes?
    seat.all_reduce(part) => pass
the sum of the ranks with its seat alone: the others of its node have summands, too
    node.reduce_scatter(flat) => flat
    node.all_gather(part, out=flat) =>
the sum in its own part alone: who hands the finished parts around in the node?
    node.all_gather(part, out=flat) => flat.tensor_split(node_size)[comm.rank % node_size].copy_(part)
several times the sum: each rank of a node brings the node's sum, so it is counted that often
    node.reduce_scatter(flat) => node.reduce_scatter(flat) * node_size
its node's sum, several times: the second group has the ranks of one seat, comm.rank % node_size
    comm.split(comm.rank % node_size) => comm.split(comm.rank // node_size)
    node.reduce_scatter(flat) => node.all_reduce(flat)
    node.all_gather(part, out=flat) =>
the mean: the sum is asked for
    node.all_gather(part, out=flat) => node.all_gather((part / comm.size).to(part.dtype), out=flat)
"""
Tensor = torch.Tensor


def watched(comm: Collectives, sent: list[tuple[int, int]]) -> Collectives:
    """`comm`, whose groups are made without a note in `sent`: what ranks say meanwhile is no part of the sum."""

    def making(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            begin = len(sent)
            group = make(*args, **kwargs)
            del sent[begin:]
            return group if group is None else watched(group, sent)

        return made

    for name in ("split", "subgroup"):
        comm.__dict__[name] = making(getattr(type(comm), name).__get__(comm))
    return comm


def run_in_nodes(fn: Callable[..., Any], comm: Collectives, tensor: Tensor, node_size: int) -> dict[str, Any]:
    """The bytes that a rank sends to other nodes and inside its own; what it sums is its argument, afterwards."""
    assert isinstance(comm.transport, Notes)
    sent = comm.transport.sent
    fn(watched(comm, sent), tensor, node_size)
    across = sum(nbytes for dst, nbytes in sent if dst // node_size != comm.rank // node_size)
    return {"across": across, "inside": sum(nbytes for _, nbytes in sent) - across}


def most_across(case: Case) -> int:
    """2 (G - 1) messages of an N-th of the tensor, rounded up."""
    tensor, node_size = case.args[0]
    message = -(-tensor.numel() // case.ranks) * tensor.element_size()
    return int(2 * (case.ranks // node_size - 1) * message)


def most_inside(case: Case) -> int:
    tensor, node_size = case.args[0]
    return int(2 * (node_size - 1) * -(-tensor.numel() // node_size) * tensor.element_size())


@each_rank
def few_across(case: Case, rank: int, record: Record) -> str | None:
    got, due = record.value["across"], most_across(case)
    if got <= due:
        return None
    said = f"rank {rank} sends {got:,} bytes to other nodes, and {due:,} are enough"
    if case.ranks == case.args[0][1]:
        return f"{said}: there is one node"
    return f"{said}: cut the tensor inside the node first, and all-reduce each part among the ranks of one seat"


def node_cases(rng: Random) -> list[Case]:
    f32, others = torch.float32, rng.sample((torch.float64, torch.bfloat16, torch.int64), 3)
    some = rng.randint
    drawn = [
        (4, 2, (some(9, 40) * 4 + 3,), f32),
        (6, 3, (some(9, 40),), f32),
        (6, 2, (some(9, 40),), others[0]),
        (8, 4, (some(20, 60),), others[1]),
        (4, 2, (some(5, 20),), others[2]),
        # Fewer elements than a node has ranks, and than there are nodes.
        (6, 3, (2,), f32),
        (8, 2, (1,), f32),
        (4, 4, (some(5, 20),), f32),
        (4, 1, (some(5, 20),), f32),
        (3, 3, (some(5, 20),), others[0]),
        (3, 1, (some(5, 20),), others[1]),
        (2, 2, (some(5, 20),), f32),
        (2, 1, (some(5, 20),), f32),
        (1, 1, (some(5, 20),), f32),
        (6, 2, (some(2, 6), 5), f32),
    ]
    return [
        in_nodes(rng, 4, 2, (4096,), f32, board=True),
        *(in_nodes(rng, *one) for one in drawn),
        in_nodes(rng, 4, 2, (some(9, 40),), f32, world="processes"),
    ]


def in_nodes(rng: Random, ranks: int, node_size: int, shape: Any, dtype: torch.dtype, **where: Any) -> Case:
    numel = torch.Size(shape).numel()
    return Case([(fine(rng, numel, dtype).view(shape), node_size) for _ in range(ranks)], **where)


EXERCISE = Exercise(
    "hierarchical_all_reduce",
    node_cases,
    (
        Claim(
            "every rank ends with the sum, in place",
            Gives(lambda record: record.after[0], "follow one element through the steps", "ends with", by_dtype),
        ),
        Claim("few bytes go to other nodes", few_across),
    ),
    run=run_in_nodes,
    scores=(
        Score(
            "bytes to other nodes, of the rank that sends most",
            most("across"),
            most_across,
            "an all-reduce over a rank's part takes 2(G-1) messages of an N-th of the tensor",
        ),
        Score(
            "bytes inside its node, of the rank that sends most",
            most("inside"),
            most_inside,
            "inside, a reduce-scatter before and an all-gather after are enough",
        ),
    ),
    hints=(
        "Which sum does a rank need from its node before anything goes across? Only of the part that it takes across.",
        "After a reduce-scatter inside the node each of its ranks has a part; who has the same part of other nodes?",
        "comm.split(comm.rank // node_size) is the node, comm.split(comm.rank % node_size) the ranks of one seat.",
    ),
    mistakes=MISTAKES,
    without=frozenset({"inputs", "shape"}),
    text=TEXT,
    answer=(hierarchical_all_reduce,),
    points=3,
)
