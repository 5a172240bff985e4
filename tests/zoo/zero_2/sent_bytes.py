"""Answers to `sent_bytes` of lesson 04, wrong and right."""

from zoo.answers import Right, Wrong, blank

WRONG = [
    blank("sent_bytes", "def sent_bytes(*numbers):\n"),
    Wrong("elements", """
def sent_bytes(numel, ranks, micro_batches, each):
    return ((micro_batches if each else 1) + 1) * numel // ranks * (ranks - 1)
""", "You counted elements"),
    Wrong("whole tensors", """
def sent_bytes(numel, ranks, micro_batches, each):
    return 0 if ranks == 1 else ((micro_batches if each else 1) + 1) * numel * 4
""", "sends (N-1)/N of a tensor"),
    Wrong("forgets that one rank is alone", """
def sent_bytes(numel, ranks, micro_batches, each):
    return ((micro_batches if each else 1) + 1) * numel * 4
""", "nobody to send to"),
    Wrong("always once", """
def sent_bytes(numel, ranks, micro_batches, each):
    return 2 * 4 * numel // ranks * (ranks - 1)
""", "each micro-batch pays"),
    Wrong("always each", """
def sent_bytes(numel, ranks, micro_batches, each):
    return (micro_batches + 1) * 4 * numel // ranks * (ranks - 1)
""", "adds up first, and reduces once"),
    Wrong("forgets the parameters", """
def sent_bytes(numel, ranks, micro_batches, each):
    return (micro_batches if each else 1) * 4 * numel // ranks * (ranks - 1)
""", "have to travel, too"),
    Wrong("gathers each time", """
def sent_bytes(numel, ranks, micro_batches, each):
    return (micro_batches if each else 1) * 2 * 4 * numel // ranks * (ranks - 1)
""", "Parameters change once a step"),
    Wrong("a fraction", """
def sent_bytes(numel, ranks, micro_batches, each):
    return ((micro_batches if each else 1) + 1) * 4 * numel / ranks * (ranks - 1)
""", "divide with //"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("a fraction in between", """
def sent_bytes(numel, ranks, micro_batches, each):
    return int(((micro_batches if each else 1) + 1) * 4 * numel * (ranks - 1) / ranks)
""", "a fraction in between is rounded"),
]  # fmt: skip

RIGHT = [
    Right("formula", """
def sent_bytes(numel, ranks, micro_batches, each):
    shard = numel // ranks
    times = micro_batches if each else 1
    return (ranks - 1) * shard * 4 * (times + 1)
"""),
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
    Right("branches", """
def sent_bytes(numel, ranks, micro_batches, each):
    once = 4 * (numel - numel // ranks)
    if each:
        return once * micro_batches + once
    return once + once
"""),
    Right("by rank sizes", """
def sent_bytes(numel, ranks, micro_batches, each):
    chunks = [numel // ranks] * (ranks - 1)
    return sum(chunks) * 4 + [sum(chunks) * 4, sum(chunks) * 4 * micro_batches][each]
"""),
    # Written from the text alone.
    Right("a list of calls", """
def sent_bytes(numel, ranks, micro_batches, each):
    calls = ["reduce_scatter"] * (micro_batches ** each) + ["all_gather"]
    return sum((numel - numel // ranks) * 4 for _ in calls)
"""),
]  # fmt: skip
