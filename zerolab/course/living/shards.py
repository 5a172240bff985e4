"""The scene of the flat buffer: which rank owns which part of which parameter, as `zerolab.flat` lays them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zerolab.course.viz.looks import HATCHES, PALE
from zerolab.course.viz.reshard import MOST_RANKS
from zerolab.flat import Layout, lay_out
from zerolab.models import build

Shapes = Mapping[str, Sequence[int]]
ALIGNS = [1, 2, 4, 8, 16, 32, 64]
SMALL: Shapes = {"w": (6,), "b": (3,)}
NET: Shapes = {"0.weight": (40, 24), "0.bias": (40,), "3.weight": (8, 40), "3.bias": (8,)}


def block(model: str) -> Shapes:
    """The shapes of a block of a small model."""
    with torch.device("meta"):
        first = build(model, "nano").blocks[0]
    assert isinstance(first, nn.Module)
    return {name: tuple(parameter.shape) for name, parameter in first.named_parameters()}


def models() -> dict[str, Shapes]:
    """What is laid out, by name."""
    return {
        "two parameters": SMALL,
        "a block of llama nano": block("llama"),
        "a block of gpt2 nano": block("gpt2"),
        "the net of lesson 08": NET,
    }


def name_of(shapes: Shapes) -> str:
    """What the scenes call parameters of these shapes; empty where they do not have them."""
    wanted = {name: tuple(shape) for name, shape in shapes.items()}
    return next((name for name, known in models().items() if known == wanted), "")


def looks(count: int) -> list[dict[str, str]]:
    """How the first, second, ... of so many things is filled; those of viz/shards.py and viz/reshard.py."""
    return [{"colour": PALE[at % len(PALE)], "hatch": HATCHES[at // len(PALE)]} for at in range(count)]


def record() -> dict[str, Any]:
    """By model its parameters; and by "MODEL RANKS ALIGN" where each begins, and the pieces of each rank: the number of
    the parameter, and its first and last element in the flat buffer."""
    found = models()
    return {
        "models": {
            name: [[parameter, int(torch.Size(shape).numel())] for parameter, shape in shapes.items()]
            for name, shapes in found.items()
        },
        "ranks": list(range(1, MOST_RANKS + 1)),
        "aligns": ALIGNS,
        "looks": looks(max(map(len, found.values()))),
        "layouts": {
            f"{name} {ranks} {align}": laid_out(lay_out(shapes, ranks, align))
            for name, shapes in found.items()
            for ranks in range(1, MOST_RANKS + 1)
            for align in ALIGNS
        },
    }


def laid_out(layout: Layout) -> dict[str, Any]:
    return {
        "numel": layout.numel,
        "starts": [slot.start for slot in layout.slots],
        "shards": [
            [[layout.slots.index(piece.slot), piece.start, piece.stop] for piece in layout.pieces(rank)]
            for rank in range(layout.ranks)
        ],
    }
