"""The exercise of lesson 06 on rounding to a format. What is right comes from the list of the format's numbers, which
`zerolab.precision.formats` can count off; no formula for rounding is needed here, so none can be wrong."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from random import Random
from typing import Any

import torch

from zerolab.grading.case import Case, Observation
from zerolab.grading.claims import short
from zerolab.grading.exercise import Claim, Exercise, alone
from zerolab.precision.formats import Format, number

NAMED = ((8, 7), (5, 10), (5, 2))
"""Exponent and mantissa bits of bf16, fp16 and e5m2."""


def format_of(exponent_bits: int, mantissa_bits: int) -> Format:
    return Format(f"{exponent_bits} + {mantissa_bits} bits", torch.float32, exponent_bits, mantissa_bits)


def nearest(value: float, exponent_bits: int, mantissa_bits: int) -> float:
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
        # So little over the middle that fp32 does not see it.
        "hair": Fraction(1, 2) + Fraction(1, 2**30),
        "at": Fraction(0),
    }[how]
    return rng.choice((-1, 1)) * float(low + share * (high - low))


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
    formats = [rng.choice(NAMED), (rng.randint(3, 6), rng.randint(3, 8)), (8, 7), (5, 10)]
    for sizes in formats:
        form = format_of(*sizes)
        for what, place, how in places(rng, form):
            drawn.append(one_case(between(rng, form, place, how), sizes, what))
        far = rng.choice((-1, 1)) * rng.uniform(2.0, 9.0) * 2.0 ** (form.bias + 1)
        drawn.append(one_case(far, sizes, "far beyond the largest number"))
        drawn.append(one_case(0.0, sizes, "zero"))
    return drawn


def one_case(value: float, sizes: tuple[int, int], what: str) -> Case:
    exponent_bits, mantissa_bits = sizes
    about = f"{value!r} ({what}), {exponent_bits} bits of exponent, {mantissa_bits} of mantissa"
    return Case([(value, exponent_bits, mantissa_bits)], about=about)


# What else people make of it.


def by_formula(
    value: float,
    exponent_bits: int,
    mantissa_bits: int,
    round_to: Any = round,
    bias_off: int = 0,
    subnormals: bool = True,
) -> float:
    """The usual formula, with a mistake or none. Beyond the range it gives what it gives."""
    if value == 0.0:
        return value
    bias = 2 ** (exponent_bits - 1) - 1 + bias_off
    power = math.frexp(value)[1] - 1
    power = max(power, 1 - bias) if subnormals else power
    step = 2.0 ** (power - mantissa_bits)
    return math.copysign(round_to(abs(value) / step) * step, value)


def mistakes(value: float, exponent_bits: int, mantissa_bits: int) -> dict[str, float]:
    form = format_of(exponent_bits, mantissa_bits)
    sizes = exponent_bits, mantissa_bits
    single = float(torch.tensor(value))
    good = nearest(value, *sizes)
    usual = by_formula(value, *sizes)
    found = {
        "You cut the rest off; it goes to the nearest": by_formula(value, *sizes, round_to=math.floor),
        "You always go up, away from zero; it goes to the nearest": by_formula(value, *sizes, round_to=math.ceil),
        "You send ties away from zero; of two equally near, the even one is taken, as Python's round() does": (
            by_formula(value, *sizes, round_to=lambda size: math.floor(size + 0.5))
        ),
        "You send ties down; of two equally near, the even one is taken": by_formula(
            value, *sizes, round_to=lambda size: math.ceil(size - 0.5)
        ),
        "Below the smallest normal number the steps no longer shrink: which power is the last?": by_formula(
            value, *sizes, subnormals=False
        ),
        "The bias is 2**(e-1) - 1, and you are one beside it": by_formula(value, *sizes, bias_off=1),
        "The bias, 2**(e-1) - 1, is one more than yours": by_formula(value, *sizes, bias_off=-1),
        "You keep one bit too few: the leading 1 of a normal number is not stored": by_formula(
            value, exponent_bits, mantissa_bits - 1
        ),
        "You keep one bit too many: mantissa_bits is what comes after the leading 1": by_formula(
            value, exponent_bits, mantissa_bits + 1
        ),
        "On the way through fp32 it lost the bits that break the tie: compute with Python's floats": nearest(
            single, *sizes
        ),
    }
    if abs(value) < form.smallest_normal:
        found["Small numbers do not just vanish: below the smallest normal number come the subnormal ones"] = 0.0
    if math.isinf(good):
        found["Beyond the largest number comes inf, and not the largest number"] = math.copysign(form.largest, value)
        found["The largest exponent is taken by inf and NaN; no finite number has it"] = usual
        found["Infinite, yes, but with the sign of the value"] = -good
    elif abs(value) > form.largest:
        found["Not all beyond the largest number is inf: round first, then compare"] = math.copysign(math.inf, value)
    return found


def right(case: Case, seen: Observation) -> str | None:
    value, *sizes = case.args[0]
    want, got = nearest(value, *sizes), seen.records[0].value
    if isinstance(got, float) and got == want:
        return None
    said = f"{case.about}: you say {short(got)}, and it is {want!r}"
    if isinstance(got, torch.Tensor):
        return f"{case.about}: you return {short(got)}: a Python float is due"
    if isinstance(got, int) and got == want:
        return f"{said}. The number is right, but an int: a float is due"
    if not isinstance(got, int | float):
        return said
    for says, mistake in mistakes(value, *sizes).items():
        if got == mistake:
            return f"{said}. {says}"
    if got == -want:
        return f"{said}. The sign is lost on the way"
    for exponent_bits, mantissa_bits in ((8, 23), *NAMED):
        if [exponent_bits, mantissa_bits] != sizes and got == nearest(value, exponent_bits, mantissa_bits):
            other = f"{exponent_bits} bits of exponent and {mantissa_bits} of mantissa"
            return f"{said}. That is right for {other}, and the format is given"
    return f"{said}. What is the distance between two numbers there?"


NEAREST = Exercise(
    "nearest",
    cases,
    (Claim("it finds the nearest number of any format: normal, subnormal, tied, zero and beyond the largest", right),),
    run=alone,
    hints=(
        "All numbers of the format between two powers of two are equally far apart: find that step, divide by it, "
        "round, and multiply.",
        "math.frexp(value) says between which powers of two a value lies: it returns (share, power) with share from a "
        "half to one, so the power that you want is one less.",
        "The step does not shrink below that of the smallest normal number. At the other end, what was rounded to "
        "2**(bias + 1) or more is inf; math.copysign keeps the sign.",
    ),
)
