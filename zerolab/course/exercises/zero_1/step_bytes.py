"""Exercise of lesson 03: what a step sends."""

from __future__ import annotations

from random import Random

from zerolab.collectives import wire_bytes
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import amount

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


HALVES = {"stage 1, all-reduce": 3, "stage 0": 2, "stage 1, reduce-scatter": 2}
"""Half rings in a step of each way."""


def cost_cases(rng: Random) -> list[Case]:
    # An odd number of half rings comes first: half of them is no whole number.
    cases = []
    for ranks in (5, 4, 3, 2, 1):
        for way in HALVES:
            numel = ranks * rng.randint(2, 3000)
            cases.append(cost_case(numel, ranks, way))
    # Where 1 / ranks is cut to a float, products with it fall short of whole numbers; and numbers of 32 bits end here.
    # One thing differs from each to the next: what an answer keeps by the others shows.
    first, *others = HALVES
    fixed = [(1519, 49, first), *((147, 49, way) for way in HALVES), (147, 3, others[-1])]
    fixed += [(187, 11, first), (3 * (2**33 + 1), 3, first), *((1519, 49, way) for way in others)]
    return [*cases, *(cost_case(*args) for args in fixed)]


def cost_case(numel: int, ranks: int, way: str) -> Case:
    return Case([(numel, ranks, way)], about=f"{numel:,} parameters, {plural(ranks, 'rank')}, {way}")


def cost_right(case: Case, seen: Observation) -> str | None:
    numel, ranks, way = case.args[0]
    half = wire_bytes("all_gather", numel, 4, ranks, 0)
    got, want = seen.records[0].value, HALVES[way] * half

    def mistakes() -> dict[str, bool]:
        halves = plural(int(got // half), "half ring") if half else ""
        beside = max(12 * (ranks - 1) * (ranks > 8), 1e-6 * want)
        return {
            "One rank has nobody to send to": ranks == 1,
            "You counted elements; in fp32 each has 4 bytes": got * 4 == want,
            **{
                f"You took {itemsize} bytes for a number; in fp32 each has 4": got * 4 == want * itemsize
                for itemsize in (2, 8)
                if way == "stage 1, all-reduce"
            },
            "A ring of N ranks sends (N-1)/N of a tensor, not all of it": got * (ranks - 1) == want * ranks,
            "That is what all ranks together send; one rank is asked for": got == want * ranks,
            "A float lies just beside the whole number that it stands for: divide whole numbers with //": (
                abs(want - got) <= beside
            ),
            f"You count {halves}: an all-reduce is two, a reduce-scatter or an all-gather one": (
                half > 0 and got % half == 0
            ),
        }

    return amount(got, want, mistakes)


EXERCISE = Exercise(
    "step_bytes",
    cost_cases,
    (Claim("what you predict is what the meter counts", cost_right),),
    run=alone,
    hints=(
        "A reduce-scatter or an all-gather sends (N-1)/N of the tensor, an all-reduce twice that.",
        'Write down the collectives of one step of each way; the lesson\'s "Three tensors or two" measured them.',
    ),
    text=TEXT,
    answer=(step_bytes,),
    points=1,
)
