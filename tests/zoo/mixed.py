"""Wrong answers to the exercises of lesson 06: formats, the scaler, bytes."""

from zoo import mixed_edges, mixed_mended, mixed_mended_slipped, mixed_ranks, mixed_slipped
from zoo.wrong import Wrong, blank, changed

NEAREST = """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    step = 2.0 ** (power - mantissa_bits)
    size = round(abs(value) / step) * step
    return math.copysign(size if size < 2.0 ** (bias + 1) else math.inf, value)
"""
SCALE = """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.scale, self.clean, self.forgiven = 2.0**initial_power, 0, hysteresis - 1
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale

    def update(self, overflow):
        if not overflow:
            if self.clean and self.clean % self.window == 0:
                self.scale, self.forgiven = 2 * self.scale, self.hysteresis - 1
            self.clean += 1
            return
        if not self.forgiven and self.scale == self.min_scale:
            raise OverflowError("gradients overflow at the smallest scale")
        self.scale = self.scale if self.forgiven else max(self.scale / 2, self.min_scale)
        self.forgiven, self.clean = max(self.forgiven - 1, 0), 0
"""
BYTES = """
def state_bytes(numel, ranks, stage, recipe):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    sharded_from = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    shard = -(-numel // ranks)
    one_copy = recipe["main_params"] == recipe["params"]
    states = [state for state in recipe if not (one_copy and state == "main_params")]
    return sum(size[recipe[state]] * shard * (1 if stage >= sharded_from[state] else ranks) for state in states)
"""

FORMATS = [
    blank("nearest"),
    Wrong("cuts off", "nearest", changed(NEAREST, "round(", "math.floor("), "You cut the rest off"),
    Wrong("goes up", "nearest", changed(NEAREST, "round(", "math.ceil("), "You always go up"),
    Wrong("ties away from zero", "nearest", changed(NEAREST, "round(abs(value) / step)",
                                                    "math.floor(abs(value) / step + 0.5)"), "You send ties away"),
    Wrong("ties down", "nearest", changed(NEAREST, "round(abs(value) / step)",
                                          "math.ceil(abs(value) / step - 0.5)"), "You send ties down"),
    Wrong("endless powers", "nearest", changed(NEAREST, "max(math.frexp(value)[1] - 1, 1 - bias)",
                                               "math.frexp(value)[1] - 1"), "the steps no longer shrink"),
    Wrong("no subnormals", "nearest", changed(NEAREST, "    step =",
          "    if abs(value) < 2.0 ** (1 - bias):\n        return 0.0\n    step ="),
          "Small numbers do not just vanish"),
    Wrong("bias too large", "nearest", changed(NEAREST, "- 1) - 1\n    power", "- 1)\n    power"),
          "and yours is larger"),
    Wrong("bias too small", "nearest", changed(NEAREST, "- 1) - 1\n    power", "- 1) - 2\n    power"),
          "and yours is smaller"),
    Wrong("frexp's power", "nearest", changed(NEAREST, "[1] - 1, 1", "[1], 1"), "one less than its own"),
    Wrong("one bit less", "nearest", changed(NEAREST, "power - mantissa_bits", "power - mantissa_bits + 1"),
          "one bit too few"),
    Wrong("one bit more", "nearest", changed(NEAREST, "power - mantissa_bits", "power - mantissa_bits - 1"),
          "one bit too many"),
    Wrong("no inf", "nearest", changed(NEAREST, "size if size < 2.0 ** (bias + 1) else math.inf", "size"),
          "The largest exponent is taken"),
    Wrong("saturates", "nearest", changed(NEAREST, "else math.inf", "else (2 - 2.0**-mantissa_bits) * 2.0**bias"),
          "comes inf, and not the largest"),
    Wrong("inf too early", "nearest", changed(NEAREST, "    step =",
          "    if abs(value) > (2 - 2.0**-mantissa_bits) * 2.0**bias:\n"
          "        return math.copysign(math.inf, value)\n    step ="), "round first, then compare"),
    Wrong("inf has no sign", "nearest", '''
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    step = 2.0 ** (power - mantissa_bits)
    size = round(value / step) * step
    return size if abs(size) < 2.0 ** (bias + 1) else math.inf
''', "but with the sign of the value"),
    Wrong("no sign", "nearest", changed(NEAREST, "math.copysign(size", "abs(size").replace(", value)\n", ")\n"),
          "The sign is lost"),
    Wrong("through fp32", "nearest", changed(NEAREST, "    bias =",
          "    value = torch.tensor(value).item()\n    bias ="), "On the way through fp32"),
    Wrong("torch's fp16", "nearest",
          "def nearest(value, *bits):\n    return torch.tensor(value).half().item()", "That is right for fp16"),
    Wrong("a tensor", "nearest", changed(NEAREST, "return math", "return torch.tensor(math").replace(
          ", value)\n", ", value))\n"), "a Python float is due"),
    Wrong("drops an int", "nearest", changed(NEAREST, "    return", "    if size == 0:\n        return 0\n    return"),
          "a float is due"),
]  # fmt: skip

SCALER = [
    blank("LossScale", "class LossScale:\n"),
    Wrong("the window-th step", "LossScale", changed(changed(SCALE, "self.clean and self.clean",
          "(self.clean + 1)"), "            self.clean += 1\n", "            self.clean += 1\n"),
          "You double on the window-th clean step"),
    Wrong("one step late", "LossScale", changed(SCALE, "self.clean and self.clean %",
                                                "self.clean > self.window and (self.clean - 1) %"),
          "one step too late"),
    Wrong("doubles on and on", "LossScale", changed(SCALE, "self.clean and self.clean % self.window == 0",
                                                    "self.clean >= self.window"), "Once the window is full"),
    Wrong("counts anew", "LossScale", changed(SCALE, "2 * self.scale, self.hysteresis - 1\n",
          "2 * self.scale, self.hysteresis - 1\n                self.clean = -1\n"), "nothing is left out again"),
    Wrong("never doubles", "LossScale", changed(SCALE, "= 2 * self.scale,", "= self.scale,"), "It never doubles"),
    Wrong("a doubling forgives nothing", "LossScale", changed(SCALE, "2 * self.scale, self.hysteresis - 1",
                                                              "2 * self.scale, self.forgiven"), "A doubling forgives"),
    Wrong("a clean step forgives", "LossScale", changed(SCALE, "            self.clean += 1",
          "            self.clean += 1\n            self.forgiven = self.hysteresis - 1"),
          "A clean step does not forgive"),
    Wrong("forgives nothing", "LossScale", changed(SCALE, "0, hysteresis - 1", "0, 0").replace(
          "self.hysteresis - 1", "0"), "overflows are forgiven: they do not halve"),
    Wrong("forgives one more", "LossScale", changed(SCALE, "hysteresis - 1", "hysteresis"),
          "you forgive that one, too"),
    Wrong("forgives again after halving", "LossScale", changed(SCALE, "        self.forgiven, self.clean = max",
          "        if not self.forgiven:\n            self.forgiven = self.hysteresis\n"
          "        self.forgiven, self.clean = max"), "Once one has halved"),
    Wrong("a forgiven one counts as clean", "LossScale", changed(SCALE, "max(self.forgiven - 1, 0), 0",
          "max(self.forgiven - 1, 0), self.clean if self.forgiven else 0"), "that is forgiven is no clean step"),
    Wrong("counts on", "LossScale", changed(SCALE, "max(self.forgiven - 1, 0), 0",
                                               "max(self.forgiven - 1, 0), self.clean"),
          "An overflow ends the row"),
    Wrong("quarters", "LossScale", changed(SCALE, "self.scale / 2,", "self.scale / 4,"), "An overflow halves"),
    Wrong("no floor", "LossScale", changed(changed(SCALE, "max(self.scale / 2, self.min_scale)", "self.scale / 2"),
          "self.scale == self.min_scale", "False"), "never below min_scale"),
    Wrong("no end", "LossScale", changed(SCALE, "self.scale == self.min_scale", "False"), "raises OverflowError"),
    Wrong("the floor comes first", "LossScale", changed(SCALE, "not self.forgiven and ", ""), "At the floor, too"),
    Wrong("whole halves", "LossScale", changed(SCALE, "self.scale / 2,", "self.scale // 2,"), "divide with /"),
    Wrong("changes, then raises", "LossScale", changed(SCALE, "            raise OverflowError",
          "            self.scale /= 2\n            raise OverflowError"), "Raise before you change anything"),
    Wrong("forgets the row, then raises", "LossScale", changed(SCALE, "            raise OverflowError",
          "            self.clean = 0\n            raise OverflowError"), "An OverflowError changes nothing"),
    Wrong("ends above the floor", "LossScale", changed(changed(SCALE, "self.scale == self.min_scale",
          "self.scale / 2 < self.min_scale"), "max(self.scale / 2, self.min_scale)", "self.scale / 2"),
          "the scale becomes min_scale"),
    Wrong("begins with the power", "LossScale", changed(SCALE, "2.0**initial_power", "float(initial_power)"),
          "it begins with scale"),
    Wrong("shared by all", "LossScale", changed(SCALE, "self.clean", "LossScale.clean"), "a second one beside it"),
    Wrong("a method", "LossScale",
          changed(SCALE, "self.scale", "self.height") + "\n    def scale(self):\n        return self.height\n",
          "a number is due"),
]  # fmt: skip

COST = [
    blank("state_bytes"),
    Wrong("always a main copy", "state_bytes", changed(BYTES, "if not (one_copy and state == \"main_params\")", ""),
          "are no second copy"),
    Wrong("never a main copy", "state_bytes", changed(BYTES, "one_copy and ", ""), "are a copy of their own"),
    Wrong("widths compared", "state_bytes", '''
def state_bytes(numel, ranks, stage, recipe):
    size = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
    shard = -(-numel // ranks)
    first = {"params": 3, "main_grads": 2, "main_params": 1, "exp_avg": 1, "exp_avg_sq": 1}
    kept = dict(recipe)
    if size[kept["main_params"]] == size[kept["params"]]:
        del kept["main_params"]
    return sum(size[dtype] * (shard if stage >= first[state] else shard * ranks) for state, dtype in kept.items())
''', "main_params bf16"),
    Wrong("gradients at stage 1", "state_bytes", changed(BYTES, '"main_grads": 2', '"main_grads": 1'),
          "and not at stage 1"),
    Wrong("gradients at stage 3", "state_bytes", changed(BYTES, '"main_grads": 2', '"main_grads": 3'),
          "not only at stage 3"),
    Wrong("parameters at stage 2", "state_bytes", changed(BYTES, '"params": 3', '"params": 2'), "and not at stage 2"),
    Wrong("parameters never", "state_bytes", changed(BYTES, '"params": 3', '"params": 4'),
          "parameters are sharded, too"),
    Wrong("main parameters with the parameters", "state_bytes", changed(BYTES, '"main_params": 1', '"main_params": 3'),
          "belong to the optimizer"),
    Wrong("all sharded", "state_bytes", changed(BYTES, "stage >= sharded_from[state]", "True"),
          "You shard every state"),
    Wrong("nothing sharded", "state_bytes", changed(BYTES, "stage >= sharded_from[state]", "False"),
          "You shard nothing"),
    Wrong("one stage off", "state_bytes", changed(BYTES, "stage >=", "stage + 1 >="), "a stage ahead"),
    Wrong("one stage off, the other way", "state_bytes", changed(BYTES, "stage >=", "stage - 1 >="), "a stage behind"),
    Wrong("whole states without padding", "state_bytes", changed(BYTES,
          "shard * (1 if stage >= sharded_from[state] else ranks)",
          "(shard if stage >= sharded_from[state] else numel)"), "A whole state is padded"),
    Wrong("cut off", "state_bytes", changed(BYTES, "-(-numel // ranks)", "numel // ranks"), "A shard is cut off: pad"),
    Wrong("one moment", "state_bytes", changed(BYTES, "for state in states)", "for state in states[:-1])"),
          "two moments"),
    Wrong("no gradients", "state_bytes", changed(BYTES, "for state in states)",
                                                 "for state in states if state != \"main_grads\")"),
          "The gradients are missing"),
    Wrong("all in fp32", "state_bytes", changed(BYTES, "size[recipe[state]]", "4"), "every state in fp32"),
    Wrong("of all ranks", "state_bytes", changed(BYTES, "return sum", "return ranks * sum"), "all ranks keep together"),
    Wrong("bits", "state_bytes", changed(BYTES, "return sum", "return 8 * sum"), "That is bits"),
    Wrong("a float", "state_bytes", changed(BYTES, "return sum", "return 1.0 * sum"), "divide with //"),
    Wrong("takes the recipe apart", "state_bytes", changed(BYTES, "    return",
          "    if one_copy:\n        del recipe['main_params']\n    return"), "it overwrote"),
]  # fmt: skip

ZOO = [*FORMATS, *mixed_ranks.ZOO, *SCALER, *mixed_mended.ZOO, *COST, *mixed_slipped.ZOO, *mixed_mended_slipped.ZOO]
ZOO += mixed_edges.ZOO
