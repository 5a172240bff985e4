"""The exercise of lesson 04 that reduces gradients inside backward, in time."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.course.exercises.zero_2.models import NOTHING_HELD, SCORES, InTime, Watch, model_cases
from zerolab.course.judge.case import Case, decode, encode
from zerolab.course.judge.claims import never
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import by_dtype

TEXT = """
In time

Every rank has the same `model` and `inputs` of its own. The loss is `model(inputs).square().mean()`. Run its forward
once and its backward, and return this rank's shard of the *mean* gradient over the ranks, a 1-D tensor for each of
`model.parameters()`, in that order. The shard of rank r is what `comm.reduce_scatter` leaves there: part r of the
flattened gradient, cut by `tensor_split`. A part may be empty. A parameter that gets no gradient in this call has the
gradient 0. A gradient travels in its parameter's dtype, and its shard has that, zeros too.

A gradient has to be reduced as soon as backward brings it, and its whole has to go at once. The scoreboard counts the
bytes you send, one reduce_scatter for each parameter, and sees whether there ever was more than one whole gradient.

The check draws models in train and in eval mode, in float32, float64 and bfloat16, that call their layers in another
order than they hold them in; parameters that are frozen, left out of a call, shared by two layers, transposed in
memory, without elements or without dimensions; and inputs that require a gradient, some of which have one from
before.

When you return, no parameter has a gradient, no hook is left on the model, model and inputs are as they were
(numbers, switches and attributes), and only the caller holds the shards: the function is called again. About fourteen
lines.
"""


def shards_in_time(comm, model: nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    """This rank's shard of the mean gradient of each parameter, in the model's order."""
    ### BEGIN SOLUTION
    shards = {}
    for parameter in model.parameters():
        part = parameter.detach().flatten().tensor_split(comm.size)[comm.rank]
        shards[parameter] = torch.zeros_like(part)

    def reduce(parameter):
        shards[parameter] = comm.reduce_scatter(parameter.grad.flatten(), average=True)
        parameter.grad = None

    trained = [parameter for parameter in shards if parameter.requires_grad]
    hooks = [parameter.register_post_accumulate_grad_hook(reduce) for parameter in trained]
    model(inputs.detach()).square().mean().backward()
    for hook in hooks:
        hook.remove()
    return list(shards.values())
    ### END SOLUTION


MISTAKES = r"""
shards of the sum over the ranks: take the mean
    , average=True =>
whole gradients: a rank keeps its shard of each
    comm.reduce_scatter => comm.all_reduce
shards of its own gradients: nothing was added to them
    comm.reduce_scatter(parameter => (parameter
    , average=True) => .tensor_split(comm.size)[comm.rank])
the gradients of a model in evaluation, and it came in training: run it as it is
    model(inputs.detach()) => before = model.training\n    model.eval()\n    model(inputs.detach())
    return list => model.train(before)\n    return list
the gradients of a model in training, and it came in evaluation: run it as it is
    model(inputs.detach()) => before = model.training\n    model.train()\n    model(inputs.detach())
    return list => model.train(before)\n    return list
a gradient in the order in which it lies in memory: flatten() goes row by row, whatever the strides
    parameter.grad.flatten() => parameter.grad.as_strided((parameter.numel(),), (1,))
a gradient of a frozen parameter: it gets none, so its shard is zeros
    shards = {} => frozen = [p for p in model.parameters() if not p.requires_grad]\n    shards = {}
    trained = [ => model.requires_grad_(True)\n    trained = [
    return list => for p in frozen:\n        p.requires_grad_(False)\n    return list
shards of those parameters alone that got a gradient: of each other one a shard of zeros is due
    torch.zeros_like(part) => None
    list(shards.values()) => [shard for shard in shards.values() if shard is not None]
the shards in the order in which backward brought them: model.parameters() has another
    shards[parameter] = comm.reduce_scatter => del shards[parameter]\n        shards[parameter] = comm.reduce_scatter
"""
EARLIER = 0.5
"""The numbers in a gradient that inputs of a single row have before the call."""
HOOKED = [f"_{kind}_hooks" for kind in ("post_accumulate_grad", "backward", "backward_pre", "forward", "forward_pre")]


def in_time_cases(rng: Random) -> list[Case]:
    """Two calls with each model. One that remembers what it saw of it is given away when one comes after the other."""
    return [
        Case([(model, rounds[at]) for model, rounds in case.args], case.world, board=case.board)
        for case in model_cases(rng)
        for at in range(2)
    ]


def run_in_time(fn: Any, comm: Any, model: Any, inputs: torch.Tensor) -> Any:
    """Only copies of the shards are kept, so that nobody holds the shards themselves any more."""
    if inputs.requires_grad and len(inputs) == 1:
        inputs.grad = torch.full_like(inputs, EARLIER)
    watch, forwards = Watch(comm, model), []
    count = model.register_forward_pre_hook(lambda module, given: forwards.append(1))
    before = traits(model, inputs)
    with watch:
        shards = fn(comm, model, inputs)
    changed = changes(before, traits(model, inputs))
    count.remove()
    # What is returned may be there, and so may what the inputs had.
    found = watch.found() | {"changed": changed, "again": len(forwards) if len(forwards) > 1 else 0}
    return {"shards": decode(encode(shards)), "had": inputs.grad, **found}


def traits(model: nn.Module, inputs: torch.Tensor) -> dict[str, Any]:
    """What a call could leave different besides numbers, by its name."""
    found: dict[str, Any] = {}
    parts = [*model.named_parameters(prefix="model"), *model.named_modules(prefix="model"), ("inputs", inputs)]
    for name, one in parts:
        found[f"number of hooks on {name}"] = sum(len(getattr(one, kind, None) or ()) for kind in HOOKED)
        found |= {f"{name}.{own}": "there" for own in vars(one)}
        found |= {f"{name}.{own}": getattr(one, own) for own in ("training", "requires_grad") if hasattr(one, own)}
    if inputs.grad is not None:
        found["inputs.grad"] = "there" if bool((inputs.grad == EARLIER).all()) else "another one"
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first trait that differs, in words, or ''."""
    for name in before | after:
        was, now = (state.get(name, "missing") for state in (before, after))
        if was != now:
            return f"{name} is {now} after the call, and was {was} before: give back all as it came"
    return ""


HOOKS = (
    "parameter.register_post_accumulate_grad_hook(fn) calls fn(parameter) as soon as its gradient is complete, "
    "while backward is still at work on the layers before.",
    "The hook reduces parameter.grad.flatten(), keeps the shard, and sets parameter.grad = None.",
)

EXERCISE = Exercise(
    "shards_in_time",
    in_time_cases,
    (
        Claim(
            "its hooks are gone when it returns, and model and inputs are as they were",
            never("changed", "on rank {rank} {it}"),
            (
                "register_post_accumulate_grad_hook returns a handle: keep all of them in a list, and call remove() on "
                "each at the end.",
                "All that the function needs to remember fits in its own local names, such as a dict by parameter.",
                "Backward leaves a gradient in every leaf that requires one, and inputs may be such a leaf.",
            ),
        ),
        Claim(
            "one forward for each backward",
            never("again", "rank {rank} ran the model {it} times in a call: one forward, one backward"),
        ),
        Claim(
            "every rank returns its shard of each mean gradient, in the model's order",
            Gives("shards", "run backward by hand on two ranks, and print what each hook gets", tolerance=by_dtype),
            (
                "comm.reduce_scatter(flat, average=True) adds up over the ranks, divides, and returns your part.",
                "Keep shards in a dict by parameter; then the order in which they come does not matter.",
                "A parameter for which no hook ran has the gradient 0: give it zeros, as many as its part has.",
            ),
        ),
        Claim("each gradient is reduced as backward brings it", InTime("passed"), HOOKS),
        NOTHING_HELD,
    ),
    run=run_in_time,
    scores=SCORES,
    hints=HOOKS,
    memory=True,
    mistakes=MISTAKES,
    without=frozenset({"left", "late"}),
    text=TEXT,
    answer=(shards_in_time,),
    points=3,
)
