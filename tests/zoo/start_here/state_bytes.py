"""Answers to `state_bytes` of lesson 00, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed

STATES = """
def state_bytes(parameters, ranks, stage, recipe):
    shard = -(-parameters // ranks)
    return {
        "parameters": recipe[0] * (shard if stage >= 3 else parameters),
        "gradients": recipe[1] * (shard if stage >= 2 else parameters),
        "optimizer_states": recipe[2] * (shard if stage >= 1 else parameters),
    }
"""

WRONG = [
    blank("state_bytes"),
    Wrong("all of it at every stage",
          changed(STATES, "-(-parameters // ranks)", "parameters"),
          "from which stage on are optimizer_states shared out?"),
    Wrong("a stage late",
          changed(STATES, "stage >= 3", "stage > 3"),
          "from which stage on are parameters shared out?"),
    Wrong("gradients with the optimizer",
          changed(STATES, "2 else", "1 else"),
          "At stage 1 gradients are not shared out yet"),
    Wrong("all shared at once",
          changed(STATES,
                  ">= 3 else parameters),\n"
                  '        "gradients": recipe[1] * (shard if stage >= 2',
                  'else parameters),\n        "gradients": recipe[1] * (shard if stage'),
          "At stage 1 parameters are not shared out yet"),
    Wrong("drops the remainder",
          changed(STATES, "-(-parameters // ranks)", "parameters // ranks"),
          "That is the smallest rank's"),
    Wrong("cuts bytes", """
def state_bytes(parameters, ranks, stage, recipe):
    kinds = ('parameters', 'gradients', 'optimizer_states')
    return {kind: -(-each * parameters // (ranks if stage >= first else 1))
            for kind, each, first in zip(kinds, recipe, (3, 2, 1))}
""", "You cut bytes: cut elements"),
    Wrong("fractions",
          changed(STATES, "-(-parameters // ranks)", "parameters / ranks"),
          "Bytes are whole numbers"),
    Wrong("elements",
          changed(STATES, "recipe[1]", "1"),
          "You counted elements"),
    Wrong("fp32 by heart",
          changed(STATES, "recipe[2]", "8"),
          "Those are the bytes of fp32 with Adam"),
    Wrong("all that is left over to one rank",
          changed(STATES, "-(-parameters // ranks)", "parameters // ranks + parameters % ranks"),
          "You give all that is left over to one rank"),
    Wrong("cuts the recipe",
          changed(STATES, "[1] * (shard", "[1] // (ranks if stage >= 2 else 1) * (parameters"),
          "You cut the bytes of a parameter"),
    Wrong("reads the recipe from its end",
          changed(changed(STATES,
                          "recipe[0]",
                          "recipe[2]"),
                  '"optimizer_states": recipe[2]',
                  '"optimizer_states": recipe[-3]'),
          "Those are the bytes of optimizer_states"),
    Wrong("tensors",
          changed(changed(STATES,
                          "def state_bytes",
                          "import torch\n\ndef state_bytes"),
                  "recipe[0]",
                  "torch.tensor(recipe[0])"),
          "A whole number of bytes is due"),
    Wrong("pads to 16",
          changed(STATES, "ranks)", "(16 * ranks)) * 16"),
          "pad nothing"),
    Wrong("all ranks",
          changed(STATES, "recipe[0]", "ranks * recipe[0]"),
          "That is all ranks together"),
    Wrong("whole from padded shards",
          changed(STATES, "3 else parameters", "3 else shard * ranks"),
          "where nothing is cut, nothing is rounded"),
    Wrong("a sum",
          changed(changed(STATES, "return {", "return sum({"), ",\n    }", ",\n    }.values())"),
          "and a dict with the keys parameters, gradients, optimizer_states is due"),
    Wrong("names of its own",
          changed(STATES, '"optimizer_states"', '"optimizer"'),
          "your dict has the keys parameters, gradients, optimizer, and"),
    Wrong("counts the step counter",
          changed(STATES, "recipe[2]", "4 + recipe[2]"),
          "step counter is left out"),
    Wrong("remembers the first call",
          changed(STATES,
                  "):\n    shard = -(-parameters // ranks)",
                  ", seen={}):\n"
                  "    shard = seen.setdefault((ranks, stage, recipe), -(-parameters // ranks))\n"
                  "    parameters = seen.setdefault((ranks, recipe), parameters)"),
          "A default argument does"),
    Wrong("0.999 before the rest is cut off", """
def state_bytes(parameters: int, ranks: int, stage: int, recipe: tuple[int, int, int]) -> dict[str, int]:
    share = int(parameters / ranks + 0.999)
    p, g, o = recipe
    return {
        "parameters": p * (share if stage > 2 else parameters),
        "gradients": g * (share if stage > 1 else parameters),
        "optimizer_states": o * (share if stage > 0 else parameters),
    }
""", "you say 376 bytes, and the fullest rank keeps 384"),
]  # fmt: skip

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
