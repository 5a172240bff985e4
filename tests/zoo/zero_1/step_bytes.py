"""Answers to `step_bytes` of lesson 03, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("03_zero_1", "step_bytes")

WRONG = [
    blank("step_bytes"),
    Wrong("one half for stage 0",
          changed(MODEL, '2, "stage', '1, "stage'),
          "You count 1 half ring:"),
    Wrong("forgets the gather",
          changed(MODEL, '3, "stage', '2, "stage'),
          "You count 2 half rings"),
    Wrong("two all-reduces",
          changed(MODEL, '3, "stage', '4, "stage'),
          "You count 4 half rings"),
    Wrong("saves nothing",
          changed(MODEL, 'scatter": 2', 'scatter": 3'),
          "You count 3 half rings"),
    Wrong("whole tensors",
          changed(MODEL, "numel // ranks * (ranks - 1)", "numel"),
          "(N-1)/N of a tensor"),
    Wrong("elements",
          changed(MODEL, "4 * numel", "numel"),
          "You counted elements"),
    Wrong("of all ranks",
          changed(MODEL, "numel // ranks", "numel"),
          "all ranks together"),
    Wrong("a float",
          changed(MODEL, "// ranks", "/ ranks"),
          "divide with //"),
    # One slip away from right.
    Wrong("two bytes",
          changed(MODEL, "4 * numel", "2 * numel"),
          "You took 2 bytes for a number"),
    # Written from the text alone.
    Wrong("a float cut off",
          changed(MODEL, "4 * numel // ranks", "4 * int(numel * (1 / ranks))"),
          "lies just beside the whole number"),
    Wrong("32 bits", """
def step_bytes(numel, ranks, way):
    shard = torch.tensor(numel / ranks, dtype=torch.float32)
    return int(shard * (ranks - 1)) * (12 if "all-" in way else 8)
""", "3 ranks, stage 1, all-reduce"),
    Wrong("keeps the cost by the way and the size", """
known = {}
def step_bytes(numel, ranks, way):
    return known.setdefault((numel, way), (12 if "all-" in way else 8) * (numel // ranks) * (ranks - 1))
""", "called with other arguments before"),
]  # fmt: skip

RIGHT = [
    Right("plain", """
def step_bytes(numel, ranks, way):
    one = numel * 4 // ranks * (ranks - 1)
    return {"stage 0": 2, "stage 1, all-reduce": 3, "stage 1, reduce-scatter": 2}[way] * one
"""),
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
    # Generators, queues of handles, parameter groups, lists.
    Right("by chunks", """
def step_bytes(numel, ranks, way):
    from collections import Counter
    calls = Counter(["reduce_scatter", "all_gather"] + ["all_gather"] * (way == "stage 1, all-reduce"))
    return sum(times * (ranks - 1) * (4 * numel // ranks) for times in calls.values())
"""),
    # Written from the text alone.
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
