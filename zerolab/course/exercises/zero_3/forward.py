"""The exercise of lesson 05 on the forward pass of stage 3, one layer at a time, and what it shares with others.

Layers are matrices of small whole numbers, whose products single precision holds exactly. Each rank has its own input,
as in data parallel training. What an answer keeps alive is measured, since nothing else tells a stage 3 that releases
its layers from one that only says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Link
from zerolab.course.exercises.wholes import Wholes
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import Calls, calls_are, most
from zerolab.course.judge.draw import DTYPES, fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import by_dtype

TEXT = """
Gather, use, release

`shards[i]` is this rank's shard of layer i, `shapes[i]` the layer's shape. Send `x` through all layers:
`F.linear(x, layer)`, with `F.relu` *between* two layers, so not after the last. No gradients here. Gather each layer
once, when its turn comes.

The check draws float32, float64 and bfloat16, one layer or several, and layers so small that shards are empty. The
scoreboard counts the whole layers that you hold: one, not two. About seven lines.
"""


def forward(comm, shards: list[torch.Tensor], shapes: list[tuple], x: torch.Tensor) -> torch.Tensor:
    """What all layers make of x."""
    ### BEGIN SOLUTION
    for index, (shard, shape) in enumerate(zip(shards, shapes, strict=True)):
        if index:
            x = F.relu(x)
        whole = comm.all_gather(shard, math.prod(shape))
        x = F.linear(x, whole.view(*shape))
        del whole
    return x
    ### END SOLUTION


MISTAKES = r"""
what comes out without ReLU after each layer of the last one's shape: tell the last layer by its place
    if index: => if index and shapes[index - 1] != shapes[-1]:
its output with a ReLU on top: ReLU stands between two layers, and nothing comes after the last
    return x => return F.relu(x)
what the layers give without ReLU between them
    if index: => if False:
what comes out of the last layer but one: does your loop reach the last?
    zip(shards, shapes, strict=True) => zip(shards[:-1], shapes)
what rank 0's input gives: each rank has an input of its own
    for index, => x = comm.broadcast(x.clone())\n    for index,
its input, through which no layer went
    def forward(comm, shards, shapes, x):
        return x
"""
ROWS = 2
WIDTHS = [26, 30, 34, 36, 32, 28, 26]
"""Of the case on the scoreboard. Its layers grow and shrink, so that whoever makes a larger buffer and still holds the
last one has two; the smallest is more than half of the largest, so that each of them counts as one."""
LAYERS = len(WIDTHS) - 1


def layer_cases(rng: Random, rest: Callable[..., tuple[Any, ...]], link: Link | None = None) -> list[Case]:
    """Layers that the ranks divide or not, alike, a single one, and shards without elements. `rest(rows, widths, at)`
    draws what else a rank is given, with the rows that `rows(width)` draws."""

    def drawn(layers):
        return [rng.randint(2, 7) for _ in range(layers + 1)]

    some, other, third = rng.sample(DTYPES, 3)
    plans = [
        (4, WIDTHS, torch.float32),
        (3, drawn(rng.randint(2, 3)), torch.float32),
        # Nobody tells these layers apart by their shape.
        (2, [rng.randint(3, 6)] * 4, torch.float32),
        (4, drawn(2), some),
        (1, drawn(2), other),
        (3, [2, 5, 4], third),
        (4, [3, 1, 2], torch.float32),
        # Twice, with other numbers: whoever keeps layers by their size shows.
        (2, [3, 5], torch.float32),
        (2, [3, 5], torch.float32),
        (5, [2, 7], torch.float32),
        (2, drawn(2), torch.float32),
    ]
    cases = []
    for at, (ranks, widths, dtype) in enumerate(plans):
        shapes = [(outputs, inputs) for inputs, outputs in pairwise(widths)]
        # Products of many large matrices must stay numbers that the dtype holds.
        most = 1 if widths is WIDTHS or dtype is torch.bfloat16 else 3
        layers = [fine(rng, math.prod(shape), dtype, most).tensor_split(ranks) for shape in shapes]

        def rows(width, dtype=dtype, most=most):
            return fine(rng, ROWS * width, dtype, most).view(ROWS, width)

        args = [([layer[rank].clone() for layer in layers], shapes, *rest(rows, widths, at)) for rank in range(ranks)]
        cases.append(Case(args, link=link, board=not at))
    return [*cases[:-1], replace(cases[-1], world="processes", link=None)]


def forward_cases(rng: Random) -> list[Case]:
    return layer_cases(rng, lambda rows, widths, at: (rows(widths[0]),))


def run_forward(fn, comm, shards, shapes, x):
    """Its output, and the most whole layers that were in memory at once."""
    with layers_made(shards, shapes) as wholes:
        y = fn(comm, shards, shapes, x)
    return {"y": y, "wholes": wholes.most}


def layers_made(shards: list[torch.Tensor], shapes: list[tuple[int, int]]) -> Wholes:
    """Counts whole layers, if they are those of the scoreboard."""
    largest = max(map(math.prod, shapes)) if len(shapes) == LAYERS else 0
    return Wholes(shards, shards[0].element_size() * largest)


most_layers = most("wholes")


def gathers(case: Case, rank: int) -> Calls:
    """One all_gather for each layer, in order."""
    return [("all_gather", math.prod(shape)) for shape in case.args[0][1]]


OUTPUT = "every rank returns what the whole layers make of its input"

EXERCISE = Exercise(
    "forward",
    forward_cases,
    (
        Claim(OUTPUT, Gives("y", "compare one layer with F.linear on the whole matrix, by hand", tolerance=by_dtype)),
        Claim("it gathers each layer once", calls_are(gathers, "one all_gather a layer, when its turn comes")),
    ),
    run=run_forward,
    scores=(
        Score(
            "whole layers at once, at most",
            most_layers,
            None,
            "one is enough: gather a layer shortly before its turn, and let it go after. A name, a view or a list that "
            "still knows the last layer keeps it; a buffer does while it grows; a copy is one more",
        ),
    ),
    hints=(
        "comm.all_gather(shard, numel) takes the elements of the whole; math.prod(shape) is that number.",
        "When the loop comes around, what do your names still stand for?",
        "`whole = comm.all_gather(...)` makes the new layer first and lets the old one go afterwards. `del whole` "
        "before that.",
    ),
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(forward,),
    points=2,
)
