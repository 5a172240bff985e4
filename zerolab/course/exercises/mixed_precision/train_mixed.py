"""The exercise of lesson 06 on main parameters: fp32 for the own shard, bf16 for all that is computed with or sent.

The numbers are such that fp32 has them exactly: starts are whole multiples of 2**-17, gradients of UNIT, and the rate,
which has more bits than bf16, brings those to 2**-22. So the order of additions does not matter, and what differs at
all has been rounded.
"""

from __future__ import annotations

from random import Random

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from zerolab.course.exercises.wholes import tensors_of
from zerolab.course.judge.case import Case, Record, decode, encode
from zerolab.course.judge.claims import most, most_held, most_sent, number_of_calls
from zerolab.course.judge.draw import signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import short

TEXT = """
Main parameters

Stage 1 in mixed precision. `start` holds all parameters in fp32 and is the same on every rank; leave it as it is. You
keep

- `params`: all parameters in bf16, the casts of the main parameters,
- `main`: the main parameters of your own shard, in fp32, cut from `start` as it is.

In each of `steps` steps, call `backward(params)` once. It gives this rank's own gradient, in bf16; it is yours. Take
the *mean* over the ranks, in bf16, and update `main` by `rate * mean`, subtracted and computed in fp32. Then all
ranks get the new parameters: the casts of all shards. The next `backward` must see them. Return `(params, main)`.
About seven lines.

On 4 ranks, the scoreboard wants no more sent than a reduce-scatter and an all-gather a step send, with two bytes an
element. In fp32 it wants nothing that is as long as the model, and in 16 bits at most three such rows at a time, say
a gradient and the parameters before and after.

The check draws 1 to 5 ranks, lengths that N does not divide or that leave a shard empty, starts with bits that bf16
has not, and for each rank and step another gradient, many of them beyond fp16.
"""


def train_mixed(comm, start: torch.Tensor, backward, steps: int, rate: float) -> tuple[torch.Tensor, torch.Tensor]:
    """All parameters in bf16, and this rank's main parameters in fp32, after all steps."""
    ### BEGIN SOLUTION
    params = start.bfloat16()
    main = start.tensor_split(comm.size)[comm.rank].clone()
    for _ in range(steps):
        mean = comm.reduce_scatter(backward(params), average=True)
        main -= rate * mean.float()
        comm.all_gather(main.bfloat16(), out=params)
    return params, main
    ### END SOLUTION


MISTAKES = r"""
main parameters that began as the bf16 ones: what start has in its last bits belongs to them
    start.tensor_split(comm.size)[comm.rank].clone() => params.tensor_split(comm.size)[comm.rank].float()
what an update of the bf16 parameters gives: small steps are rounded away, and nobody collects them
    start.tensor_split(comm.size)[comm.rank].clone() => params.tensor_split(comm.size)[comm.rank]
    mean.float() => mean
    main.bfloat16() => main
    return params, main => return params, main.float()
what rate * mean gives in bf16: convert the mean to fp32 first
    mean.float() => mean
main parameters that were made from the bf16 ones in a step: those have lost the last bits
    main -= => main = params.tensor_split(comm.size)[comm.rank].float()\n        main -=
what the sum of the gradients gives: take their mean
    , average=True =>
what gradients give that are divided by N twice: average=True has divided them already
    rate * => rate / comm.size *
shards that were trained without the other ranks' gradients: reduce before you update
    comm.reduce_scatter(backward(params), average=True) => backward(params).tensor_split(comm.size)[comm.rank]
parameters in which its own shard alone is new: hand the shards around
    comm.all_gather(main.bfloat16(), out=params) => params.tensor_split(comm.size)[comm.rank].copy_(main)
the parameters as they began: what becomes of them after an update?
    comm.all_gather(main.bfloat16(), out=params) => pass
"""
STEPS, BOARD_STEPS = 4, 6
BOARD_NUMEL = 1024
EXACT = 1e-8
UNIT = 2.0**12
"""Most multiples of it that are drawn are beyond fp16."""


def one_case(rng: Random, ranks: int, numel: int, world: str = "lockstep", board: bool = False) -> Case:
    # From 1 to 2 in size, with bits that bf16 does not have.
    sizes = [1 + rng.randrange(128) / 128 + rng.randrange(1, 100, 2) * 2.0**-16 for _ in range(numel)]
    start = torch.tensor([rng.choice((-1, 1)) * size for size in sizes])
    rate = rng.choice((259, 275, 301)) * 2.0**-34
    # Multiples of 12 have their mean over 1 to 4 ranks in bf16 exactly, those of 20 over 5.
    unit = UNIT * (20 if ranks == 5 else 12)

    def gradients():
        return [(unit * signed(rng, numel)).bfloat16() for _ in range(BOARD_STEPS if board else STEPS)]

    return Case([(start, gradients(), rate) for _ in range(ranks)], world, board=board)


def cases(rng: Random) -> list[Case]:
    # The first has elements enough to show every mistake. Two are of the same sizes: what one leaves shows in the next.
    drawn = [one_case(rng, 4, BOARD_NUMEL, board=True), one_case(rng, 2, 40), one_case(rng, 2, 40)]
    drawn += [one_case(rng, ranks, numel, world) for ranks, numel, world in sizes(rng)]
    return [*drawn, one_case(rng, 5, rng.randint(11, 14))]


class Longest(TorchDispatchMode):
    """Notes the most elements of an fp32 tensor that an answer has made; what it was given does not count."""

    def __init__(self, given):
        super().__init__()
        self.given = given.untyped_storage().data_ptr()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in tensors_of(made):
            storage = tensor.untyped_storage()
            if tensor.dtype == torch.float32 and storage.data_ptr() != self.given:
                self.numel = max(self.numel, storage.nbytes() // 4)
        return made


def run_training(fn, comm, start, gradients, rate):
    """Hand out a gradient for each call of backward, and note the parameters that it sees, as plain data: a tensor
    would count as held."""
    seen = []

    def backward(params):
        if len(seen) == len(gradients):
            raise RuntimeError(f"backward is called more often than the {len(gradients)} steps")
        seen.append(encode(params))
        return gradients[len(seen) - 1].clone()

    with Longest(start) as longest:
        value = fn(comm, start, backward, len(gradients), rate)
    return {"value": value, "seen": seen, "longest": longest.numel}


def rows(record: Record):
    """What backward saw, call by call."""
    return [decode(row) for row in record.value["seen"]]


def kinds(record: Record):
    return [f"{short(row)} and {getattr(row, 'dtype', 'no dtype')}" for row in rows(record)]


EXERCISE = Exercise(
    "train_mixed",
    cases,
    (
        Claim(
            "backward is called once a step, with all parameters in bf16",
            Gives(kinds, "it computes with the whole model, in 16 bits, and once a step", "gives backward"),
        ),
        Claim(
            "every rank returns all parameters in bf16 and its own shard of main parameters in fp32",
            Gives(
                "value",
                "train one step on two ranks by hand",
                tolerance=EXACT,
                dtype="first all parameters, in bf16, then your own main parameters, in fp32",
            ),
        ),
        Claim(
            "each backward sees the parameters of the step before",
            Gives(rows, "gather after every update", "hands backward"),
        ),
    ),
    scores=(
        Score("calls of collectives", number_of_calls, None, "two calls a step are enough"),
        Score(
            f"bytes a rank sends in {BOARD_STEPS} steps",
            most_sent,
            None,
            "what travels in fp32, or as a whole? Two halves of an all-reduce, two bytes an element",
        ),
        Score(
            "bytes held at the worst moment",
            most_held,
            None,
            "three rows of 16 bits are enough: which gradients or parameters are kept for too long?",
            # A third row of two bytes; of a shard (a quarter) main parameters, means, products and casts of two steps.
            slack=2 * BOARD_NUMEL + 16 * BOARD_NUMEL // 4 + 64,
        ),
        Score(
            "elements of the longest fp32 tensor",
            most("longest"),
            lambda case: BOARD_NUMEL - 1,
            "what is there in fp32 for the whole model? Of main parameters you need your own shard alone",
        ),
    ),
    hints=(
        "Two copies: all parameters in bf16, and of your own shard an fp32 one, cut from `start` before it is cast.",
        "A step: backward, the mean gradient of your shard, an update in fp32, its cast, the casts end to end.",
        "comm.all_gather(shard, out=params) writes over the parameters; the shard must have their dtype.",
    ),
    run=run_training,
    memory=True,
    mistakes=MISTAKES,
    text=TEXT,
    answer=(train_mixed,),
    points=3,
)
