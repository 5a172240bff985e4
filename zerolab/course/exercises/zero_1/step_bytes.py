"""Exercise of lesson 03: what a step sends."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives

TEXT = """
The cost

How many bytes does a rank send in one step? `numel` fp32 parameters, which the ranks divide, and one of three ways:
`"stage 0"`, `"stage 1, all-reduce"` or `"stage 1, reduce-scatter"`. The check draws models small and large, on one
rank and on dozens. About three lines.
"""


def step_bytes(numel: int, ranks: int, way: str) -> int:
    """Bytes that each rank puts on the wire in one step."""
    ### BEGIN SOLUTION
    halves = {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way]
    return halves * 4 * numel // ranks * (ranks - 1)
    ### END SOLUTION


MISTAKES = r"""
You counted elements; in fp32 each has 4 bytes
    4 * numel => numel
You took 2 bytes for a number; in fp32 each has 4
    4 * numel => 2 * numel
A ring of N ranks sends (N-1)/N of a tensor, not all of it
     // ranks * (ranks - 1) =>
That is what all ranks together send; one rank is asked for
    // ranks * => *
One rank has nobody to send to
    (ranks - 1) => max(ranks - 1, 1)
A float lies just beside the whole number that it stands for: divide whole numbers with //
    4 * numel // ranks => 4 * int(numel * (1 / ranks))
Large numbers go through a float of 32 bits, which lies just beside the whole number: divide whole numbers with //
    return => import torch\n    numel = ranks * int(torch.tensor(numel / ranks, dtype=torch.float32))\n    return
"""


def cost_cases(rng: Random) -> list[Case]:
    # An odd number of half rings comes first: half of them is no whole number.
    ways = ("stage 1, all-reduce", "stage 0", "stage 1, reduce-scatter")
    drawn = [(ranks * rng.randint(2, 3000), ranks, way) for ranks in (5, 4, 3, 2, 1) for way in ways]
    # Where 1 / ranks is cut to a float, products with it fall short of whole numbers; and numbers of 32 bits end here.
    # One thing differs from each to the next: what an answer keeps by the others shows.
    first, *others = ways
    drawn += [(1519, 49, first), *((147, 49, way) for way in ways), (147, 3, others[-1])]
    drawn += [(187, 11, first), (3 * (2**33 + 1), 3, first), *((1519, 49, way) for way in others)]
    return [Case([args]) for args in drawn]


EXERCISE = Exercise(
    "step_bytes",
    cost_cases,
    (
        Claim(
            "what you predict is what the meter counts",
            Gives(
                look="An all-reduce is two half rings, a reduce-scatter or an all-gather one",
                say=lambda args, got, want: f"you say {got} bytes, and the meter counts {want}",
            ),
        ),
    ),
    run=alone,
    hints=(
        "A reduce-scatter or an all-gather sends (N-1)/N of the tensor, an all-reduce twice that.",
        'Write down the collectives of one step of each way; the lesson\'s "Three tensors or two" measured them.',
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(step_bytes,),
    points=1,
)
