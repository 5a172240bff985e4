"""Exercise of lesson 02: a module whose parameters are views of one row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.course.exercises.flat_buffers.lay_out import lay_out
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import most
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.same import alike, short
from zerolab.memory import Tracker

TEXT = """
Two names for one memory

Make one row, laid out as your `lay_out` says, the memory of all of a module's parameters, in the order of
`module.parameters()`, and return the row.

- Values stay as they were, and padding is zero. The elements of a parameter lie there in the order that
  `parameter.reshape(-1)` gives, row after row, also if it was transposed. The row has the parameters' dtype, which is
  the same for all of them.
- Afterwards, what is written into the row shows in the module, and the reverse. The `Parameter` objects stay the same
  ones, because an optimizer may know them already.
- A tied weight lies in the row once. Buffers do not lie there; frozen parameters do.
- Nothing else about the module changes: gradients, what is frozen, its mode and its buffers stay as they were.
- The row requires no gradient, and nobody keeps a second copy of the parameters.

The check draws modules of float32, float64 and bfloat16, in training and in evaluation mode, with gradients and
without; parameters may be frozen, tied, transposed, without dimensions or without elements. The scoreboard measures
the worst moment, where all weights are bfloat16 and transposed: the module as it was and the row must fit together,
and nothing of that size besides; a copy of one parameter at a time fits, also in float32. About nine lines.
"""


def flatten(module: torch.nn.Module, ranks: int, align: int) -> torch.Tensor:
    """The row (1-D) that the module's parameters are now views of."""
    ### BEGIN SOLUTION
    parameters = list(module.parameters())
    starts, length = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    row = torch.zeros(length, dtype=parameters[0].dtype)
    for start, parameter in zip(starts, parameters, strict=True):
        place = row[start : start + parameter.numel()].view(parameter.shape)
        place.copy_(parameter.detach())
        parameter.data = place
    return row
    ### END SOLUTION


Tensor = torch.Tensor
Answer = Callable[..., Any]


class Odd(nn.Module):
    """Parameters of odd kinds: without dimension, without elements, transposed, frozen; and a large buffer."""

    def __init__(self) -> None:
        super().__init__()
        height, width, depth = (int(torch.randint(2, 5, ())) for _ in range(3))
        self.scale = nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.empty(0))
        self.turned = nn.Parameter(torch.randn(width, height + 1).t())
        self.frozen = nn.Parameter(torch.randn(depth + 1), requires_grad=False)
        self.permuted = nn.Parameter(torch.randn(depth, 2, height).permute(2, 0, 1))
        self.no_rows = nn.Parameter(torch.empty(0, width))
        self.register_buffer("seen", torch.randn(170))


class Turned(nn.Module):
    """Weights that are all transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(24, 32).t()) for _ in range(8))


def build(kind: str, seed: int) -> nn.Module:
    """A small module, the same for each seed; every other one is in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module: nn.Module
        if kind == "two layers":
            module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5))
        elif kind == "one layer used twice":
            tied = nn.Linear(3, 3)
            module = nn.Sequential(tied, nn.ReLU(), tied)
        elif kind == "two layers with one weight":
            module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=seed % 3 > 0))
            module[1].weight = module[0].weight  # type: ignore[assignment]
        elif kind in ("doubles", "bfloat16 numbers"):
            module = nn.Linear(3, 4).to(torch.float64 if kind == "doubles" else torch.bfloat16)
            for parameter in module.parameters():
                # Numbers that no float32 holds.
                parameter.data /= 3
        elif kind == "parameters of odd kinds":
            module = Odd()
        else:
            module = Turned().to(torch.bfloat16)
        return module.train(seed % 2 == 0)


def flatten_cases(rng: Random) -> list[Case]:
    tied = ["one layer used twice", "two layers with one weight"]
    kinds = ["two layers", *tied, "parameters of odd kinds", "doubles", "bfloat16 numbers"]
    cases = []
    for kind in kinds:
        ranks, align = rng.choice((2, 3, 4)), rng.choice((4, 8))
        about = f"a module of {kind}, {plural(ranks, 'rank')}, align={align}"
        cases.append(Case([(kind, rng.randrange(10**6), ranks, align)], about=about))
    board = "eight transposed weights of 32 by 24 in bfloat16, 4 ranks, align=16"
    return [*cases, Case([("large", 0, 4, 16)], about=board, board=True)]


def run_flatten(fn: Answer, comm: Any, kind: str, seed: int, ranks: int, align: int) -> dict[str, Any]:
    """Flatten a new module, then write into the row and look at the module, and the reverse."""
    # New memory is filled with NaN, so that padding which nobody wrote shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        # Gradients are made before, so that nobody counts them; on the scoreboard there are none. What is frozen may
        # have one, and what is not frozen may lack it.
        likes = [] if kind == "large" else list(build(kind, seed).parameters())
        gradients = [like.detach() + 1 if number != 1 else None for number, like in enumerate(likes)]
        with Tracker() as tracker:
            module = build(kind, seed)
            before = list(module.parameters())
            for parameter, gradient in zip(before, gradients, strict=False):
                parameter.grad = gradient
            row = fn(module, ranks, align)
            kept, peak = sum(tracker.now().values()), sum(tracker.peak.values())
    finally:
        torch.use_deterministic_algorithms(False)
    if not isinstance(row, Tensor):
        return {"row": row}
    after = list(module.parameters())
    same = len(after) == len(before) and all(a is b for a, b in zip(after, before, strict=True))
    seen = {"row": row.detach().clone(), "grad": row.requires_grad, "same": same, "kept": kept, "peak": peak}
    seen["training"] = module.training
    seen["frozen"] = [not parameter.requires_grad for parameter in before]
    seen["lost"] = [n for n, g in enumerate(gradients) if not same_gradient(before[n].grad, g, likes[n])]
    seen["buffers"] = [buffer.clone() for buffer in module.buffers()]
    with torch.no_grad():
        seen["values"] = [parameter.clone() for parameter in after]
        row.copy_(torch.arange(1, row.numel() + 1).view_as(row))
        seen["from_row"] = [parameter.clone() for parameter in after]
        for number, parameter in enumerate(after):
            parameter.fill_(-1.0 - number)
        seen["to_row"] = row.clone()
    # A second module, just like the first, and then the second one once more, for other ranks.
    second = build(kind, seed)
    seen["second"] = fn(second, ranks, align).detach().clone()
    seen["stays"] = alike(row, seen["to_row"], 0.0)
    seen["anew"] = fn(second, ranks + 1, 2 * align).detach().clone()
    return seen


def same_gradient(now: Tensor | None, gradient: Tensor | None, like: Tensor) -> bool:
    """Whether .grad is the one that was put there, with its numbers."""
    return now is gradient and (now is None or torch.equal(now, like.detach() + 1))


def slots(case: Case) -> tuple[list[Tensor], list[int], int]:
    """The parameters as they were, and where they should lie."""
    kind, seed, ranks, align = case.args[0]
    parameters = [parameter.detach() for parameter in build(kind, seed).parameters()]
    return parameters, *lay_out([parameter.numel() for parameter in parameters], ranks, align)


def filled(parameters: Sequence[Tensor], starts: Sequence[int], length: int) -> Tensor:
    """The row with these parameters at these starts."""
    row = torch.zeros(length, dtype=parameters[0].dtype)
    for start, parameter in zip(starts, parameters, strict=True):
        row[start : start + parameter.numel()] = parameter.flatten()
    return row


def row_holds_values(case: Case, seen: Observation) -> str | None:
    value = seen.records[0].value
    row, (parameters, starts, length) = value["row"], slots(case)
    if not isinstance(row, Tensor):
        return f"you return {short(row)}, not the row"
    if row.dtype != parameters[0].dtype:
        return f"the row is {row.dtype}, the parameters are {parameters[0].dtype}: make it of their dtype"
    if row.shape != (length,):
        due = sum(parameter.numel() for parameter in build(*case.args[0][:2]).state_dict().values())
        used = sum(parameter.numel() for parameter in parameters)
        said = f"your row has shape {tuple(row.shape)}, and ({length},) is due"
        if due > used and row.numel() >= due:
            return f"{said}: it holds buffers, or a tied weight twice; which list has each parameter once?"
        trained = [p.numel() for p in build(*case.args[0][:2]).parameters() if p.requires_grad]
        if row.shape == (lay_out(trained, *case.args[0][2:])[1],):
            return f"{said}: a frozen parameter lies in the row, too"
        return f"{said}: padding included, as lay_out says"
    want = filled(parameters, starts, length)
    if alike(row, want, 0.0):
        return None
    wrong = int((row != want).sum())
    said = f"{wrong} of {length} elements of the row are wrong"
    real = torch.cat([torch.arange(s, s + p.numel()) for s, p in zip(starts, parameters, strict=True)])
    if alike(row[real], want[real], 0.0):
        return f"{said}, all of them padding: new memory holds anything; fill it with zeros"
    if not row[real].nan_to_num().any():
        return f"{said}: nobody copied the parameters' values there"
    in_memory = torch.zeros(length, dtype=row.dtype)
    for start, parameter in zip(starts, parameters, strict=True):
        in_memory[start : start + parameter.numel()] = parameter.as_strided((parameter.numel(),), (1,))
    if alike(row, in_memory, 0.0):
        return f"{said}: a transposed parameter lies there in the order of its old memory; reshape(-1) gives its own"
    thawed = [parameter for parameter in build(*case.args[0][:2]).parameters() if parameter.requires_grad]
    without = torch.zeros(length, dtype=row.dtype)
    for start, thaw in zip(lay_out([p.numel() for p in thawed], *case.args[0][2:])[0], thawed, strict=True):
        without[start : start + thaw.numel()] = thaw.detach().flatten()
    if len(thawed) < len(parameters) and alike(row, without, 0.0):
        return f"{said}: a frozen parameter lies in the row, too"
    if row.dtype is torch.float64 and alike(row.float(), want.float(), 0.0):
        return f"{said}, though right to single precision: what goes through float32?"
    return f"{said}: which values go to which start?"


def module_lives_in_row(case: Case, seen: Observation) -> str | None:
    value, (parameters, starts, length) = seen.records[0].value, slots(case)
    if not value["same"]:
        return "the module has other Parameter objects than before, and an optimizer keeps the old: change .data"
    if value["grad"]:
        return "the row requires gradients, as if autograd had made it: detach what you copy"
    if not alike(value["values"], parameters, 0.0):
        shapes = [tuple(now.shape) for now in value["values"]]
        if shapes != [tuple(parameter.shape) for parameter in parameters]:
            return f"parameters now have the shapes {shapes}: view each part in its parameter's shape"
        return "the module's parameters hold other values than before: copy first, then point at the row"
    counted = torch.arange(1, length + 1).to(parameters[0].dtype)
    want = [counted[s : s + p.numel()].view(p.shape) for s, p in zip(starts, parameters, strict=True)]
    apart = [index for index, now in enumerate(value["from_row"]) if not alike(now, want[index], 0.0)]
    if apart:
        said = f"{len(apart)} of {plural(len(want), 'parameter')} did not change when the check wrote into the row"
        return f"{said}: a copy has memory of its own, a view has not"
    for number, (start, parameter) in enumerate(zip(starts, parameters, strict=True)):
        if not bool((value["to_row"][start : start + parameter.numel()] == -1.0 - number).all()):
            return f"the check wrote into parameter {number}, and the row does not show it"
    return None


def rest_is_left(case: Case, seen: Observation) -> str | None:
    """Gradients, frozen or not, mode and buffers are as they were."""
    value, module = seen.records[0].value, build(*case.args[0][:2])
    for number, (now, parameter) in enumerate(zip(value["frozen"], module.parameters(), strict=True)):
        if now and parameter.requires_grad:
            return f"parameter {number} requires no gradient any more: you froze it"
        if not now and not parameter.requires_grad:
            return f"parameter {number} was frozen, and now requires a gradient"
    if value["lost"]:
        return f"the .grad of parameter {value['lost'][0]} is not what it was before: leave .grad alone"
    if value["training"] != module.training:
        was, now = ("training", "evaluation") if module.training else ("evaluation", "training")
        return f"the module was in {was} mode, and is in {now} mode now: leave the mode alone"
    if not alike(value["buffers"], list(module.buffers()), 0.0):
        return "the module's buffers hold other values than before: leave them alone"
    return None


def nothing_kept(case: Case, seen: Observation) -> str | None:
    value, module = seen.records[0].value, build(*case.args[0][:2])
    due = value["row"].nbytes + sum(buffer.nbytes for buffer in module.buffers())
    if value["kept"] <= due:
        return None
    return f"afterwards {value['kept']} bytes are held, and row and buffers are {due}: who still holds a second copy?"


def rows_of_their_own(case: Case, seen: Observation) -> str | None:
    """What was flattened before, a module of the same sizes or the same one for other ranks, changes nothing."""
    value, (parameters, starts, length) = seen.records[0].value, slots(case)
    if not value["stays"]:
        said = "a second module of the same sizes was flattened, and the first one's row changed"
        return f"{said}: each call makes a row of its own; which rows do you keep?"
    if not alike(value["second"], filled(parameters, starts, length), 0.0):
        said = "a second module of the same sizes was flattened, and its row is wrong"
        return f"{said}: what do you remember of the first?"
    ranks, align = case.args[0][2] + 1, 2 * case.args[0][3]
    places = lay_out([parameter.numel() for parameter in parameters], ranks, align)
    if not alike(value["anew"], filled(parameters, *places), 0.0):
        said = f"the module was flattened once more, for {ranks} ranks and align={align}, and the new row is wrong"
        return f"{said}: what do you remember of a module?"
    return None


def flatten_target(case: Case) -> int:
    """The module as it was, the row, and a copy of one parameter at a time, also if it is made in float32."""
    parameters, _, length = slots(case)
    row = length * parameters[0].itemsize
    return sum(parameter.nbytes for parameter in parameters) + row + 3 * max(p.nbytes for p in parameters)


EXERCISE = Exercise(
    "flatten",
    flatten_cases,
    (
        Claim("the row holds each parameter once, at its start, and zeros between", row_holds_values),
        Claim("row and module are the same memory, and the parameters the same objects", module_lives_in_row),
        Claim("nothing else about the module has changed", rest_is_left),
        Claim("no second copy is kept", nothing_kept),
        Claim("each call makes a row of its own", rows_of_their_own),
    ),
    run=run_flatten,
    scores=(
        Score(
            "bytes held at the worst moment",
            most("peak"),
            flatten_target,
            "module and row must coexist for a moment; what else is as large? Copies of all weights at once "
            "are, or a row in another dtype",
        ),
    ),
    hints=(
        "module.parameters() lists a tied weight once, and no buffers.",
        "Make the row at its full length first, of zeros; copy each parameter to its place.",
        "A part of the row, row[a:b].view(shape), is a view. parameter.data = ... lets a parameter be one.",
    ),
    text=TEXT,
    answer=(flatten,),
    points=2,
)
