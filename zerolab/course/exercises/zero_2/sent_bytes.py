"""Exercise of lesson 04: what accumulation costs."""

from __future__ import annotations

from random import Random

from zerolab.collectives import wire_bytes
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import amount

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


def cost_cases(rng: Random) -> list[Case]:
    cases = []
    for ranks in (1, 2, 3, 4):
        for each in (True, False):
            numel, count = ranks * rng.randint(2, 3000), rng.choice((4, 5, 6, 8))
            what = f"{plural(numel, 'parameter')}, {plural(ranks, 'rank')}, {count} micro-batches, each={each}"
            cases.append(Case([(numel, ranks, count, each)], about=what))
    # 24 times an odd number near 2**56 is no float.
    numel = 3 * rng.randrange(2**56 + 1, 2**57, 2)
    return [*cases, Case([(numel, 3, 2, True)], about=f"{numel} parameters, 3 ranks, 2 micro-batches, each=True")]


def cost_right(case: Case, seen: Observation) -> str | None:
    numel, ranks, count, each = case.args[0]
    half = wire_bytes("all_gather", numel, 4, ranks, 0)
    got, want = seen.records[0].value, (count + 1 if each else 2) * half

    def mistakes() -> dict[str, bool]:
        return {
            "Nearly: a fraction in between is rounded, so stay with whole numbers, and divide with //": (
                numel > 10**15 and abs(got - want) < 10**6
            ),
            "One rank has nobody to send to": ranks == 1,
            "You counted elements; in fp32 each has 4 bytes": got * 4 == want,
            "A ring of N ranks sends (N-1)/N of a tensor, not all of it": got * (ranks - 1) == want * ranks,
            "That is what reducing once costs; here each micro-batch pays": each and got == 2 * half,
            "The updated parameters have to travel, too": got == (count if each else 1) * half,
            "Parameters change once a step, not once a micro-batch": got == 2 * count * half,
            "each=False adds up first, and reduces once": got == (count + 1) * half,
        }

    return amount(got, want, mistakes)


EXERCISE = Exercise(
    "sent_bytes",
    cost_cases,
    (Claim("what you predict is what the meter counts", cost_right),),
    run=alone,
    hints=(
        "Which collectives run in one step, and how often each? Section 3 of the lesson measured them.",
        "A reduce-scatter or an all-gather sends (N-1)/N of the tensor; parameters are gathered once a step.",
    ),
    text=TEXT,
    answer=(sent_bytes,),
    points=1,
)
