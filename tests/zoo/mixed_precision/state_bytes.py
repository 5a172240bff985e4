"""Answers to `state_bytes` of lesson 06, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("06_mixed_precision", "state_bytes")

WRONG = [
    blank("state_bytes"),
    Wrong("always a main copy",
          changed(MODEL, 'if not (one_copy and state == "main_params")', ""),
          "are no second copy"),
    Wrong("never a main copy",
          changed(MODEL, "one_copy and state", "state"),
          "are a copy of their own"),
    Wrong("widths compared", """
def state_bytes(numel, ranks, stage, recipe):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    shard = -(-numel // ranks)
    first = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    kept = dict(recipe)
    if size[kept["main_params"]] == size[kept["params"]]:
        del kept["main_params"]
    return sum(size[dtype] * (shard if stage >= first[state] else shard * ranks) for state, dtype in kept.items())
""", "main_params bf16"),
    Wrong("gradients at stage 1",
          changed(MODEL, '"main_grads": 2', '"main_grads": 1'),
          "and not at stage 1"),
    Wrong("gradients at stage 3",
          changed(MODEL, '"main_grads": 2', '"main_grads": 3'),
          "not only at stage 3"),
    Wrong("parameters at stage 2",
          changed(MODEL, '"params": 3', '"params": 2'),
          "and not at stage 2"),
    Wrong("parameters never",
          changed(MODEL, '"params": 3', '"params": 4'),
          "parameters are sharded, too"),
    Wrong("main parameters with the parameters",
          changed(MODEL, '1, "exp_avg"', '3, "exp_avg"'),
          "belong to the optimizer"),
    Wrong("all sharded",
          changed(MODEL, "stage >= sharded_from[state]", "True"),
          "You shard every state"),
    Wrong("nothing sharded",
          changed(MODEL, "stage >= sharded_from[state]", "False"),
          "You shard nothing"),
    Wrong("one stage off",
          changed(MODEL, "if stage", "if stage + 1"),
          "a stage ahead"),
    Wrong("one stage off, the other way",
          changed(MODEL, "if stage", "if stage - 1"),
          "a stage behind"),
    Wrong("whole states without padding",
          changed(MODEL,
                  "shard * (1 if stage >= sharded_from[state] else ranks)",
                  "(shard if stage >= sharded_from[state] else numel)"),
          "A whole state is padded"),
    Wrong("cut off",
          changed(MODEL, "-(-numel // ranks)", "numel // ranks"),
          "A shard is cut off: pad"),
    Wrong("one moment",
          changed(MODEL, "in states", "in states[:-1]"),
          "two moments"),
    Wrong("no gradients",
          changed(MODEL, "in states", 'in states if state != "main_grads"'),
          "The gradients are missing"),
    Wrong("all in fp32",
          changed(MODEL, "size[recipe[state]]", "4"),
          "every state in fp32"),
    Wrong("of all ranks",
          changed(MODEL, "return", "return ranks *"),
          "all ranks keep together"),
    Wrong("bits",
          changed(MODEL, "return", "return 8 *"),
          "That is bits"),
    Wrong("a float",
          changed(MODEL, "return", "return 1.0 *"),
          "divide with //"),
    Wrong("takes the recipe apart",
          changed(MODEL,
                  "return",
                  "if one_copy:\n"
                  "        del recipe['main_params']\n"
                  "    return"),
          "it overwrote"),
    # A check let these pass once, or sent them elsewhere.
    Wrong("always pads one more", """
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
def state_bytes(numel, ranks, stage, recipe):
    first = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    total = 0
    for state, at in first.items():
        if state == "main_params" and recipe["main_params"] == recipe["params"]:
            continue
        total += BYTES[recipe[state]] * (numel // ranks + 1) * (1 if stage >= at else ranks)
    return total
""", "Where N divides the parameters"),
    Wrong("fp8 as two bytes", """
def state_bytes(numel, ranks, stage, recipe):
    size = lambda kind: 4 if kind == "fp32" else 2
    shard = -(-numel // ranks)
    at = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    states = [s for s in recipe if s != "main_params" or recipe[s] != recipe["params"]]
    return sum(size(recipe[s]) * shard * (1 if stage >= at[s] else ranks) for s in states)
""", "fp8 has one byte"),
    Wrong("one copy is the shard", """
def state_bytes(numel, ranks, stage, recipe):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    shard = -(-numel // ranks)
    at = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    skip = "params" if recipe["params"] == recipe["main_params"] else ""
    return sum(size[recipe[s]] * shard * (1 if stage >= at[s] else ranks) for s in recipe if s != skip)
""", "The one copy is the parameters"),
]  # fmt: skip

RIGHT = [
    Right("a dictionary of stages", """
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
def state_bytes(numel, ranks, stage, recipe):
    padded = math.ceil(numel / ranks) * ranks
    first = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    total = 0
    for state, sharded_from in first.items():
        if state == "main_params" and recipe["main_params"] == recipe["params"]:
            continue
        total += BYTES[recipe[state]] * (padded // ranks if stage >= sharded_from else padded)
    return total
"""),
    Right("match", """
def state_bytes(numel, ranks, stage, recipe):
    size = lambda name: int(name.lstrip("bfp")) // 8
    shard = -(-numel // ranks)
    whole = shard * ranks
    params, grads = size(recipe["params"]), size(recipe["main_grads"])
    states = size(recipe["exp_avg"]) + size(recipe["exp_avg_sq"])
    states += 0 if recipe["main_params"] == recipe["params"] else size(recipe["main_params"])
    match stage:
        case 0:
            return whole * (params + grads + states)
        case 1:
            return whole * (params + grads) + shard * states
        case 2:
            return whole * params + shard * (grads + states)
        case 3:
            return shard * (params + grads + states)
"""),
    Right("torch dtypes", """
def state_bytes(numel, ranks, stage, recipe):
    sizes = {"fp32": torch.float32.itemsize, "bf16": torch.bfloat16.itemsize, "fp16": torch.half.itemsize}
    sizes["fp8"] = torch.float8_e4m3fn.itemsize
    padded = numel + -numel % ranks
    bytes_ = {name: sizes[kind] for name, kind in recipe.items()}
    if recipe["params"] == recipe["main_params"]:
        bytes_["main_params"] = 0
    cut = [["main_params", "exp_avg", "exp_avg_sq"], ["main_grads"], ["params"]][:stage]
    cut = [name for group in cut for name in group]
    return sum(each * padded // (ranks if name in cut else 1) for name, each in bytes_.items())
"""),
    Right("a running total", """
from functools import reduce
def state_bytes(numel, ranks, stage, recipe):
    part = (numel + ranks - 1) // ranks
    def one(name):
        if name == "main_params" and recipe[name] == recipe["params"]:
            return 0
        level = 3 if name == "params" else 2 if name == "main_grads" else 1
        width = {"fp8": 1, "fp32": 4}.get(recipe[name], 2)
        return width * part * (1 if stage >= level else ranks)
    return reduce(int.__add__, map(one, recipe), 0)
"""),
    Right("a frozen dataclass", """
from dataclasses import dataclass


@dataclass(frozen=True)
class State:
    width: int
    cut_at: int

    def nbytes(self, numel, ranks, stage):
        each = math.ceil(numel / ranks)
        return self.width * (each if stage >= self.cut_at else each * ranks)


def state_bytes(numel, ranks, stage, recipe):
    width = lambda state: int(recipe[state][2:]) // 8
    states = [
        State(width("params"), 3),
        State(width("main_grads"), 2),
        State(width("exp_avg"), 1),
        State(width("exp_avg_sq"), 1),
    ]
    if recipe["params"] != recipe["main_params"]:
        states += [State(width("main_params"), 1)]
    return sum(state.nbytes(numel, ranks, stage) for state in states)
"""),
    Right("itemsize", """
def state_bytes(numel, ranks, stage, recipe):
    sizes = dict(fp32=torch.float32.itemsize, bf16=torch.bfloat16.itemsize, fp16=torch.half.itemsize, fp8=1)
    padded = numel + -numel % ranks
    total = 0
    for first, names in ((3, ["params"]), (2, ["main_grads"]), (1, ["main_params", "exp_avg", "exp_avg_sq"])):
        for name in names:
            if name == "main_params" and recipe[name] == recipe["params"]:
                continue
            total += sizes[recipe[name]] * (padded // ranks if stage >= first else padded)
    return total
"""),
]  # fmt: skip
