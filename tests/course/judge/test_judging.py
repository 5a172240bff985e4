"""The vocabulary in which checks say what is wrong: references, mistakes, ranks, parts, numbers."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from zerolab.collectives import Collectives
from zerolab.course.judge import model
from zerolab.course.judge.case import MOST_ELEMENTS, Case, Observation, Other, Record, Trouble, decode, encode
from zerolab.course.judge.claims import each_rank, most, never
from zerolab.course.judge.exercise import Claim, Exercise, Score, alone
from zerolab.course.judge.model import Gives, program, read_mistakes
from zerolab.course.judge.observe import observe_all, warm_up
from zerolab.course.judge.promise import in_words, keeps
from zerolab.course.judge.same import alike
from zerolab.course.judge.verdict import judge
from zerolab.errors import RankError

CASE = Case([(4,), (6,)], about="on 2 ranks, 4 and 6")


def seen(*values: Any) -> Observation:
    return Observation([Record(value, [], []) for value in values])


def half(n: float) -> float:
    """Half of a number."""
    return n / 2


def sums(comm: Collectives, row: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks."""
    total = comm.all_reduce(row)
    return total


MISTAKES = r"""
You halve twice
    n / 2 => n / 4
You add one,
and halve then
    return n / 2
    => return (n + 1) / 2
That is nothing
    def half(n):
        return 0.0
"""
OF_RANKS = r"""
its own row: what do the others have?
    comm.all_reduce(row) => row
the sum of all but rank 0's: who leaves it out?
    total = => row = row * (comm.rank > 0)\n    total =
"""
HALF = Exercise(
    "half", lambda rng: [], (Claim("half", Gives(look="Take half")),), alone, answer=(half,), mistakes=MISTAKES
)
SUMS = Exercise("sums", lambda rng: [], (Claim("sum", Gives(look="add up")),), answer=(sums,), mistakes=OF_RANKS)
ROWS = Case([(torch.tensor([1.0, 2.0]),), (torch.tensor([3.0, 5.0]),)], about="two rows")


def test_mistakes_are_read_from_a_text_of_words_and_programs() -> None:
    found = read_mistakes(MISTAKES)
    assert found["You halve twice"] == ("n / 2", "n / 4")
    assert found["You add one, and halve then"] == ("return n / 2", "return (n + 1) / 2")
    assert program(half, found["You halve twice"])(8) == 2 and program(half, found["That is nothing"])(8) == 0
    with pytest.raises(AssertionError, match="stands 0 times in half"):
        program(half, ("n / 3", ""))


def test_a_right_answer_is_never_held_to_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr("zerolab.course.judge.model.program", lambda model, change: ran.append(change) or half)
    assert HALF.claims[0].hint(replace(CASE), seen(2.0, 3)) is None, "a float is wanted, and a whole number is as good"
    assert ran == []
    assert HALF.claims[0].hint(replace(CASE), seen(2.0, 4.0)) and ran


def test_a_plain_functions_answer_is_held_to_the_models_and_named_by_what_mistakes_give() -> None:
    (claim,) = HALF.claims
    assert claim.hint(replace(CASE), seen(1.0, 1.5)) == "for rank 0 you return 1.0, and 2.0 is due. You halve twice"
    assert claim.hint(replace(CASE), seen(5, 3.0)) == "for rank 0 you return 5, and 2.0 is due. Take half"
    one = Case([(4,)])
    assert claim.hint(one, seen(2.5)) == "you return 2.5, and 2.0 is due. You add one, and halve then"


def test_a_mistake_is_named_only_if_it_passes_what_the_answer_passed() -> None:
    (claim,) = HALF.claims
    zero = Case([(0,)])
    assert (claim.hint(Case([(4,)]), seen(0.0)) or "").endswith("That is nothing")
    assert (claim.hint(Case([(4,)]), seen(0.0), [zero]) or "").endswith("That is nothing"), "0 / 2 is 0"
    assert (claim.hint(Case([(4,)]), seen(2.5), [zero]) or "").endswith("Take half"), "(0 + 1) / 2 is not 0"


def test_ranks_are_held_to_the_models_and_a_mistake_has_to_give_what_all_gave() -> None:
    (claim,) = SUMS.claims
    total, own = torch.tensor([4.0, 7.0]), [args[0] for args in ROWS.args]
    assert claim.hint(ROWS, seen(total, total)) is None
    assert claim.hint(ROWS, seen(*own)) == "each rank returned its own row: what do the others have?"
    assert (
        claim.hint(ROWS, seen(own[1], own[1])) == "each rank returned the sum of all but rank 0's: who leaves it out?"
    )
    said = claim.hint(ROWS, seen(total, own[1]))
    assert said == "rank 1 returned a tensor with 2 of 2 values wrong: add up"
    wider = Gives(dtype="keep the dtype").bound(SUMS)
    assert (wider.hint(ROWS, seen(total.double(), total.double())) or "").endswith("keep the dtype")


def test_what_is_promised_is_what_the_head_says() -> None:
    assert keeps([1, 2.0], tuple[int, float]) and keeps((1, 2), tuple[int, float]) and keeps(np.int64(3), int)
    assert not keeps(True, int) and not keeps(2.0, int) and not keeps("3", int) and not keeps([1], tuple[int, int])
    assert keeps(None, int | None) and not keeps(None, int) and keeps({"a": 1}, dict[str, int])
    assert not keeps({"a": 1.0}, dict[str, int]) and keeps([(1, [2])], list[tuple[int, list]])
    assert not keeps(torch.zeros(()), float) and keeps(torch.zeros(()), torch.Tensor)


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        (tuple[int, str], "a tuple of a whole number and a text"),
        (tuple[int, list[str], float], "a tuple of a whole number, a list of texts and a number"),
        (list[tuple[int, int, int]], "a list of tuples of 3 whole numbers"),
        (tuple[torch.Tensor, torch.Tensor] | None, "a tuple of 2 tensors or nothing"),
        (dict[str, int], "a dict from texts to whole numbers"),
        (list, "a list"),
        (bool, "True or False"),
    ],
)
def test_what_is_promised_is_said_in_words(promise: Any, words: str) -> None:
    assert in_words(promise) == words


def test_a_claim_about_each_rank_speaks_of_the_first_that_fails() -> None:
    @each_rank
    def test(case: Case, rank: int, record: Record) -> str | None:
        return f"rank {rank} has {record.value}" if record.value > case.args[rank][0] else None

    assert test(CASE, seen(4, 6)) is None
    assert test(CASE, seen(4, 7)) == "rank 1 has 7"
    assert test(CASE, seen(5, 7)) == "rank 0 has 5"


def test_a_claim_may_be_about_a_part_of_what_a_run_noted() -> None:
    noted = seen({"y": 1, "left": 0}, {"y": 2, "left": 3})
    assert never("left", "{it} bytes are left on rank {rank}")(CASE, noted) == "3 bytes are left on rank 1"
    assert most("left")(CASE, noted) == 3


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
    assert not alike(True, 1.0, 1e-9) and not alike([True], [1.0], 1e-5) and not alike(10**400, 1.0, 1e-9)


@pytest.mark.parametrize(("drift", "said"), [(1e-15, ""), (1e-3, "what stays from call to call?")])
def test_a_second_call_may_differ_in_the_last_bits_of_a_number_and_no_more(drift: float, said: str) -> None:
    calls: list[float] = []

    def drifting(number: float) -> float:
        calls.append(number)
        return number / 2 * (1 + drift * (len(calls) - 1))

    exercise = replace(HALF, cases=lambda rng: [Case([(number,)]) for number in (1.0, 2.0)])
    cases = exercise.drawn(0)
    findings = judge(exercise, cases, list(observe_all(exercise, drifting, cases)))
    assert said in findings[-1].hint and bool(findings[-1].hint) == bool(said)
    assert [finding.holds for finding in findings[:-1]] == [True] * (len(findings) - 1)


def test_what_only_a_third_call_meets_is_laid_on_no_pair_of_calls() -> None:
    calls: list[float] = []

    def third(number: float) -> float:
        if calls.append(number) or len(calls) == 3:
            raise KeyError("full")
        return number / 2

    exercise = replace(HALF, cases=lambda rng: [Case([(float(number),)]) for number in range(4)])
    cases = exercise.drawn(0)
    said = judge(exercise, cases, list(observe_all(exercise, third, cases)))[-1].hint
    assert said.startswith("in one of 4 calls, one after the other: rank 0 raised KeyError: 'full'")


def test_of_a_call_that_ran_out_of_time_it_is_not_said_that_something_stays() -> None:
    cases = [replace(CASE, before=CASE)]
    for kind, stays in (("TimeOut", False), ("KeyError", True)):
        found = judge(HALF, cases, [Observation(trouble=Trouble(kind, "the ranks did not finish within 8 s"))])
        assert ("what stays from call to call?" in found[-1].hint) is stays


def test_a_model_answer_that_does_not_end_is_no_fault_of_the_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    met = Observation(trouble=Trouble("TimeOut", "the ranks did not finish within 16 s"))
    monkeypatch.setattr(model, "observe", lambda *given, **named: met)
    with pytest.raises(RankError, match=r"the model answer to sums does not come to its end here .*16 s"):
        judge(SUMS, [replace(ROWS)], [seen(*ROWS.args)])


def test_what_was_alive_before_a_check_may_be_collected_after_it() -> None:
    before = gc.get_freeze_count()
    warm_up.cache_clear()
    warm_up()
    assert gc.get_freeze_count() == before


def test_a_scoreboard_that_no_case_fills_is_the_authors_mistake() -> None:
    score = Score("bytes", most("left"), None, "look")
    with pytest.raises(AssertionError, match="half needs a case with board=True"):
        replace(HALF, cases=lambda rng: [Case([(1.0,)])], scores=(score,)).drawn(0)


def test_what_steers_a_terminal_is_spelled_out() -> None:
    said = Trouble("ValueError", "\x1b[2Jall\ris \x9b0m well\x00\x7f\ud800\n\té").message
    assert said == "\\x1b[2Jall\\ris \\x9b0m well\\x00\\x7f\\ud800\n\té"


def test_a_result_that_a_second_call_changes_is_seen() -> None:
    kept: list[float] = []

    def growing(number: float) -> list[float]:
        kept.append(number)
        return kept

    def listed(number: float) -> list[float]:
        return [number]

    exercise = Exercise("listed", lambda rng: [Case([(n,)]) for n in (1.0, 2.0)], (), alone, answer=(listed,))
    cases = exercise.drawn(0)
    findings = judge(exercise, cases, list(observe_all(exercise, growing, cases)))
    assert "a second call changes what the first one gave" in findings[-1].hint


def test_numbers_and_arrays_of_numpy_are_plain_data_and_large_ones_a_type() -> None:
    value = (np.int64(3), np.float32(0.5), np.bool_(True), np.array([[1.0], [2.0]]))
    assert decode(encode(value)) == [3, 0.5, True, [[1.0], [2.0]]]
    assert encode(np.zeros(MOST_ELEMENTS + 1)) == {"type": "ndarray"}
    assert decode(encode({2**2001: 1})) == Other("dict") and decode(encode({7: 1, "a": 2})) == {7: 1, "a": 2}
