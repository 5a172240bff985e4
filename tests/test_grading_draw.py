"""The numbers that cases are made of."""

from random import Random

import pytest
import torch

from zerolab.grading.draw import signed, whole_numbers


def test_numbers_are_all_those_of_their_range_and_no_others() -> None:
    assert set(whole_numbers(Random(0), 500, most=5).tolist()) == {1, 2, 3, 4, 5}
    assert set(signed(Random(0), 500, most=3).tolist()) == {-3, -2, -1, 1, 2, 3}


@pytest.mark.parametrize("draw", [whole_numbers, signed])
def test_a_seed_draws_the_same_again_and_each_draw_is_another(draw) -> None:
    rng, again = Random(7), Random(7)
    first, second = draw(rng, 40), draw(rng, 40)
    assert torch.equal(first, draw(again, 40)) and torch.equal(second, draw(again, 40))
    assert not torch.equal(first, second)
    assert draw(rng, 3, torch.bfloat16).dtype == torch.bfloat16
