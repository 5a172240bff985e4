"""What makes the suite quick does not make it weak: choices hold what they must, and threads that wait take no core."""

import os
from itertools import product

import pytest
from cover import chosen, covering, pairs

from zerolab.ranks import launch


def test_a_choice_shows_all_that_the_runs_together_show() -> None:
    runs = [(stage, tier, ranks) for stage, tier, ranks in product(range(4), "abcde", (1, 2, 3)) if tier < "c" or stage]
    few = chosen(runs, lambda run: pairs(*run), cost=lambda run: run[2])
    assert set().union(*(pairs(*run) for run in few)) == set().union(*(pairs(*run) for run in runs))
    assert few == [run for run in runs if run in few], "in their order"
    assert len(few) < len(runs) / 2
    assert chosen(runs, lambda run: [run]) == runs, "nothing can be left out where each shows something of its own"


def test_of_two_runs_that_show_the_same_the_cheap_one_is_chosen() -> None:
    assert chosen([3, 1, 2], lambda run: ["x"], cost=float) == [1]


def test_nightly_all_runs_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for nightly, found in ((False, [1]), (True, [1, 2])):
        monkeypatch.setattr("cover.NIGHTLY", nightly)
        assert covering([1, 2], lambda run: ["x"]) == found


@pytest.mark.ranks
def test_threads_that_wait_do_not_spin_where_tests_start_processes() -> None:
    assert launch(lambda comm: os.environ["OMP_WAIT_POLICY"], ranks=2, timeout=60) == ["PASSIVE", "PASSIVE"]
