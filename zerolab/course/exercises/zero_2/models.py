"""What the exercises of lesson 04 share: models with all that parameters may be, and what is noted in a backward."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.course.exercises.wholes import Wholes
from zerolab.course.judge.case import Case, Observation, Record, plural
from zerolab.course.judge.claims import each_rank, most, most_sent
from zerolab.course.judge.draw import fine
from zerolab.course.judge.exercise import Claim, Score
from zerolab.course.judge.model import Gives

Tensor = torch.Tensor

# What may be odd about a model.
CROSSED = "its last layer called first"
TIED = "one shared by two layers"
TRANSPOSED = "one transposed in memory"
FROZEN = "one frozen"
UNUSED = "a layer left out for a single row"
BARE = "the first without dimensions"
WIDE = "4 of 1,024 elements"


class Stack(nn.Module):
    """Calls its layers in turn. In training it gives more than in evaluation, as layers with dropout do of those
    numbers that they keep. `whole` are the bytes of each parameter where gradients are counted."""

    def __init__(self, layers: Sequence[nn.Module], width: int, odd: Sequence[str]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*layers[1:], layers[0]] if CROSSED in odd else layers)
        self.width, self.odd = width, odd
        self.whole = 4 * width**2 if WIDE in odd else 0

    def forward(self, inputs: Tensor) -> Tensor:
        layers = [*self.layers]
        if UNUSED in self.odd and len(inputs) == 1:
            layers.pop()
        if CROSSED in self.odd:
            layers.insert(0, layers.pop())
        for layer in layers:
            inputs = layer(inputs)
        return inputs * 1.5 if self.training else inputs

    def __repr__(self) -> str:
        numels = [parameter.numel() for parameter in self.parameters()]
        return f"<parameters of {', '.join(self.odd if self.whole else [str(numels), *self.odd])}>"


class Scale(nn.Module):
    """Scales by a parameter without dimensions, and has two without elements, which have one address (0) in memory."""

    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.by = nn.Parameter(by.view(()))
        self.none, self.nothing = (nn.Parameter(by.new_empty(0)) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.by + self.none.sum() + self.nothing.sum()


def linear(rng: Random, inside: int, outside: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    """A layer that neither raises nor lowers what passes through it by much."""
    layer = nn.utils.skip_init(nn.Linear, inside, outside, bias=bias, dtype=dtype)
    for parameter in layer.parameters():
        parameter.data.copy_(fine(rng, parameter.numel(), dtype).view_as(parameter) / (6 * inside**0.5))
    return layer


def model_of(rng: Random, odd: Sequence[str], dtype: torch.dtype) -> Stack:
    if WIDE in odd:
        return Stack([linear(rng, 32, 32, dtype, False) for _ in range(4)], 32, odd)
    widths = [rng.randint(2, 5), rng.randint(2, 5), rng.randint(1, 3)]
    if TIED in odd:
        widths[:2] = [widths[0]] * 3
    if UNUSED in odd:
        widths.append(widths[-1])
    weighted = [linear(rng, *pair, dtype) for pair in pairwise(widths)]
    if TIED in odd:
        weighted[1].weight = weighted[0].weight
    if TRANSPOSED in odd:
        weighted[0].weight.data = weighted[0].weight.data.t().contiguous().t()
    weighted[1].weight.requires_grad_(FROZEN not in odd)
    first = [Scale(1 + fine(rng, 1, dtype) / 20)] if BARE in odd else []
    return Stack([*first, *weighted], widths[0], odd)


def model_cases(rng: Random, frozen: bool = True) -> list[Case]:
    """Each dtype and each oddity is in one case at least, a `frozen` weight only where the exercise allows it. On each
    rank the same model, in training or not, and inputs of the rank's own for three rounds."""
    some, other = rng.sample((torch.float64, torch.bfloat16), 2)
    single = torch.float32
    # A gradient of 0 for a frozen parameter has to have its dtype, so that is never fp32.
    drawn: list[Any] = [
        (4, single, WIDE),
        (2, single),
        (2, single, CROSSED),
        (3, some, TIED, TRANSPOSED),
        (4, other, FROZEN, UNUSED),
        (1, single, BARE, TRANSPOSED),
        (2, single, TIED, FROZEN),
    ]
    trains, cases = rng.random() < 0.5, []
    for at, (ranks, dtype, *odd) in enumerate(drawn):
        model, board = model_of(rng, [one for one in odd if frozen or one != FROZEN], dtype), WIDE in odd
        model.train(trains ^ (at % 2 == 0))
        args = []
        for _ in range(ranks):
            rounds = [fine(rng, rows * model.width, dtype).view(rows, -1) / 4 for rows in (2, 1, 2)]
            args.append((model, [inputs.requires_grad_(not board) for inputs in rounds]))
        cases.append(Case(args, "processes" if at == len(drawn) - 1 else "lockstep", board=board))
    return cases


class Watch(Wholes):
    """Notes what becomes of gradients: whenever backward has come through a layer, so that all of its gradients are
    there, the calls that have begun. It works whoever takes the gradients, in whichever way."""

    def __init__(self, comm: Any, model: Stack) -> None:
        super().__init__(model.parameters(), model.whole)
        self.calls, self.passed = comm._issuer.calls, []
        layers = [module for module in model.modules() if not [*module.children()]]
        self.marks = [layer.register_forward_hook(self.marked) for layer in layers]

    def marked(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        # It runs once backward has come through the layers after this one.
        if output.requires_grad:
            output.register_hook(lambda gradient: self.passed.append(len(self.calls)))

    def found(self) -> dict[str, Any]:
        """What a run notes at its end, the shards still being there."""
        for mark in self.marks:
            mark.remove()
        return {"wholes": self.most, "passed": self.passed}


class InTime(Gives):
    """Whenever backward goes on to the next layer, as many reductions have begun as in the model answer, or more."""

    def hint(self, case: Case, seen: Observation, earlier: Sequence[Case] = ()) -> str | None:
        for rank, (got, due) in enumerate(zip(self.parts(seen, case.ranks), self.wanted(case), strict=True)):
            for begun, came in zip(got, due, strict=False):
                if begun < came:
                    had = f"{plural(came, 'gradient')} had come on rank {rank} when backward went on to the next layer"
                    return f"{had}, and {plural(begun, 'reduction')} had begun: reduce each in its own hook, not later"
        return None


@each_rank
def nothing_held(case: Case, rank: int, record: Record) -> str | None:
    said = f"rank {rank} keeps {record.left:,} bytes that nobody needs any more"
    look = "which parameter.grad, list, attribute, global name or view of something larger knows them?"
    return f"{said}: {look}" if record.left > 0 else None


NOTHING_HELD = Claim(
    "nothing but the shards is held, and no parameter has a gradient",
    nothing_held,
    ("A gradient lives as long as parameter.grad knows it: the hook sets that to None once it is reduced.",),
)
SCORES = (
    Score(
        "bytes a rank sends",
        most_sent,
        None,
        "each gradient takes one reduce_scatter; what comes on top of it, or who reduces it twice?",
    ),
    Score(
        "whole gradients at once, at most",
        most("wholes"),
        None,
        "what still knows a gradient that has been reduced, a name, attribute, list, handle or view, or makes a copy "
        "of one, a clone, a cast, a division?",
    ),
)
