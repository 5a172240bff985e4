"""The exercise of lesson 06 on rounding to a format. What is right comes from the list of the format's numbers, which
`zerolab.course.formats` can count off; no formula for rounding is needed here, so none can be wrong."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import torch

from zerolab.course.formats import Format, number
from zerolab.course.judge.case import Case, Observation, once
from zerolab.course.judge.exercise import Claim, Exercise
from zerolab.course.judge.mistakes import named
from zerolab.course.judge.same import short

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


NAMED = ((8, 7), (5, 10), (5, 2))
"""Exponent and mantissa bits of bf16, fp16 and e5m2."""


def format_of(exponent_bits: int, mantissa_bits: int) -> Format:
    return Format(f"{exponent_bits} + {mantissa_bits} bits", torch.float32, exponent_bits, mantissa_bits)


def right_nearest(value: float, exponent_bits: int, mantissa_bits: int) -> float:
    """The nearest number of the format: of two, the one whose code is even. Beyond the last number the next one would
    be a power of two, and whatever is rounded to that is inf."""
    form = format_of(exponent_bits, mantissa_bits)
    size = Fraction(abs(value))
    below = bisect_right(range(form.last + 1), size, key=lambda place: Fraction(number(place, form))) - 1
    beyond = Fraction(2) ** (form.bias + 1)
    low = Fraction(number(below, form))
    high = beyond if below == form.last else Fraction(number(below + 1, form))
    up = size - low > high - size or (size - low == high - size and below % 2 == 1)
    return math.copysign(number(below + up, form), value)


# Which values tell mistakes apart.


def between(rng: Random, form: Format, place: int, how: str) -> float:
    """A value between the numbers at `place` and `place + 1`, of either sign."""
    low = Fraction(number(place, form))
    high = Fraction(2) ** (form.bias + 1) if place == form.last else Fraction(number(place + 1, form))
    share = {
        "tie": Fraction(1, 2),
        "under": Fraction(1, 2) - Fraction(1, 64),
        "over": Fraction(1, 2) + Fraction(1, 64),
        "hair": Fraction(1, 2),
        "at": Fraction(0),
    }[how]
    size = float(low + share * (high - low))
    # So little over the middle that nothing narrower than a Python float sees it.
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


def cases(rng: Random) -> list[Case]:
    drawn: list[Case] = []
    for sizes in [(rng.choice((3, 4, 6)), rng.randint(3, 8)), (5, 10), rng.choice(NAMED), (8, 7)]:
        form = format_of(*sizes)
        values = [(between(rng, form, place, how), what) for what, place, how in places(rng, form)]
        far = rng.choice((-1, 1)) * rng.uniform(2.0, 9.0) * 2.0 ** (form.bias + 1)
        values += [(far, "far beyond the largest number"), (0.0, "zero")]
        values.append((rng.choice((-1, 1)) * sys.float_info.max, "the largest Python float or its negative"))
        about = f"{sizes[0]} bits of exponent, {sizes[1]} of mantissa"
        drawn.append(Case([(values, *sizes)], about=about))
    return [*drawn, finest(rng)]


def finest(rng: Random) -> Case:
    """A format with as many bits of mantissa as a Python float, and fewer of exponent: a logarithm that is rounded, or
    a sum with a large number, is wrong in the last bit."""
    sizes = (rng.randint(7, 10), 52)
    form = format_of(*sizes)
    first_normal = 2**form.mantissa_bits
    power = rng.randrange(3, 2 ** sizes[0] - 3)
    values = [
        (number(power * first_normal - 1, form), "the last number below a power of two"),
        (-number(power * first_normal - 1, form), "minus the last number below a power of two"),
        (between(rng, form, rng.randrange(first_normal, form.last), "at"), "a number of the format"),
        (between(rng, form, 2 * rng.randrange(1, first_normal // 4), "tie"), "a subnormal tie, the even one below"),
        (between(rng, form, form.last, "at"), "the largest number"),
    ]
    return Case([(values, *sizes)], about=f"{sizes[0]} bits of exponent, {sizes[1]} of mantissa")


def run_values(
    fn: Callable[..., Any], comm: Any, values: list[tuple[float, str]], exponent_bits: int, mantissa_bits: int
) -> Any:
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


# What else people make of it.

Sizes = tuple[int, int]


def by_formula(
    value: float,
    sizes: Sizes,
    round_to: Any = round,
    bias_off: int = 0,
    bits_off: int = 0,
    power_off: int = 0,
    subnormals: bool = True,
    last: float = math.inf,
    lowest_off: int = 0,
    infinite_from: int = 1,
    power_of: Callable[[float], int] = lambda size: math.frexp(size)[1] - 1,
) -> float:
    """The usual formula, with a mistake or none; `last` is what stands beyond the range."""
    bias = 2 ** (sizes[0] - 1) - 1 + bias_off
    power = power_of(abs(value)) + power_off if value else 0
    power = max(power, 1 - bias + lowest_off) if subnormals else power
    step = 2.0 ** (power - sizes[1] - bits_off)
    size = round_to(abs(value) / step) * step
    return math.copysign(size if size < 2.0 ** (bias + infinite_from) else last, value)


def downwards(value: float, sizes: Sizes, add: float = 0.0) -> float:
    """math.floor of the signed number, with a half or nothing added before."""
    up = value < 0
    return by_formula(value, sizes, round_to=lambda size: math.ceil(size - add) if up else math.floor(size + add))


def with_magic(value: float, sizes: Sizes) -> float:
    """Rounded by adding a number so large that nothing behind the last place is left, and taking it away."""
    if abs(value) >= 2.0 ** (2 ** (sizes[0] - 1)):
        return math.copysign(math.inf, value)
    power = max(math.frexp(value)[1] - 1, 2 - 2 ** (sizes[0] - 1))
    large = 1.5 * 2.0 ** (power - sizes[1] + 52)
    size = value + large - large
    return size if abs(size) < 2.0 ** (2 ** (sizes[0] - 1)) else math.copysign(math.inf, value)


def positive_alone(value: float, sizes: Sizes) -> float:
    """Powers are counted from the bottom, and no negative number is above one."""
    if value >= 0:
        return right_nearest(value, *sizes)
    step = format_of(*sizes).smallest_subnormal
    size = -round(value / step) * step
    return -size if size < 2.0 ** (2 ** (sizes[0] - 1)) else -math.inf


def flushed(value: float, sizes: Sizes) -> float:
    return 0.0 if abs(value) < format_of(*sizes).smallest_normal else right_nearest(value, *sizes)


def endless(value: float, sizes: Sizes) -> float:
    """No number is too large."""
    size = by_formula(value, sizes)
    return by_formula(value / 2**20, sizes, subnormals=False) * 2**20 if math.isinf(size) else size


def saturated(value: float, sizes: Sizes) -> float:
    return by_formula(value, sizes, last=format_of(*sizes).largest)


def early(value: float, sizes: Sizes) -> float:
    over = abs(value) > format_of(*sizes).largest
    return math.copysign(math.inf, value) if over else right_nearest(value, *sizes)


def unsigned_inf(value: float, sizes: Sizes) -> float:
    size = right_nearest(value, *sizes)
    return abs(size) if math.isinf(size) else size


MISTAKES: dict[str, Callable[[float, Sizes], float]] = {
    "math.log2 is rounded itself, and just below a power of two it gives that power: math.frexp is exact": partial(
        by_formula, power_of=lambda size: math.floor(math.log2(size))
    ),
    "To add a large number and take it away rounds, and leaves no room for 52 bits: divide by the step": with_magic,
    "Below zero you go down, too; it goes to the nearest, and of two equally near to the even one": downwards,
    "You send ties up, below zero, too; of two equally near, the even one is taken": partial(downwards, add=0.5),
    "That is right for positive numbers: how large is a negative one?": positive_alone,
    "Subnormal numbers lie as far apart as the smallest normal ones, and yours are closer: 1 - bias is the end": (
        partial(by_formula, lowest_off=-1)
    ),
    "That number the format still has: what is 2**(bias + 1) or more is inf": partial(by_formula, infinite_from=0),
    "You cut the rest off; it goes to the nearest": partial(by_formula, round_to=math.floor),
    "You always go up, away from zero; it goes to the nearest": partial(by_formula, round_to=math.ceil),
    "You send ties away from zero; of two equally near, the even one is taken, as Python's round() does": partial(
        by_formula, round_to=lambda size: math.floor(size + 0.5)
    ),
    "You send ties down; of two equally near, the even one is taken": partial(
        by_formula, round_to=lambda size: math.ceil(size - 0.5)
    ),
    "Below the smallest normal number the steps no longer shrink: which power is the last?": partial(
        by_formula, subnormals=False
    ),
    "The bias is 2**(e-1) - 1, and yours is larger": partial(by_formula, bias_off=1),
    "The bias is 2**(e-1) - 1, and yours is smaller": partial(by_formula, bias_off=-1),
    "You keep one bit too few: the leading 1 of a normal number is not stored": partial(by_formula, bits_off=-1),
    "math.frexp gives a share from a half to one, so the power you want is one less than its own": partial(
        by_formula, power_off=1
    ),
    "You keep one bit too many: mantissa_bits is what comes after the leading 1": partial(by_formula, bits_off=1),
    "Small numbers do not just vanish: below the smallest normal number come the subnormal ones": flushed,
    "The largest exponent is taken by inf and NaN; no finite number has it": endless,
    "Beyond the largest number comes inf, and not the largest number": saturated,
    "Not all beyond the largest number is inf: round first, then compare": early,
    "Infinite, yes, but with the sign of the value": unsigned_inf,
    "The sign is lost on the way": lambda value, sizes: abs(right_nearest(value, *sizes)),
    "On the way through fp32 it lost the bits that break the tie: compute with Python's floats": (
        lambda value, sizes: right_nearest(single(value), *sizes)
    ),
    "That is right for fp16, and the format is given": lambda value, sizes: right_nearest(single(value), 5, 10),
    "That is right for bf16, and the format is given": lambda value, sizes: right_nearest(single(value), 8, 7),
    "That is fp32, and the format is given": lambda value, sizes: single(value),
    "You do not round at all": lambda value, sizes: value,
}


def single(value: float) -> float:
    """The nearest number of fp32, as far as it has one."""
    near = float(torch.tensor(value))
    return near if math.isfinite(near) else value


@once
def wanted(case: Case) -> list[float]:
    values, *sizes = case.args[0]
    return [right_nearest(value, *sizes) for value, _ in values]


def right(case: Case, seen: Observation) -> str | None:
    values, *sizes = case.args[0]
    want, got = wanted(case), seen.records[0].value
    all_wrong = [at for at in range(len(values)) if not (isinstance(got[at], float) and got[at] == want[at])]
    if not all_wrong:
        return None
    # A wrong number tells more than an error.
    wrong = next((at for at in all_wrong if isinstance(got[at], float)), all_wrong[0])
    (value, what), mine = values[wrong], got[wrong]
    head = f"of {value!r} ({what})"
    if isinstance(mine, list):
        said = f"{head} it raises {mine[0]}: {mine[1]}"
        if mine[0] != "OverflowError":
            return said
        return f"{said}: math.ldexp and powers raise where a product such as 8.0 * 2.0**1021 is inf"
    said = f"{head} you say {short(mine)}, and it is {want[wrong]!r}"
    if isinstance(mine, torch.Tensor):
        return f"{head} you return {short(mine)}: a Python float is due"
    if not isinstance(mine, float):
        return f"{said}: a float is due"
    numbers = [at for at in range(len(values)) if isinstance(got[at], float)]
    says = named(MISTAKES, lambda gives: all(got[at] == gives(values[at][0], tuple(sizes)) for at in numbers))
    if says:
        return f"{said}. {says}"
    return f"{said}. What is the distance between two numbers there, and what does the text say of such a value?"


EXERCISE = Exercise(
    "nearest",
    cases,
    (Claim("it finds the nearest number of any format: normal, subnormal, tied, zero and beyond the largest", right),),
    run=run_values,
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
