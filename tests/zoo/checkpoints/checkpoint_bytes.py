"""Answers to `checkpoint_bytes` of lesson 08, wrong and right."""

from zoo.answers import Right

RIGHT = [
    Right("without pieces", """
import math
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    width = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    model, optimizer = [0] * ranks, [0] * ranks
    for kind in (True, False):
        spans, end = [], 0
        for numel, train in zip(numels, trains):
            if train is kind:
                begin = math.ceil(end / align) * align
                end = begin + numel
                spans.append((begin, end))
        shard = math.ceil(end / (ranks * align)) * align
        for rank in range(ranks):
            for begin, stop in spans:
                n = min(stop, shard * (rank + 1)) - max(begin, shard * rank)
                if n <= 0:
                    continue
                model[rank] += n * width[recipe["params"]]
                if not kind:
                    continue
                if recipe["main_params"] != recipe["params"]:
                    optimizer[rank] += n * width[recipe["main_params"]]
                if step:
                    for name in ("exp_avg", "exp_avg_sq"):
                        optimizer[rank] += n * width[recipe[name]]
                        optimizer[rank] += 4 * math.ceil(n / 128) * (recipe[name] in ("fp8", "fp16"))
    return list(zip(model, optimizer))
"""),
    Right("a width a state", """
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    def split(which):
        return pieces([n for n, t in zip(numels, trains) if bool(t) == which], ranks, align)
    def size_of(dtype):
        return {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}[dtype] // 8
    moments = [recipe["exp_avg"], recipe["exp_avg_sq"]] * (step > 0)
    each = sum(map(size_of, moments))
    if recipe["main_params"] != recipe["params"]:
        each += size_of(recipe["main_params"])
    scaled = sum(one in ("fp8", "fp16") for one in moments)
    return [
        [size_of(recipe["params"]) * (sum(a) + sum(b)), each * sum(a) + 4 * scaled * sum(-(-n // 128) for n in a)]
        for a, b in zip(split(True), split(False))
    ]
"""),
    Right("a class", """
class Ledger:
    sizes = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    def __init__(self, recipe, step):
        self.recipe, self.step = recipe, step
    def bytes(self, name, numel):
        return self.sizes[self.recipe[name]] * numel
    def moment(self, name, numel):
        blocks = len(range(0, numel, 128)) if self.recipe[name] in ("fp16", "fp8") else 0
        return self.bytes(name, numel) + 4 * blocks
    def optimizer(self, numel):
        main = 0 if self.recipe["params"] == self.recipe["main_params"] else self.bytes("main_params", numel)
        return main + (self.moment("exp_avg", numel) + self.moment("exp_avg_sq", numel) if self.step else 0)


def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    ledger, files = Ledger(recipe, step), []
    train = pieces([numels[k] for k in range(len(numels)) if trains[k]], ranks, align)
    still = pieces([numels[k] for k in range(len(numels)) if not trains[k]], ranks, align)
    for rank in range(ranks):
        files.append((ledger.bytes("params", sum(train[rank] + still[rank])), sum(map(ledger.optimizer, train[rank]))))
    return files
"""),
    Right("tensors", """
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}
    def total(name, held):
        return int(torch.tensor(held, dtype=torch.int64).sum()) * dtypes[recipe[name]].itemsize
    rows = {one: pieces([n for n, t in zip(numels, trains) if t == one], ranks, align) for one in (False, True)}
    files = []
    for mine, still in zip(rows[True], rows[False]):
        file = 0
        if dtypes[recipe["main_params"]] != dtypes[recipe["params"]]:
            file = total("main_params", mine)
        if step != 0:
            for name in ["exp_avg", "exp_avg_sq"]:
                file += total(name, mine)
                if recipe[name].startswith("fp") and recipe[name] != "fp32":
                    file += sum(4 * ((n - 1) // 128 + 1) for n in mine)
        files.append((total("params", mine) + total("params", still), file))
    return files
"""),
]  # fmt: skip
