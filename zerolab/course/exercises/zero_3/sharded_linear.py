"""The exercise of lesson 05 on training: a layer that is whole in its forward and its backward, and not between."""

from __future__ import annotations

import math
from random import Random

import torch
from torch.nn import functional as F

from zerolab.course.exercises.zero_3.forward import layer_cases, layers_made, most_layers
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import call, most_sent, never, untouched
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
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


MISTAKES = r"""
no gradient for its inputs, and the layers before this one wait for it
    None, of_x => None, None
no gradient for its shards: autograd does not follow collectives, so how does it hear of them?
    ctx.comm.reduce_scatter((grad.t() @ x).flatten(), average=True) => None
gradients of the inputs that are averaged over the ranks: an input is this rank's alone
    None, of_x => None, ctx.comm.all_reduce(of_x, average=True)
gradients of the inputs divided by the number of ranks: the mean is for shards alone
    None, of_x => None, of_x / ctx.comm.size
the sum of the ranks' gradients: ask for their mean
    , average=True =>
a piece of its own gradient, to which nothing was added
    ctx.comm.reduce_scatter((grad => (grad
    .flatten(), average=True) => .flatten().tensor_split(ctx.comm.size)[ctx.comm.rank]
the gradient of the last micro-batch alone: return the gradient to autograd, which adds it up
    return None, => shard.grad =
    , None, of_x => \n        return None, None, None, of_x
the gradient of the transposed layer: a layer is (outputs, inputs), and so is its gradient
    grad.t() @ x => x.t() @ grad
"""


def training_cases(rng: Random) -> list[Case]:
    def rest(rows, widths, at):
        """One micro-batch or two: inputs, and gradients of the output."""
        return tuple([rows(width) for _ in range(1 + at % 2)] for width in (widths[0], widths[-1]))

    return layer_cases(rng, rest)


def run_training(fn, comm, shards, shapes, xs, slopes):
    """Train with layers made by `fn`, or by a class like the model's: forward through all, then backward with `slope`
    for the gradient of the output, once for each micro-batch. Returns outputs, gradients of the inputs and of the
    shards, how many whole layers there were between a forward and its backward, and how many wholes, layers or
    gradients, at once."""
    layer = getattr(fn, "apply", fn)
    # On the given memory, so that only what the answer makes counts.
    leaves = [shard.detach().requires_grad_() for shard in shards]
    outputs, inputs, between = [], [x.detach().requires_grad_() for x in xs], 0
    with layers_made(shards, shapes) as wholes:
        for x, slope in zip(inputs, slopes, strict=True):
            y = x
            for index, (leaf, shape) in enumerate(zip(leaves, shapes, strict=True)):
                y = layer(comm, leaf, shape, F.relu(y) if index else y)
            between = max(between, wholes.now())
            outputs.append(y.detach())
            # The slope itself, so that a backward that overwrites what it is handed overwrites an argument.
            y.backward(slope)
    gradients = {"inputs": [x.grad for x in inputs], "shards": [leaf.grad for leaf in leaves]}
    return {"y": outputs, **gradients, "between": between, "wholes": wholes.most}


ENDS = ("ends with", by_dtype)

EXERCISE = Exercise(
    "sharded_linear",
    training_cases,
    (
        Claim(
            "its outputs are those of the whole layer",
            Gives("y", "compare one layer with F.linear on the whole matrix", tolerance=by_dtype),
        ),
        Claim(
            "its input's gradient is that of the whole layer",
            Gives("inputs", "look at the gradients of the inputs: what is the derivative of x W^T by x?", *ENDS),
        ),
        Claim(
            "its shard's gradient is this rank's piece of the mean",
            Gives("shards", "look at the gradients of the shards", *ENDS),
        ),
        Claim(
            "it leaves the gradient that backward is handed as it was",
            lambda case, seen: (
                untouched(3)(case, seen) and "backward overwrote the gradient it was handed: divide a copy"
            ),
        ),
        Claim(
            "between forward and backward no layer is whole",
            never(
                "between",
                "between forward and backward rank {rank} holds {it} of the whole layers: who keeps them? Autograd "
                "keeps what F.linear saw, and what you saved or set on ctx; a global keeps it, too",
            ),
        ),
        Claim(
            "it gathers each layer once in forward and once in backward, and reduces and scatters its gradient",
            Gives(
                lambda record: sorted(call(one) for one in record.calls),
                "of each layer two gathers and one reduce_scatter, of its whole gradient, are due",
                "calls",
            ),
        ),
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
        Score("bytes a rank sends", most_sent, None, "two gathers and one reduce_scatter a layer are enough"),
    ),
    hints=(
        "A torch.autograd.Function has a forward and a backward of your own; what you save in ctx is all that lives "
        "from one to the other. Save what is small.",
        "backward returns one thing for each argument of forward, None for those that are no tensors.",
        "For y = x Wᵀ: the gradient of x is grad @ W, that of W is gradᵀ @ x. Which of the two needs W?",
        "The gradient of W is reduced over the ranks, as a mean; that of x is nobody else's.",
        "In backward: gather W again for the gradient of x, let it go, then reduce and scatter the flattened gradient "
        "of W.",
    ),
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(GatheredLinear, sharded_linear),
    points=4,
)
