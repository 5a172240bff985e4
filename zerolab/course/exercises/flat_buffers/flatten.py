"""Exercise of lesson 02: a module whose parameters are views of one row."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import nn

from zerolab.course.exercises.flat_buffers.lay_out import lay_out
from zerolab.course.judge.case import Case
from zerolab.course.judge.claims import most, never
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import alike, difference
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


MISTAKES = r"""
a row that holds buffers, or a tied weight twice; which list has each parameter once?
    list(module.parameters()) => [it for _, it in module.named_parameters(remove_duplicate=False)] + [*module.buffers()]
a row without the frozen, and a frozen parameter lies in the row, too
    list(module.parameters()) => [parameter for parameter in module.parameters() if parameter.requires_grad]
a row that ends with the last parameter, and its length is due, padding included, as lay_out says
    torch.zeros(length => torch.zeros(starts[-1] + parameters[-1].numel()
a row in which nobody wrote all of the padding: new memory holds anything; fill it with zeros
    torch.zeros => torch.empty
a row of zeros: nobody copied the parameters' values there
    place.copy_(parameter.detach()) => pass
a transposed parameter in the order of its old memory; reshape(-1) gives its own
    row[start : start + parameter.numel()].view( => row[start:].as_strided_(
    parameter.shape) => parameter.shape, parameter.stride())
View each part in its parameter's shape
    parameter.data = place => parameter.data = place.view(-1)
"""


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


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


BOARD = "eight transposed weights of 32 by 24"
KINDS: dict[str, Callable[[], nn.Module]] = {
    "two layers": lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 5)),
    "two layers with one weight": tied,
    "parameters of odd kinds": Odd,
    BOARD: lambda: nn.ParameterList(nn.Parameter(torch.randn(24, 32).t()) for _ in range(8)),
}


def build(kind: str, dtype: str, seed: int) -> nn.Module:
    """A small module, the same for each seed; every other one is in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = KINDS[kind]().to(getattr(torch, dtype))
    for parameter in module.parameters():
        # In float64 these are numbers that no float32 holds.
        parameter.data /= 3
    return module.train(seed % 2 == 0)


def flatten_cases(rng: Random) -> list[Case]:
    drawn = [(kind, "float32", rng.choice((2, 3)), 4) for kind in KINDS if kind != BOARD]
    # Two of one size, so that rows kept by their sizes show.
    drawn += [("two layers", dtype, 4, 8) for dtype in ("float64", "bfloat16", "bfloat16")]
    seeds = [2 * rng.randrange(10**6) + at % 2 for at in range(len(drawn))]
    cases = [Case([(kind, dtype, seed, *rest)]) for seed, (kind, dtype, *rest) in zip(seeds, drawn, strict=True)]
    return [*cases, Case([(BOARD, "bfloat16", 0, 4, 16)], board=True)]


def run_flatten(
    fn: Callable[..., Any], comm: Any, kind: str, dtype: str, seed: int, ranks: int, align: int
) -> dict[str, Any]:
    """Flatten a new module, then write into the row and look at the module, and the reverse; and flatten it again."""
    # Gradients are made before, so that nobody counts them; on the scoreboard there are none. What is frozen may have
    # one, and what is not frozen may lack it.
    likes = [] if kind == BOARD else list(build(kind, dtype, seed).parameters())
    gradients = [like.detach() + 1 if number != 1 else None for number, like in enumerate(likes)]
    # New memory is filled with NaN, so that padding which nobody wrote shows.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with Tracker() as tracker:
            module = build(kind, dtype, seed)
            before = list(module.parameters())
            for parameter, gradient in zip(before, gradients, strict=False):
                parameter.grad = gradient
            row = fn(module, ranks, align)
            kept, peak = sum(tracker.now().values()), sum(tracker.peak.values())
    finally:
        torch.use_deterministic_algorithms(False)
    if not isinstance(row, torch.Tensor):
        return {}
    after = list(module.parameters())
    seen = {"row": row.detach().clone(), "graph": row.requires_grad, "kept": kept, "peak": peak, "itself": row}
    seen["renewed"] = [*map(id, after)] != [*map(id, before)]
    replaced = [p.grad is not due for p, due in zip(before, gradients, strict=False)]
    seen["rest"] = {
        "in requires_grad of its parameters": [parameter.requires_grad for parameter in before],
        "among its gradients": [*replaced, *(parameter.grad for parameter in before)],
        "in its mode, training or not": [part.training for part in module.modules()],
        "among its buffers": list(module.buffers()),
    }
    with torch.no_grad():
        values = [parameter.clone() for parameter in after]
        row.copy_(torch.arange(1, row.numel() + 1).view_as(row))
        written = [parameter.clone() for parameter in after]
        for parameter, value in zip(after, values, strict=True):
            parameter.copy_(value + 1)
    seen["memory"] = {
        "among the parameters": values,
        "among the parameters after the check wrote into the row": written,
        "in the row after the check wrote into the parameters": row.detach().clone(),
    }
    return {**seen, "again": fn(module, ranks + 1, 2 * align).detach().clone()}


def ended(args: tuple[Any, ...], got: Any, want: Any) -> str:
    key = next(key for key in want if not alike(got[key], want[key]))
    return f"ended with {difference(got[key], want[key], 0.0)} {key}"


EXERCISE = Exercise(
    "flatten",
    flatten_cases,
    (
        Claim(
            "the row holds each parameter once, at its start, and zeros between",
            Gives("row", "which values go to which start?", tolerance=lambda dtype: 0.0),
        ),
        Claim(
            "the parameters are the same objects",
            never("renewed", "the module has other Parameter objects, and an optimizer keeps the old: change .data"),
        ),
        Claim(
            "the row has no graph",
            never("graph", "the row requires gradients, as if autograd had made it: detach what you copy"),
        ),
        Claim(
            "row and module are the same memory",
            Gives("memory", "A copy has memory of its own, a view has not", tolerance=0.0, say=ended),
        ),
        Claim(
            "no second copy is kept",
            Gives("kept", "who still holds a second copy?", "left behind, in bytes,"),
        ),
        Claim(
            "nothing else about the module has changed",
            Gives("rest", "Leave alone all but the memory of its parameters", tolerance=0.0, say=ended),
        ),
        Claim(
            "each call makes a row of its own",
            Gives("again", "what do you remember of a module?", "returned for the same module and more ranks"),
        ),
    ),
    run=run_flatten,
    scores=(
        Score(
            "bytes held at the worst moment",
            most("peak"),
            None,
            "what else is as large as module and row? Copies of all weights are, or a row in another dtype",
            # A copy of one parameter, also if it is made in float32.
            slack=3 * 32 * 24 * 2,
        ),
    ),
    hints=(
        "module.parameters() lists a tied weight once, and no buffers.",
        "Make the row at its full length first, of zeros; copy each parameter to its place.",
        "A part of the row, row[a:b].view(shape), is a view. parameter.data = ... lets a parameter be one.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(flatten,),
    points=2,
)
