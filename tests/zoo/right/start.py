"""Right answers to the exercises of lesson 00, in other styles than the model's."""

from zoo.right import start_more, start_peaks
from zoo.right.answer import Right

RIGHT = [
    *start_more.RIGHT,
    *start_peaks.RIGHT,
    Right("a dataclass", "state_bytes", """
from dataclasses import dataclass
@dataclass
class Sizes:
    parameters: int
    ranks: int
    def shard(self):
        return -(-self.parameters // self.ranks)
def state_bytes(parameters, ranks, stage, recipe):
    shard = Sizes(parameters, ranks).shard()
    kinds = zip(("parameters", "gradients", "optimizer_states"), recipe, (3, 2, 1))
    return {kind: each * (shard if stage >= first else parameters) for kind, each, first in kinds}
"""),
    Right("negfloor", "state_bytes", """
def state_bytes(parameters, ranks, stage, recipe):
    part = -(-parameters // ranks)
    p, g, o = recipe
    return {
        "parameters": p * (part if stage >= 3 else parameters),
        "gradients": g * (part if stage >= 2 else parameters),
        "optimizer_states": o * (part if stage >= 1 else parameters),
    }
"""),
    Right("zip dict order reversed", "state_bytes", """
def state_bytes(parameters, ranks, stage, recipe):
    result = {}
    whole, rest = divmod(parameters, ranks)
    fullest = whole + bool(rest)
    for kind, size, since in zip(("optimizer_states", "gradients", "parameters"), reversed(recipe), (1, 2, 3)):
        result[kind] = size * (fullest if stage >= since else parameters)
    return result
"""),
    Right("torch tensor_split", "state_bytes", """
import torch
def state_bytes(parameters: int, ranks: int, stage: int, recipe):
    counts = torch.full((3,), parameters, dtype=torch.int64)
    if stage:
        counts[3 - stage:] = (parameters + ranks - 1) // ranks
    each = torch.tensor(recipe, dtype=torch.int64) * counts
    return dict(zip(["parameters", "gradients", "optimizer_states"], each.tolist()))
"""),
    Right("class enum", "state_bytes", """
from dataclasses import dataclass, asdict
@dataclass
class Held:
    parameters: int
    gradients: int
    optimizer_states: int
def state_bytes(parameters, ranks, stage, recipe):
    def fullest(count):
        # the rank with the longest shard
        return max(len(range(rank, count, ranks)) for rank in range(ranks))
    shard = fullest(parameters)
    sharded = {0: (), 1: (2,), 2: (1, 2), 3: (0, 1, 2)}[stage]
    return asdict(Held(*(width * (shard if index in sharded else parameters) for index, width in enumerate(recipe))))
"""),
    Right("match", "state_bytes", """
from math import ceil
from fractions import Fraction
def state_bytes(parameters, ranks, stage, recipe):
    own = ceil(Fraction(parameters, ranks))
    match stage:
        case 0: n = (parameters, parameters, parameters)
        case 1: n = (parameters, parameters, own)
        case 2: n = (parameters, own, own)
        case _: n = (own, own, own)
    a, b, c = map(lambda x, y: x * y, n, recipe)
    return dict(parameters=a, gradients=b, optimizer_states=c)
"""),
    Right("ceil float", "state_bytes", """
def state_bytes(parameters, ranks, stage, recipe):
    import math
    share = math.ceil(parameters / ranks)
    out = {kind: parameters * each for kind, each in zip(("parameters", "gradients", "optimizer_states"), recipe)}
    if stage > 0: out["optimizer_states"] = share * recipe[2]
    if stage > 1: out["gradients"] = share * recipe[1]
    if stage > 2: out["parameters"] = share * recipe[0]
    return out
"""),
    Right("style 1", "choose_stage", """
from functools import reduce
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    for stage in range(4):
        if reduce(lambda one, other: one + other, state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes:
            return stage
"""),
    Right("next gen", "choose_stage", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    return next((s for s in range(4) if sum(state_bytes(parameters, ranks, s, recipe).values()) <= gpu_bytes), None)
"""),
    Right("recursion", "choose_stage", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    def look(stage):
        if stage == 4:
            return None
        return stage if sum(state_bytes(parameters, ranks, stage, recipe).values()) <= gpu_bytes else look(stage + 1)
    return look(0)
"""),
    Right("own arithmetic", "choose_stage", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    piece = (parameters + ranks - 1) // ranks
    need = parameters * sum(recipe)
    best = 0
    for width in (0, *recipe[::-1]):
        pass
    for stage, width in enumerate((0,) + tuple(reversed(recipe))):
        need -= width * (parameters - piece)
        if not need > gpu_bytes:
            return stage
"""),
    Right("bisect", "choose_stage", """
from bisect import bisect_left
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    spare = [gpu_bytes - sum(state_bytes(parameters, ranks, stage, recipe).values()) for stage in (0, 1, 2, 3)]
    at = bisect_left(spare, 0)
    return at if at < 4 else None
"""),
    Right("filter min", "choose_stage", """
def choose_stage(parameters, ranks, gpu_bytes, recipe):
    fits = [stage for stage in (3, 2, 1, 0) if gpu_bytes >= sum(state_bytes(parameters, ranks, stage, recipe).values())]
    return min(fits, default=None)
"""),
    Right("style 1", "most_parameters", """
import bisect
def most_parameters(gpu_bytes, ranks, stage, recipe):
    takes = lambda parameters: sum(state_bytes(parameters, ranks, stage, recipe).values())
    return bisect.bisect_right(range(gpu_bytes * ranks + 1), gpu_bytes, key=takes) - 1
"""),
    Right("style 2", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    whole, shared = sum(recipe[: 3 - stage]), sum(recipe[3 - stage :])
    rounds, left = divmod(gpu_bytes, whole * ranks + shared)
    extra = 0 if left < shared else ((left - shared) // whole if whole else ranks)
    return rounds * ranks + min(extra, ranks)
"""),
    Right("bisection", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    fits = lambda n: sum(state_bytes(n, ranks, stage, recipe).values()) <= gpu_bytes
    low, high = 0, 1
    while fits(high):
        high *= 2
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
"""),
    Right("bits from above", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    best = 0
    for bit in reversed(range(gpu_bytes.bit_length() + ranks.bit_length() + 1)):
        more = best | 1 << bit
        if sum(state_bytes(more, ranks, stage, recipe).values()) <= gpu_bytes:
            best = more
    return best
"""),
    Right("closed form", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    shared = sum(recipe[3 - stage:]) if stage else 0
    whole = sum(recipe) - shared
    groups, left = divmod(gpu_bytes, whole * ranks + shared)
    if whole:
        extra = max(0, min(ranks - 1, (left - shared) // whole))
    else:
        extra = ranks - 1 if left >= shared else 0
    return groups * ranks + extra
"""),
    Right("bisect with range and key", "most_parameters", """
from bisect import bisect_right
def most_parameters(gpu_bytes, ranks, stage, recipe):
    def total(n):
        return sum(state_bytes(n, ranks, stage, recipe).values())
    return bisect_right(range(10 ** 18), gpu_bytes, key=total) - 1
"""),
    Right("recursive", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    def search(low, high):
        if low == high:
            return low
        mid = low + high + 1 >> 1
        if sum(state_bytes(mid, ranks, stage, recipe).values()) > gpu_bytes:
            return search(low, mid - 1)
        return search(mid, high)
    return search(0, gpu_bytes * ranks)
"""),
    Right("galloping steps", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    model, step = 0, 1
    while step:
        bigger = model + step
        if sum(state_bytes(bigger, ranks, stage, recipe).values()) <= gpu_bytes:
            model, step = bigger, step * 2
        else:
            step //= 2
    return model
"""),
    Right("shards outer", "most_parameters", """
import math
def most_parameters(gpu_bytes, ranks, stage, recipe):
    cut = recipe[::-1][:stage]
    kept = recipe[::-1][stage:]
    a, b = sum(kept), sum(cut)
    # estimate, then correct
    guess = gpu_bytes * ranks // (a * ranks + b)
    def need(n):
        return n * a + -(-n // ranks) * b
    while need(guess) > gpu_bytes:
        guess -= 1
    while need(guess + 1) <= gpu_bytes:
        guess += 1
    return guess
"""),
    Right("float midpoint", "most_parameters", """
def most_parameters(gpu_bytes, ranks, stage, recipe):
    low, high = 0, gpu_bytes * ranks + 1
    while high - low > 1:
        middle = int((low + high) / 2)
        if sum(state_bytes(middle, ranks, stage, recipe).values()) <= gpu_bytes:
            low = middle
        else:
            high = middle
    return low
"""),
]  # fmt: skip
