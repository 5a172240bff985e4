"""The vocabulary in which checks say what is wrong: references, mistakes, ranks, parts, numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from zerolab.course.judge.case import MOST_ELEMENTS, Case, Observation, Record, decode, encode
from zerolab.course.judge.claims import each_rank, each_time, never, only, part
from zerolab.course.judge.exercise import Claim, Exercise, alone
from zerolab.course.judge.mistakes import Wanted, amount, answers, compared, right
from zerolab.course.judge.observe import observe_all
from zerolab.course.judge.same import alike
from zerolab.course.judge.verdict import judge

CASE = Case([(4,), (6,)], about="on 2 ranks, 4 and 6")


def seen(*values: Any) -> Observation:
    return Observation([Record(value, [], []) for value in values])


def test_a_right_answer_is_never_held_to_mistakes() -> None:
    def mistakes() -> Mapping[str, Sequence[int]]:
        raise AssertionError("they take time to make")

    assert compared(Wanted([1, 2], mistakes), seen(1, 2)) is None
    assert amount(7, 7, mistakes) is None
    with pytest.raises(AssertionError, match="take time"):
        compared(Wanted([1, 2], mistakes), seen(1, 3))


def test_the_first_mistake_that_gives_what_all_wrong_ranks_gave_is_named() -> None:
    known = {"one too many": [2, 3], "twice as many": [2, 4], "four": [4, 4]}
    assert compared(Wanted([1, 2], known), seen(2, 4)) == "each rank returned twice as many"
    assert compared(Wanted([1, 2], known, did="ends with"), seen(1, 4)) == "rank 1 ends with twice as many"
    assert compared(Wanted([1, 2], known, "look there"), seen(9, 9)) == "rank 0 returned 9, not 1: look there"


def test_a_plain_functions_answer_is_held_to_the_reference_and_to_functions_that_go_wrong() -> None:
    half = answers(lambda n: n / 2, {"You halve twice": lambda n: n / 4}, "Take half")
    assert half(CASE, seen(2.0, 3)) is None, "a float is wanted, and a whole number is as good"
    assert half(CASE, seen(2.0, 1.5)) == "for rank 1 you return 1.5, and 3.0 is due. You halve twice"
    assert half(CASE, seen(5, 3.0)) == "for rank 0 you return 5, and 2.0 is due. Take half"


def test_an_amount_says_both_numbers_with_their_unit_and_why() -> None:
    why = {"That is bits": 64, "That is a third": False, "That is more than there is": True}
    assert amount(64, 8, lambda: why) == "you say 64 bytes, and the meter counts 8. That is bits"
    assert amount(99, 8, lambda: why) == "you say 99 bytes, and the meter counts 8. That is more than there is"
    assert amount(9, 8, dict) == "you say 9 bytes, and the meter counts 8"
    assert (amount(8.0, 8, dict) or "").endswith("The number is right, but bytes are whole: divide with //")
    for value in (True, "8", None, [8]):
        assert (amount(value, 8, lambda: why) or "").endswith("return one whole number")


def test_a_claim_about_each_rank_speaks_of_the_first_that_fails() -> None:
    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        return f"rank {rank} has {record.value}" if record.value > case.args[rank][0] else None

    assert test(CASE, seen(4, 6)) is None
    assert test(CASE, seen(4, 7)) == "rank 1 has 7"
    assert test(CASE, seen(5, 7)) == "rank 0 has 5"


def test_a_claim_may_be_about_a_part_of_what_a_run_noted() -> None:
    noted = seen({"y": 1, "left": 0, "rows": [1, 5]}, {"y": 2, "left": 3, "rows": [2, 6]})
    assert part("y", right(lambda case: Wanted([1, 2])))(CASE, noted) is None
    assert never("left", "{it} bytes are left on rank {rank}")(CASE, noted) == "3 bytes are left on rank 1"
    assert [record.value for record in only(noted, "rows", 1).records] == [5, 6]

    def doubled(case: Case, now: Observation, at: int) -> str | None:
        return None if now.records[1].value == 2 * now.records[0].value else "rank 1 has not twice as many"

    said = each_time("rows", doubled, "after step {}")(CASE, noted)
    assert said == "on 2 ranks, 4 and 6, after step 2: rank 1 has not twice as many"


@pytest.mark.parametrize("hint", ["rank 1 is wrong", "on 2 ranks, 4 and 6, after step 2: rank 1 is wrong"])
def test_the_case_stands_in_front_of_a_hint_once(hint: str) -> None:
    exercise = Exercise("any", lambda rng: [CASE], (Claim("it is right", lambda case, seen: hint),))
    said = judge(exercise, [CASE], [seen(1, 2)])[1].hint
    assert said.startswith("on 2 ranks, 4 and 6") and said.count("on 2 ranks") == 1 and said.endswith("is wrong")


def test_values_are_alike_in_kind_and_not_only_in_size() -> None:
    whole = torch.tensor([2**60 + 1, 3])
    assert alike(whole, whole.clone()) and not alike(whole, whole - 1), "a whole number is compared exactly"
    assert not alike(whole, whole.double(), 1e-5) and not alike(whole.view(1, 2), whole)
    nan = torch.tensor([torch.nan, 1.0])
    assert alike(nan, nan.clone()) and not alike(nan, torch.ones(2))
    assert alike([1, [2, None]], (1, (2, None))) and not alike([1], [1, 2])
    assert not alike(True, 1) and not alike(1, True) and not alike(1.0, 1) and not alike(1, 1.0)
    assert alike(1, 1.0, 1e-9) and not alike(1.1, 1.0, 1e-9)


@pytest.mark.parametrize(("drift", "said"), [(1e-15, ""), (1e-3, "what stays from call to call?")])
def test_a_second_call_may_differ_in_the_last_bits_of_a_number_and_no_more(drift: float, said: str) -> None:
    exercise = Exercise("kept", lambda _: [], (), run=alone)
    calls: list[float] = []

    def drifting(number: float) -> float:
        calls.append(number)
        return number * (1 + drift * len(calls))

    *_, last = observe_all(exercise, drifting, [Case([(number,)], about="a number") for number in (1.0, 2.0)])
    assert said in (last.trouble.message if last.trouble else "") and bool(last.trouble) == bool(said)


def test_numbers_and_arrays_of_numpy_are_plain_data_and_large_ones_a_type() -> None:
    value = (np.int64(3), np.float32(0.5), np.bool_(True), np.array([[1.0], [2.0]]))
    assert decode(encode(value)) == [3, 0.5, True, [[1.0], [2.0]]]
    assert encode(np.zeros(MOST_ELEMENTS + 1)) == {"type": "ndarray"}
