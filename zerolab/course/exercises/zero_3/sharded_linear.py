"""The exercise of lesson 05 on training: a layer that is whole in its forward and its backward, and not between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Collectives
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
    most_layers,
    through,
)
from zerolab.course.judge.case import Case, Observation, Record, once, plural
from zerolab.course.judge.claims import each_rank, leaves_nothing, most_in_a_ring, most_sent, part, untouched
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.course.judge.same import by_dtype

TEXT = """
A layer that trains

`sharded_linear` is one such layer, with gradients: it returns `F.linear(x, layer)`. The check puts several of them
one after the other (with ReLU between), and calls `backward()`. Then

- each `shard.grad` holds this rank's shard of the *mean* gradient over the ranks (`shard` is a leaf with
  `requires_grad`),
- each `x` has its own gradient, which is this rank's alone,
- a second micro-batch, with its own forward and backward, adds to `shard.grad`, as always in PyTorch.

The collectives: in forward one `all_gather`; in backward one `all_gather` and one `reduce_scatter`, in whichever
order. Autograd does not follow collectives, so you tell it what to do. The natural way is a
`torch.autograd.Function`: its `forward` saves what `backward` needs (`ctx.save_for_backward`), and its `backward`
returns a gradient, or `None`, for each argument of `forward`. With `x` of shape (batch, inputs) and `grad` the
gradient of the output, `x` gets `grad @ layer`, and the layer `grad.t() @ x`. Other ways, such as lesson 05's
`resize_`, are welcome.

Between forward and backward no layer is whole. And `backward` leaves the gradient that it is handed as it is: others
may need it.

The check draws what it draws in exercise 1, and one or two micro-batches. The scoreboard lets you hold one whole
layer and its whole gradient, however many layers there are. About sixteen lines.
"""


class GatheredLinear(torch.autograd.Function):
    ### BEGIN SOLUTION
    @staticmethod
    def forward(ctx, comm, shard, shape, x):
        ctx.comm, ctx.shape = comm, shape
        ctx.save_for_backward(shard, x)
        return F.linear(x, comm.all_gather(shard, math.prod(shape)).view(*shape))

    @staticmethod
    def backward(ctx, grad):
        shard, x = ctx.saved_tensors
        of_x = grad @ ctx.comm.all_gather(shard, math.prod(ctx.shape)).view(*ctx.shape)
        return None, ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True), None, of_x

    ### END SOLUTION


def sharded_linear(comm, shard: torch.Tensor, shape: tuple, x: torch.Tensor) -> torch.Tensor:
    """What the layer makes of x; backward gives shard and x their gradients."""
    return GatheredLinear.apply(comm, shard, shape, x)


Tensor = torch.Tensor


def training_cases(rng: Random) -> list[Case]:
    cases = []
    for index, layout in enumerate(layouts(rng)):
        ranks, shapes, dtype = layout.ranks, layout.shapes, layout.dtype
        shards = drawn_shards(rng, shapes, ranks, dtype)
        batches = 1 + index % 2
        args: list[tuple[Any, ...]] = []
        for rank in range(ranks):
            xs = [drawn_rows(rng, ROWS, shapes[0][1], dtype) for _ in range(batches)]
            slopes = [drawn_rows(rng, ROWS, shapes[-1][0], dtype) for _ in range(batches)]
            args.append((shards[rank], shapes, xs, slopes))
        about = f"{in_words(ranks, shapes, dtype)}, {plural(batches, 'micro-batch').replace('batchs', 'batches')}"
        cases.append(Case(args, layout.world, about, board=layout.board))
    return cases


def run_training(
    fn: Callable[..., Any],
    comm: Collectives,
    shards: list[Tensor],
    shapes: list[Shape],
    xs: list[Tensor],
    slopes: list[Tensor],
) -> Any:
    """Train with layers made by `fn`: forward through all, then backward with `slope` for the gradient of the output,
    once for each micro-batch. Returns outputs, gradients of the inputs and of the shards, and how many whole layers
    there were between a forward and its backward, and how many wholes, layers or gradients, at once."""
    # On the given memory, so that only what the answer makes counts.
    leaves = [shard.detach().requires_grad_() for shard in shards]
    outputs, inputs, between = [], [x.detach().requires_grad_() for x in xs], 0
    with layers_made(shards, shapes) as wholes:
        for x, slope in zip(inputs, slopes, strict=True):
            y = x
            for index, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
                y = fn(comm, leaf, shape, F.relu(y) if index else y)
            between = max(between, wholes.now())
            outputs.append(y.detach())
            # The slope itself, so that a backward that overwrites what it is handed overwrites an argument.
            y.backward(slope)
    gradients = {"inputs": [x.grad for x in inputs], "shards": [leaf.grad for leaf in leaves]}
    return {"y": outputs, **gradients, "between": between, "wholes": wholes.most}


def plainly(layers: list[Tensor], xs: list[Tensor], slopes: list[Tensor]) -> tuple[list[Tensor], ...]:
    """What plain PyTorch makes of one rank's micro-batches: outputs, gradients of inputs and of layers."""
    leaves = [layer.clone().requires_grad_() for layer in layers]
    inputs = [x.clone().requires_grad_() for x in xs]
    outputs = [through(leaves, x) for x in inputs]
    sum((y * slope).sum() for y, slope in zip(outputs, slopes, strict=True)).backward()  # type: ignore[union-attr]
    return [y.detach() for y in outputs], [grad_of(x) for x in inputs], [grad_of(leaf) for leaf in leaves]


def grad_of(leaf: Tensor) -> Tensor:
    return leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)


@each_rank
def all_there(case: Case, rank: int, record: Record) -> str | None:
    """Gradients are there, for inputs and for shards."""
    for index, gradient in enumerate(record.value["shards"]):
        if not isinstance(gradient, Tensor):
            said = f"after backward() rank {rank}'s shard of layer {index} has no gradient"
            return f"{said}: autograd does not follow collectives, so how does it hear of the shard?"
    if not all(isinstance(gradient, Tensor) for gradient in record.value["inputs"]):
        said = f"after backward() the input of rank {rank}'s first layer has no gradient"
        return f"{said}: the layers before this one wait for it"
    return None


@once
def by_torch(case: Case, last: bool = False) -> list[tuple[list[Tensor], ...]]:
    """What each rank's micro-batches, or the last of them, come to by plain PyTorch."""
    first = -1 if last else 0
    return [plainly(layers_of(case), args[2][first:], args[3][first:]) for args in case.args]


def outputs_wanted(case: Case) -> Wanted:
    return Wanted(
        [outputs for outputs, _, _ in by_torch(case)], look="compare one layer with F.linear on the whole matrix"
    )


def inputs_wanted(case: Case) -> Wanted:
    wanted = [inputs for _, inputs, _ in by_torch(case)]

    def mistakes() -> dict[str, Sequence[Any]]:
        says = "gradients of the inputs that are added up over the ranks: an input is this rank's alone"
        # Each layer divides once.
        by = case.ranks ** len(layers_of(case))
        mean, total = ([added_up(case, at, average) for at in range(len(wanted[0]))] for average in (True, False))
        return {
            says: [mean] * case.ranks,
            f"{says}, too": [total] * case.ranks,
            "gradients of the inputs divided by the number of ranks: the mean is for shards alone": [
                [gradient / by for gradient in gradients] for gradients in wanted
            ],
        }

    look = "look at the gradients of the inputs: what is the derivative of x W^T by x?"
    return Wanted(wanted, mistakes, look, "ends with")


def added_up(case: Case, batch: int, average: bool) -> Tensor:
    """The gradient of the inputs if each layer (wrongly) adds the gradients of its inputs up over the ranks."""
    layers = layers_of(case)
    seen = [[args[2][batch]] for args in case.args]
    for xs in seen:
        xs += [through(layers[: index + 1], xs[0]) for index in range(len(layers) - 1)]
    slopes = [args[3][batch] for args in case.args]
    for index in reversed(range(len(layers))):
        total = torch.stack([slope @ layers[index] for slope in slopes]).sum(0) / (case.ranks if average else 1)
        slopes = [total * (xs[index] > 0) if index else total for xs in seen]
    return slopes[0]


def shards_wanted(case: Case) -> Wanted:
    ranks, whole = case.ranks, [layers for _, _, layers in by_torch(case)]

    def cut(gradients: Sequence[Tensor]) -> list[list[Tensor]]:
        return [[gradient.flatten().tensor_split(ranks)[rank] for gradient in gradients] for rank in range(ranks)]

    def summed(of: list[list[Tensor]], by: float) -> list[Tensor]:
        return [torch.stack(list(gradients)).sum(0) / by for gradients in zip(*of, strict=True)]

    def mistakes() -> dict[str, Sequence[Any]]:
        last, batches = [layers for _, _, layers in by_torch(case, last=True)], len(case.args[0][2])
        known: dict[str, Sequence[Any]] = {
            "the sum of the ranks' gradients: ask for their mean": cut(summed(whole, 1)),
            "a piece of its own gradient, to which nothing was added": [
                cut(mine)[rank] for rank, mine in enumerate(whole)
            ],
            "the gradient of the last micro-batch alone: return the gradient to autograd, which adds it up": cut(
                summed(last, ranks)
            ),
            "the gradient of the transposed layer: a layer is (outputs, inputs), and so is its gradient": cut(
                [gradient.t() for gradient in summed(whole, ranks)]
            ),
        }
        if batches > 1:
            says = "the mean over the micro-batches, too: each adds its gradient, as always in PyTorch"
            return known | {says: cut(summed(whole, ranks * batches))}
        says = "gradients divided by the rows of x: a layer's gradient is a sum over them"
        return known | {says: cut(summed(whole, ranks * ROWS))}

    return Wanted(cut(summed(whole, ranks)), mistakes, "look at the gradients of the shards", "ends with")


@each_rank
def training_calls(case: Case, rank: int, record: Record) -> str | None:
    """Gathers in forward, in order; in backward a reduce_scatter a layer, from the last to the first. Whether backward
    gathers again shows in memory."""
    forth = gathers(case, 0)
    back = [("reduce_scatter", numel) for _, numel in reversed(forth)] * len(case.args[0][2])
    if odd := sorted({name for name, _ in record.calls} - {"all_gather", "reduce_scatter"}):
        return f"rank {rank} calls {odd[0]}: a rank keeps one piece of a gradient, and reduce_scatter gives just that"
    if record.calls[: len(forth)] != forth:
        said = f"rank {rank} begins with {record.calls[: len(forth)]}"
        return f"{said}: in forward each layer is gathered once, and nothing else is due"
    reduced = [call for call in record.calls if call[0] == "reduce_scatter"]
    said = f"rank {rank} reduces {[numel for _, numel in reduced]}, and {[numel for _, numel in back]} is due"
    return None if reduced == back else f"{said}: one reduce_scatter of a layer's whole gradient in its backward"


def hands_on(case: Case, seen: Observation) -> str | None:
    """The gradients that backward is handed are as they were."""
    if untouched(3)(case, seen) is None:
        return None
    return "backward overwrote the gradient it was handed, which others may still need: divide a copy"


@each_rank
def empty_between(case: Case, rank: int, record: Record) -> str | None:
    """On the scoreboard's case: no tensor as large as a layer lives between forward and backward."""
    if not case.board or not (layers := record.value["between"]):
        return None
    said = f"between forward and backward rank {rank} holds {plural(layers, 'whole layer')}: who keeps them?"
    return f"{said} Autograd keeps what F.linear saw, and what you saved or set on ctx; a global keeps it, too"


def three_times(case: Case) -> int:
    return most_in_a_ring(
        [*gathers(case, 0) * 2, *(("reduce_scatter", numel) for _, numel in gathers(case, 0))], 4, case.ranks
    )


FUNCTION = (
    "A torch.autograd.Function has a forward and a backward of your own; what you save in ctx is all that lives "
    "from one to the other. Save what is small.",
    "backward returns one thing for each argument of forward, None for those that are no tensors.",
)
SLOPES = (
    "For y = x Wᵀ: the gradient of x is grad @ W, that of W is gradᵀ @ x. Which of the two needs W?",
    "The gradient of W is reduced over the ranks, as a mean; that of x is nobody else's.",
)

EXERCISE = Exercise(
    "sharded_linear",
    training_cases,
    (
        Claim("every shard and every input has a gradient", all_there, FUNCTION),
        Claim("its outputs are those of the whole layer", part("y", right(outputs_wanted, by_dtype))),
        Claim(
            "its input's gradient is that of the whole layer", part("inputs", right(inputs_wanted, by_dtype)), SLOPES
        ),
        Claim(
            "its shard's gradient is this rank's piece of the mean",
            part("shards", right(shards_wanted, by_dtype)),
            SLOPES,
        ),
        Claim("its inputs stay as they were", untouched(0, 2)),
        Claim("it gathers in forward and reduces and scatters in backward", training_calls),
        Claim("it leaves the gradient that backward is handed as it was", hands_on),
        Claim("between forward and backward no layer is whole", empty_between, FUNCTION[:1]),
        Claim("it leaves nothing behind", leaves_nothing),
    ),
    run=run_training,
    scores=(
        Score(
            "whole layers and gradients at once, at most",
            most_layers,
            lambda case: 2,
            "at each moment one layer and its gradient may be whole: a name, an attribute or a list may keep those of "
            "the layers before",
        ),
        Score(
            "bytes a rank sends",
            most_sent,
            three_times,
            "two gathers and one reduce_scatter a layer are enough",
        ),
    ),
    hints=(
        "In backward: gather W again for the gradient of x, let it go, then reduce and scatter the flattened gradient "
        "of W.",
    ),
    memory=True,
    text=TEXT,
    answer=(
        GatheredLinear,
        sharded_linear,
    ),
    points=4,
)
