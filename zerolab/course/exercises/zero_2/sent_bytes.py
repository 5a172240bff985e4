"""Exercise of lesson 04: what accumulation costs."""

from __future__ import annotations

from random import Random

from zerolab.collectives import wire_bytes
from zerolab.course.judge.case import Case, Observation, plural
from zerolab.course.judge.claims import short
from zerolab.course.judge.exercise import Claim, Exercise, alone


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
    want = (count + 1 if each else 2) * half
    got = seen.records[0].value
    if got == want and type(got) is int:
        return None
    said = f"{case.about}: you say {short(got)} bytes, and the meter counts {want}"
    if not isinstance(got, int | float):
        return said
    if got == want:
        return f"{said}. The number is right, but bytes are whole: divide with //"
    if numel > 10**15 and abs(got - want) < 10**6:
        return f"{said}. Nearly: a fraction in between is rounded, so stay with whole numbers, and divide with //"
    if ranks == 1:
        return f"{said}. One rank has nobody to send to"
    if got * 4 == want:
        return f"{said}. You counted elements; in fp32 each has 4 bytes"
    if got * (ranks - 1) == want * ranks:
        return f"{said}. A ring of N ranks sends (N-1)/N of a tensor, not all of it"
    if each and got == 2 * half:
        return f"{said}. That is what reducing once costs; here each micro-batch pays"
    if got == (count if each else 1) * half:
        return f"{said}. The updated parameters have to travel, too"
    if got == 2 * count * half:
        return f"{said}. Parameters change once a step, not once a micro-batch"
    if got == (count + 1) * half:
        return f"{said}. each=False adds up first, and reduces once"
    return said


EXERCISE = Exercise(
    "sent_bytes",
    cost_cases,
    (Claim("what you predict is what the meter counts", cost_right),),
    run=alone,
    hints=(
        "Which collectives run in one step, and how often each? Section 3 of the lesson measured them.",
        "A reduce-scatter or an all-gather sends (N-1)/N of the tensor; parameters are gathered once a step.",
    ),
)
