"""Exercise of lesson 03: whole tensors shared out, and what that costs."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives, you_say

TEXT = """
Whole tensors

The lesson asked torch's classes how full a rank gets. Say yourself who owns what: share out whole tensors, the
largest first (of several of equal size, the first in the list), each to the rank that has least so far (of several,
the first). `numels` are the tensors' sizes, in any order; leave the list as it is.

Return a list with the owner of each tensor, in the order of `numels`, and how many bytes of Adam's states the fullest
rank keeps: two fp32 numbers for each element. The check draws sizes, some of them equal, zero or of billions, and
tensors fewer than ranks, or none. About six lines.
"""


def whole_tensors(numels: list[int], ranks: int) -> tuple[list[int], int]:
    """The owner of each tensor, and the bytes of Adam's states on the fullest rank."""
    ### BEGIN SOLUTION
    owners, loads = [0] * len(numels), [0] * ranks
    for number in sorted(range(len(numels)), key=lambda number: -numels[number]):
        owners[number] = loads.index(min(loads))
        loads[owners[number]] += numels[number]
    return owners, 8 * max(loads)
    ### END SOLUTION


MISTAKES = r"""
You took them as they came; the largest goes first
    key=lambda number: -numels[number] => key=None
You began with the smallest; the largest goes first
    -numels => numels
You dealt them out in turn; each goes to the rank that has least
    loads.index(min(loads)) => number % ranks
That is right, but in the order of sizes; item i is the owner of tensor i of the list that you were given
    return owners => return [owners[n] for n in sorted(range(len(numels)), key=lambda n: -numels[n])]
Of tensors of equal size, the one that comes first in the list goes first
    -numels[number] => (-numels[number], -number)
numels.index finds the first of two tensors of equal size, and both need an owner
    owners[number] = loads => number = numels.index(numels[number])\n        owners[number] = loads
Of several ranks that have least, the first gets the tensor
    loads.index(min(loads)) => max(range(ranks), key=lambda rank: (-loads[rank], rank))
You count elements; Adam keeps two fp32 numbers for each
    8 * => 1 *
You count one number for each element; Adam keeps two
    8 * => 4 *
You count parameters and gradients, too; only Adam's states are asked for
    8 * => 16 *
That is rank 0; memory has to suffice for the fullest
    max(loads) => loads[0]
A float of 32 bits counts no odd numbers above 2**24; add whole numbers
    return => import torch\n    loads = [int(torch.tensor(load, dtype=torch.float32)) for load in loads]\n    return
"""


def whole_cases(rng: Random) -> list[Case]:
    # On the first two each mistake that we know of gives another answer, whatever the unit.
    unit = rng.randint(1, 9)
    telling = {3: (22, 5, 45, 23, 53, 20, 31, 45), 4: (31, 42, 25, 51, 14, 7, 54, 2, 58, 54)}
    drawn = [([unit * numel for numel in numels], ranks) for ranks, numels in telling.items()]
    drawn += [([rng.randint(0, 60) for _ in range(ranks + rng.randint(0, 6))], ranks) for ranks in (2, 3, 8, 1)]
    # On two of them, another way to share comes to less. Of the others, some ranks get nothing, and a tensor without
    # elements leaves its rank the first of those that have least.
    drawn += [([100, 3, 2, 1], 4), ([3, 3, 2, 2, 2], 2), ([7, 0, 7], 5), ([0, 8, 0, 1, 1], 3), ([], 2)]
    # Of real models: floats of 32 bits count no odd numbers here, and whole numbers of 32 bits end before.
    drawn += [([2**24 + 1], 1), ([2**24 + 1, 2**33 + 1, 5, 2**33, 2**24], 2)]
    # From each to the next ranks or sizes differ, of which sum, beginning or end stay: what is kept by the rest shows.
    drawn += [([5, 3, 4, 1], 2), ([5, 3, 4, 1], 3), ([3, 5, 1, 4], 3), ([9, 5, 1, 4], 3), ([9, 5, 1, 8], 3)]
    return [Case([args]) for args in drawn]


EXERCISE = Exercise(
    "whole_tensors",
    whole_cases,
    (
        Claim(
            "it says who owns which tensor, and what the fullest rank keeps",
            Gives(
                look="Write down how much each rank has after each tensor, the largest first, and count two numbers of "
                "Adam's for each element of the fullest",
                say=you_say,
            ),
        ),
    ),
    run=alone,
    hints=(
        "Sort the numbers of the tensors, not their sizes: sorted(range(len(numels)), key=...).",
        "Keep a list of what each rank has; the next tensor goes to the one that has least.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(whole_tensors,),
    points=1,
)
