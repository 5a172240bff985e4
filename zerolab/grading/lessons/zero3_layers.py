"""Exercises of lesson 05 on the forward pass of stage 3: one layer at a time, and the next one fetched ahead.

Layers are matrices of small whole numbers, whose products single precision holds exactly. Each rank has its own input,
as in data parallel training. What an answer keeps alive is measured, since nothing else tells a stage 3 that releases
its layers from one that only says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Collectives, Link
from zerolab.grading.case import Case, Observation, plural
from zerolab.grading.claims import Calls, Wanted, calls_are, leaves_nothing, microseconds, most_held, right, untouched
from zerolab.grading.draw import signed
from zerolab.grading.exercise import Claim, Exercise, Score
from zerolab.ranks import spend

Tensor = torch.Tensor
Shape = tuple[int, int]
WIDTH, LAYERS, ROWS = 32, 6, 2
"""Of the case on the scoreboard."""


def drawn_shapes(rng: Random, layers: int) -> list[Shape]:
    """Shapes (outputs, inputs) of layers that fit end to end."""
    widths = [rng.randint(2, 7) for _ in range(layers + 1)]
    return [(widths[index + 1], widths[index]) for index in range(layers)]


def drawn_shards(rng: Random, shapes: Sequence[Shape], ranks: int) -> list[list[Tensor]]:
    """For each rank, its shard of each layer."""
    # Products of many large matrices must stay numbers that single precision holds.
    layers = [signed(rng, math.prod(shape), most=1 if len(shapes) == LAYERS else 3) for shape in shapes]
    return [[layer.tensor_split(ranks)[rank].clone() for layer in layers] for rank in range(ranks)]


def drawn_rows(rng: Random, rows: int, width: int) -> Tensor:
    return signed(rng, rows * width, most=3 if width < WIDTH else 1).view(rows, width)


def in_words(ranks: int, shapes: Sequence[Shape]) -> str:
    """Such as "on 3 ranks, layers of [10, 12] elements (the ranks do not divide all of them)"."""
    numels = [math.prod(shape) for shape in shapes]
    uneven = " (the ranks do not divide all of them)" if any(numel % ranks for numel in numels) else ""
    alike = len(numels) > 1 and len(set(numels)) == 1
    what = f"{len(numels)} layers of {numels[0]:,}" if alike else f"layers of {numels}"
    if len(numels) == 1:
        what = f"a single layer of {numels[0]}"
    return f"on {plural(ranks, 'rank')}, {what} elements{uneven}"


def layouts(rng: Random) -> list[tuple[int, list[Shape], str, bool]]:
    """(ranks, shapes, world, whether for the scoreboard) of the cases."""
    board = [(WIDTH, WIDTH)] * LAYERS
    drawn = [(ranks, drawn_shapes(rng, rng.randint(2, 3)), "lockstep", False) for ranks in (2, 3, 4, 1)]
    uneven = (3, [(5, 2), (4, 5)], "lockstep", False)
    tiny = (4, [(1, 3), (2, 1)], "lockstep", False)
    single = (2, [(5, 3)], "lockstep", False)
    processes = (2, drawn_shapes(rng, 2), "processes", False)
    return [(4, board, "lockstep", True), *drawn, uneven, tiny, single, processes]


def gathers(case: Case, rank: int) -> Calls:
    """One all_gather for each layer, in order."""
    return [("all_gather", math.prod(shape)) for shape in case.args[0][1]]


def layers_of(case: Case) -> list[Tensor]:
    """The whole layers of a case whose arguments begin with shards and shapes."""
    shapes = case.args[0][1]
    return [torch.cat([args[0][index] for args in case.args]).view(*shape) for index, shape in enumerate(shapes)]


# 1. Gather, use, release.


def forward_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, shapes, world, board in layouts(rng):
        shards = drawn_shards(rng, shapes, ranks)
        args: list[tuple[Any, ...]] = [
            (shards[rank], shapes, drawn_rows(rng, ROWS, shapes[0][1])) for rank in range(ranks)
        ]
        cases.append(Case(args, world, in_words(ranks, shapes), board=board))
    return cases


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

    mistakes = {
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


def one_layer(case: Case) -> int:
    """A whole layer, and of activations the input, the output, what ReLU makes of it, and one to spare."""
    return int(4 * math.prod(case.args[0][1][0]) + 4 * case.args[0][2].nbytes)


def lets_go(case: Case, seen: Observation) -> str | None:
    """On the scoreboard's case: layers go again. That the last one does, the score says."""
    layers = most_held(case, seen) // (4 * math.prod(case.args[0][1][0])) if case.board else 0
    if layers <= LAYERS // 2:
        return None
    said = f"{layers} whole layers are in memory at once"
    return f"{case.about}: {said}: gather a layer shortly before its turn, and let it go after"


FORWARD = Exercise(
    "forward",
    forward_cases,
    (
        Claim("every rank returns what the whole layers make of its input", right(forward_wanted)),
        Claim("its inputs stay as they were", untouched(0, 2)),
        Claim("it gathers each layer once", calls_are(gathers, "one all_gather a layer, when its turn comes")),
        Claim("it lets layers go again", lets_go),
        Claim("it leaves nothing behind", leaves_nothing),
    ),
    scores=(
        Score(
            "bytes held at the worst moment",
            most_held,
            one_layer,
            "one layer is enough. A name, a view or a list that still knows the last layer keeps it while the next one "
            "comes",
        ),
    ),
    hints=(
        "comm.all_gather(shard, numel) takes the number of elements of the whole; math.prod(shape) is that number.",
        "When the loop comes around, what do your names still stand for?",
        "`whole = comm.all_gather(...)` makes the new layer first and lets the old one go afterwards. `del whole` "
        "before that.",
    ),
    memory=True,
)


# 3. Fetched ahead.

LINK = Link(gbit_per_s=1, latency_us=100)
LAYER_SECONDS = 1e-3


def run_ahead(
    fn: Callable[..., Any], comm: Collectives, shards: list[Tensor], shapes: list[Shape], x: Tensor, shift: int
) -> Any:
    """Hand the answer a layer with ReLU that takes a millisecond. It adds `shift`, so that nobody gets along without
    calling it. Returns the output, and the shape of each layer that was computed."""
    computed = []

    def layer(x: Tensor, weight: Tensor) -> Tensor:
        spend(LAYER_SECONDS)
        computed.append(list(weight.shape))
        return F.linear(x, weight).add_(shift).relu_()

    return {"y": fn(comm, shards, shapes, x, layer), "computed": computed}


def ahead_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks, shapes, world, board in layouts(rng):
        shards = drawn_shards(rng, shapes, ranks)
        args: list[tuple[Any, ...]] = [
            (shards[rank], shapes, drawn_rows(rng, ROWS, shapes[0][1]), rng.randint(1, 3)) for rank in range(ranks)
        ]
        cases.append(Case(args, world, in_words(ranks, shapes), LINK if world == "lockstep" else None, board))
    return cases


def ahead_wanted(case: Case) -> Wanted:
    layers = layers_of(case)

    def passed(layers: Sequence[Tensor], adds: bool = True) -> list[Tensor]:
        """What each rank's input becomes."""
        outputs = []
        for _, _, x, shift in case.args:
            for weight in layers:
                x = F.relu(F.linear(x, weight) + shift * adds)
            outputs.append(x)
        return outputs

    mistakes = {
        "its input, through which no layer went: a single layer is one, too": passed([]),
        "what comes out of the last layer but one: who computes the layer that was fetched last?": passed(layers[:-1]),
        "what empty layers give: the layer had not arrived when it was used, so wait() for it": passed(
            [torch.zeros_like(weight) for weight in layers]
        ),
        "what F.relu(F.linear(x, weight)) gives, time after time: call the `layer` that you are handed": passed(
            layers, adds=False
        ),
    }
    look = "what a call is still filling must not be read: is there a wait() before each use?"
    return Wanted(passed(layers), mistakes, look)


def ahead_values(case: Case, seen: Observation) -> str | None:
    """The outputs alone, by the general claim."""
    outputs = [replace(record, value=record.value["y"]) for record in seen.records]
    return right(ahead_wanted)(case, replace(seen, records=outputs))


def computes_once(case: Case, seen: Observation) -> str | None:
    want = [list(shape) for shape in case.args[0][1]]
    for rank, record in enumerate(seen.records):
        if (got := record.value["computed"]) != want:
            said = f"rank {rank} calls layer() {len(got)} times, with weights of shape {got}, and {want} are due"
            return f"{case.about}: {said}: each layer computes once, in order"
    return None


def hidden_time(case: Case) -> int:
    """The first gather, and then layer after layer."""
    shapes = case.args[0][1]
    first = LINK.ring_seconds("all_gather", math.prod(shapes[0]), 4, case.ranks)
    return round(1e6 * (first + len(shapes) * LAYER_SECONDS)) + 1


def two_layers(case: Case) -> int:
    return one_layer(case) + 4 * math.prod(case.args[0][1][0])


AHEAD = Exercise(
    "prefetched",
    ahead_cases,
    (
        Claim("every rank returns what the whole layers make of its input", ahead_values),
        Claim("its inputs stay as they were", untouched(0, 2)),
        Claim("it computes each layer once", computes_once),
        Claim("it gathers each layer once", calls_are(gathers, "one all_gather a layer, in the order of use")),
        Claim("it lets layers go again", lets_go),
        Claim("it leaves nothing behind", leaves_nothing),
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
            "bytes held at the worst moment",
            most_held,
            two_layers,
            "two layers are enough, the one at hand and the next. A handle that waits holds its result, too",
        ),
    ),
    hints=(
        "comm.all_gather_async(shard, numel) returns a handle at once; handle.wait() returns the whole layer.",
        "Before the loop: start the first. In the loop: wait for this one, start the next, compute this one.",
        "The last layer has no next one. And never start more than one ahead.",
    ),
    memory=True,
)
