"""Right answers of lesson 06 about numbers: formats, the scaler, bytes."""

from zoo.right.answer import Right

RIGHT = [
    Right("exact fractions", "nearest", """
from fractions import Fraction
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    exact = Fraction(value)
    power = 1 - bias
    while abs(exact) >= Fraction(2) ** (power + 1):
        power += 1
    unit = Fraction(2) ** (power - mantissa_bits)
    result = round(exact / unit) * unit
    if abs(result) >= Fraction(2) ** (bias + 1):
        return math.copysign(math.inf, value)
    return float(result)
"""),
    Right("frexp and ldexp", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = (1 << (exponent_bits - 1)) - 1
    _, power = math.frexp(value)
    step = max(power - 1, 1 - bias) - mantissa_bits
    try:
        result = math.ldexp(round(math.ldexp(value, -step)), step)
    except OverflowError:
        return math.copysign(math.inf, value)
    return math.copysign(math.inf, value) if math.frexp(result)[1] - 1 > bias else result
"""),
    Right("decimals", "nearest", """
from decimal import Decimal, ROUND_HALF_EVEN, localcontext
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    with localcontext() as context:
        context.prec = 3000
        power = max(math.frexp(value)[1] - 1, 1 - bias)
        unit = Decimal(2) ** (power - mantissa_bits)
        steps = (Decimal(value) / unit).quantize(Decimal(1), rounding=ROUND_HALF_EVEN)
        if abs(steps) * unit >= Decimal(2) ** (bias + 1):
            return float("-inf") if value < 0 else float("inf")
        return float(steps * unit)
"""),
    Right("the bits by struct", "nearest", """
import struct
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    (bits,) = struct.unpack("<Q", struct.pack("<d", value))
    exponent, fraction = bits >> 52 & 0x7FF, bits & (1 << 52) - 1
    if exponent:
        fraction += 1 << 52
    low = max(exponent, 1) - 1075
    top = max(fraction.bit_length() - 1 + low, 1 - bias)
    shift = top - mantissa_bits - low
    if shift > 0:
        whole, rest = divmod(fraction, 1 << shift)
        half = 1 << (shift - 1)
        if rest > half or (rest == half and whole % 2):
            whole += 1
    else:
        whole = fraction << -shift
    if whole.bit_length() - 1 + top - mantissa_bits > bias:
        result = math.inf
    else:
        result = math.ldexp(whole, top - mantissa_bits)
    return -result if bits >> 63 else result
"""),
    Right("the IEEE remainder", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    unit = math.ldexp(1.0, power - mantissa_bits)
    result = value - math.remainder(value, unit)
    return result if abs(result) / 2.0 ** bias < 2 else math.copysign(math.inf, value)
"""),
    Right("a loop over powers, by neighbours", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    def positive(size):
        power = 1 - bias
        while size / 2.0 ** power >= 2.0:
            power += 1
        in_steps = size / 2.0 ** power * 2 ** mantissa_bits
        below = math.floor(in_steps)
        if in_steps - below > 0.5 or (in_steps - below == 0.5 and below % 2 == 1):
            below += 1
        if power > bias or (power == bias and below == 2 ** (mantissa_bits + 1)):
            return math.inf
        return below / 2 ** mantissa_bits * 2.0 ** power
    bias = 2 ** (exponent_bits - 1) - 1
    return positive(value) if value > 0 else -positive(-value)
"""),
    Right("as_integer_ratio", "nearest", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = (1 << exponent_bits >> 1) - 1
    top, bottom = abs(value).as_integer_ratio()
    power = max(top.bit_length() - bottom.bit_length(), 1 - bias)
    shift = mantissa_bits - power
    if shift >= 0:
        top <<= shift
    else:
        bottom <<= -shift
    count, rest = divmod(top, bottom)
    count += 2 * rest > bottom or (2 * rest == bottom and count & 1)
    infinite = count.bit_length() - shift > bias + 1
    return math.copysign(math.inf if infinite else math.ldexp(count, -shift), value)
"""),
    Right("plain counts", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.scale = 2.0 ** initial_power
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale
        self.clean, self.forgiven = 0, hysteresis - 1
    def update(self, overflow):
        if not overflow:
            if self.clean > 0 and self.clean % self.window == 0:
                self.scale *= 2
                self.forgiven = self.hysteresis - 1
            self.clean += 1
        elif self.forgiven > 0:
            self.forgiven -= 1
            self.clean = 0
        elif self.scale == self.min_scale:
            raise OverflowError("the smallest scale overflows")
        else:
            self.scale = max(self.scale / 2, self.min_scale)
            self.clean = 0
"""),
    Right("whole numbers where they are whole", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.scale = 2 ** initial_power
        self.window, self.hysteresis, self.floor = window, hysteresis, min_scale
        self.since = -1
        self.patience = hysteresis
    def update(self, overflow):
        if overflow:
            if self.patience > 1:
                self.patience -= 1
            else:
                if self.scale <= self.floor:
                    raise OverflowError
                half = self.scale // 2 if isinstance(self.scale, int) and self.scale % 2 == 0 else self.scale / 2
                self.scale = half if half > self.floor else self.floor
            self.since = -1
            return
        self.since += 1
        if self.since and not self.since % self.window:
            self.scale, self.patience = 2 * self.scale, self.hysteresis
"""),
    Right("a coroutine", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self.window, self.hysteresis, self.min_scale = window, hysteresis, min_scale
        self.scale = math.ldexp(1.0, initial_power)
        self.steps, self.spare = 0, hysteresis - 1
    def update(self, overflow):
        return self.dirty() if overflow else self.tidy()
    def tidy(self):
        number, self.steps = self.steps, self.steps + 1
        if number and number % self.window == 0:
            self.scale, self.spare = self.scale * 2, self.hysteresis - 1
    def dirty(self):
        if not self.spare and self.scale == self.min_scale:
            raise OverflowError(f"scale {self.scale} cannot be halved")
        self.steps = 0
        if self.spare:
            self.spare -= 1
        else:
            self.scale = self.min_scale if self.scale / 2 < self.min_scale else self.scale / 2
"""),
    Right("a property over an exponent and a floor", "LossScale", """
class LossScale:
    def __init__(self, initial_power, window, hysteresis, min_scale):
        self._state = (2.0 ** initial_power, 0, 0)
        self._rule = window, hysteresis, min_scale
    @property
    def scale(self):
        return self._state[0]
    def update(self, overflow):
        window, hysteresis, floor = self._rule
        scale, clean, overflows = self._state
        if not overflow:
            doubles = clean >= window and clean % window == 0
            self._state = (scale * 2, clean + 1, 0) if doubles else (scale, clean + 1, overflows)
        elif overflows + 1 < hysteresis:
            self._state = (scale, 0, overflows + 1)
        elif scale == floor:
            raise OverflowError("no lower")
        else:
            self._state = (max(floor, scale * 0.5), 0, overflows)
"""),
    Right("a dataclass with a countdown", "LossScale", """
from dataclasses import dataclass, field
@dataclass
class LossScale:
    initial_power: int
    window: int
    hysteresis: int
    min_scale: float
    scale: float = field(init=False)
    def __post_init__(self):
        self.scale = float(2 ** self.initial_power)
        self.left = self.window + 1
        self.lives = self.hysteresis
    def update(self, overflow):
        if overflow:
            if self.lives == 1:
                if self.scale == self.min_scale:
                    raise OverflowError("at the floor")
                self.scale = max(self.min_scale, self.scale / 2)
            else:
                self.lives -= 1
            self.left = self.window + 1
        else:
            self.left -= 1
            if self.left == 0:
                self.scale += self.scale
                self.lives, self.left = self.hysteresis, self.window
"""),
    Right("a dictionary of stages", "state_bytes", """
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
    Right("match", "state_bytes", """
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
    Right("torch dtypes", "state_bytes", """
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
    Right("a running total", "state_bytes", """
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
]  # fmt: skip
