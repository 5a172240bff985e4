"""Answers to `step_seconds` of lesson 09, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("a list of calls", """
def step_seconds(stage, units, ranks, micro_batches, param_bytes, grad_bytes, latency, bandwidth):
    calls = []
    for unit in units:
        for _ in range(micro_batches):
            if stage == 3:
                calls += [(unit, param_bytes)] * 2
            calls += [(unit, grad_bytes)] * (2 if stage == 0 else 1)
        if stage in (1, 2):
            calls.append((unit, param_bytes))
    total = 0.0
    for unit, size in calls:
        for _ in range(min(ranks - 1, 1)):
            shard = (unit + ranks - 1) // ranks
            total += (ranks - 1) * latency + (ranks - 1) * shard * size / bandwidth
    return total
"""),
    Right("fractions and a table", """
from fractions import Fraction as F
import math


def step_seconds(stage, units, ranks, micro_batches, param_bytes, grad_bytes, latency, bandwidth):
    m = micro_batches
    of_gradients, of_parameters = [(2 * m, 0), (m, 1), (m, 1), (m, 2 * m)][stage]
    shards = [math.ceil(F(unit, ranks)) for unit in units]
    rounds = (of_gradients + of_parameters) * len(units)
    nbytes = sum(shards) * (of_gradients * grad_bytes + of_parameters * param_bytes)
    return float((ranks - 1) * (rounds * F(latency) + nbytes / F(bandwidth)))
"""),
    Right("torch", """
def step_seconds(stage, units, ranks, micro_batches, param_bytes, grad_bytes, latency, bandwidth):
    shards = torch.ceil(torch.tensor(units, dtype=torch.float64) / ranks)

    def ring(nbytes, rounds=1):
        return rounds * (ranks - 1) * (latency * len(units) + float(shards.sum()) * nbytes / bandwidth)

    if stage == 0:
        return micro_batches * ring(grad_bytes, 2)
    gather = ring(param_bytes, 2 * micro_batches if stage == 3 else 1)
    return gather + micro_batches * ring(grad_bytes)
"""),
    Right("one rank returns at once, padded tensors", """
def step_seconds(stage, units, ranks, micro_batches, param_bytes, grad_bytes, latency, bandwidth):
    if ranks == 1:
        return 0
    padded = [unit + -unit % ranks for unit in units]
    half = lambda size: sum((ranks - 1) * latency + (ranks - 1) / ranks * n * size / bandwidth for n in padded)
    reduce, gather = half(grad_bytes), half(param_bytes)
    return [2 * reduce * micro_batches, reduce * micro_batches + gather, reduce * micro_batches + gather,
            micro_batches * (2 * gather + reduce)][stage]
"""),
]  # fmt: skip
