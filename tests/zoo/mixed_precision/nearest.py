"""Answers to `nearest` of lesson 06, wrong and right."""

from zoo.answers import Right, changed, model

MODEL = model("06_mixed_precision", "nearest")

RIGHT = [
    Right("exact fractions", """
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
    Right("frexp and ldexp", """
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
    Right("decimals", """
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
    Right("the bits by struct", """
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
    Right("the IEEE remainder", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    unit = math.ldexp(1.0, power - mantissa_bits)
    result = value - math.remainder(value, unit)
    return result if abs(result) / 2.0 ** bias < 2 else math.copysign(math.inf, value)
"""),
    Right("a loop over powers, by neighbours", """
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
    Right("as_integer_ratio", """
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
    Right("bisection over codes", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = (1 << (exponent_bits - 1)) - 1
    per_power = 1 << mantissa_bits
    def number(code):
        exponent, mantissa = divmod(code, per_power)
        if exponent == 0:
            return math.ldexp(mantissa, 1 - bias - mantissa_bits)
        return math.ldexp(per_power + mantissa, exponent - bias - mantissa_bits)
    size = abs(value)
    end = per_power * (2 * bias + 1)
    low, high = 0, end
    while high - low > 1:
        middle = (low + high) // 2
        if number(middle) <= size:
            low = middle
        else:
            high = middle
    top = math.ldexp(1.0, bias + 1) if bias < 1023 else math.inf
    above = top if high == end else number(high)
    from fractions import Fraction
    down, up = Fraction(size) - Fraction(number(low)), Fraction(above) - Fraction(size)
    if up < down or (up == down and low % 2):
        low = high
    save = math.inf if low == end else number(low)
    return -save if value < 0 else save
"""),
    Right("Decimal remainder_near, prints", """
from decimal import Decimal, getcontext
def nearest(value, exponent_bits, mantissa_bits):
    getcontext().prec = 1500
    bias = 2 ** (exponent_bits - 1) - 1
    load = Decimal(value)
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    unit = Decimal(2) ** (power - mantissa_bits)
    result = load - load.remainder_near(unit)
    print(value, "->", result)
    if abs(result) >= Decimal(2) ** (bias + 1):
        return math.inf if load > 0 else -math.inf
    return float(result)
"""),
    Right("the format string", changed(MODEL, "round(abs(value) / step)", 'float(f"{abs(value) / step:.0f}")')),
    Right("ldexp", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(value)[1] - 1, 1 - bias) if value else 1 - bias
    if exponent > bias:
        return math.copysign(math.inf, value)
    steps = round(math.ldexp(value, mantissa_bits - exponent))
    if abs(steps) >= 1 << (bias + 1 - exponent + mantissa_bits):
        return math.inf if value > 0 else -math.inf
    return math.ldexp(steps, exponent - mantissa_bits)
"""),
    Right("fractions", """
from fractions import Fraction
def nearest(value, exponent_bits, mantissa_bits):
    if value == 0:
        return 0.0
    bias, size = 2 ** (exponent_bits - 1) - 1, abs(Fraction(value))
    power = 1 - bias
    while Fraction(2) ** (power + 1) <= size and power < 1100:
        power += 1
    step = Fraction(2) ** (power - mantissa_bits)
    found = round(size / step) * step
    found = math.inf if found >= Fraction(2) ** (bias + 1) else float(found)
    return found if value > 0 else -found
"""),
    Right("torch in fp64", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    x = torch.tensor(value, dtype=torch.float64)
    power = max(int(torch.frexp(x).exponent) - 1, 1 - bias)
    quantum = 2.0 ** (power - mantissa_bits)
    y = torch.round(x / quantum) * quantum
    return math.copysign(math.inf, value) if abs(y.item()) > (2 - 2.0 ** -mantissa_bits) * 2.0 ** bias else y.item()
"""),
    # Have to hold at the edges.
    Right("whole numbers and shifts", """
def nearest(value, exponent_bits, mantissa_bits):
    bias = 2 ** (exponent_bits - 1) - 1
    n, d = abs(value).as_integer_ratio()
    # multiply by 2^k so that the result is in units of the subnormal step
    n <<= bias - 1 + mantissa_bits if bias - 1 + mantissa_bits > 0 else 0
    q, r = divmod(n, d)
    drop = max(q.bit_length() - (mantissa_bits + 1), 0)
    low = q & ((1 << drop) - 1)
    kept = q >> drop
    if drop:
        half = 1 << (drop - 1)
        up = low > half or (low == half and (r or kept & 1))
    else:
        up = 2 * r > d or (2 * r == d and kept & 1)
    kept = (kept + bool(up)) << drop
    if kept >= 1 << (bias + 1 + bias - 1 + mantissa_bits):
        size = float("inf")
    else:
        size = kept / (1 << (bias - 1 + mantissa_bits))
    return size if value >= 0 else -size
"""),
    Right("torch in double precision", """
import torch
def nearest(value, exponent_bits, mantissa_bits):
    x = torch.tensor(value, dtype=torch.float64)
    bias = 2 ** (exponent_bits - 1) - 1
    e = torch.frexp(x).exponent.clamp(min=2 - bias).item() - 1
    step = torch.tensor(2.0, dtype=torch.float64) ** (e - mantissa_bits)
    r = (x / step).round() * step
    return torch.where(r.abs() >= 2.0 ** (bias + 1), r.sign() * torch.inf, r).item()
"""),
]  # fmt: skip
