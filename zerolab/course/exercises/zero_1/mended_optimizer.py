"""The sketch of lesson 03's exercises: an optimizer with four faults, mended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from random import Random
from typing import Any

import torch

from zerolab.course.exercises.wholes import tensors_of
from zerolab.course.exercises.zero_1.claims import adam, states_at_most, states_kept, tolerance
from zerolab.course.judge.case import Case, Observation
from zerolab.course.judge.claims import most, never
from zerolab.course.judge.draw import signed
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import alike
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

Write it, called as the sketch is, so that any list of one or more tensors works on any number of ranks, also fewer
tensors than ranks, and no rank's optimizers keep more than their N-th (of the row, or of each tensor, rounded up).
Make them with `make(tensor)` alone, for tensors of the list's dtype, which is the same for all. A `.grad` that is
`None` on a rank counts as zeros there. Leave each `.grad` as it was, and the tensors where they are in memory: copy
the new numbers into them.

The check draws shapes, also without elements or dimensions, transposed tensors, transposed gradients, and either
without the other, dtypes and missing gradients, takes two steps, and once makes two optimizers side by side. The
scoreboard looks at what a rank holds *between* steps beside parameters and gradients: a piece, its states, at most
its gradient, and no whole row. About sixteen lines.
"""


class MendedOptimizer:
    """Stage 1 for a list of tensors. `make(tensor)` gives a torch optimizer for one tensor."""

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


MISTAKES = r"""
every tensor as it began: copy the row back into the parameters
    parameter.copy_(part.view_as(parameter)) => pass
every tensor as it began: a second optimizer was made beside this one; what do the two share?
    self.optimizer = make => comm.optimizer = make
    self.optimizer.step() => self.comm.optimizer.step()
the tensors at the end of the list as they began: no rank owns them
    self.comm, self => each = len(parameters) // comm.size * comm.size\n        self.comm, self
    comm, parameters\n => comm, parameters[: each or None]\n
    in parameters]).tensor => in self.parameters]).tensor
the other ranks' pieces as they began: nobody sent them here
    self.comm.all_gather(self.shard, out=row) => row = torch.cat([p.flatten() for p in self.parameters])
    for parameter, => row.tensor_split(self.comm.size)[self.comm.rank].copy_(self.shard)\n        for parameter,
what the sum of the gradients gives: take their mean
    , average=True =>
what gradients give that are divided by N twice: average=True has divided them already
    average=True) => average=True) / self.comm.size
shards that were trained without those of the other ranks' gradients: reduce before you update
    self.comm.reduce_scatter(row, average=True) => row.tensor_split(self.comm.size)[self.comm.rank].clone()
what an optimizer gives that forgets its states after each step: make it once
    self.optimizer = make(self.shard) => self.make = make
    self.optimizer.step() => self.make(self.shard).step()
"""
Shape = tuple[int, ...]
STEPS = 2
WEIGHT_DECAY = 0.5
BOARD = [(48, 64), (64,), (15, 64), (7,)]


def sketch_case(
    rng: Random,
    ranks: int,
    shapes: Sequence[Shape],
    dtype: torch.dtype = torch.float32,
    turned: Sequence[int] = (),
    bent: Sequence[int] = (),
    lacks: Sequence[tuple[int, int, int]] = (),
    count: int = 1,
    **where: Any,
) -> Case:
    """So many optimizers side by side. `turned` are the numbers of tensors whose memory is transposed, `bent` those of
    such gradients; `lacks` are (rank, number, step) from where on there is no gradient."""

    def drawn():
        return [signed(rng, torch.Size(shape).numel(), dtype).view(shape) for shape in shapes]

    tensors = drawn()
    gradients = [[drawn() for _ in range(STEPS)] for _ in range(ranks)]
    for rank, number, since in lacks:
        for step in gradients[rank][since:]:
            step[number] = None
    transposed = {"tensors": turned, "gradients": bent} if turned or bent else {}
    return Case([(tensors, own, transposed, count) for own in gradients], **where)


def sketch_cases(rng: Random) -> list[Case]:
    def drawn(count: int) -> list[Shape]:
        return [(rng.randint(1, 9),) for _ in range(count)]

    def odd(count: int) -> list[Shape]:
        """A matrix or two, one without elements and one without dimensions among them."""
        shapes: list[Shape] = [(rng.randint(2, 4), rng.randint(2, 4)) for _ in range(count - 2)]
        return [*shapes, (0, rng.randint(1, 3)), ()]

    # Each rank lacks the gradient of a tensor of which it has a piece, however they are cut; and of the last tensor
    # nobody has one in the second step.
    lacks = [*((rank, rank, 0) for rank in range(3)), *((rank, 3, 1) for rank in range(3))]
    return [
        sketch_case(rng, 2, [(4,), (4,)]),
        *(sketch_case(rng, ranks, drawn(count)) for ranks, count in ((2, 3), (3, 4), (4, 3))),
        sketch_case(rng, 1, drawn(2), lacks=[(0, rng.randrange(2), 0)]),
        sketch_case(rng, 4, [(1,)]),
        sketch_case(rng, 2, odd(4), turned=[0], bent=[0]),
        sketch_case(rng, 3, odd(4), torch.float64, turned=[1], bent=[1]),
        sketch_case(rng, 2, odd(5), torch.bfloat16),
        sketch_case(rng, 2, [(3, 2), (2, 4)], turned=[0], bent=[1]),
        sketch_case(rng, 3, [(rng.randint(4, 9),)] * 3 + [(rng.randint(1, 3),)], lacks=lacks),
        # What is kept by the sizes shows, from call to call, and from one optimizer to the other.
        sketch_case(rng, 2, [(4,), (4,)], count=2),
        sketch_case(rng, 2, drawn(3), world="processes"),
        sketch_case(rng, 4, BOARD, board=True),
    ]


def run_optimizer(
    fn: Any, comm: Any, tensors: list[Any], gradients: list[Any], transposed: dict[str, Any], optimizers: int
) -> dict[str, Any]:
    """Take steps with so many optimizers, each for tensors of its own: what becomes of these, what optimizers keep, and
    the bytes that are held between steps beside parameters and gradients."""
    made, dtypes, changed, held = [], set(), False, 0

    def make(tensor):
        dtypes.add(str(tensor.dtype))
        made.append(adam(tensor, WEIGHT_DECAY))
        return made[-1]

    lists = [
        [torch.nn.Parameter(one) for one in placed([times * one for one in tensors], transposed.get("tensors", ()))]
        for times in range(1, 1 + optimizers)
    ]
    own = [[placed(step, transposed.get("gradients", ())) for step in gradients] for _ in lists]
    everything = [parameter for parameters in lists for parameter in parameters]
    given = [*tensors_of([everything, own, gradients, tensors])]
    places = [(parameter.data_ptr(), parameter.stride()) for parameter in everything]
    # Tracking takes time, so it is done on the scoreboard alone.
    board = sum(parameter.numel() for parameter in everything) > 1000
    tracking = Tracker(lambda: {"given": given}, samples=False) if board else nullcontext()
    with states_kept(made) as kept, tracking as tracker:
        stepped = [fn(comm, parameters, make) for parameters in lists]
        for step, due in enumerate(gradients):
            for optimizer, parameters, steps in zip(stepped, lists, own, strict=True):
                for parameter, gradient in zip(parameters, steps[step], strict=True):
                    parameter.grad = gradient
                optimizer.step()
                changed = changed or not alike([parameter.grad for parameter in parameters], due)
                now = tracker.now() if tracker else {"given": 0}
                held = max(held, sum(now.values()) - now["given"])
    return {
        "tensors": [parameter.detach() for parameter in everything],
        "made": sorted(dtypes),
        "changed": changed,
        "moved": places != [(parameter.data_ptr(), parameter.stride()) for parameter in everything],
        "held": held,
        **kept,
    }


def placed(tensors: Sequence[Any], turned: Sequence[int]) -> list[Any]:
    """Tensors with memory of their own, some transposed."""
    copies = [one if one is None else one.clone() for one in tensors]
    return [one.t().contiguous().t() if at in turned and one is not None else one for at, one in enumerate(copies)]


def sketch_look(case: Case) -> str:
    _, gradients, transposed, _ = case.args[0]
    if any(gradient is None for step in gradients for gradient in step):
        return "a .grad that is None counts as zeros: does its rank take part in the sum, and in the update?"
    if transposed:
        return "is what is transposed, a tensor or its gradient, read and written in one order, that of flatten()?"
    return "take a step on two ranks by hand, and print the pieces and their gradients"


def sketch_made(case: Case, seen: Observation) -> str | None:
    """What trains was made by `make`, for tensors of the list's dtype."""
    if any(record.value["foreign"] for record in seen.records):
        return "it trains with something that make() did not give: make(tensor) knows which optimizer"
    tensors = case.args[0][0]
    due = str(tensors[0].dtype)
    made = {dtype for record in seen.records for dtype in record.value["made"]}
    if others := made - {due}:
        return f"make() gets a tensor of {others.pop()}, and the list's are {due}: keep the dtype"
    if not made and case.ranks <= len(tensors):
        return "nobody calls make(), which knows what optimizer it is: do not write one by hand"
    return None


def sketch_share(case: Case, rank: int) -> int:
    """An N-th of each tensor, rounded up."""
    return case.args[0][-1] * sum(-(-tensor.numel() // case.ranks) for tensor in case.args[0][0])


EXERCISE = Exercise(
    "MendedOptimizer",
    sketch_cases,
    (
        Claim("make() gave what trains, for tensors of the list's dtype", sketch_made),
        Claim(
            "every rank ends with the tensors that one optimizer would have trained",
            Gives("tensors", sketch_look, did="ends with", tolerance=tolerance),
        ),
        Claim(
            "no rank's optimizers keep more than one N-th",
            states_at_most(sketch_share, "cut through tensors, as lesson 02 does, and call make() for a piece alone"),
        ),
        Claim(
            "gradients stay as they were",
            never("changed", "step() changes the .grad of rank {rank}, which is the caller's: reduce one of your own"),
        ),
        Claim(
            "tensors keep their memory",
            never("moved", "rank {rank}'s tensors have moved to new memory: copy the numbers into the old"),
        ),
    ),
    run=run_optimizer,
    scores=(
        Score(
            "bytes held between steps, beside parameters and gradients",
            most("held"),
            None,
            "a piece, its gradient and its states stay; does a whole row outlive the step?",
            # The gradient of a rank's 1026 elements, and, of tensors that are cut each by itself, a count of steps.
            slack=4 * (1026 + len(BOARD) - 1),
        ),
    ),
    hints=(
        "Three tensors over two ranks: which of them does the broken one never give to anybody?",
        "Put the tensors end to end (torch.cat), and give each rank its piece of that row, whatever it cuts.",
        "In step: the row of gradients, reduced to the mean of your piece; update; gather; copy the row back into the "
        "tensors.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(MendedOptimizer,),
    points=3,
)
