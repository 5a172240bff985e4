"""The exercise of lesson 05 on layers that are fetched ahead."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Collectives, Handle, Link
from zerolab.course.exercises.zero_3.forward import OUTPUT, gathers, layer_cases, layers_made, most_layers
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import calls_are, microseconds, never
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import by_dtype, short
from zerolab.ranks import spend

TEXT = """
Fetched ahead

Back to forward without gradients. `layer(x, weight)` is a layer with its ReLU, and computes for one millisecond.
`weight` has the layer's shape. The cell below shows such a layer; the one that the check hands you takes a number of
its own away after the ReLU, so what it gives may be negative. Call it once for each layer, in order. One after the
other, the ranks wait for the wire, then the wire waits for the ranks:

    wire      gather 0         gather 1         gather 2
    compute            layer 0          layer 1          layer 2

A virtual clock prices each message and each layer. Arrange it so that the ranks wait for the first gather only: while
one layer computes, the next one travels. `comm.all_gather_async(shard, numel)` returns a handle at once;
`handle.wait()` blocks until the layer is here, and returns it.

The check draws what it draws in exercise 1. The scoreboard measures the time, and counts whole layers: two, the one
at hand and the next. Each needs memory of its own. About nine lines.

```{code-cell}
:name: shown_layer

def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    spend(1e-3)
    return F.relu(F.linear(x, weight))
```
"""


def prefetched(comm, shards: list[torch.Tensor], shapes: list[tuple], x: torch.Tensor, layer) -> torch.Tensor:
    """What all layers make of x; each is gathered while the one before it computes."""
    ### BEGIN SOLUTION
    numels = [math.prod(shape) for shape in shapes]
    coming = comm.all_gather_async(shards[0], numels[0])
    for index, shape in enumerate(shapes):
        whole, following = coming.wait(), index + 1
        coming = None
        if following < len(shapes):
            coming = comm.all_gather_async(shards[following], numels[following])
        x = layer(x, whole.view(*shape))
    return x
    ### END SOLUTION


MISTAKES = r"""
its input, through which no layer went: a single layer is one, too
    numels = [ => if len(shapes) == 1:\n        return x\n    numels = [
what comes out of the last layer but one: who computes the layer that was fetched last?
    x = layer( => if following < len(shapes):\n            x = layer(
what empty layers give: the layer had not arrived when it was used, so wait() for it
    whole.view(*shape) => torch.zeros(shape, dtype=whole.dtype)
what F.relu(F.linear(x, weight)) gives, time after time: call the `layer` that you are handed
    layer(x, whole.view(*shape)) => F.relu(F.linear(x, whole.view(*shape)))
what comes out with one ReLU more after each layer: a layer brings its own, and what it gives may be negative
    layer(x, whole.view(*shape)) => F.relu(layer(x, whole.view(*shape)))
what comes out with one ReLU more between two layers: a layer brings its own, and what it gives may be negative
    layer(x, => layer(F.relu(x) if index else x,
"""
Tensor = torch.Tensor
LINK = Link(gbit_per_s=1, latency_us=100)


def ahead_cases(rng: Random) -> list[Case]:
    return layer_cases(rng, lambda rows, widths, at: (rows(widths[0]), rng.randint(1, 3)), LINK)


def run_ahead(fn, comm, shards, shapes, x, shift):
    """Hand the answer a layer with ReLU that takes a millisecond. It takes `shift` away, so that nobody gets along
    without calling it, and one ReLU more shows: what it gives is negative here and there. Returns the output, and the
    shape of each layer that was computed."""
    computed, early, gathers = [], [], Filling(comm)

    def layer(x, weight):
        if gathers.fills(weight):
            early.append(len(computed))
        spend(1e-3)
        computed.append(list(weight.shape))
        return F.linear(x, weight).relu_().sub_(shift)

    with layers_made(shards, shapes) as wholes:
        y = fn(gathers, shards, shapes, x, layer)
    return {"y": y, "computed": computed, "early": early, "wholes": wholes.most}


class Filling:
    """The rank's collectives, which know the places that gathers under way still write to. They hold no tensor, since
    layers that are alive are counted."""

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.places: list[tuple[Any, int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def all_gather_async(self, shard: Tensor, numel: Any = None, out: Any = None, **more: Any) -> Handle:
        handle = self.comm.all_gather_async(shard, numel, out, **more)
        # A handle keeps the place itself, if nobody named one.
        if out is not None and handle._pending:
            self.places.append((handle._pending, out.data_ptr(), out.data_ptr() + out.nbytes))
        return handle

    def fills(self, tensor: Tensor) -> bool:
        """Whether one of the places overlaps it, if its elements lie end to end."""
        start, stop = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        return any(begin < stop and start < end for pending, begin, end in self.places if not pending.waited)


EXERCISE = Exercise(
    "prefetched",
    ahead_cases,
    (
        Claim(
            OUTPUT,
            Gives(
                "y",
                "a layer brings its own ReLU, and what a call is still filling must not be read: wait() before a use",
                tolerance=by_dtype,
            ),
        ),
        Claim(
            "no layer computes with what is still being filled",
            never(
                "early",
                "rank {rank} computes layer {it[0]} with memory that a gather under way writes to: the layer at hand "
                "and the one that comes each need their own",
            ),
        ),
        Claim(
            "it computes each layer once",
            Gives(
                "computed",
                "Each layer computes once, in order",
                say=lambda args, got, want: f"calls layer() {len(got)} times, with weights of shape {short(got)}",
            ),
        ),
        Claim("it gathers each layer once", calls_are(gathers, "one all_gather a layer, in the order of use")),
    ),
    run=run_ahead,
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            None,
            "somebody waits for the wire before a layer: start to gather the next one before you compute this one",
            slack=1,
        ),
        Score(
            "whole layers at once, at most",
            most_layers,
            None,
            "two are enough, the one at hand and the next. A handle that waits holds its result, too",
        ),
    ),
    hints=(
        "comm.all_gather_async(shard, numel) returns a handle at once; handle.wait() returns the whole layer.",
        "Before the loop: start the first. In the loop: wait for this one, start the next, compute this one.",
        "The last layer has no next one. And never start more than one ahead.",
    ),
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(prefetched,),
    points=3,
)
