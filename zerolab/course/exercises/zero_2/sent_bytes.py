"""Exercise of lesson 04: what accumulation costs."""

from __future__ import annotations

from random import Random

from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import short

TEXT = """
The cost

How many bytes does a rank send in one step of stage 2, until every rank has the updated parameters? `numel` fp32
parameters, which the ranks divide, and gradients of `micro_batches` micro-batches, reduced `each` time or, with
`each=False`, once. About two lines.
"""


def sent_bytes(numel: int, ranks: int, micro_batches: int, each: bool) -> int:
    """Bytes that each rank puts on the wire in one step."""
    ### BEGIN SOLUTION
    rings = (micro_batches if each else 1) + 1
    return rings * 4 * numel // ranks * (ranks - 1)
    ### END SOLUTION


MISTAKES = r"""
You counted elements; in fp32 each has 4 bytes
    rings * 4 * => rings *
One rank has nobody to send to
    // ranks * (ranks - 1) =>
A ring of N ranks sends (N-1)/N of a tensor, not all of it
    // ranks * (ranks - 1) => if ranks > 1 else 0
That is what reducing once costs; here each micro-batch pays
    (micro_batches if each else 1) => 1
The updated parameters have to travel, too
    (micro_batches if each else 1) + 1 => micro_batches if each else 1
Parameters change once a step, not once a micro-batch
    (micro_batches if each else 1) + 1 => 2 * (micro_batches if each else 1)
each=False adds up first, and reduces once
    (micro_batches if each else 1) => micro_batches
A fraction in between is rounded: stay with whole numbers, and divide with //
    rings * 4 * numel // ranks * (ranks - 1) => int(rings * 4 * numel * (ranks - 1) / ranks)
"""


def cost_cases(rng: Random) -> list[Case]:
    given = [
        (ranks * rng.randint(2, 3000), ranks, rng.choice((4, 5, 6, 8)), each)
        for ranks in (1, 2, 3, 4)
        for each in (True, False)
    ]
    # 24 times an odd number near 2**56 is no float.
    return [Case([args]) for args in (*given, (3 * rng.randrange(2**56 + 1, 2**57, 2), 3, 2, True))]


EXERCISE = Exercise(
    "sent_bytes",
    cost_cases,
    (
        Claim(
            "what you predict is what the meter counts",
            Gives(say=lambda args, got, want: f"you say {short(got)} bytes, and the meter counts {want}"),
        ),
    ),
    run=alone,
    hints=(
        "Which collectives run in one step, and how often each? Section 3 of the lesson measured them.",
        "A reduce-scatter or an all-gather sends (N-1)/N of the tensor; parameters are gathered once a step.",
    ),
    mistakes=MISTAKES,
    text=TEXT,
    answer=(sent_bytes,),
    points=1,
)
