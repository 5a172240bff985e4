"""Formats are taken apart as torch puts them together, code by code."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from cover import NIGHTLY
from hypothesis import given
from hypothesis import strategies as st

from zerolab.course.formats import (
    CODES,
    FORMATS,
    between,
    bits,
    code,
    fields,
    neighbours,
    number,
    ordinal,
    rounded,
    split,
)
from zerolab.errors import InputError

SMALL = ["bf16", "fp16", "e4m3", "e5m2"]
EIGHT = ["e4m3", "e5m2"]
INF, NAN = math.inf, math.nan
FP32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def every_number(name: str) -> torch.Tensor:
    """What torch reads from every code of a format, in fp64."""
    form = FORMATS[name]
    codes = torch.arange(2**form.bits, dtype=torch.int32).to(CODES[form.bits])
    return codes.view(form.dtype).to(torch.float64)


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_and_limits_are_those_of_torch(name: str) -> None:
    form, info = FORMATS[name], torch.finfo(FORMATS[name].dtype)
    assert form.bits == info.bits == 8 * form.dtype.itemsize
    assert (form.largest, -form.largest) == (info.max, info.min)
    assert (form.smallest_normal, form.epsilon) == (info.smallest_normal, info.eps)
    # torch does not say what the smallest subnormal is; it is the number of code 1.
    one = torch.tensor(1, dtype=CODES[form.bits]).view(form.dtype)
    assert form.smallest_subnormal == one.item() == number(1, form)
    assert 1 + form.epsilon == neighbours(1, form)[2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fp32", "0 10000000 10010010000111111011011"),
        ("bf16", "0 10000000 1001001"),
        ("fp16", "0 10000 1001001000"),
        ("e4m3", "0 1000 101"),
        ("e5m2", "0 10000 10"),
    ],
)
def test_pi_in_bits(name: str, text: str) -> None:
    assert bits(math.pi, name) == text
    assert bits(-math.pi, FORMATS[name]) == "1" + text[1:]


def test_zero_inf_and_nan_in_bits() -> None:
    assert [bits(value, "fp16") for value in (0, -0.0, INF, -INF, NAN)] == [
        "0 00000 0000000000", "1 00000 0000000000", "0 11111 0000000000", "1 11111 0000000000", "0 11111 1000000000",
    ]  # fmt: skip
    assert bits(NAN, "e4m3") == "0 1111 111" and bits(448, "e4m3") == "0 1111 110"
    assert bits(2.0**-24, "fp16") == "0 00000 0000000001" and fields(2.0**-24, "fp16").kind == "subnormal"
    assert [fields(value, "e5m2").kind for value in (1, 2**-16, -0.0, INF, NAN)] == [
        "normal", "subnormal", "zero", "inf", "nan",
    ]  # fmt: skip


# Every code of the small formats


@pytest.mark.parametrize("name", SMALL)
def test_every_code_means_what_torch_reads_from_it(name: str) -> None:
    form, half = FORMATS[name], 2 ** (FORMATS[name].bits - 1)
    for found, value in enumerate(every_number(name).tolist()):
        sign = -1 if found >= half else 1
        mine = number(sign * (found % half), form)
        assert same(mine, value), found
        parts = split(found, form)
        assert ((parts.sign << form.exponent_bits) + parts.exponent << form.mantissa_bits) + parts.mantissa == found
        assert parts.kind == "nan" if math.isnan(value) else (parts.kind == "inf") == math.isinf(value)
        if math.isfinite(value):
            whole = parts.mantissa * form.epsilon + (parts.kind == "normal")
            assert value == sign * whole * 2.0**parts.power


@pytest.mark.parametrize("name", SMALL)
def test_every_number_keeps_its_bits_and_lies_between_its_neighbours(name: str) -> None:
    form = FORMATS[name]
    values = every_number(name)
    finite = sorted(set(values[values.isfinite()].tolist()))  # 0 and -0 once
    assert len(finite) == 2 * form.last + 1
    beyond = INF if form.infinite else NAN
    row = [-beyond, *finite, beyond]
    # By day each 61st of the 65,536 of 16 bits, and those at the ends.
    few = form.bits == 16 and not NIGHTLY
    for at in sorted({1, 2, len(row) - 3, len(row) - 2, *range(1, len(row) - 1, 61 if few else 1)}):
        below, mine, above = neighbours(row[at], form)
        assert mine == row[at] and same(below, row[at - 1]) and same(above, row[at + 1])
        assert number(ordinal(mine, form), form) == mine
    for found, value in list(enumerate(values.tolist()))[:: 61 if few else 1]:
        if not math.isnan(value):
            assert code(value, form) == found


@pytest.mark.parametrize("name", EIGHT)
def test_the_numbers_of_a_stretch_are_counted_as_they_lie(name: str) -> None:
    finite = sorted({value for value in every_number(name).tolist() if math.isfinite(value)})
    for low, high in [(-1, 1), (0.3, 0.3), (3, 3.25), (-INF, INF), (100, 1e9), (2, 1), (-0.001, 0.001)]:
        found = [number(place, name) for place in between(low, high, name)]
        assert found == [value for value in finite if low <= value <= high]


# Rounding


def by_hand(value: float, name: str, finite: list[float]) -> float:
    """The nearest number, of two the one with the even code, in exact arithmetic."""
    form = FORMATS[name]
    if abs(value) >= form.largest:
        gap = finite[-1] - finite[-2]
        # Halfway to the number that would come next goes up: the largest has an odd code where there is an inf.
        over = Fraction(abs(value)) >= Fraction(form.largest) + Fraction(gap) / 2
        return math.copysign(INF if over and form.infinite else form.largest, value)
    above = next(at for at, number in enumerate(finite) if number >= value)
    candidates = [finite[max(above - 1, 0)], finite[above]]
    best = min(abs(Fraction(number) - Fraction(value)) for number in candidates)
    near = [number for number in candidates if abs(Fraction(number) - Fraction(value)) == best]
    return next((number for number in near if len(near) == 1 or code(number, name) % 2 == 0), near[0])


@given(value=FP32 | st.floats(-70000, 70000, width=32) | st.floats(-2, 2, width=32), name=st.sampled_from(EIGHT))
def test_fp32_numbers_are_rounded_to_the_nearest_and_ties_to_even(value: float, name: str) -> None:
    finite = sorted({number for number in every_number(name).tolist() if math.isfinite(number)})
    assert rounded(value, name) == by_hand(value, name, finite)


@pytest.mark.parametrize("name", EIGHT)
def test_every_tie_goes_to_the_even_code(name: str) -> None:
    finite = sorted({number for number in every_number(name).tolist() if math.isfinite(number)})
    for low, high in pairwise(finite):
        assert code(rounded((low + high) / 2, name), name) % 2 == 0
        assert rounded((low + high) / 2, name) in (low, high)


@given(FP32)
def test_fp16_is_rounded_as_numpy_rounds_it(value: float) -> None:
    with np.errstate(over="ignore"):
        assert rounded(value, "fp16") == float(np.float32(value).astype(np.float16))


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([*FORMATS]))
def test_rounding_twice_changes_nothing_and_the_value_lies_between_the_neighbours(value: float, name: str) -> None:
    below, at, above = neighbours(value, name)
    assert rounded(at, name) == at
    if math.isfinite(at) and abs(value) <= FORMATS[name].largest:
        assert below < value < above


def test_a_python_float_is_rounded_twice_as_torch_does() -> None:
    value = 1 + 2**-11 + 2**-40
    assert rounded(value, "fp16") == 1.0, "to fp32 it loses the 2**-40, and then it is a tie"
    assert rounded(value, "fp16") == torch.tensor(value, dtype=torch.float64).to(torch.float16).item()
    assert float(np.float64(value).astype(np.float16)) == 1 + 2**-10, "numpy rounds once"


def test_too_large_is_inf_and_e4m3_stops_at_448() -> None:
    assert [rounded(value, "fp16") for value in (65504, 65519, 65520, -1e9, INF)] == [65504, 65504, INF, -INF, INF]
    assert [rounded(value, "e5m2") for value in (57344, 61439, 61440, -INF)] == [57344, 57344, INF, -INF]
    assert [rounded(value, "bf16") for value in (3.3e38, 3.4e38, 1e300)] == [pytest.approx(3.3e38, rel=0.004), INF, INF]
    large = [rounded(value, "e4m3") for value in (448, 464, 465, 1e9, INF, -480)]
    if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13):
        assert large == [448, 448, 448, 448, 448, -448]
    else:
        assert large[:2] == [448, 448]
        assert all(math.isnan(found) or abs(found) == 448 for found in large)
    assert math.isnan(rounded(NAN, "e4m3"))


def test_neighbours_at_the_ends() -> None:
    assert neighbours(0, "fp16") == neighbours(-0.0, "fp16") == (-(2.0**-24), 0, 2.0**-24)
    assert neighbours(65504, "fp16") == (65472, 65504, INF)
    for value, name, expected in [
        (1e6, "fp16", (65504, INF, NAN)),
        (-INF, "fp16", (NAN, -INF, -65504)),
        (448, "e4m3", (416, 448, NAN)),
        (NAN, "bf16", (NAN, NAN, NAN)),
    ]:
        assert all(map(same, neighbours(value, name), expected)), (value, name)


# Input


@pytest.mark.parametrize("value", ["1.5", None, True, 1j, [1.0], torch.tensor(1.0)], ids=repr)
def test_what_is_no_number_is_refused(value: object) -> None:
    for function in (bits, rounded, neighbours, fields):
        with pytest.raises(InputError, match=r"the value is .*; give a number"):
            function(value, "fp16")  # type: ignore[operator]


def test_numpys_numbers_and_fractions_are_numbers() -> None:
    assert [rounded(value, "fp16") for value in (np.float32(0.5), np.int64(3), Fraction(1, 4))] == [0.5, 3, 0.25]


def test_a_whole_number_beyond_every_float_is_refused() -> None:
    with pytest.raises(InputError, match="beyond every format"):
        rounded(10**400, "fp32")


@pytest.mark.parametrize("name", ["fp8", "", None, torch.float16])
def test_an_unknown_format_is_refused_with_those_there_are(name: object) -> None:
    with pytest.raises(InputError, match=r"there is no format .*; choose one of fp32, bf16, fp16, e4m3, e5m2"):
        bits(1.0, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("found", [-1, 256, 1.0, True])
def test_a_code_that_the_format_has_not_is_refused(found: object) -> None:
    with pytest.raises(InputError, match=r"e4m3 has no code .*; give a whole number from 0 to 255"):
        split(found, "e4m3")  # type: ignore[arg-type]
