"""Number formats as a reader sees them: the bits of a number, what it is rounded to, and the numbers beside it.

A binary format spends its bits on a sign, an exponent and a mantissa (IEEE 754). With e bits of exponent, m of
mantissa, bias 2**(e-1) - 1, and fields E and M as whole numbers, the number is

    normal      2**(E - bias) * (1 + M / 2**m)
    subnormal   2**(1 - bias) * (M / 2**m)       where E is 0; M = 0 is zero

and the largest E means inf (M = 0) and NaN. e4m3, as the H100 and torch have it (`float8_e4m3fn`; Micikevicius et al.,
arXiv 2209.05433, section 3), uses that E for numbers, too: it has no inf, and only the last M is NaN.

Numbers of one sign lie in the order of their codes, so the neighbour of a number is its code plus or minus one.

`rounded` is torch's own conversion, on the CPU: first to fp32, then on to the format, each time to the nearest and to
the even one of two. What is too large becomes inf. In e4m3 it becomes 448, inf included, since torch saturates there
(2.13 does; 2.11 gave NaN; pytorch pull request 178817). e5m2 does have inf, and torch does not saturate there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from math import copysign, isnan, ldexp
from numbers import Real

import torch

from zerolab.errors import InputError


@dataclass(frozen=True)
class Format:
    """A binary format of floating-point numbers, by the sizes of its fields."""

    name: str
    dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int
    infinite: bool = True
    """Whether the largest exponent means inf and NaN; without, only its last code is NaN."""

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        return number(self.last, self)

    @property
    def smallest_normal(self) -> float:
        return ldexp(1.0, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        return ldexp(1.0, 1 - self.bias - self.mantissa_bits)

    @property
    def epsilon(self) -> float:
        """From 1 to the next number."""
        return ldexp(1.0, -self.mantissa_bits)

    @property
    def last(self) -> int:
        """The code of the largest finite number."""
        codes = 2 ** (self.bits - 1)
        return codes - (2**self.mantissa_bits if self.infinite else 1) - 1


FORMATS = {
    form.name: form
    for form in (
        Format("fp32", torch.float32, 8, 23),
        Format("bf16", torch.bfloat16, 8, 7),
        Format("fp16", torch.float16, 5, 10),
        Format("e4m3", torch.float8_e4m3fn, 4, 3, infinite=False),
        Format("e5m2", torch.float8_e5m2, 5, 2),
    )
}

CODES = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


@dataclass(frozen=True)
class Fields:
    """The three fields of a number as whole numbers, and what they mean."""

    sign: int
    exponent: int
    mantissa: int
    kind: str
    """`normal`, `subnormal`, `zero`, `inf` or `nan`."""

    power: int
    """A finite number is mantissa / 2**m, plus 1 where it is normal, times 2**power."""


def fields(value: float, fmt: str | Format) -> Fields:
    """The fields of `value`, rounded to the format."""
    return split(code(value, fmt), fmt)


def bits(value: float, fmt: str | Format) -> str:
    """Sign, exponent and mantissa of `value`, rounded to the format, such as "0 10000 1001001000" for pi in fp16."""
    form, found = find(fmt), fields(value, fmt)
    return f"{found.sign} {found.exponent:0{form.exponent_bits}b} {found.mantissa:0{form.mantissa_bits}b}"


def rounded(value: float, fmt: str | Format) -> float:
    """`value` as the format has it: torch's own conversion (see above for what is too large)."""
    return float(_converted(value, find(fmt)))


def neighbours(value: float, fmt: str | Format) -> tuple[float, float, float]:
    """The number that `value` is rounded to, between the one below it and the one above it. NaN stands where there
    is none: above the largest of a format without inf, beyond inf, and beside NaN. 0 and -0 are one number."""
    form = find(fmt)
    at = rounded(value, form)
    if isnan(at):
        return at, at, at
    place = ordinal(at, form)
    return number(place - 1, form), at, number(place + 1, form)


def between(low: float, high: float, fmt: str | Format) -> range:
    """The ordinals of the format's finite numbers from `low` to `high`, both included; their `len` is their count."""
    form = find(fmt)
    low, high = _number(low), _number(high)
    places = range(-form.last, form.last + 1)
    first = bisect_left(places, low, key=lambda place: number(place, form))
    stop = bisect_right(places, high, key=lambda place: number(place, form))
    return places[first:stop]


def number(ordinal: int, fmt: str | Format) -> float:
    """The number so many places above 0, or below it; NaN beyond the format's last."""
    form = find(fmt)
    found = split(min(abs(ordinal), 2 ** (form.bits - 1) - 1), form)
    if found.kind == "nan" or abs(ordinal) > form.last + form.infinite:
        return float("nan")
    if found.kind == "inf":
        return copysign(float("inf"), ordinal)
    whole = found.mantissa + (2**form.mantissa_bits if found.kind == "normal" else 0)
    return copysign(ldexp(float(whole), found.power - form.mantissa_bits), ordinal)


def ordinal(value: float, fmt: str | Format) -> int:
    """How many numbers of the format lie from 0 up, or down, to `value`, rounded to it."""
    form = find(fmt)
    found = code(value, form)
    size = found % 2 ** (form.bits - 1)
    return size if size == found else -size


def code(value: float, fmt: str | Format) -> int:
    """The bits of `value`, rounded to the format, as one whole number."""
    form = find(fmt)
    return int(_converted(value, form).view(CODES[form.bits])) % 2**form.bits


def split(code: int, fmt: str | Format) -> Fields:
    """The fields of a code."""
    form = find(fmt)
    if isinstance(code, bool) or not isinstance(code, int) or not 0 <= code < 2**form.bits:
        raise InputError(f"{form.name} has no code {code!r}; give a whole number from 0 to {2**form.bits - 1}")
    mantissa = code % 2**form.mantissa_bits
    exponent = (code >> form.mantissa_bits) % 2**form.exponent_bits
    power = max(exponent, 1) - form.bias
    kind = "normal" if exponent else "subnormal" if mantissa else "zero"
    if code % 2 ** (form.bits - 1) > form.last:
        kind = "inf" if form.infinite and not mantissa else "nan"
    return Fields(code >> (form.bits - 1), exponent, mantissa, kind, power)


def find(fmt: str | Format) -> Format:
    """The format of that name."""
    if isinstance(fmt, Format):
        return fmt
    if not isinstance(fmt, str) or fmt not in FORMATS:
        raise InputError(f"there is no format {fmt!r}; choose one of {', '.join(FORMATS)}")
    return FORMATS[fmt]


def _converted(value: float, form: Format) -> torch.Tensor:
    return torch.tensor(_number(value), dtype=torch.float64).to(torch.float32).to(form.dtype)


def _number(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"the value is {value!r}; give a number")
    try:
        return float(value)
    except OverflowError:
        raise InputError("the value is beyond 1.8e308 and so beyond every format; give a smaller one") from None
