"""The exercise of lesson 05 on layers that are fetched ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Collectives, Handle, Link
from zerolab.course.exercises.zero_3.forward import (
    ROWS,
    Shape,
    drawn_rows,
    drawn_shards,
    gathers,
    in_words,
    layers_made,
    layers_of,
    layouts,
    lets_go,
    most_layers,
)
from zerolab.course.judge.case import Case, Record
from zerolab.course.judge.claims import (
    calls_are,
    each_rank,
    leaves_at_once,
    leaves_nothing,
    microseconds,
    never,
    part,
    untouched,
)
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.course.judge.same import by_dtype
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


Tensor = torch.Tensor
LINK = Link(gbit_per_s=1, latency_us=100)
LAYER_SECONDS = 1e-3


def run_ahead(
    fn: Callable[..., Any], comm: Collectives, shards: list[Tensor], shapes: list[Shape], x: Tensor, shift: int
) -> Any:
    """Hand the answer a layer with ReLU that takes a millisecond. It takes `shift` away, so that nobody gets along
    without calling it, and one ReLU more shows: what it gives is negative here and there. Returns the output, and the
    shape of each layer that was computed."""
    computed: list[list[int]] = []
    early: list[int] = []
    gathers = Filling(comm)

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        if gathers.fills(weight):
            early.append(len(computed))
        spend(LAYER_SECONDS)
        computed.append(list(weight.shape))
        return F.linear(x, weight).relu_().sub_(shift)

    with layers_made(shards, shapes) as wholes:
        y = fn(gathers, shards, shapes, x, layer)
    return {"y": y, "computed": computed, "early": early, "wholes": wholes.most}


class Filling:
    """The rank's collectives, which know the places that gathers under way still write to."""

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.places: dict[int, range] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def all_gather_async(self, *args: Any, **kwargs: Any) -> Any:
        handle = self.comm.all_gather_async(*args, **kwargs)
        # A handle keeps the place itself, if nobody named one.
        out = kwargs.get("out", args[2] if len(args) > 2 else None)
        return Filled(handle, self, out) if out is not None else handle

    def fills(self, tensor: Tensor) -> bool:
        mine = bytes_of(tensor)
        return any(place.start < mine.stop and mine.start < place.stop for place in self.places.values())


class Filled:
    """A handle whose wait() says that a place is filled."""

    def __init__(self, handle: Handle, gathers: Filling, out: Tensor) -> None:
        self.handle, self.gathers = handle, gathers
        gathers.places[id(self)] = bytes_of(out)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def wait(self) -> Any:
        self.gathers.places.pop(id(self), None)
        return self.handle.wait()


def bytes_of(tensor: Tensor) -> range:
    """Where its elements lie, if they lie end to end."""
    return range(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def ahead_cases(rng: Random) -> list[Case]:
    cases = []
    for layout in layouts(rng):
        ranks, shapes, dtype = layout.ranks, layout.shapes, layout.dtype
        shards = drawn_shards(rng, shapes, ranks, dtype)
        args: list[tuple[Any, ...]] = [
            (shards[rank], shapes, drawn_rows(rng, ROWS, shapes[0][1], dtype), rng.randint(1, 3))
            for rank in range(ranks)
        ]
        link = LINK if layout.world == "lockstep" else None
        cases.append(Case(args, layout.world, in_words(ranks, shapes, dtype), link, layout.board))
    return cases


def ahead_wanted(case: Case) -> Wanted:
    layers = layers_of(case)

    def passed(layers: Sequence[Tensor], shifts: bool = True, relu: Sequence[int] = ()) -> list[Tensor]:
        """What each rank's input becomes, with (wrongly) one more ReLU before the layers `relu`."""
        outputs = []
        for _, _, x, shift in case.args:
            for index, weight in enumerate(layers):
                x = F.relu(F.linear(F.relu(x) if index in relu else x, weight)) - shift * shifts
            outputs.append(F.relu(x) if len(layers) in relu else x)
        return outputs

    mistakes = {
        "its input, through which no layer went: a single layer is one, too": passed([]),
        "what comes out of the last layer but one: who computes the layer that was fetched last?": passed(layers[:-1]),
        "what empty layers give: the layer had not arrived when it was used, so wait() for it": passed(
            [torch.zeros_like(weight) for weight in layers]
        ),
        "what F.relu(F.linear(x, weight)) gives, time after time: call the `layer` that you are handed": passed(
            layers, shifts=False
        ),
    }
    count, more = len(layers), "one ReLU more"
    places = {
        f"{more} after each layer": range(1, count + 1),
        f"{more} between two layers": range(1, count),
        f"{more} before each layer": range(count),
        f"{more} at the end": [count],
        f"{more} at the beginning": [0],
    }
    own = "a layer brings its own, and what it gives may be negative"
    mistakes |= {f"what comes out with {place}: {own}": passed(layers, relu=at) for place, at in places.items() if at}
    look = "what a call is still filling must not be read: is there a wait() before each use?"
    return Wanted(passed(layers), mistakes, look)


reads_filled = never(
    "early",
    "rank {rank} computes layer {it[0]} with memory that a gather under way writes to: the layer at hand and the one "
    "that comes each need their own",
)


@each_rank
def computes_once(case: Case, rank: int, record: Record) -> str | None:
    got, want = record.value["computed"], [list(shape) for shape in case.args[0][1]]
    said = f"rank {rank} calls layer() {len(got)} times, with weights of shape {got}, and {want} are due"
    return None if got == want else f"{said}: each layer computes once, in order"


def hidden_time(case: Case) -> int:
    """The first gather, and then layer after layer."""
    shapes = case.args[0][1]
    first = LINK.ring_seconds("all_gather", math.prod(shapes[0]), 4, case.ranks)
    return round(1e6 * (first + len(shapes) * LAYER_SECONDS)) + 1


WAIT = ("comm.all_gather_async(shard, numel) returns a handle at once; handle.wait() returns the whole layer.",)

EXERCISE = Exercise(
    "prefetched",
    ahead_cases,
    (
        Claim(
            "every rank returns what the whole layers make of its input", part("y", right(ahead_wanted, by_dtype)), WAIT
        ),
        Claim("its inputs stay as they were", untouched(0, 2)),
        Claim("no layer computes with what is still being filled", reads_filled),
        Claim("it computes each layer once", computes_once),
        Claim("it gathers each layer once", calls_are(gathers, "one all_gather a layer, in the order of use")),
        Claim("it lets layers go again", lets_go),
        Claim("it leaves nothing behind", leaves_nothing),
        Claim("nor anything for Python's garbage collector", leaves_at_once),
    ),
    run=run_ahead,
    scores=(
        Score(
            "microseconds on the virtual clock",
            microseconds,
            hidden_time,
            "somebody waits for the wire before a layer: start to gather the next one before you compute this one",
        ),
        Score(
            "whole layers at once, at most",
            most_layers,
            lambda case: 2,
            "two are enough, the one at hand and the next. A handle that waits holds its result, too",
        ),
    ),
    hints=(
        "Before the loop: start the first. In the loop: wait for this one, start the next, compute this one.",
        "The last layer has no next one. And never start more than one ahead.",
    ),
    memory=True,
    text=TEXT,
    answer=(prefetched,),
    points=3,
)
