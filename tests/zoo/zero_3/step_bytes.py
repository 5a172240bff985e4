"""Answers to `step_bytes` of lesson 05, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("one loop", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    total, reached = 0, False
    for numel, trains in units:
        reached = reached or trains
        total += numel // ranks * (ranks - 1) * 4 * (1 + reached + trains)
    return total * micro_batches
"""),
    Right("backwards through the list", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    share = lambda numel: 4 * numel * (ranks - 1) // ranks
    total = 0
    remaining = list(units)
    while remaining:
        numel, trains = remaining.pop()
        calls = 1
        if trains or any(t for _, t in remaining):
            calls += 1
        if trains:
            calls += 1
        total += calls * share(numel)
    return micro_batches * total
"""),
    Right("accumulate or", """
from itertools import accumulate
from operator import or_
def step_bytes(units, ranks, micro_batches, checkpointing):
    trains = [bool(t) for _, t in units]
    reached = list(accumulate(trains, or_))
    calls = [1 + a + b for a, b in zip(trains, reached)]
    elements = sum(c * n for c, (n, _) in zip(calls, units))
    return elements * 4 // ranks * (ranks - 1) * micro_batches
"""),
    Right("fractions and dropwhile", """
from fractions import Fraction
from itertools import dropwhile
def step_bytes(units, ranks, micro_batches, checkpointing):
    sent = Fraction(0)
    for phase in (units, dropwhile(lambda unit: not unit[1], units), filter(lambda unit: unit[1], units)):
        sent += sum(numel for numel, _ in phase)
    return int(sent * (1 - Fraction(1, ranks)) * 4 * micro_batches)
"""),
    Right("recursion from the front", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    def go(at, reached):
        if at == len(units):
            return 0
        numel, trains = units[at]
        reached |= bool(trains)
        return (1 + reached + bool(trains)) * (numel - numel // ranks) + go(at + 1, reached)
    return 4 * micro_batches * go(0, False)
"""),
]  # fmt: skip
