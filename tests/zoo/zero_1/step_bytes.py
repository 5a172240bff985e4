"""Answers to `step_bytes` of lesson 03 that are right, each in a style of its own."""

from zoo.answers import Right

RIGHT = [
    Right("conditional", """
def step_bytes(numel, ranks, way):
    passes = 3 if way == "stage 1, all-reduce" else 2
    return passes * (ranks - 1) * (numel // ranks) * 4
"""),
    Right("match", """
def step_bytes(numel, ranks, way):
    gather = reduce_scatter = (ranks - 1) * numel * 4 // ranks
    all_reduce = reduce_scatter + gather
    match way:
        case "stage 0":
            return all_reduce
        case "stage 1, all-reduce":
            return all_reduce + gather
        case _:
            return reduce_scatter + gather
"""),
    Right("ring loop", """
def step_bytes(numel, ranks, way):
    chunk = 4 * numel // ranks
    sent = 0
    for _ in range(2 + way.endswith("all-reduce")):
        for _ in range(ranks - 1):
            sent += chunk
    return sent
"""),
    Right("fractions and match", """
from fractions import Fraction
def step_bytes(numel, ranks, way):
    once = 4 * numel * Fraction(ranks - 1, ranks)
    match way:
        case "stage 1, all-reduce":
            total = once + once + once
        case _:
            total = once + once
    return int(total)
"""),
]  # fmt: skip
