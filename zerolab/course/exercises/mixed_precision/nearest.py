"""The exercise of lesson 06 on rounding to a format."""

from __future__ import annotations

import math
import sys
from random import Random

import torch

from zerolab.course.formats import Format, number
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.model import Gives
from zerolab.course.judge.same import alike, short

TEXT = """
Round

A format has one bit for the sign, `exponent_bits` and `mantissa_bits`. Its bias is 2^(exponent_bits - 1) - 1. Return
the number of the format that is nearest to `value`, a finite Python float, as a Python float.

- **Normal** numbers are 1.xxx times a power of two, with `mantissa_bits` bits after the point. Their powers go from 1 -
  bias to bias, both included.
- **Subnormal** numbers fill the gap down to zero: below 2^(1 - bias) the steps stay as wide as just above it.
- Of two numbers that are equally near, take the one whose last bit is 0 (*ties to even*). Python's `round` does this
  for whole numbers.
- What is rounded to 2^(bias + 1) or beyond is inf, with the sign of the value: round as if the powers went on, then
  look. So numbers a little beyond the largest still become the largest.
- 0.0 and -0.0 count as the same.

That is IEEE 754, so it is right for fp16, bf16 and e5m2, not for e4m3, which has no inf. The check draws formats of 3
to 10 bits of exponent and 2 to 52 of mantissa, most of which torch does not have, and in each of them values of
either sign: normal, subnormal, tied, zero, beyond the largest, up to the largest Python float, and some that need all
bits of a Python float. About five lines.
"""


def nearest(value: float, exponent_bits: int, mantissa_bits: int) -> float:
    """The nearest number of a format; ties to even."""
    ### BEGIN SOLUTION
    bias = 2 ** (exponent_bits - 1) - 1
    power = max(math.frexp(value)[1] - 1, 1 - bias)
    step = 2.0 ** (power - mantissa_bits)
    size = round(abs(value) / step) * step
    return math.copysign(size if size < 2.0 ** (bias + 1) else math.inf, value)
    ### END SOLUTION


MISTAKES = r"""
math.log2 is rounded itself, and just below a power of two it gives that power: math.frexp is exact
    math.frexp(value)[1] - 1 => math.floor(math.log2(abs(value) or 1.0))
You send ties away from zero; of two equally near, the even one is taken, as Python's round() does
    round(abs(value) / step) => math.floor(abs(value) / step + 0.5)
You cut the rest off; it goes to the nearest
    round( => math.floor(
Below the smallest normal number the steps no longer shrink: which power is the last?
    max(math.frexp(value)[1] - 1, 1 - bias) => math.frexp(value)[1] - 1
You keep one bit too few: the leading 1 of a normal number is not stored
    power - mantissa_bits => power - mantissa_bits + 1
math.frexp gives a share from a half to one, so the power you want is one less than its own
    [1] - 1 => [1]
Small numbers do not just vanish: below the smallest normal number come the subnormal ones
    size if => 0.0 if abs(value) < 2.0 ** (1 - bias) else size if
The largest exponent is taken by inf and NaN; no finite number has it
    size if size < 2.0 ** (bias + 1) else math.inf => size
Beyond the largest number comes inf, and not the largest number
    math.inf => 2.0 ** (bias + 1) - 2.0 ** (bias - mantissa_bits)
Not all beyond the largest number is inf: round first, then compare
    size if => size if abs(value) <= 2.0 ** (bias + 1) - 2.0 ** (bias - mantissa_bits) and
"""
UNDER, TIE, OVER = 31 / 64, 1 / 2, 33 / 64
"""How far from one number to the next."""


def beside(rng: Random, form: Format) -> list[float]:
    """Numbers of a format, and what lies beside them: normal and subnormal, even and odd below a tie, at both ends."""
    first_normal = 2**form.mantissa_bits
    normal = rng.randrange(first_normal + 1, form.last - 2) // 2 * 2
    tiny = rng.randrange(2, max(first_normal - 2, 3)) // 2 * 2

    def value(place: int, share: float) -> float:
        low = number(place, form)
        high = 2.0 ** (form.bias + 1) if place == form.last else number(place + 1, form)
        return low + share * (high - low)

    return [
        *(value(normal, share) for share in (0, UNDER, OVER, TIE)),
        value(normal + 1, TIE),
        # So little over a tie that nothing narrower than a Python float sees it.
        math.nextafter(value(normal, TIE), math.inf),
        value(2 * first_normal - 1, OVER),
        value(first_normal, 0),
        *(value(tiny, share) for share in (0, OVER)),
        *(value(0, share) for share in (TIE, OVER)),
        *(value(form.last, share) for share in (0, UNDER, TIE)),
    ]


def finest(rng: Random, form: Format) -> list[float]:
    """Where a format has as many bits of mantissa as a Python float: a logarithm that is rounded, or a sum with a large
    number, is wrong in the last bit."""
    first_normal = 2**form.mantissa_bits
    below_power = rng.randrange(3, 2**form.exponent_bits - 3) * first_normal - 1
    places = below_power, rng.randrange(first_normal, form.last), form.last
    tie = number(2 * rng.randrange(1, first_normal // 4), form) + number(1, form) / 2
    return [*(number(place, form) for place in places), tie]


def cases(rng: Random) -> list[Case]:
    drawn = []
    drawn_sizes = (rng.choice((3, 4, 6)), rng.randint(3, 8)), (rng.randint(7, 10), 52)
    for sizes in (*drawn_sizes, (5, rng.choice((2, 10))), (8, 7)):
        form = Format("drawn", torch.float32, *sizes)
        chosen = (finest if sizes[1] == 52 else beside)(rng, form)
        chosen += [rng.uniform(2.0, 9.0) * 2.0 ** (form.bias + 1), 0.0]
        values = [sign * value for value in chosen for sign in (1, -1)]
        drawn.append(Case([(values, *sizes)], about=f"{sizes[0]} bits of exponent, {sizes[1]} of mantissa"))
        # An error says less than a wrong number, so what often raises one is not among the others.
        drawn.append(Case([([rng.choice((-1, 1)) * sys.float_info.max], *sizes)]))
    return drawn


def run_values(fn, comm, values, exponent_bits, mantissa_bits):
    return [fn(value, exponent_bits, mantissa_bits) for value in values]


def rounds(args, got, want):
    value, mine, due = next(one for one in zip(args[0], got, want, strict=True) if not alike(*one[1:]))
    return f"rounds {value!r} to {short(mine)}, and {due + 0.0!r} is due"


EXERCISE = Exercise(
    "nearest",
    cases,
    (
        Claim(
            "it finds the nearest number of any format: normal, subnormal, tied, zero and beyond the largest",
            Gives(
                look="What is the distance between two numbers there, and what does the text say of such a value?",
                tolerance=0.0,
                say=rounds,
            ),
        ),
    ),
    run=run_values,
    mistakes=MISTAKES,
    hints=(
        "All numbers of the format between two powers of two are equally far apart: find that step, divide by it, "
        "round, and multiply.",
        "math.frexp(value) says between which powers of two a value lies: it returns (share, power) with share from a "
        "half to one, so the power that you want is one less.",
        "The step does not shrink below that of the smallest normal number. At the other end, what was rounded to "
        "2**(bias + 1) or more is inf; math.copysign keeps the sign.",
    ),
    text=TEXT,
    answer=(nearest,),
    points=3,
)
