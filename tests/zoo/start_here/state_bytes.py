"""Answers to `state_bytes` of lesson 00, wrong and right."""

from zoo.answers import Right

STATES = """
def state_bytes(parameters, ranks, stage, recipe):
    shard = -(-parameters // ranks)
    return {
        "parameters": recipe[0] * (shard if stage >= 3 else parameters),
        "gradients": recipe[1] * (shard if stage >= 2 else parameters),
        "optimizer_states": recipe[2] * (shard if stage >= 1 else parameters),
    }
"""

RIGHT = [
    Right("a dataclass", """
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
    Right("negfloor", """
def state_bytes(parameters, ranks, stage, recipe):
    part = -(-parameters // ranks)
    p, g, o = recipe
    return {
        "parameters": p * (part if stage >= 3 else parameters),
        "gradients": g * (part if stage >= 2 else parameters),
        "optimizer_states": o * (part if stage >= 1 else parameters),
    }
"""),
    Right("zip dict order reversed", """
def state_bytes(parameters, ranks, stage, recipe):
    result = {}
    whole, rest = divmod(parameters, ranks)
    fullest = whole + bool(rest)
    for kind, size, since in zip(("optimizer_states", "gradients", "parameters"), reversed(recipe), (1, 2, 3)):
        result[kind] = size * (fullest if stage >= since else parameters)
    return result
"""),
    Right("torch tensor_split", """
import torch
def state_bytes(parameters: int, ranks: int, stage: int, recipe):
    counts = torch.full((3,), parameters, dtype=torch.int64)
    if stage:
        counts[3 - stage:] = (parameters + ranks - 1) // ranks
    each = torch.tensor(recipe, dtype=torch.int64) * counts
    return dict(zip(["parameters", "gradients", "optimizer_states"], each.tolist()))
"""),
    Right("class enum", """
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
    Right("match", """
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
    Right("ceil float", """
def state_bytes(parameters, ranks, stage, recipe):
    import math
    share = math.ceil(parameters / ranks)
    out = {kind: parameters * each for kind, each in zip(("parameters", "gradients", "optimizer_states"), recipe)}
    if stage > 0: out["optimizer_states"] = share * recipe[2]
    if stage > 1: out["gradients"] = share * recipe[1]
    if stage > 2: out["parameters"] = share * recipe[0]
    return out
"""),
    # A second reading of the text alone.
    Right("a Counter", """
from collections import Counter
def state_bytes(parameters, ranks, stage, recipe):
    order = ["optimizer_states", "gradients", "parameters"]
    held = Counter()
    for place, (kind, each) in enumerate(zip(order, recipe[::-1])):
        pieces = ranks if place < stage else 1
        held[kind] = each * -(parameters // -pieces)
    return held
"""),
    Right("counts the fullest by tensor_split's rule", """
def state_bytes(parameters, ranks, stage, recipe):
    sizes = [parameters // ranks + (rank < parameters % ranks) for rank in range(ranks)]
    counts = [max(sizes)] * stage + [parameters] * (3 - stage)
    kinds = {}
    for kind in ("parameters", "gradients", "optimizer_states"):
        kinds[kind] = counts.pop() * recipe[len(kinds)]
    return kinds
"""),
    Right("a table of stages", """
TABLE = {"parameters": "0001", "gradients": "0011", "optimizer_states": "0111"}
def state_bytes(parameters, ranks, stage, recipe):
    def elements(kind):
        return (parameters + ranks - 1) // ranks if TABLE[kind][stage] == "1" else parameters
    return {kind: width * elements(kind) for kind, width in zip(TABLE, recipe)}
"""),
    # Callable objects, blocking messages, chunks without elements that are not sent.
    Right("callable object, torch int64", """
import torch
class Calc:
    def __call__(self, parameters, ranks, stage, recipe):
        n = torch.tensor([parameters] * 3, dtype=torch.int64)
        cut = torch.tensor([stage >= 3, stage >= 2, stage >= 1])
        n = torch.where(cut, -torch.div(-n, ranks, rounding_mode="floor"), n)
        return dict(zip(("parameters", "gradients", "optimizer_states"), (n * torch.tensor(recipe)).tolist()))
state_bytes = Calc()
"""),
]  # fmt: skip
