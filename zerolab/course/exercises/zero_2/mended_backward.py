"""The exercise of lesson 04 that mends a backward with five faults."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.course.exercises.zero_2.models import NOTHING_HELD, SCORES, InTime, Watch, model_cases
from zerolab.course.judge.case import Case, decode, encode
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import by_dtype
from zerolab.errors import InputError

TEXT = """
Find the five faults

This should be stage 2's backward: built once, it keeps in `shards` this rank's shard of the mean gradient of each
parameter, in the order of `parameters`, and adds up what several backwards bring. It has five faults. Run it.

```{code-cell}
:name: shown_broken

class BrokenBackward:
    def __init__(self, comm, parameters):
        self.comm = comm
        self.shards = [None] * len(parameters)
        self.seen = []
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda parameter: self.reduce(index, parameter))

    def reduce(self, index, parameter):
        whole = parameter.grad.flatten()
        self.seen.append(whole)
        self.shards[index] = self.comm.reduce_scatter(whole)
```

```{code-cell}
:name: shown_run

def two_layers(comm):
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    backward = BrokenBackward(comm, list(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    return [None if shard is None else shard.numel() for shard in backward.shards]


launch(two_layers, ranks=2, world="lockstep", device="cpu")[0]
```

Of two parameters only one has a shard, and it stands in the other one's place: a shard of two elements, where the
last layer's has one. That is the first fault. For the others think of the mean; of the memory after backward, of
which there are two faults; and of a second backward.

Write it right. After each backward, `shards` is a list with one 1-D tensor for each parameter, no parameter has a
gradient, and nothing holds a whole one, or a shard besides those in `shards`. The scoreboard is that of exercise 1,
over three backwards. The check draws what it draws there, but no frozen parameter. The first backward brings each
parameter a gradient; one may be left out of the second. Several `MendedBackward` may be alive at once. About eleven
lines.
"""


class MendedBackward:
    """Keeps `shards`: this rank's part of each parameter's mean gradient, added up over backwards."""

    ### BEGIN SOLUTION
    def __init__(self, comm, parameters):
        self.comm = comm
        self.shards = [None] * len(parameters)
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: self.reduce(index, parameter))

    def reduce(self, index, parameter):
        shard = self.comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None
        self.shards[index] = shard if self.shards[index] is None else self.shards[index].add_(shard)

    ### END SOLUTION


MISTAKES = r"""
no shard of most parameters: which index does a hook see when it runs, long after the loop has ended?
    lambda parameter, index=index: => lambda parameter:
    shard if self.shards[index] is None else self.shards[index].add_(shard) => shard
shards of the sum over the ranks: take the mean
    , average=True =>
whole gradients: a rank keeps its shard of each
    comm.reduce_scatter => comm.all_reduce
shards of its own gradients: nothing was added to them
    self.comm.reduce_scatter(parameter => (parameter
    , average=True) => .tensor_split(self.comm.size)[self.comm.rank].clone())
a gradient in the order in which it lies in memory: flatten() goes row by row, whatever the strides
    parameter.grad.flatten() => parameter.grad.as_strided((parameter.numel(),), (1,))
no shard of parameters without elements: neither has their shard, but it is due
    parameter.grad = None => parameter.grad = None\n        if not parameter.numel():\n            return
shards of the last backward alone: a new shard is added to the old
    shard if self.shards[index] is None else self.shards[index].add_(shard) => shard
shards in which the first backward counts more than once: parameter.grad still held it
    parameter.grad = None => pass
"""
STUCK = r"""
It adds up shards of two parameters: which index does each hook see?
    lambda parameter, index=index: => lambda parameter:
"""


def mended_cases(rng: Random) -> list[Case]:
    return model_cases(rng, frozen=False)


def run_mended(fn: Any, comm: Any, model: Any, rounds: list[torch.Tensor]) -> Any:
    """Build it on the model's parameters, and run one backward after the other."""
    mended = fn(comm, [*model.parameters()])
    # One of another model, with a single parameter, is alive beside it.
    single = nn.Parameter(torch.ones(comm.size))
    beside = fn(comm, [single])
    shared = getattr(mended, "shards", None)
    if isinstance(shared, list | dict) and shared is beside.shards:
        raise InputError("two have the same: `shards` belongs to the class, and all share it; set it in __init__")
    watch = Watch(comm, model)
    after = {}
    for at, inputs in enumerate(rounds):
        with watch:
            model(inputs.detach()).square().mean().backward()
        after[f"backward {at + 1}"] = decode(encode(mended.shards))
    # What is returned may be there.
    return {"after": after, "held": [mended.shards, beside.shards, single], **watch.found()}


EXERCISE = Exercise(
    "MendedBackward",
    mended_cases,
    (
        Claim(
            "after a backward every rank has its shards of the mean",
            Gives(
                lambda record: record.value["after"]["backward 1"],
                "print the index and the parameter in each hook, on one rank",
                "holds",
                by_dtype,
            ),
            (
                "A lambda looks up the loop's variable when it runs, and by then it has its last value. partial(fn, "
                "index) takes the value it has now.",
            ),
        ),
        Claim(
            "after each backward they are added up",
            Gives(
                "after",
                "does each hook still run, and what becomes of a shard when the next one comes?",
                "holds",
                by_dtype,
            ),
            (
                "The mean is over the ranks; over backwards it is a sum, of shards.",
                "Mending one fault uncovers another: once parameter.grad is dropped, who adds up two backwards?",
            ),
        ),
        NOTHING_HELD,
        Claim("each gradient is reduced as backward brings it", InTime("passed")),
    ),
    run=run_mended,
    scores=SCORES,
    hints=("After the hook, nothing may know the whole gradient: neither parameter.grad nor a list.",),
    memory=True,
    mistakes=MISTAKES,
    stuck=STUCK,
    without=frozenset({"left", "late"}),
    text=TEXT,
    answer=(MendedBackward,),
    points=2,
)
