"""The numbers that cases are made of, and when cases are drawn."""

from random import Random
from types import SimpleNamespace

import pytest
import torch

from zerolab.course.grade import worker
from zerolab.course.judge.draw import signed, whole_numbers


def test_numbers_are_all_those_of_their_range_and_no_others() -> None:
    assert set(whole_numbers(Random(0), 20_000).tolist()) == set(range(1, 1000))
    assert set(signed(Random(0), 500, most=3).tolist()) == {-3, -2, -1, 1, 2, 3}
    assert signed(Random(0), 3, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("draw", [whole_numbers, signed])
def test_a_seed_draws_the_same_again_and_each_draw_is_another(draw) -> None:
    rng, again = Random(7), Random(7)
    first, second = draw(rng, 40), draw(rng, 40)
    assert torch.equal(first, draw(again, 40)) and torch.equal(second, draw(again, 40))
    assert not torch.equal(first, second)


def test_no_case_is_drawn_for_an_answer_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell may have left the process without memory, say."""
    exercise = SimpleNamespace(name="f", drawn=lambda seed: pytest.fail("cases were drawn"))
    monkeypatch.setattr(worker, "exercises_of", lambda lesson: {"f": exercise})
    (seen,) = worker.run_cells(worker.Cells("any", [("f", "1 / 0", True)], 0, 1))
    assert seen.trouble is not None and seen.trouble.kind == "ZeroDivisionError"
