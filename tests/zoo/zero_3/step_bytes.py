"""Answers to `step_bytes` of lesson 05, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("05_zero_3", "step_bytes")

WRONG = [
    blank("step_bytes"),
    Wrong("one gather",
          changed(MODEL, "forth + back", "forth"),
          "backward needs each unit again"),
    Wrong("recomputing gathers",
          changed(MODEL, "forth + back", "forth * (1 + checkpointing) + back"),
          "where the unit is here"),
    Wrong("all the way back",
          changed(MODEL, "[first:]", ""),
          "no gradient passes through"),
    Wrong("frozen gradients",
          changed(MODEL, "units if trains", "units"),
          "no gradient to reduce"),
    Wrong("frozen units whole",
          changed(MODEL, "forth =", "units = [unit for unit in units if unit[1]]\n    first, forth = 0,"),
          "cut, too, and needed"),
    Wrong("one micro-batch",
          changed(MODEL, "micro_batches * 4", "4"),
          "each one gathers and reduces anew"),
    Wrong("elements",
          changed(MODEL, "micro_batches * 4", "micro_batches"),
          "in fp32 each has 4 bytes"),
    Wrong("all of it",
          changed(MODEL, " // ranks * (ranks - 1)", ""),
          "(N-1)/N of a tensor"),
    Wrong("all_reduce",
          changed(MODEL, "+ reduced", "+ 2 * reduced"),
          "two half rings"),
    Wrong("a float",
          changed(MODEL, "// ranks", "/ ranks"),
          "divide with //"),
    Wrong("always two micro-batches",
          changed(MODEL, "micro_batches * 4", "2 * 4"),
          "So much would 2 micro-batches send"),
    Wrong("no unit trains",
          changed(MODEL, "len(units)", "0"),
          "there is no backward"),
    Wrong("reduces once a step",
          changed(MODEL, "micro_batches * 4 * (forth + back", "4 * (micro_batches * (forth + back)"),
          "each micro-batch reduces its gradients"),
    Wrong("empties the list",
          changed(MODEL, "return", "units.clear()\n    return"),
          "overwrote"),
    # Passed once, since nothing drawn told them from right ones.
    Wrong("a fraction in between",
          changed(MODEL,
                  "micro_batches * 4 * (forth + back + reduced) // ranks * (ranks - 1)",
                  "int(micro_batches * 4 * (forth + back + reduced) * (ranks - 1) / ranks)"),
          "a fraction in between is rounded"),
    Wrong("forward once a step",
          changed(MODEL,
                  "micro_batches * 4 * (forth + back + reduced)",
                  "4 * (forth + micro_batches * (back + reduced))"),
          "gather once a step for forward"),
    Wrong("backward once a step",
          changed(MODEL,
                  "micro_batches * 4 * (forth + back + reduced)",
                  "4 * (back + micro_batches * (forth + reduced))"),
          "gather once a step for backward"),
    Wrong("no frozen unit in backward",
          changed(MODEL, "_ in units[first:]", "trains in units[first:] if trains"),
          "the gradient passes through it"),
    Wrong("frozen gradients from the first on",
          changed(MODEL, "trains in units if trains", "_ in units[first:]"),
          "also between two that train"),
    Wrong("two bytes",
          changed(MODEL, "micro_batches * 4", "micro_batches * 2"),
          "You counted 2 bytes each"),
    # Passed once, or their hints spoke of another fault.
    Wrong("backward from the last that trains",
          changed(MODEL,
                  "back = sum(numel for numel, _ in units[first:])",
                  "last = max((index for index, (_, trains) in enumerate(units) if trains), default=-1)\n"
                  "    back = sum(numel for numel, _ in units[first : last + 1])"),
          "after the last that trains"),
    Wrong("backward without the first that trains",
          changed(MODEL, "[first:]", "[first + 1 :]"),
          "the first unit that trains is gathered"),
    Wrong("backward without the last",
          changed(MODEL, "[first:]", "[first:-1]"),
          "the last unit is gathered"),
    Wrong("backward one unit further",
          changed(MODEL, "[first:]", "[max(first - 1, 0) :]"),
          "those before the first that trains"),
    Wrong("64 bits", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    if not units:
        return 0
    numel = torch.tensor([numel for numel, _ in units], dtype=torch.int64)
    trains = torch.tensor([bool(trains) for _, trains in units]).long()
    in_backward = trains.cummax(0).values
    parts = numel // ranks * (1 + in_backward + trains)
    return int(parts.sum() * (ranks - 1) * 4 * micro_batches)
""", "That is what 64 bits leave of it"),
    Wrong("finds the first of two alike", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    trained = [index for index, (_, trains) in enumerate(units) if trains]
    first = trained[0] if trained else len(units)
    in_forward = sum(numel for numel, _ in units)
    in_backward = sum(unit[0] for unit in units if units.index(unit) >= first)
    reduced = sum(units[index][0] for index in trained)
    return (in_forward + in_backward + reduced) // ranks * (ranks - 1) * 4 * micro_batches
""", "list.index() finds the first of them"),
    Wrong("a set of units", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    first = next((index for index, unit in enumerate(units) if unit[1]), len(units))
    forth, back = sum(numel for numel, _ in units), sum(numel for numel, _ in units[first:])
    reduced = sum({numel for numel, trains in units if trains})
    return (forth + back + reduced) // ranks * (ranks - 1) * 4 * micro_batches
""", "a set or a dict by length"),
    Wrong("a dict of units", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    units = list(dict.fromkeys(units))
    first = next((index for index, unit in enumerate(units) if unit[1]), len(units))
    numels = [*units, *units[first:], *(unit for unit in units if unit[1])]
    return sum(numel for numel, _ in numels) // ranks * (ranks - 1) * 4 * micro_batches
""", "a set or a dict holds them once"),
]  # fmt: skip

RIGHT = [
    Right("one loop", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    total, reached = 0, False
    for numel, trains in units:
        reached = reached or trains
        total += numel // ranks * (ranks - 1) * 4 * (1 + reached + trains)
    return total * micro_batches
"""),
    Right("index of the first that trains", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    first = next((i for i, (_, trains) in enumerate(units) if trains), len(units))
    def once(numel):
        return numel // ranks * (ranks - 1) * 4
    forward = sum(once(n) for n, _ in units)
    backward = sum(once(n) for n, _ in units[first:])
    reduced = sum(once(n) for n, trains in units if trains)
    return (forward + backward + reduced) * micro_batches
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
    # Written from the text alone.
    Right("from the end", """
def step_bytes(units, ranks, micro_batches, checkpointing):
    def part(numel):
        return 4 * (numel - numel // ranks)
    one = sum(part(numel) for numel, _ in units)
    left = sum(trains for _, trains in units)
    for numel, trains in reversed(units):
        if left <= 0:
            break
        one += part(numel)
        if trains:
            one += part(numel)
            left -= 1
    return one * micro_batches
"""),
]  # fmt: skip
