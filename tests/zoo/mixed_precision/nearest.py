"""Answers to `nearest` of lesson 06, wrong and right."""

from zoo.answers import Right

RIGHT = [
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
