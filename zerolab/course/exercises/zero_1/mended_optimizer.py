"""The sketch of lesson 03's exercises: an optimizer with four faults, mended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import torch

from zerolab.collectives import Collectives
from zerolab.course.exercises.twice import begins_anew, snapshot
from zerolab.course.exercises.zero_1.claims import (
    ANEW,
    SUM,
    TWICE,
    UNSHARED,
    adam,
    only,
    patched,
    states_kept,
    tolerance,
    trained,
    uncut,
)
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import most, never
from zerolab.course.judge.claims import part as of_part
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.mistakes import Wanted, right
from zerolab.memory import Tracker

TEXT = """
Find the four faults

This is, in our words, a distributed optimizer as one text sketches it: each rank optimizes some of the tensors, and
sends them to the others. It has four faults. Run it, with two tensors of different sizes on two ranks.

```{code-cell}
:name: shown_sketch

class SketchedOptimizer:
    def __init__(self, comm, parameters, make):
        self.comm = comm
        each = len(parameters) // comm.size
        self.mine = parameters[comm.rank * each : (comm.rank + 1) * each]
        self.optimizers = [make(parameter) for parameter in self.mine]

    @torch.no_grad()
    def step(self):
        for parameter in self.mine:
            self.comm.all_reduce(parameter.grad)
        for optimizer in self.optimizers:
            optimizer.step()
        for parameter in self.mine:
            self.comm.broadcast(parameter.data, src=self.comm.rank)
```

```{code-cell}
:name: shown_run

def two_tensors(comm):
    parameters = [torch.nn.Parameter(torch.ones(numel)) for numel in (4, 2)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, comm.rank + 1.0)
    SketchedOptimizer(comm, parameters, adam).step()
    return parameters


try:
    launch(two_tensors, ranks=2, world="lockstep", device="cpu")
except RankError as error:
    print(f"{type(error).__name__}: {error}")
```

The ranks talk about *different* tensors, here and again in `broadcast`. That is the first fault. For the other three
think of three tensors on two ranks; of one tensor that is far larger than the others; and of what an `all_reduce`
adds up to.

Write it, called as the sketch is, so that any list of one or more parameters works on any number of ranks, also fewer
parameters than ranks, and no rank's optimizers keep more than their N-th (of the row, or of each tensor, rounded up).
Make them with `make(tensor)` alone, for tensors of the parameters' dtype, which is the same for all. A `.grad` that
is `None` on a rank counts as zeros there. Leave each `.grad` as it was, and the parameters where they are in memory:
copy the new numbers into them.

The check draws shapes, also without elements or dimensions, transposed parameters, transposed gradients, and either
without the other, dtypes and missing gradients, takes two steps, and once makes two optimizers side by side. The
scoreboard looks at what a rank holds *between* steps beside parameters and gradients: a piece, its states, at most
its gradient, and no whole row. About sixteen lines.
"""


class MendedOptimizer:
    """Stage 1 for a list of parameters. `make(tensor)` gives a torch optimizer for one tensor."""

    ### BEGIN SOLUTION
    def __init__(self, comm, parameters, make):
        self.comm, self.parameters = comm, parameters
        self.shard = torch.cat([p.detach().flatten() for p in parameters]).tensor_split(comm.size)[comm.rank].clone()
        self.optimizer = make(self.shard)  # of a copy, since a view would keep the whole row alive

    @torch.no_grad()
    def step(self):
        row = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.parameters])
        self.shard.grad = self.comm.reduce_scatter(row, average=True)
        self.optimizer.step()
        self.shard.grad = None
        self.comm.all_gather(self.shard, out=row)
        for parameter, part in zip(self.parameters, row.split([p.numel() for p in self.parameters]), strict=True):
            parameter.copy_(part.view_as(parameter))

    ### END SOLUTION


Tensor = torch.Tensor
Shape = tuple[int, ...]
STEPS = 2
BESIDE = "a second optimizer goes wrong beside the first, on rank {rank}: what do the two share?"
BOARD = [(48, 64), (64,), (15, 64), (7,)]


def sketch_case(
    rng: Random,
    ranks: int,
    shapes: Sequence[Shape],
    world: str = "lockstep",
    dtype: torch.dtype = torch.float32,
    turned: Sequence[int] = (),
    skips: Sequence[tuple[int, int]] = (),
    again: bool = False,
    board: bool = False,
    crossed: bool = False,
) -> Case:
    """`turned` are the numbers of parameters whose memory is transposed, and that of their gradients; with `crossed`
    it is that of the other gradients instead. `skips` are (rank, number) of those without a gradient there. With
    `again` a second optimizer is made beside the first."""

    def drawn() -> list[Tensor]:
        return [signed(rng, torch.Size(shape).numel(), dtype).view(shape) for shape in shapes]

    def steps(rank: int) -> list[list[Tensor | None]]:
        lacks = [number for who, number in skips if who == rank]
        return [[None if n in lacks else g for n, g in enumerate(drawn())] for _ in range(STEPS)]

    tensors, decay, others = drawn(), rng.choice((0.5, 1.0)), drawn()
    args: list[tuple[Any, ...]] = [
        (tensors, steps(rank), list(turned), decay, (others, steps(rank)) if again else None, crossed)
        for rank in range(ranks)
    ]
    kind = "" if dtype is torch.float32 else f" of {str(dtype).removeprefix('torch.')}"
    said = f"on {plural(ranks, 'rank')}, tensors{kind} of shapes {list(shapes)}"
    said += f", {list(turned)} transposed" if turned else ""
    said += ", and the gradients of the other matrices" if crossed else ""
    said += f", (rank, number) without .grad: {list(skips)}" if skips else ""
    return Case(args, world, f"{said}, two optimizers" if again else said, board=board)


def sketch_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[Shape]:
        return [(rng.randint(1, 9),) for _ in range(count)]

    def odd(count: int) -> list[Shape]:
        """A matrix or two, one without elements and one without dimensions among them."""
        shapes: list[Shape] = [(rng.randint(2, 4), rng.randint(2, 4)) for _ in range(count - 2)]
        return [*shapes, (0, rng.randint(1, 3)), ()]

    cases = [sketch_case(rng, 2, [(4,), (4,)])]
    cases += [sketch_case(rng, ranks, drawn(count)) for ranks, count in ((2, 3), (3, 4), (4, 3), (1, 2))]
    cases.append(sketch_case(rng, 4, [(1,)]))
    cases += [
        sketch_case(rng, 2, odd(4), turned=(0,)),
        sketch_case(rng, 3, odd(4), dtype=torch.float64, turned=(1,)),
        sketch_case(rng, 2, odd(5), dtype=torch.bfloat16),
        sketch_case(rng, 2, [(3, 2), (2, 4)], turned=(0,), crossed=True),
        sketch_case(rng, 3, drawn(4), skips=[(0, 1), (rng.randrange(1, 3), 2), *((rank, 3) for rank in range(3))]),
        sketch_case(rng, 2, drawn(3), again=True),
        sketch_case(rng, 2, drawn(3), "processes"),
    ]
    return [*cases, sketch_case(rng, 4, BOARD, board=True)]


def run_optimizer(
    fn: Callable[..., Any],
    comm: Collectives,
    tensors: list[Tensor],
    steps: list[list[Tensor | None]],
    turned: list[int],
    decay: float,
    beside: tuple[list[Tensor], list[list[Tensor | None]]] | None,
    crossed: bool,
) -> dict[str, Any]:
    """Build the optimizer on parameters of this rank's own, and take steps with the gradients given; a second one
    beside it, if there are tensors for it. What it did with them, what optimizers keep, and, on the scoreboard, the
    bytes that are held between steps beside parameters and gradients."""
    made: list[torch.optim.Optimizer] = []
    dtypes: list[str] = []

    def make(tensor: Tensor) -> torch.optim.Optimizer:
        dtypes.append(str(tensor.dtype))
        made.append(adam(tensor, decay))
        return made[-1]

    parameters = [placed(tensor, number in turned) for number, tensor in enumerate(tensors)]
    layouts = [(parameter.data_ptr(), parameter.stride()) for parameter in parameters]
    others = [torch.nn.Parameter(tensor.clone()) for tensor in beside[0]] if beside else []
    changed, held = False, 0
    board = sum(tensor.numel() for tensor in tensors) > 1000
    given: list[Tensor] = [*parameters, *(gradient for step in steps for gradient in step if gradient is not None)]
    fixed = len(given)
    with (
        states_kept() as kept,
        Tracker(lambda: {"given": given}, samples=False) if board else nullcontext() as tracker,
    ):
        optimizer = fn(comm, parameters, make)
        second = fn(comm, others, make) if beside else None
        for number, gradients in enumerate(steps):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
            for turned_one in (parameter for n, parameter in enumerate(parameters) if (n in turned) != crossed):
                if turned_one.grad is not None:
                    turned_one.grad = placed(turned_one.grad, True).detach()
            given[fixed:] = [parameter.grad for parameter in parameters if parameter.grad is not None]
            optimizer.step()
            changed = changed or not all(map(unchanged, parameters, gradients))
            if tracker is not None:
                now = tracker.now()
                held = max(held, sum(now.values()) - now.get("given", 0))
            if beside is not None and second is not None:
                for parameter, gradient in zip(others, beside[1][number], strict=True):
                    parameter.grad = gradient
                second.step()
    first = [parameter.detach() for parameter in parameters]
    seen: dict[str, Any] = {"first": snapshot(first), "kept": first, "states": kept.elements, "changed": changed}
    seen["moved"] = layouts != [(parameter.data_ptr(), parameter.stride()) for parameter in parameters]
    seen["made"] = dtypes
    seen["strangers"] = sum(all(known() is not mine for mine in made) for known in kept.optimizers)
    seen["held"] = held
    return {**seen, "again": [parameter.detach() for parameter in others]} if beside else seen


def placed(tensor: Tensor, turned: bool) -> torch.nn.Parameter:
    """A parameter with memory of its own, transposed or not."""
    return torch.nn.Parameter(tensor.t().contiguous().t() if turned else tensor.clone())


def unchanged(parameter: torch.nn.Parameter, gradient: Tensor | None) -> bool:
    """Whether .grad is as it was given."""
    if parameter.grad is None or gradient is None:
        return parameter.grad is gradient
    return torch.equal(parameter.grad, gradient)


def sketch_rows(case: Case, steps: int) -> list[Tensor]:
    """For each step, all ranks' gradients as rows, (ranks, numel); `steps` is their place in the arguments."""
    tensors = case.args[0][0]
    mine = [args[1] if steps == 1 else args[4][1] for args in case.args]
    rows = []
    for step in range(STEPS):
        filled = [
            [torch.zeros_like(t) if g is None else g for g, t in zip(one[step], tensors, strict=True)] for one in mine
        ]
        rows.append(torch.stack([row_of(gradients) for gradients in filled]))
    return rows


def row_of(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def cut_like(row: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """A row as tensors of these shapes."""
    parts = row.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def sketch_good(case: Case) -> list[list[Tensor]]:
    tensors, _, _, decay, *_ = case.args[0]
    row = row_of(tensors)
    good = trained(row, [step.mean(0) for step in sketch_rows(case, 1)], [(0, row.numel(), decay)])
    return [cut_like(good, tensors)] * case.ranks


def sketch_again(case: Case) -> list[list[Tensor]]:
    """What the second optimizer should give."""
    args = [(mine[4][0], mine[4][1], mine[2], mine[3], None, False) for mine in case.args]
    return sketch_good(replace(case, args=args))


def sketch_mistakes(case: Case, idle: str) -> dict[str, list[list[Tensor]]]:
    (tensors, _, _, decay, *_), ranks = case.args[0], case.ranks
    lengths = [tensor.numel() for tensor in tensors]
    row, steps = row_of(tensors), sketch_rows(case, 1)
    spans = [(0, row.numel(), decay)]
    good = row_of(sketch_good(case)[0])
    # Tensors that are left over where each rank takes len(tensors) // ranks.
    dealt = sum(lengths[: len(tensors) // ranks * ranks])

    def everywhere(value: Tensor) -> list[list[Tensor]]:
        return [cut_like(value, tensors)] * ranks

    own = [trained(row, [step[rank] for step in steps], spans) for rank in range(ranks)]
    return {
        f"every tensor as it began: {idle}": everywhere(row),
        "the tensors at the end of the list as they began: no rank owns them": everywhere(
            torch.cat([good[:dealt], row[dealt:]])
        ),
        "the last elements of the row as they began: numel // N leaves a rest": everywhere(uncut(ranks, row, good)),
        "the other ranks' pieces as they began: nobody sent them here": [
            cut_like(patched(ranks, row, only(ranks, rank, good)), tensors) for rank in range(ranks)
        ],
        SUM: everywhere(trained(row, [step.sum(0) for step in steps], spans)),
        TWICE: everywhere(trained(row, [step.mean(0) / ranks for step in steps], spans)),
        UNSHARED: everywhere(patched(ranks, row, own)),
        ANEW: everywhere(trained(row, [step.mean(0) for step in steps], spans, anew=True)),
        f"what an optimizer gives without the weight decay {decay} that make() gives it": everywhere(
            trained(row, [step.mean(0) for step in steps])
        ),
        "what gradients of different elements give: in one call all ranks must bring the same ones": everywhere(
            trained(row, [mixed(step) for step in steps], spans)
        ),
    }


def sketch_wanted(case: Case) -> Wanted:
    idle, look = "copy the row back into the parameters", "who updates it, and with whose gradient?"
    if any(gradient is None for args in case.args for step in args[1] for gradient in step):
        idle = "a .grad that is None counts as zeros, and the others still train"
        look = "a .grad that is None counts as zeros: does its rank take part in the sum, and in the update?"
    if case.args[0][4]:
        idle = "a second optimizer was made beside this one; what do the two share?"
    if case.args[0][5]:
        look = "a gradient's memory need not be in its parameter's order: are both read in that of flatten()?"
    elif case.args[0][2]:
        look = "is a transposed parameter read, reduced and written in one order, that of flatten()?"
    return Wanted(sketch_good(case), lambda: sketch_mistakes(case, idle), look, did="ends with")


def mixed(step: Tensor) -> Tensor:
    """The mean that comes out where each rank brings its own piece of its gradients, padded, to an all-reduce."""
    ranks, numel = step.shape
    each = -(-numel // ranks)
    pieces = torch.nn.functional.pad(step, (0, each * ranks - numel)).view(ranks, ranks, each)
    return pieces.diagonal().mean(1).repeat(ranks)[:numel]


def sketch_made(case: Case, seen: Observation) -> str | None:
    """What trains was made by `make`, for tensors of the parameters' dtype."""
    dtype = str(case.args[0][0][0].dtype)
    if any(record.value["strangers"] for record in seen.records):
        return "it trains with something that make() did not give: make(tensor) knows which optimizer"
    for rank, record in enumerate(seen.records):
        if others := sorted(set(record.value["made"]) - {dtype}):
            said = f"rank {rank} gives make() a tensor of {others[0]}, and the parameters are {dtype}"
            return f"{said}: keep the dtype"
    return None


def sketch_small(case: Case, seen: Observation) -> str | None:
    """No rank's optimizers keep more than an N-th of each tensor, rounded up."""
    sizes = [tensor.numel() for tensor in (*case.args[0][0], *(case.args[0][4] or [[]])[0])]
    if not any(record.value["made"] for record in seen.records):
        return "nobody calls make(), which knows what optimizer it is: do not write one by hand"
    due = 2 * sum(-(-numel // case.ranks) for numel in sizes)
    kept = [record.value["states"] for record in seen.records]
    rank = kept.index(max(kept))
    if kept[rank] <= due:
        return None
    said = f"rank {rank}'s optimizers keep {kept[rank]} numbers, and {due} at most are due, two for each of its N-th"
    if min(kept) >= 2 * sum(sizes):
        return f"{said}. They see every element on every rank: make one for a piece alone"
    return f"{said}: cut through tensors, as lesson 02 does"


sketch_gradients = never(
    "changed",
    "step() changes the .grad of rank {rank}'s parameters, which belong to the caller: reduce a tensor of your own",
)
sketch_places = never("moved", "rank {rank}'s parameters have moved to new memory: copy the numbers into the old")


def held_target(case: Case) -> int:
    """A piece, its gradient and two states, and a little for each tensor, if it is cut by itself."""
    tensors = case.args[0][0]
    pieces = sum(-(-tensor.numel() // case.ranks) for tensor in tensors)
    return tensors[0].itemsize * (4 * pieces + len(tensors))


EXERCISE = Exercise(
    "MendedOptimizer",
    sketch_cases,
    (
        Claim("make() gave what trains, for tensors of the parameters' dtype", sketch_made),
        Claim(
            "every rank ends with the parameters that one optimizer would have trained",
            of_part("first", right(sketch_wanted, tolerance)),
        ),
        Claim("no rank's optimizers keep more than one N-th", sketch_small),
        Claim("gradients stay as they were", sketch_gradients),
        Claim("parameters keep their memory", sketch_places),
        Claim("a second optimizer beside it goes its own way", begins_anew(sketch_again, tolerance, BESIDE)),
    ),
    run=run_optimizer,
    scores=(
        Score(
            "bytes held between steps, beside parameters and gradients",
            most("held"),
            held_target,
            "a piece, its gradient and its states stay; does a whole row outlive the step?",
        ),
    ),
    hints=(
        "Three tensors over two ranks: which of them does the broken one never give to anybody?",
        "Put the parameters end to end (torch.cat), and give each rank its piece of that row, whatever it cuts.",
        "In step: the row of gradients, reduced to the mean of your piece; update; gather; copy the row back into the "
        "parameters.",
    ),
    text=TEXT,
    answer=(MendedOptimizer,),
    points=3,
)
