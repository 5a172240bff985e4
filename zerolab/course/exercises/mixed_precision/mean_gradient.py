"""The exercise of lesson 06 on sums: 16-bit gradients of several micro-batches and ranks, added up in another dtype."""

from __future__ import annotations

from random import Random

import torch

from zerolab.course.judge.case import DTYPES, Case
from zerolab.course.judge.claims import calls_are, most_held, most_sent
from zerolab.course.judge.draw import signed, sizes
from zerolab.course.judge.exercise import Claim, Exercise, Score
from zerolab.course.judge.model import Gives

TEXT = """
Sums

`gradients` is an iterator over the bf16 gradients of `micro_batches` micro-batches, which come one by one, as from
backward; each is yours when it comes. Return this rank's shard of their mean over micro-batches *and* ranks.

- Add them up in the dtype `add`, over micro-batches and over ranks: the sum travels in `add`, too. Reduce once, by a
  `reduce_scatter`: nobody needs all of the mean.
- Return the shard in the dtype `keep`, converted at the very end: fp16, say, may have the mean, and not the sum.

The scoreboard counts, on 4 ranks, what you send and what you hold: one sum, and in bf16 the gradient at hand and the
next. When you have returned, nothing is left but the shard.

The check draws 1 to 5 ranks, 1 to 8 micro-batches, dtypes to add in and to keep, gradients of which a sum in bf16
loses most, and sums beyond fp16 whose mean fp16 has. About five lines.
"""


def mean_gradient(comm, gradients, micro_batches: int, add: torch.dtype, keep: torch.dtype) -> torch.Tensor:
    """This rank's shard of the mean gradient, in the dtype `keep`."""
    ### BEGIN SOLUTION
    total = next(gradients).to(add)
    for gradient in gradients:
        total += gradient
    mean = comm.reduce_scatter(total, average=True) / micro_batches
    return mean.to(keep)
    ### END SOLUTION


MISTAKES = r"""
the sum over the micro-batches: take the mean over them, too
    / micro_batches =>
the sum over the ranks: take the mean over them, too
    , average=True =>
the sum over micro-batches and ranks: take the mean over both
    , average=True) / micro_batches => )
a mean that is divided by N twice: average=True has divided it already
    / micro_batches => / micro_batches / comm.size
the mean of its own gradients: nobody else's are in
    comm.reduce_scatter(total, average=True) => total.tensor_split(comm.size)[comm.rank]
a mean without the first micro-batch: an iterator gives each gradient once
    .to(add) => .to(add) * 0
what a sum in bf16 gives: micro-batches that come late are rounded away
    .to(add) =>
    (total, => (total.to(add),
a mean that was rounded to bf16 on its way: `keep` says what to keep it in
    mean.to(keep) => mean.bfloat16().to(keep)
inf: fp16 has this mean, and not the sum: when is it converted, before or after the last division?
    average=True) => average=True).to(keep)
"""
WIDE, NARROW = "float32", "bfloat16"
MANY = 8


def close(dtype: torch.dtype) -> float:
    """How far off a mean may be, by what it is kept in: bf16 rounds it once, by up to 2**-9 of it."""
    return 1e-5 if dtype is torch.float32 else 2.0**-7


def one_case(rng: Random, ranks, numel, add, keep, batches, kind="", **where) -> Case:
    """Of an "uneven" kind, the first gradient is so large that bf16 loses most of those after it; of a "large" one fp16
    has all gradients, and no sum of them."""
    signs = signed(rng, numel).sign()

    def gradient(at):
        if not kind:
            return signed(rng, numel, torch.bfloat16, most=3)
        if kind == "large":
            row = [float(rng.randint(20_000, 25_000)) for _ in range(numel)]
        elif at:
            # bf16 keeps every fourth of them.
            row = [rng.randint(9, 15) / 16 if at % 4 else 2.0 for _ in range(numel)]
        else:
            row = [rng.randint(130, 240) * 2.0 for _ in range(numel)]
        return (torch.tensor(row) * signs).bfloat16()

    args = [([gradient(at) for at in range(batches)], add, keep) for _ in range(ranks)]
    return Case(args, **where)


def cases(rng: Random) -> list[Case]:
    return [
        one_case(rng, 4, 1024, WIDE, NARROW, 6, board=True),
        one_case(rng, 2, 40, WIDE, WIDE, MANY, "uneven"),
        one_case(rng, 2, 40, WIDE, WIDE, MANY - 1, "uneven"),
        one_case(rng, 2, 7, NARROW, NARROW, 3),
        # Divided by 2 and by 4, which bf16 does exactly.
        one_case(rng, 2, 10, NARROW, WIDE, 4),
        one_case(rng, 2, 5, WIDE, NARROW, 1),
        one_case(rng, 2, 6, WIDE, "float16", MANY, "large"),
        one_case(rng, 5, 12, WIDE, NARROW, 2),
        *(
            one_case(rng, ranks, numel, WIDE, rng.choice((WIDE, NARROW)), MANY, "uneven", world=world)
            for ranks, numel, world in sizes(rng)
        ),
    ]


def run_sums(fn, comm, gradients, add, keep):
    # One by one, as from backward: each belongs to whoever takes it.
    return fn(comm, (gradient.clone() for gradient in gradients), len(gradients), DTYPES[add], DTYPES[keep])


EXERCISE = Exercise(
    "mean_gradient",
    cases,
    (
        Claim(
            "every rank returns its shard of the mean, in the dtype to keep",
            Gives(
                look="add up two micro-batches by hand, and print the dtype of the sum",
                tolerance=close,
                dtype="`add` is for the sum, `keep` for what comes of it",
            ),
        ),
        Claim(
            "gradients travel in the dtype in which they are added",
            Gives(
                lambda record: record.dtypes,
                "a ring adds up in the dtype that it sends, so the sum travels in `add`",
                "sends",
            ),
        ),
        Claim(
            "one reduce_scatter, after the last micro-batch",
            calls_are(
                lambda case, rank: [("reduce_scatter", case.args[0][0][0].numel())],
                "add up what is yours first, then reduce the sum, once",
            ),
        ),
    ),
    scores=(
        Score("bytes a rank sends", most_sent, None, "reduce once, in `add`"),
        Score(
            "bytes held at the worst moment",
            most_held,
            # While gradients come: the sum, the one at hand and the next; then the sum, the last, and two shards more.
            None,
            "are there two sums at once, a list of gradients, or a wide copy of one? `+=` converts by itself",
            slack=64,
        ),
    ),
    hints=(
        "The first gradient, converted to `add`, is a sum to begin with; next(gradients) gives it.",
        "`sum += gradient` keeps the dtype of the sum.",
        "Convert to `keep` at the very end, when everything has been added and divided.",
    ),
    run=run_sums,
    memory=True,
    mistakes=MISTAKES,
    without=frozenset({"dtype"}),
    text=TEXT,
    answer=(mean_gradient,),
    points=2,
)
