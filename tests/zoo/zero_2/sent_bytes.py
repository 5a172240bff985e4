"""Answers to `sent_bytes` of lesson 04 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
    Right("count messages", """
def sent_bytes(numel, ranks, micro_batches, each):
    total = 0
    for collective in range(1 + (micro_batches if each else 1)):
        for step in range(1, ranks):
            total += numel // ranks * 4
    return total
"""),
    Right("fractions", """
from fractions import Fraction
def sent_bytes(numel, ranks, micro_batches, each):
    whole = Fraction(4 * numel * (ranks - 1), ranks)
    return int(whole * sum([micro_batches ** bool(each), 1]))
"""),
    Right("by rank sizes", """
def sent_bytes(numel, ranks, micro_batches, each):
    chunks = [numel // ranks] * (ranks - 1)
    return sum(chunks) * 4 + [sum(chunks) * 4, sum(chunks) * 4 * micro_batches][each]
"""),
    Right("a list of calls", """
def sent_bytes(numel, ranks, micro_batches, each):
    calls = ["reduce_scatter"] * (micro_batches ** each) + ["all_gather"]
    return sum((numel - numel // ranks) * 4 for _ in calls)
"""),
]  # fmt: skip
