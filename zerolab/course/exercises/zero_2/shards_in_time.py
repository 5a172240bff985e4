"""The exercise of lesson 04 that reduces gradients inside backward, in time."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.course.exercises.wholes import Wholes
from zerolab.course.exercises.zero_2.models import (
    LYING,
    arrivals,
    as_it_lies,
    gradients_of,
    in_dtype,
    model_cases,
    numels_of,
    on_the_way,
    shards_by_rank,
    summed,
)
from zerolab.course.exercises.zero_2.watch import Reductions, most_wholes, views_of, who_knows
from zerolab.course.judge.case import Case, Observation, Record, once, plural
from zerolab.course.judge.claims import each_rank, each_time, most_in_a_ring, most_sent, untouched
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, compared
from zerolab.course.judge.same import by_dtype

TEXT = """
In time

Every rank has the same `model` and `inputs` of its own. The loss is `model(inputs).square().mean()`. Run its forward
once and its backward, and return this rank's shard of the *mean* gradient over the ranks, a 1-D tensor for each of
`model.parameters()`, in that order. The shard of rank r is what `comm.reduce_scatter` leaves there: part r of the
flattened gradient, cut by `tensor_split`. A part may be empty. A parameter that gets no gradient in this call has the
gradient 0.

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


Tensor = torch.Tensor


def in_time_cases(rng: Random) -> list[Case]:
    return model_cases(rng, rounds=2, board_rounds=1)


def run_rounds(fn: Callable[..., Any], comm: Collectives, model: nn.Module, rounds: list[Tensor], whole: int) -> Any:
    """Call it once for each round. What it left behind ends the rounds, since it would spoil the next one. Of shards
    that come in between, only copies are kept: the shards themselves should be gone. While backward runs, note how many
    reductions have begun, and how many gradients of `whole` bytes are there."""
    shards: list[Any] = []
    forwards: list[int] = []
    passed: list[list[int]] = []
    reductions, wholes, between = Reductions(comm), Wholes(model.parameters(), whole), [0]

    def on_a_layer() -> None:
        passed[-1].append(reductions.begun)
        between[0] = max(between[0], wholes.now())

    counts = [model.register_forward_pre_hook(lambda module, inputs: forwards.append(1))]
    counts += on_the_way(model, on_a_layer)
    for index, inputs in enumerate(rounds):
        # What somebody's backward left there before.
        inputs.grad = torch.full_like(inputs, EARLIER) if index % 2 and inputs.requires_grad else None
        before = traits(model, inputs)
        passed.append([])
        reductions.begun = 0
        with wholes:
            got = fn(reductions, model, inputs)
        alive: list[Any] = []
        if inputs is not rounds[-1]:
            alive = [weakref.ref(shard) for shard in got if isinstance(shard, Tensor)] if isinstance(got, list) else []
            got = copied(got)
        shards.append(got)
        left = hooks_on(model)
        kept = sum(parameter.grad is not None for parameter in model.parameters())
        changed = changes(before, traits(model, inputs))
        outlive = still_there(alive)
        if left or kept or changed or outlive:
            break
    for count in counts:
        count.remove()
    state = {"hooks": left, "kept": kept, "changed": changed, "outlive": outlive, "passed": passed}
    state |= {"wholes": wholes.most, "between": between[0], "views": views_of(got, whole)}
    return {"shards": shards, "forwards": len(forwards) / len(shards), **state}


def copied(shards: Any) -> Any:
    """A list with copies of its tensors; what is no list stays as it is."""
    if not isinstance(shards, list | tuple):
        return shards
    return [shard.clone() if isinstance(shard, Tensor) else shard for shard in shards]


def still_there(tensors: Sequence[Callable[[], Tensor | None]]) -> int:
    """How many of the tensors, known by weak references, somebody still holds."""
    if any(tensor() is not None for tensor in tensors):
        gc.collect(1)  # cycles of late; a whole collection takes long
    return sum(tensor() is not None for tensor in tensors)


EARLIER = 0.5
"""The numbers in a gradient that inputs had before a call."""


def traits(model: nn.Module, inputs: Tensor) -> dict[str, Any]:
    """What a call could leave different besides numbers, by its name: switches, attributes, hooks on modules."""
    found: dict[str, Any] = {"inputs.requires_grad": inputs.requires_grad}
    found |= {f"inputs.{own}": "there" for own in vars(inputs)}
    if inputs.grad is not None:
        found["inputs.grad"] = "there" if bool((inputs.grad == EARLIER).all()) else "another one"
    for name, module in model.named_modules(prefix="model"):
        found[f"{name}.training"] = module.training
        found |= {f"{name}.{own}": "there" for own in vars(module) if own != "training"}
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        found[f"number of hooks on {name}"] = sum(map(len, hooks))
    for name, parameter in model.named_parameters(prefix="model"):
        found[f"{name}.requires_grad"] = parameter.requires_grad
        found |= {f"{name}.{own}": "there" for own in vars(parameter)}
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first trait that differs, in words, or ''."""
    for name in [*before, *after]:
        first, last = (state.get(name, "missing") for state in (before, after))
        if first != last:
            return f"{name} is {last} after the call, and was {first} before"
    return ""


def hooks_on(model: nn.Module) -> int:
    """Hooks on a model's parameters, of either kind."""
    kinds = ("_post_accumulate_grad_hooks", "_backward_hooks")
    return sum(len(getattr(parameter, kind, None) or ()) for parameter in model.parameters() for kind in kinds)


@each_rank
def no_hooks_left(case: Case, rank: int, record: Record) -> str | None:
    said = (
        f"{plural(record.value['hooks'], 'hook')} of rank {rank} outlive the call, and would run in the next backward"
    )
    look = "keep what registering returns, and call remove() on it"
    return f"{said} too: {look}" if record.value["hooks"] else None


@each_rank
def one_forward(case: Case, rank: int, record: Record) -> str | None:
    said = f"rank {rank} ran the model {record.value['forwards']:g} times in a call"
    return f"{said}: one forward, one backward" if record.value["forwards"] > 1 else None


def model_untouched(case: Case, seen: Observation) -> str | None:
    """Neither numbers nor anything else of the model and its inputs has changed, and nobody holds a shard."""
    return untouched(0, 1)(case, seen) or traits_untouched(case, seen)


@each_rank
def traits_untouched(case: Case, rank: int, record: Record) -> str | None:
    if changed := record.value["changed"]:
        then = "whoever uses the model next would stumble over it"
        if changed.startswith("inputs.grad"):
            then = "backward goes on to inputs that require a gradient; detach() gives the same numbers without"
            if "missing" in changed.partition(",")[0]:
                then = "that gradient was the caller's; inputs.detach() brings none, so there is none to drop"
        return f"on rank {rank} {changed}: {then}"
    if outlive := record.value["outlive"]:
        said = f"the caller of rank {rank} has dropped the shards of call 1, and {outlive} of them are still held"
        return f"{said}: which name outside the function, or which attribute, knows them?"
    return None


def shards_right(case: Case, seen: Observation, index: int) -> str | None:
    """The shards of each call are those of the mean."""
    return compared(round_wanted(case, index), seen, by_dtype)


@once
def round_wanted(case: Case, index: int) -> Wanted:
    mean = [whole / case.ranks for whole in summed(case, index)]
    good = shards_by_rank(case, in_dtype(case, mean))
    look = "run backward by hand on two ranks, and print what each hook gets"
    return Wanted(good, lambda: round_mistakes(case, index, mean, good), look)


def round_mistakes(
    case: Case, index: int, mean: Sequence[Tensor], good: list[list[Tensor]]
) -> dict[str, Sequence[Any]]:
    order, _ = arrivals(case.args[0][0], case.args[0][1][index])
    own = [gradients_of(model, rounds[index]) for model, rounds, _ in case.args]
    total = summed(case, index)

    def shards(wholes: Sequence[Tensor]) -> list[list[Tensor]]:
        return shards_by_rank(case, in_dtype(case, wholes))

    mistakes: dict[str, Sequence[Any]] = {
        "shards of the sum over the ranks: take the mean": shards(total),
        "whole gradients: a rank keeps its shard of each": [
            [whole.flatten() for whole in in_dtype(case, mean)],
        ]
        * case.ranks,
        "its own gradients, whole: nothing was reduced": [[whole.flatten() for whole in wholes] for wholes in own],
        "shards of its own gradients: nothing was added to them": [
            shards_by_rank(case, own[rank])[rank] for rank in range(case.ranks)
        ],
    }
    other = [gradients_of(switched(model), rounds[index]) for model, rounds, _ in case.args]
    modes = "evaluation", "training"
    run, own_mode = modes if case.args[0][0].training else modes[::-1]
    mistakes[f"the gradients of a model in {run}, and it came in {own_mode}: run it as it is"] = shards(
        [torch.stack(parts).double().mean(0) for parts in zip(*other, strict=True)]
    )
    mistakes[LYING] = shards([as_it_lies(*pair) for pair in zip(mean, case.args[0][0].parameters(), strict=True)])
    if not all(parameter.requires_grad for parameter in case.args[0][0].parameters()):
        thawed = [gradients_of(trained_whole(model), rounds[index]) for model, rounds, _ in case.args]
        mistakes["a gradient of a frozen parameter: it gets none, so its shard is zeros"] = shards(
            [torch.stack(parts).double().mean(0) for parts in zip(*thawed, strict=True)]
        )
    if len(order) < len(total):
        mistakes["shards of those parameters alone that got a gradient: of each other one a shard of zeros is due"] = [
            [parts[at] for at in sorted(order)] for parts in good
        ]
        mistakes["no shard (None) of a parameter that got no gradient: a shard of zeros is due"] = [
            [part if at in order else None for at, part in enumerate(parts)] for parts in good
        ]
    mistakes |= {
        "the shards in the order in which backward brought them: model.parameters() has another": [
            [parts[at] for at in order] for parts in good
        ],
        "the shards in backward's order, turned round: a model need not hold its layers in the order of their calls": [
            [parts[at] for at in reversed(order)] for parts in good
        ],
    }
    if index:
        both = [first / case.ranks + second for first, second in zip(summed(case, 0), mean, strict=True)]
        mistakes["the gradients of two calls added up: each call starts with none"] = shards(both)
    return mistakes


def switched(model: nn.Module) -> nn.Module:
    """A copy in evaluation of a model in training, and the other way round."""
    return copy.deepcopy(model).train(not model.training)


def trained_whole(model: nn.Module) -> nn.Module:
    """A copy in which no parameter is frozen."""
    return copy.deepcopy(model).requires_grad_(True)


def as_it_comes(case: Case, seen: Observation) -> str | None:
    """Whenever backward goes on to the next layer, the reductions of all gradients that have come have begun."""
    for index, inputs in enumerate(case.args[0][1]):
        _, due = arrivals(case.args[0][0], inputs)
        for rank, record in enumerate(seen.records):
            for came, begun in zip(due, record.value["passed"][index], strict=False):
                if begun < came:
                    had = f"{plural(came, 'gradient')} had come on rank {rank} when backward went on to the next layer"
                    said = f"{case.about}, call {index + 1}: {had}, and {plural(begun, 'reduction')} had begun"
                    return f"{said}: reduce each in its own hook, not later"
    return None


@each_rank
def nothing_kept(case: Case, rank: int, record: Record) -> str | None:
    kept = record.value["kept"]
    said = f"{plural(kept, 'parameter')} of rank {rank} still {'has' if kept == 1 else 'have'} a whole gradient"
    return f"{said} after the call: what ends the life of parameter.grad?" if kept else None


def sent_once(case: Case) -> int:
    return most_in_a_ring([("reduce_scatter", numel) for numel in numels_of(case)], 4, case.ranks)


HOOKS = (
    "parameter.register_post_accumulate_grad_hook(fn) calls fn(parameter) as soon as its gradient is complete, "
    "while backward is still at work on the layers before.",
    "The hook reduces parameter.grad.flatten(), keeps the shard, and sets parameter.grad = None.",
)
CLEAN = (
    "register_post_accumulate_grad_hook returns a handle: keep all of them in a list, and call remove() on each at the "
    "end.",
)
WHOLES = Score("whole gradients at once, at most", most_wholes, lambda case: 1, who_knows)

EXERCISE = Exercise(
    "shards_in_time",
    in_time_cases,
    (
        Claim("its hooks are gone when it returns", no_hooks_left, CLEAN),
        Claim(
            "no parameter has a gradient when it returns",
            nothing_kept,
            ("A gradient lives as long as parameter.grad knows it: the hook sets that to None once it is reduced.",),
        ),
        Claim(
            "the model and the inputs stay as they were, and only the caller holds shards",
            model_untouched,
            (
                "All that the function needs to remember fits in its own local names, such as a dict by parameter.",
                "Backward leaves a gradient in every leaf that requires one, and inputs may be such a leaf.",
            ),
        ),
        Claim("one forward for each backward", one_forward),
        Claim(
            "every rank returns its shard of each mean gradient, in the model's order, call after call",
            each_time("shards", shards_right),
            (
                "comm.reduce_scatter(flat, average=True) adds up over the ranks, divides, and returns your part.",
                "Keep shards in a dict by parameter; then the order in which they come does not matter.",
                "A parameter for which no hook ran has the gradient 0: give it zeros, as many as its part has.",
            ),
        ),
        Claim("each gradient is reduced as backward brings it", as_it_comes, HOOKS),
    ),
    run=run_rounds,
    scores=(
        Score(
            "bytes a rank sends",
            most_sent,
            sent_once,
            "each gradient takes one reduce_scatter; what comes on top of it?",
        ),
        WHOLES,
    ),
    hints=HOOKS,
    text=TEXT,
    answer=(shards_in_time,),
    points=3,
)
