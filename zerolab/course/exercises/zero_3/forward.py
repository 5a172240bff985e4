"""The exercise of lesson 05 on the forward pass of stage 3, one layer at a time, and what it shares with others.

Layers are matrices of small whole numbers, whose products single precision holds exactly. Each rank has its own input,
as in data parallel training. What an answer keeps alive is measured, since nothing else tells a stage 3 that releases
its layers from one that only says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Collectives
from zerolab.course.exercises.wholes import Wholes
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import Calls, calls_are, leaves_at_once, leaves_nothing, most, part, untouched
from zerolab.course.judge.draw import DTYPES, fine
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
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


Tensor = torch.Tensor
Shape = tuple[int, int]
ROWS = 2
WIDTHS = (26, 30, 34, 36, 32, 28, 26)
LAYERS = len(WIDTHS) - 1
"""Of the case on the scoreboard. Its layers grow and shrink, so that whoever makes a larger buffer and still holds the
last one has two; the smallest is more than half of the largest, so that each of them counts as one."""


def drawn_shapes(rng: Random, layers: int) -> list[Shape]:
    """Shapes (outputs, inputs) of layers that fit end to end."""
    widths = [rng.randint(2, 7) for _ in range(layers + 1)]
    return [(widths[index + 1], widths[index]) for index in range(layers)]


def drawn_shards(rng: Random, shapes: Sequence[Shape], ranks: int, dtype: torch.dtype) -> list[list[Tensor]]:
    """For each rank, its shard of each layer."""
    # Products of many large matrices must stay numbers that the dtype holds.
    most = 1 if len(shapes) == LAYERS or dtype is torch.bfloat16 else 3
    layers = [fine(rng, math.prod(shape), dtype, most) for shape in shapes]
    return [[layer.tensor_split(ranks)[rank].clone() for layer in layers] for rank in range(ranks)]


def drawn_rows(rng: Random, rows: int, width: int, dtype: torch.dtype) -> Tensor:
    most = 1 if width in WIDTHS or dtype is torch.bfloat16 else 3
    return fine(rng, rows * width, dtype, most).view(rows, width)


def in_words(ranks: int, shapes: Sequence[Shape], dtype: torch.dtype) -> str:
    """Such as "on 3 ranks, layers of [10, 12] elements (the ranks do not divide all of them)"."""
    numels = [math.prod(shape) for shape in shapes]
    uneven = " (the ranks do not divide all of them)" if any(numel % ranks for numel in numels) else ""
    alike = len(numels) > 1 and len(set(numels)) == 1
    what = f"{len(numels)} layers of {numels[0]:,}" if alike else f"layers of {numels}"
    if len(numels) == 1:
        what = f"a single layer of {numels[0]}"
    return f"on {plural(ranks, 'rank')}, {what} elements{uneven}{'' if dtype is torch.float32 else f', {dtype}'}"


@dataclass(frozen=True)
class Layout:
    """Ranks and layers of a case; that with `board` fills the scoreboard."""

    ranks: int
    shapes: list[Shape]
    dtype: torch.dtype = torch.float32
    world: str = "lockstep"
    board: bool = False


def layouts(rng: Random) -> list[Layout]:
    """Those of the cases: layers that the ranks divide or not, alike, a single one, and shards without elements."""
    dtypes = rng.sample(DTYPES, 3)
    width = rng.randint(3, 6)
    return [
        Layout(4, [(outside, inside) for inside, outside in pairwise(WIDTHS)], board=True),
        *(Layout(ranks, drawn_shapes(rng, rng.randint(2, 3))) for ranks in (2, 3)),
        # Nobody tells these layers apart by their shape.
        Layout(2, [(width, width)] * 3),
        Layout(4, drawn_shapes(rng, 2), dtypes[0]),
        Layout(1, drawn_shapes(rng, 2), dtypes[1]),
        Layout(3, [(5, 2), (4, 5)], dtypes[2]),
        Layout(4, [(1, 3), (2, 1)]),
        Layout(2, [(5, 3)]),
        Layout(2, drawn_shapes(rng, 2), world="processes"),
    ]


most_layers = most("wholes")


def gathers(case: Case, rank: int) -> Calls:
    """One all_gather for each layer, in order."""
    return [("all_gather", math.prod(shape)) for shape in case.args[0][1]]


def layers_of(case: Case) -> list[Tensor]:
    """The whole layers of a case whose arguments begin with shards and shapes."""
    shapes = case.args[0][1]
    return [torch.cat([args[0][index] for args in case.args]).view(*shape) for index, shape in enumerate(shapes)]


def forward_cases(rng: Random) -> list[Case]:
    cases = []
    for layout in layouts(rng):
        ranks, shapes, dtype = layout.ranks, layout.shapes, layout.dtype
        shards = drawn_shards(rng, shapes, ranks, dtype)
        args: list[tuple[Any, ...]] = [
            (shards[rank], shapes, drawn_rows(rng, ROWS, shapes[0][1], dtype)) for rank in range(ranks)
        ]
        cases.append(Case(args, layout.world, in_words(ranks, shapes, dtype), board=layout.board))
    return cases


def run_forward(fn: Callable[..., Any], comm: Collectives, shards: list[Tensor], shapes: list[Shape], x: Tensor) -> Any:
    """Its output, and the most whole layers that were in memory at once."""
    with layers_made(shards, shapes) as wholes:
        y = fn(comm, shards, shapes, x)
    return {"y": y, "wholes": wholes.most}


def layers_made(shards: list[Tensor], shapes: list[Shape]) -> Wholes:
    """Counts whole layers, if they are those of the scoreboard."""
    largest = max(map(math.prod, shapes)) if len(shapes) == LAYERS else 0
    return Wholes(shards, shards[0].element_size() * largest)


def through(layers: Sequence[Tensor], x: Tensor) -> Tensor:
    """All layers, with ReLU between them."""
    for index, layer in enumerate(layers):
        x = F.linear(F.relu(x) if index else x, layer)
    return x


def forward_wanted(case: Case) -> Wanted:
    layers = layers_of(case)
    inputs = [args[2] for args in case.args]
    good = [through(layers, x) for x in inputs]

    def without_relu(x: Tensor) -> Tensor:
        for layer in layers:
            x = F.linear(x, layer)
        return x

    def by_shape(x: Tensor) -> Tensor:
        for layer in layers:
            x = F.linear(x, layer)
            x = x if layer.shape == layers[-1].shape else F.relu(x)
        return x

    by_place = "tell the last layer by its place"
    mistakes = {
        f"what comes out without ReLU after each layer of the last one's shape: {by_place}": [
            by_shape(x) for x in inputs
        ],
        "its output with a ReLU on top: ReLU stands between two layers, and nothing comes after the last": [
            F.relu(y) for y in good
        ],
        "what the layers give without ReLU between them": [without_relu(x) for x in inputs],
        "what comes out of the last layer but one: does your loop reach the last?": [
            through(layers[:-1], x) for x in inputs
        ],
        "what rank 0's input gives: each rank has an input of its own": [good[0]] * case.ranks,
        "its input, through which no layer went": inputs,
    }
    return Wanted(good, mistakes, "compare one layer with F.linear on the whole matrix, by hand")


def lets_go(case: Case, seen: Observation) -> str | None:
    """On the scoreboard's case: layers go again. That the last one does, the score says."""
    layers = most_layers(case, seen) if case.board else 0
    if layers <= LAYERS // 2:
        return None
    return f"{layers} whole layers are in memory at once: gather a layer shortly before its turn, and let it go after"


NUMEL = ("comm.all_gather(shard, numel) takes the elements of the whole; math.prod(shape) is that number.",)

EXERCISE = Exercise(
    "forward",
    forward_cases,
    (
        Claim(
            "every rank returns what the whole layers make of its input",
            part("y", right(forward_wanted, by_dtype)),
            NUMEL,
        ),
        Claim("its inputs stay as they were", untouched(0, 2)),
        Claim("it gathers each layer once", calls_are(gathers, "one all_gather a layer, when its turn comes"), NUMEL),
        Claim("it lets layers go again", lets_go),
        Claim("it leaves nothing behind", leaves_nothing),
        Claim("nor anything for Python's garbage collector", leaves_at_once),
    ),
    run=run_forward,
    scores=(
        Score(
            "whole layers at once, at most",
            most_layers,
            lambda case: 1,
            "one is enough. A name, a view or a list that still knows the last layer keeps it while the next one "
            "comes, and so does a buffer while a larger one is made; a copy or a cast is one more",
        ),
    ),
    hints=(
        *NUMEL,
        "When the loop comes around, what do your names still stand for?",
        "`whole = comm.all_gather(...)` makes the new layer first and lets the old one go afterwards. `del whole` "
        "before that.",
    ),
    memory=True,
    text=TEXT,
    answer=(forward,),
    points=2,
)
