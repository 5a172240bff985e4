"""The models of lesson 04's exercises: small, and with all that parameters may be."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.course.judge.case import Case, once, plural
from zerolab.course.judge.draw import DTYPES, fine, signed

Tensor = torch.Tensor


class Stack(nn.Module):
    """Calls its layers in `order`, which need not be that in which it holds them. The last layer that it holds is left
    out where the batch is a single row, if it `skips`. In training it gives more than in evaluation, as layers with
    dropout do of those numbers that they keep."""

    def __init__(self, layers: Sequence[nn.Module], order: Sequence[int], skips: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.order, self.skips = list(order), skips

    def forward(self, inputs: Tensor) -> Tensor:
        for index in self.order:
            if not (self.skips and len(inputs) == 1 and index == len(self.layers) - 1):
                inputs = self.layers[index](inputs)
        return inputs * 1.5 if self.training else inputs


class Scale(nn.Module):
    """Scales by a parameter without dimensions, and has two without elements, which have one address (0) in memory."""

    def __init__(self, by: Tensor) -> None:
        super().__init__()
        self.by = nn.Parameter(by.view(()))
        self.none, self.nothing = (nn.Parameter(by.new_empty(0)) for _ in range(2))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.by + self.none.sum() + self.nothing.sum()


@dataclass(frozen=True)
class Kind:
    """What is odd about a model, and the words for it."""

    crossed: bool = False
    tied: bool = False
    transposed: bool = False
    frozen: bool = False
    unused: bool = False
    bare: bool = False

    def words(self) -> str:
        said = {
            "layers called in another order than the model holds them in": self.crossed,
            "two layers share a weight": self.tied,
            "a weight lies transposed in memory": self.transposed,
            "a weight is frozen": self.frozen,
            "a layer is not used the second time": self.unused,
            "two parameters have no elements and one no dimensions": self.bare,
        }
        return "".join(f", {words}" for words, holds in said.items() if holds)


def linear(rng: Random, inside: int, outside: int, bias: bool, dtype: torch.dtype) -> nn.Linear:
    """A layer drawn from `rng` alone, which neither raises nor lowers what passes through it by much."""
    layer = nn.utils.skip_init(nn.Linear, inside, outside, bias=bias, dtype=dtype)
    for parameter in layer.parameters():
        parameter.data.copy_(fine(rng, parameter.numel(), dtype).view_as(parameter) / (6 * inside**0.5))
    return layer


def model_of(rng: Random, kind: Kind, dtype: torch.dtype) -> tuple[Stack, int]:
    """A model with biases, and how wide its inputs are."""
    widths = [rng.randint(2, 5), rng.randint(2, 5), rng.randint(1, 3)]
    if kind.tied:
        widths[1] = widths[0]
    layers: list[nn.Module] = [linear(rng, *pair, True, dtype) for pair in pairwise(widths)]
    if kind.tied:
        # The last two of three layers; what is odd about the first weight is not odd about theirs.
        layers = [layers[0], linear(rng, widths[0], widths[0], True, dtype), layers[1]]
        layers[1].weight = layers[0].weight
    if kind.unused:
        layers.append(linear(rng, widths[-1], widths[-1], True, dtype))
    if kind.bare:
        layers.insert(0, Scale(1 + fine(rng, 1, dtype) / 20))
    weights = [layer.weight for layer in layers if isinstance(layer, nn.Linear)]
    if kind.transposed:
        weights[0].data = weights[0].data.t().contiguous().t()
    weights[1].requires_grad_(not kind.frozen)
    order = list(range(len(layers)))
    if kind.crossed:
        # Its last layer is called first.
        layers = [*layers[1:], layers[0]]
        order = [len(layers) - 1, *order[:-1]]
    return Stack(layers, order, kind.unused), widths[0]


BOARD_LAYERS, BOARD_WIDTH = 8, 32


def board_case(rng: Random, rounds: int) -> Case:
    """Layers alike and without biases, so that it is easy to count whole gradients: those of `whole` bytes."""
    dtype = torch.float32
    layers = [linear(rng, BOARD_WIDTH, BOARD_WIDTH, False, dtype) for _ in range(BOARD_LAYERS)]
    model = nn.Sequential(*layers)
    args: list[tuple[Any, ...]] = [
        (model, [signed(rng, BOARD_WIDTH).view(1, -1) / 4 for _ in range(rounds)], 4 * BOARD_WIDTH**2) for _ in range(4)
    ]
    return Case(args, about=f"on 4 ranks, parameters of {BOARD_LAYERS} of {BOARD_WIDTH**2:,} elements", board=True)


def model_case(
    rng: Random, ranks: int, kind: Kind, dtype: torch.dtype, rounds: int, trains: bool, wants: bool, world: str
) -> Case:
    """The same model on every rank, in training or not; inputs of the rank's own for each round, which may want a
    gradient."""
    model, width = model_of(rng, kind, dtype)
    model.train(trains)

    def drawn(rows: int) -> Tensor:
        return (fine(rng, rows * width, dtype).view(rows, -1) / 4).requires_grad_(wants)

    args: list[tuple[Any, ...]] = [
        (model, [drawn(1 if index == 1 else 2) for index in range(rounds)], 0) for _ in range(ranks)
    ]
    said = (
        f"on {plural(ranks, 'rank')}, parameters of {[parameter.numel() for parameter in model.parameters()]} elements"
    )
    said += f", {dtype}" if dtype is not torch.float32 else ""
    said += ", inputs that require a gradient" if wants else ""
    return Case(args, world, said + kind.words())


def model_cases(rng: Random, rounds: int, board_rounds: int, frozen: bool = True) -> list[Case]:
    """Each dtype and each oddity is in one case at least. A `frozen` weight is only where the exercise allows it."""
    kinds = [
        Kind(),
        Kind(crossed=True),
        Kind(tied=True, transposed=True),
        Kind(frozen=frozen, unused=True),
        Kind(bare=True, transposed=True),
    ]
    dtypes = [torch.float32, torch.float32, *rng.sample(DTYPES, 3)]
    trains, wants = rng.random() < 0.5, rng.random() < 0.5
    cases = []
    for index, (ranks, kind, dtype) in enumerate(zip((2, 2, 3, 4, 1), kinds, dtypes, strict=True)):
        modes = trains ^ (index % 2 == 0), wants ^ (index % 3 == 0)
        cases.append(model_case(rng, ranks, kind, dtype, rounds, *modes, "lockstep"))
    odd = Kind(tied=True, frozen=frozen)
    last = model_case(rng, 2, odd, torch.float32, rounds, trains, wants, "processes")
    return [board_case(rng, board_rounds), *cases, last]


# What one process makes of a model, to compare with.


def gradients_of(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The whole gradients of the loss on one rank's inputs; zeros where there is none."""
    model = copy.deepcopy(model)
    model(inputs.detach()).square().mean().backward()
    return [torch.zeros_like(each) if each.grad is None else each.grad for each in model.parameters()]


LYING = "a gradient in the order in which it lies in memory: flatten() goes row by row, whatever the strides"


def as_it_lies(whole: Tensor, parameter: Tensor) -> Tensor:
    """The numbers of a gradient in the order in which those of its parameter lie in memory."""
    return whole.t().flatten() if whole.dim() == 2 and not parameter.is_contiguous() else whole


@once
def summed(case: Case, index: int) -> list[Tensor]:
    """The sum over the ranks of the gradients of one round, in float64."""
    each = [gradients_of(model, rounds[index]) for model, rounds, _ in case.args]
    return [torch.stack(parts).double().sum(0) for parts in zip(*each, strict=True)]


def shard(whole: Tensor, ranks: int, rank: int) -> Tensor:
    return whole.flatten().tensor_split(ranks)[rank]


def shards_by_rank(case: Case, wholes: Sequence[Tensor]) -> list[list[Tensor]]:
    return [[shard(whole, case.ranks, rank) for whole in wholes] for rank in range(case.ranks)]


def in_dtype(case: Case, wholes: Sequence[Tensor]) -> list[Tensor]:
    """In the dtypes of the model's parameters."""
    return [whole.to(parameter.dtype) for whole, parameter in zip(wholes, case.args[0][0].parameters(), strict=True)]


def on_the_way(model: nn.Module, note: Callable[[], None]) -> list[Any]:
    """Call `note` whenever backward has come through a layer and all of its gradients are there. Returns what removes
    that again. It works whoever takes the gradients, in whichever way."""

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(Mark.apply(tensor, note) if tensor.requires_grad else tensor for tensor in inputs)

    layers = [module for module in model.modules() if not [*module.children()]]
    return [layer.register_forward_pre_hook(before) for layer in layers]


class Mark(torch.autograd.Function):
    """Hands things on, and says so in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, note: Callable[[], None]) -> Tensor:
        ctx.note = note
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.note()
        return gradients[0], None


def arrivals(model: nn.Module, inputs: Tensor) -> tuple[list[int], list[int]]:
    """The indices of a model's parameters in the order in which backward completes their gradients, and how many had
    come at each point on the way."""
    model, order, passed = copy.deepcopy(model), [], []
    for index, parameter in enumerate(model.parameters()):
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda parameter, index=index: order.append(index))
    on_the_way(model, lambda: passed.append(len(order)))
    model(inputs.detach()).square().mean().backward()
    return order, passed


def numels_of(case: Case) -> list[int]:
    return [math.prod(parameter.shape) for parameter in case.args[0][0].parameters()]
