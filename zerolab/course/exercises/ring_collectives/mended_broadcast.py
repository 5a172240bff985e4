"""Exercise of lesson 01: a broadcast with two faults, mended."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.ring_collectives import ring
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import never
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives

TEXT = r'''
Mend it

This broadcast hands rank `src`'s tensor from neighbour to neighbour. It has two faults. One hangs, and lockstep names
it when you run the cell; the other would hand out the wrong rank's tensor, and no report tells you. Say to yourself
what each rank does *before* you read the report.

```{code-cell}
:name: shown_broken

def broken_broadcast(comm, tensor: torch.Tensor, src: int) -> torch.Tensor:
    """Meant to overwrite every rank's tensor with that of rank `src`."""
    if comm.rank:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    comm.send(tensor, (comm.rank + 1) % comm.size)
    return tensor


try:
    tensors = [torch.full((2,), float(rank)) for rank in range(3)]
    launch(lambda comm: broken_broadcast(comm, tensors[comm.rank], 1), ranks=3, world="lockstep", device="cpu")
except RankError as error:
    text = f"{type(error).__name__}: {error}"
    print(text.replace(": rank", ":\n    rank").replace("; ", "\n    "))
```

Write it so that it works for every `src`, in place, and so that nobody sends `src` its own tensor back. What you
return is the tensor itself, not a copy. Keep it a ring: each rank sends to its right neighbour only, at most once.
When your function returns, the caller may write to the tensor at once. About five lines. The check draws every `src`,
contiguous tensors of one or two dimensions in the dtypes of exercise 2, zeros, NaN and inf, one element or none, and
a second call with other data.
'''


def mended_broadcast(comm, tensor: torch.Tensor, src: int) -> torch.Tensor:
    """Overwrite every rank's tensor with that of rank `src`, and return it."""
    ### BEGIN SOLUTION
    right = (comm.rank + 1) % comm.size
    if comm.rank != src:
        comm.recv(tensor, (comm.rank - 1) % comm.size)
    if right != src:
        comm.send(tensor, right)
    return tensor
    ### END SOLUTION


MISTAKES = r"""
rank 0's tensor, whatever src is: `if comm.rank:` means `if comm.rank != 0`
    right = => src, right = 0,
its own tensor, as if nothing had come
    recv(tensor => recv(tensor.clone()
the sum of what lies on the way: overwrite, and do not add
    comm.recv(tensor, (comm.rank - 1) % comm.size) => tensor += comm.recv(tensor.clone(), (comm.rank - 1) % comm.size)
the left neighbour's own tensor: receive before you send on
    def mended_broadcast(comm, tensor, src):
        right, own = (comm.rank + 1) % comm.size, tensor.clone()
        if comm.rank != src:
            comm.recv(tensor, (comm.rank - 1) % comm.size)
        if right != src:
            comm.send(own, right)
        return tensor
what came but for its zeros, in whose places its own numbers stand: zeros are numbers, too
    comm.recv(tensor, (comm.rank - 1) % comm.size) => came = comm.recv(tensor.clone(), (comm.rank - 1) % comm.size)
    if right => if comm.rank != src:\n        tensor[came != 0] = came[came != 0]\n    if right
NaN where its own tensor had NaN or inf and a number came: overwrite what was there; 0 times NaN is NaN
    recv(tensor, (comm.rank - 1) % comm.size) => recv(came := tensor.clone(), (comm.rank - 1) % comm.size)
    if right => if comm.rank != src:\n        tensor.mul_(0).add_(came)\n    if right
what float32 has rounded: numbers stay in the input's dtype, from end to end
    return tensor => return tensor.copy_(tensor.float())
"""
USED_AGAIN = -1.0
"""What the caller writes into its tensor when the broadcast has returned; no case has such a number."""


def broadcast_and_overwrite(fn: Callable[..., Any], comm: Collectives, tensor: torch.Tensor, src: int) -> Any:
    """What a broadcast returns, and the tensor afterwards; whether the former is a copy, which shows when the caller
    uses its tensor again, at once."""
    value = fn(comm, tensor, src)
    if not isinstance(value, torch.Tensor):
        return {"value": value}
    seen = {"value": value.clone(), "tensor": tensor.clone()}
    tensor.fill_(USED_AGAIN)
    return seen | {"copied": not torch.equal(value, tensor)}


def broadcast_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, numel, world, dtype, poisoned in ring.draws(rng):
        for src in {0, ranks - 1, rng.randrange(ranks)} if numel > 1 and not poisoned else {rng.randrange(ranks)}:
            # No rank's tensor has a negative number, with which the caller overwrites it. With poison each has its own
            # NaN and inf, so that no arithmetic with what is overwritten is harmless.
            tensors = [tensor.abs() for tensor in ring.each_ranks(rng, ranks, numel, dtype, poisoned)]
            shape = (2, -1) if numel % 2 == 0 else (-1,)
            cases.append(Case([(tensor.view(shape), src) for tensor in tensors], world))
    ranks = rng.randint(2, 4)
    src = rng.randrange(ranks)
    args = [(ring.numbers(rng, 5, torch.float32).abs() * (rank != src), src) for rank in range(ranks)]
    return [*cases, Case(args, about=f"on {ranks} ranks, 5 zeros from rank {src}")]


EXERCISE = Exercise(
    "mended_broadcast",
    broadcast_cases,
    (
        ring.FROM_MESSAGES,
        ring.right_values("every rank ends with src's tensor", "print what each rank receives, and its dtype", "value"),
        Claim(
            "its result is right in place",
            Gives("tensor", "receive into the tensor that you are given", "was left with", tolerance=0.0),
        ),
        Claim(
            "it returns the tensor itself",
            never("copied", "what rank {rank} returned is a copy of its tensor: return the tensor itself"),
        ),
        ring.TO_THE_RIGHT,
        ring.as_a_ring(
            lambda record: [nbytes for _, nbytes in record.sent if nbytes],
            "At most one message is asked for, with the whole tensor: which rank has nobody left to tell?",
        ),
    ),
    run=broadcast_and_overwrite,
    hints=(
        "Who has nothing to receive? And whose right neighbour already has the tensor?",
        "`if comm.rank:` asks whether this is rank 0; the text asks about another rank.",
        "Each of the two calls needs a condition of its own, and both are about src.",
    ),
    mistakes=MISTAKES,
    without=frozenset({"inputs", "dtype"}),
    text=TEXT,
    answer=(mended_broadcast,),
    points=1,
)
