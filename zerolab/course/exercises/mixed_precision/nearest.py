"""The exercise of lesson 06 on rounding to a format."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from random import Random
from typing import Any

import torch

from zerolab.course.exercises.mixed_precision.plain import GivesAlone
from zerolab.course.formats import Format, number
from zerolab.course.judge.case import Case
from zerolab.course.judge.exercise import Claim, Exercise
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
Below zero you go down, too; it goes to the nearest, and of two equally near to the even one
    round(abs(value) / step) => abs(value // step)
You cut the rest off; it goes to the nearest
    round( => math.floor(
You send ties away from zero; of two equally near, the even one is taken, as Python's round() does
    round(abs(value) / step) => math.floor(abs(value) / step + 0.5)
You send ties down; of two equally near, the even one is taken
    round(abs(value) / step) => math.ceil(abs(value) / step - 0.5)
Below the smallest normal number the steps no longer shrink: which power is the last?
    max(math.frexp(value)[1] - 1, 1 - bias) => math.frexp(value)[1] - 1
The bias is 2**(e-1) - 1, and yours is larger
    (exponent_bits - 1) - 1 => (exponent_bits - 1)
The bias is 2**(e-1) - 1, and yours is smaller
    (exponent_bits - 1) - 1 => (exponent_bits - 1) - 2
You keep one bit too few: the leading 1 of a normal number is not stored
    power - mantissa_bits => power - mantissa_bits + 1
math.frexp gives a share from a half to one, so the power you want is one less than its own
    [1] - 1 => [1]
You keep one bit too many: mantissa_bits is what comes after the leading 1
    power - mantissa_bits => power - mantissa_bits - 1
Small numbers do not just vanish: below the smallest normal number come the subnormal ones
    size if => 0.0 if abs(value) < 2.0 ** (1 - bias) else size if
The largest exponent is taken by inf and NaN; no finite number has it
    size if size < 2.0 ** (bias + 1) else math.inf => size
Beyond the largest number comes inf, and not the largest number
    math.inf => 2.0 ** (bias + 1) - 2.0 ** (bias - mantissa_bits)
Not all beyond the largest number is inf: round first, then compare
    size if => size if abs(value) <= 2.0 ** (bias + 1) - 2.0 ** (bias - mantissa_bits) and
On the way through fp32 it lost the bits that break the tie: compute with Python's floats
    bias = => value = torch.tensor(value).item()\n    bias =
"""
NAMED = ((8, 7), (5, 10), (5, 2))
"""Exponent and mantissa bits of bf16, fp16 and e5m2."""
SHARES = {"at": 0.0, "under": 31 / 64, "tie": 0.5, "hair": 0.5, "over": 33 / 64}
"""How far from one number to the next; a hair is so little over a tie that nothing narrower than a Python float sees
it."""


def format_of(exponent_bits: int, mantissa_bits: int) -> Format:
    return Format("drawn", torch.float32, exponent_bits, mantissa_bits)


def between(rng: Random, form: Format, place: int, how: str) -> float:
    """A value between the numbers at `place` and `place + 1`, of either sign."""
    low = number(place, form)
    high = 2.0 ** (form.bias + 1) if place == form.last else number(place + 1, form)
    size = low + SHARES[how] * (high - low)
    return rng.choice((-1, 1)) * (math.nextafter(size, math.inf) if how == "hair" else size)


def places(rng: Random, form: Format) -> list[tuple[str, int, str]]:
    """(what, place, how): subnormal, normal and last, even and odd below a tie."""
    first_normal = 2**form.mantissa_bits
    normal = rng.randrange(first_normal + 1, form.last - 2) // 2 * 2
    tiny = rng.randrange(2, max(first_normal - 2, 3)) // 2 * 2
    return [
        ("a number of the format", normal, "at"),
        ("a normal number, nearer to the lower neighbour", normal, "under"),
        ("a normal number, nearer to the upper neighbour", normal, "over"),
        ("a tie, the even one below", normal, "tie"),
        ("a tie, the even one above", normal + 1, "tie"),
        ("a hair over a tie", normal, "hair"),
        ("the top of a power of two", 2 * first_normal - 1, "over"),
        ("the smallest normal number", first_normal, "at"),
        ("a subnormal number", tiny, "at"),
        ("a subnormal number, nearer to the upper neighbour", tiny, "over"),
        ("half of the smallest number: a tie", 0, "tie"),
        ("just over half of the smallest number", 0, "over"),
        ("the largest number", form.last, "at"),
        ("beyond the largest number, and nearer to it than to the next power of two", form.last, "under"),
        ("beyond the largest number, in the middle to the next power of two", form.last, "tie"),
    ]


def finest(rng: Random, form: Format) -> list[tuple[str, int, str]]:
    """Where a format has as many bits of mantissa as a Python float: a logarithm that is rounded, or a sum with a large
    number, is wrong in the last bit."""
    first_normal = 2**form.mantissa_bits
    below = rng.randrange(3, 2**form.exponent_bits - 3) * first_normal - 1
    return [
        *[("the last number below a power of two", below, "at")] * 4,
        ("a number of the format", rng.randrange(first_normal, form.last), "at"),
        ("a subnormal tie, the even one below", 2 * rng.randrange(1, first_normal // 4), "tie"),
        ("the largest number", form.last, "at"),
    ]


def cases(rng: Random) -> list[Case]:
    drawn = []
    fine = (rng.randint(7, 10), 52)
    for sizes in [(rng.choice((3, 4, 6)), rng.randint(3, 8)), (5, 10), rng.choice(NAMED), (8, 7), fine]:
        form = format_of(*sizes)
        chosen = (finest if sizes == fine else places)(rng, form)
        values = [(between(rng, form, place, how), what) for what, place, how in chosen]
        far = rng.choice((-1, 1)) * rng.uniform(2.0, 9.0) * 2.0 ** (form.bias + 1)
        values += [(far, "far beyond the largest number"), (0.0, "zero")]
        values.append((rng.choice((-1, 1)) * sys.float_info.max, "the largest Python float or its negative"))
        drawn.append(Case([(values, *sizes)], about=f"{sizes[0]} bits of exponent, {sizes[1]} of mantissa"))
    return drawn


def run_values(
    fn: Callable[..., Any], comm: Any, values: list[tuple[float, str]], exponent_bits: int, mantissa_bits: int
) -> list[Any]:
    """What it says of each value, or the error that it raises there."""
    said: list[Any] = []
    for value, _ in values:
        try:
            said.append(fn(value, exponent_bits, mantissa_bits))
        except (NotImplementedError, NameError):
            raise
        except Exception as error:
            said.append([type(error).__name__, str(error)[:120]])
    return said


def rounds(args: tuple[Any, ...], got: list[Any], want: list[float]) -> str:
    wrong = [at for at in range(len(want)) if not alike(got[at], want[at])]
    # A wrong number tells more than an error.
    at = next((at for at in wrong if isinstance(got[at], float)), wrong[0])
    value, what = args[0][at]
    if isinstance(got[at], list):
        said = f"of {value!r} ({what}) it raises {got[at][0]}: {got[at][1]}"
        ends = ": math.ldexp and powers raise where a product such as 8.0 * 2.0**1021 is inf"
        return f"{said}{ends}" if got[at][0] == "OverflowError" else said
    said = f"of {value!r} ({what}) you say {short(got[at])}, and it is {want[at]!r}"
    return said if isinstance(got[at], float) else f"{said}: a float is due"


EXERCISE = Exercise(
    "nearest",
    cases,
    (
        Claim(
            "it finds the nearest number of any format: normal, subnormal, tied, zero and beyond the largest",
            GivesAlone(
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
