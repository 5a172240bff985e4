"""The exercise of lesson 05 on training: a layer that is whole in its forward and its backward, and not between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch.nn import functional as F

from zerolab.collectives import Collectives, wire_bytes
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
    outputs_right,
    through,
)
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import Wanted, by_dtype, leaves_nothing, most_sent, right, untouched
from zerolab.course.judge.exercise import Claim, Exercise, Score

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


def all_there(case: Case, seen: Observation) -> str | None:
    """Outputs are there, and gradients, for inputs and for shards."""
    for rank, record in enumerate(seen.records):
        inputs = record.value["inputs"]
        for index, gradient in enumerate(record.value["shards"]):
            if not isinstance(gradient, Tensor):
                said = f"after backward() rank {rank}'s shard of layer {index} has no gradient"
                return f"{case.about}: {said}: autograd does not follow collectives, so how does it hear of the shard?"
        if not all(isinstance(gradient, Tensor) for gradient in inputs):
            said = f"after backward() the input of rank {rank}'s first layer has no gradient"
            return f"{case.about}: {said}: the layers before this one wait for it"
    return None


def of_outputs(case: Case, seen: Observation) -> str | None:
    """The outputs alone, by the general claim."""
    wanted = [plainly(layers_of(case), args[2], args[3])[0] for args in case.args]
    look = "compare one layer with F.linear on the whole matrix"
    return outputs_right(lambda _: Wanted(wanted, look=look))(case, seen)


def of_inputs(case: Case, seen: Observation) -> str | None:
    """The gradients of the inputs alone."""
    wanted = [plainly(layers_of(case), args[2], args[3])[1] for args in case.args]
    says = "gradients of the inputs that are added up over the ranks: an input is this rank's alone"
    mistakes = {says: [[added_up(case, index, True) for index in range(len(wanted[0]))]] * case.ranks}
    mistakes |= {f"{says}, too": [[added_up(case, index, False) for index in range(len(wanted[0]))]] * case.ranks}
    # Each layer divides once.
    by = case.ranks ** len(layers_of(case))
    mistakes["gradients of the inputs divided by the number of ranks: the mean is for shards alone"] = [
        [gradient / by for gradient in gradients] for gradients in wanted
    ]
    gradients = [replace(record, value=record.value["inputs"]) for record in seen.records]
    look = "look at the gradients of the inputs: what is the derivative of x W^T by x?"
    return right(lambda _: Wanted(wanted, mistakes, look, "ends with"), by_dtype)(case, Observation(gradients))


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


def of_shards(case: Case, seen: Observation) -> str | None:
    """The gradients of the shards alone."""
    layers = layers_of(case)
    ranks = case.ranks
    whole = [plainly(layers, args[2], args[3])[2] for args in case.args]
    last = [plainly(layers, args[2][-1:], args[3][-1:])[2] for args in case.args]

    def cut(gradients: Sequence[Tensor], rank: int) -> list[Tensor]:
        return [gradient.flatten().tensor_split(ranks)[rank] for gradient in gradients]

    def summed(of: list[list[Tensor]], by: float) -> list[Tensor]:
        return [torch.stack(list(gradients)).sum(0) / by for gradients in zip(*of, strict=True)]

    mean, turned = summed(whole, ranks), [gradient.t() for gradient in summed(whole, ranks)]
    every = range(ranks)
    mistakes = {
        "the sum of the ranks' gradients: ask for their mean": [cut(summed(whole, 1), rank) for rank in every],
        "a piece of its own gradient, to which nothing was added": [cut(whole[rank], rank) for rank in every],
        "the gradient of the last micro-batch alone: return the gradient to autograd, which adds it up": [
            cut(summed(last, ranks), rank) for rank in every
        ],
        "the gradient of the transposed layer: a layer is (outputs, inputs), and so is its gradient": [
            cut(turned, rank) for rank in every
        ],
    }
    batches = len(case.args[0][2])
    if batches > 1:
        mistakes["the mean over the micro-batches, too: each adds its gradient, as always in PyTorch"] = [
            cut(summed(whole, ranks * batches), rank) for rank in every
        ]
    else:
        mistakes["gradients divided by the rows of x: a layer's gradient is a sum over them"] = [
            cut(summed(whole, ranks * ROWS), rank) for rank in every
        ]
    gradients = [replace(record, value=record.value["shards"]) for record in seen.records]
    wanted = Wanted([cut(mean, rank) for rank in every], mistakes, "look at the gradients of the shards", "ends with")
    return right(lambda _: wanted, by_dtype)(case, Observation(gradients))


def training_calls(case: Case, seen: Observation) -> str | None:
    """Gathers in forward, in order; in backward a reduce_scatter a layer, from the last to the first. Whether backward
    gathers again shows in memory."""
    forth = gathers(case, 0)
    back = [("reduce_scatter", numel) for _, numel in reversed(forth)]
    batches = len(case.args[0][2])
    for rank, record in enumerate(seen.records):
        odd = sorted({name for name, _ in record.calls} - {"all_gather", "reduce_scatter"})
        if odd:
            said = f"rank {rank} calls {odd[0]}"
            return f"{case.about}: {said}: a rank keeps one piece of a gradient, and reduce_scatter gives just that"
        if record.calls[: len(forth)] != forth:
            said = f"rank {rank} begins with {record.calls[: len(forth)]}"
            return f"{case.about}: {said}: in forward each layer is gathered once, and nothing else is due"
        reduced = [call for call in record.calls if call[0] == "reduce_scatter"]
        if reduced != back * batches:
            said = f"rank {rank} reduces {[numel for _, numel in reduced]}, and {[n for _, n in back * batches]} is due"
            return f"{case.about}: {said}: one reduce_scatter of a layer's whole gradient in its backward"
    return None


def hands_on(case: Case, seen: Observation) -> str | None:
    """The gradients that backward is handed are as they were."""
    if untouched(3)(case, seen) is None:
        return None
    return f"{case.about}: backward overwrote the gradient it was handed, which others may still need: divide a copy"


def empty_between(case: Case, seen: Observation) -> str | None:
    """On the scoreboard's case: no tensor as large as a layer lives between forward and backward."""
    for rank, record in enumerate(seen.records):
        if case.board and (layers := record.value["between"]):
            said = f"between forward and backward rank {rank} holds {plural(layers, 'whole layer')}"
            why = "Autograd keeps what F.linear saw, and what you saved or set on ctx; a global keeps it, too"
            return f"{case.about}: {said}: who keeps them? {why}"
    return None


def three_times(case: Case) -> int:
    shapes = case.args[0][1]
    return max(
        sum(
            2 * wire_bytes("all_gather", math.prod(shape), 4, case.ranks, rank)
            + wire_bytes("reduce_scatter", math.prod(shape), 4, case.ranks, rank)
            for shape in shapes
        )
        for rank in range(case.ranks)
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
        Claim("its outputs are those of the whole layer", of_outputs),
        Claim("its input's gradient is that of the whole layer", of_inputs, SLOPES),
        Claim("its shard's gradient is this rank's piece of the mean", of_shards, SLOPES),
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
)
