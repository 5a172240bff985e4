"""Exercise of lesson 01: a broadcast with two faults, mended."""

from __future__ import annotations

import torch

from zerolab.course.exercises.ring_collectives.cases import broadcast_cases, broadcast_expected
from zerolab.course.exercises.ring_collectives.ring import ring_exercise

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


EXERCISE = ring_exercise(
    "mended_broadcast",
    broadcast_cases,
    broadcast_expected,
    "every rank ends with rank src's tensor",
    (
        "Who has nothing to receive? And whose right neighbour already has the tensor?",
        "`if comm.rank:` asks whether this is rank 0; the text asks about another rank.",
        "Each of the two calls needs a condition of its own, and both are about src.",
    ),
    in_place=True,
    text=TEXT,
    answer=(mended_broadcast,),
    points=1,
)
