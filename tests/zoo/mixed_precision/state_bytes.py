"""Answers to `state_bytes` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
]  # fmt: skip
