"""Answers to `checkpoint_bytes` of lesson 08, wrong and right."""

from zoo.answers import Right, Wrong, blank, changed, model

MODEL = model("08_checkpoints", "checkpoint_bytes")
SCALES = "4 * -(-numel // 128)"

WRONG = [
    blank("checkpoint_bytes"),
    Wrong("moments at step 0", changed(MODEL, " if step else []", ""), "A checkpoint of step 0 has no moments"),
    Wrong("nothing at step 0",
          changed(MODEL, "    size = ", "    if not step:\n"
                  "        recipe = recipe | {'main_params': recipe['params']}\n"
                  "    size = "),
          "but main parameters are there"),
    Wrong("frozen states", changed(MODEL, "for numel in mine)", "for numel in mine + still)"),
          "Frozen parameters have no"),
    Wrong("nobody has the frozen ones", changed(MODEL, "sum(mine + still)", "sum(mine)"),
          "are in the model's file, too"),
    Wrong("one row", """
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    starts, end = [], 0
    for numel in numels:
        starts.append(-(-end // align) * align)
        end = starts[-1] + numel
    shard = -(-end // (ranks * align)) * align
    files = []
    for rank in range(ranks):
        model = optimizer = 0
        for start, numel, one in zip(starts, numels, trains):
            n = max(0, min(start + numel, (rank + 1) * shard) - max(start, rank * shard))
            model += size[recipe["params"]] * n
            if one:
                if recipe["params"] != recipe["main_params"]:
                    optimizer += size[recipe["main_params"]] * n
                for moment in ("exp_avg", "exp_avg_sq") if step else ():
                    optimizer += size[recipe[moment]] * n
                    if recipe[moment] in ("fp16", "fp8"):
                        optimizer += 4 * -(-n // 128)
        files.append((model, optimizer))
    return files
""", "are two rows, each cut for itself"),
    Wrong("with padding",
          changed(MODEL, "    return [", "    trained, frozen = list(trained), list(frozen)\n"
                  "    def pad(kind):\n"
                  "        row = 0\n"
                  "        for numel, one in zip(numels, trains):\n"
                  "            row = -(-row // align) * align + numel if one == kind else row\n"
                  "        return [-(-row // (ranks * align)) * align]\n"
                  "    trained, frozen = [pad(True)] * ranks, [pad(False)] * ranks\n"
                  "    return ["),
          "Padding is not written"),
    Wrong("even shards", """
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    trained = sum(n for n, t in zip(numels, trains) if t)
    frozen = sum(numels) - trained
    files = []
    for rank in range(ranks):
        mine, still = (n // ranks + (rank < n % ranks) for n in (trained, frozen))
        states = size[recipe["main_params"]] * mine if recipe["main_params"] != recipe["params"] else 0
        for moment in ("exp_avg", "exp_avg_sq") if step else ():
            states += size[recipe[moment]] * mine
            states += 4 * -(-mine // 128) if recipe[moment] in ("fp16", "fp8") else 0
        files.append((size[recipe["params"]] * (mine + still), states))
    return files
""", "without it the last rank has less"),
    Wrong("everything on each rank",
          changed(MODEL, "pieces(kind, ranks, align)", "[kind] * ranks"),
          "Each rank writes its own shard alone"),
    Wrong("always main parameters",
          changed(MODEL, ' if recipe["main_params"] != recipe["params"] else []', ""),
          "are no second copy"),
    Wrong("never main parameters",
          changed(MODEL, '["main_params"] if recipe["main_params"] != recipe["params"] else []', "[]"),
          "of another dtype are a copy of their own"),
    Wrong("main parameters in the model's file",
          changed(changed(MODEL, '["main_params"] if recipe["main_params"] != recipe["params"] else []', "[]"),
                  'size[recipe["params"]]', 'size[recipe["main_params"]]'),
          "main parameters lie beside the moments"),
    Wrong("no scales", changed(MODEL, f"({SCALES} if scaled else 0)", "0"), "have a scale for each block"),
    Wrong("scales of fp8 alone", changed(MODEL, '("fp16", "fp8")', '("fp8",)'), "fp16 moments have scales, too"),
    Wrong("scales of all moments",
          changed(MODEL, ' and recipe[state] in ("fp16", "fp8")', ""),
          "bf16 and fp32 need none"),
    Wrong("scales of main parameters",
          changed(MODEL, 'state != "main_params" and ', ""),
          "and main parameters have none"),
    Wrong("whole blocks alone", changed(MODEL, "-(-numel // 128)", "(numel // 128)"),
          "ends within a block has a scale"),
    Wrong("blocks across pieces",
          changed(MODEL, "for state in states for numel in mine)", "for state in states for numel in [sum(mine)])"),
          "Blocks do not go on from piece to piece"),
    Wrong("a block more", changed(MODEL, "-(-numel // 128)", "(numel // 128 + 1)"), "of whole blocks has no other"),
    Wrong("scales of one byte", changed(MODEL, SCALES, "-(-numel // 128)"), "A scale is fp32"),
    Wrong("one moment", changed(MODEL, '["exp_avg", "exp_avg_sq"]', '["exp_avg"]'), "Adam has two moments"),
    Wrong("the other way round",
          changed(MODEL, "    return [", "    return [(b, a) for a, b in [").replace("    ]\n", "    ]]\n"),
          "A pair for each rank is due"),
    Wrong("bits", changed(MODEL, '{"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}',
                          '{"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8}').replace("4 * -", "32 * -"),
          "eight are a byte"),
    Wrong("a sum over the ranks", """
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    return 2 * sum(numels), 12 * sum(numels)
""", "Write down a line for each state"),
    Wrong("spoils the recipe",
          changed(MODEL, "    kinds = ",
                  '    recipe["main_params"] = recipe["main_params"].upper()\n    kinds = ').replace(
              "size[recipe[state]]", "size[recipe[state].lower()]"),
          "which belongs to the caller"),
    Wrong("a block is as long as align", changed(MODEL, SCALES, "4 * -(-numel // align)"), "whatever `align` is"),
    Wrong("scales without moments", """
SIZE = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    train = pieces([n for n, t in zip(numels, trains) if t], ranks, align)
    frozen = pieces([n for n, t in zip(numels, trains) if not t], ranks, align)
    def of(dtype, held):
        return sum(n * SIZE[dtype] + (4 * -(-n // 128) if dtype in ("fp16", "fp8") else 0) for n in held)
    result = []
    for a, b in zip(train, frozen):
        model = SIZE[recipe["params"]] * (sum(a) + sum(b))
        optimizer = 0 if recipe["main_params"] == recipe["params"] else SIZE[recipe["main_params"]] * sum(a)
        if step:
            optimizer += of(recipe["exp_avg"], a) + of(recipe["exp_avg_sq"], a)
        else:
            scaled = [recipe[m] for m in ("exp_avg", "exp_avg_sq") if recipe[m] in ("fp16", "fp8")]
            optimizer += len(scaled) * sum(4 * -(-n // 128) for n in a)
        result.append((model, optimizer))
    return result
""", "no scales of theirs"),
    Wrong("scales by the shard", """
SIZE = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    train = pieces([n for n, t in zip(numels, trains) if t], ranks, align)
    frozen = pieces([n for n, t in zip(numels, trains) if not t], ranks, align)
    def of(dtype, held):
        return sum(n * SIZE[dtype] + (4 * -(-n // 128) if dtype in ("fp16", "fp8") else 0) for n in held)
    result = []
    for a, b in zip(train, frozen):
        model = SIZE[recipe["params"]] * (sum(a) + sum(b))
        optimizer = 0 if recipe["main_params"] == recipe["params"] else SIZE[recipe["main_params"]] * sum(a)
        if step:
            optimizer += of(recipe["exp_avg"], [sum(a)]) + of(recipe["exp_avg_sq"], [sum(a)])
        result.append((model, optimizer))
    return result
""", "Blocks do not go on"),
]  # fmt: skip

RIGHT = [
    Right("loops", """
def checkpoint_bytes(numels, trains, ranks, align, recipe, step):
    width = dict(fp32=4, bf16=2, fp16=2, fp8=1)
    trained = pieces([n for n, t in zip(numels, trains) if t], ranks, align)
    frozen = pieces([n for n, t in zip(numels, trains) if not t], ranks, align)
    result = []
    for rank in range(ranks):
        model = width[recipe["params"]] * (sum(trained[rank]) + sum(frozen[rank]))
        optimizer = 0
        for numel in trained[rank]:
            if recipe["params"] != recipe["main_params"]:
                optimizer += numel * width[recipe["main_params"]]
            if step > 0:
                for moment in ("exp_avg", "exp_avg_sq"):
                    optimizer += numel * width[recipe[moment]]
                    if recipe[moment] in {"fp16", "fp8"}:
                        optimizer += (numel + 127) // 128 * 4
        result.append((model, optimizer))
    return result
"""),
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
