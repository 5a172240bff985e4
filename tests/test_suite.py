"""What makes the suite quick does not make it weak: choices hold what they must, and threads that wait take no core."""

import os
import subprocess
import sys
from itertools import product

import pace
import pytest
from cover import chosen, covering, pairs

from zerolab.ranks import launch
from zerolab.ranks.job import Job


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


# Time-outs


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> float:
    """A machine on whose cores seven processes each wait."""
    monkeypatch.setattr(pace, "speed_at_start", lambda: 1.5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (14.0, 0.0, 0.0))
    return 7.0


def test_limits_grow_with_the_load_and_with_a_slow_machine(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pace.seconds(40) == 40 * busy
    for load, slow, factor in ((0.1, 1.5, 1.5), (0.1, 0.4, 1.0), (1000.0, 1.5, pace.MOST)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        monkeypatch.setattr(pace, "speed_at_start", lambda slow=slow: slow)
        assert pace.seconds(40) == 40 * factor


@pytest.mark.timeout(77)
def test_a_tests_own_limit_is_stretched_when_it_begins(request: pytest.FixtureRequest) -> None:
    outer, own = [mark.args[0] for mark in request.node.iter_markers("timeout")]
    assert own == 77 and 77 <= outer <= 77 * pace.MOST


def test_a_net_under_a_launch_is_stretched_and_a_launch_that_shall_hang_is_not(busy: float) -> None:
    waits: list[float] = []
    module = sys.modules["zerolab.ranks.launch"]
    for quiet in (60.0, 1.5):
        made = module.Job(ranks=1, timeout=quiet, collectives="ring", devices=("cpu",), backend="gloo", threads=1,
                          max_result_bytes=10**6)  # fmt: skip
        assert isinstance(made, Job)
        waits.append(made.timeout)
    assert waits == [60.0 * busy, 1.5]


def test_a_command_may_take_longer_on_a_busy_machine(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float | None] = []
    monkeypatch.setattr(pace, "_communicate", lambda process, input, limit: waits.append(limit) or ("", ""))
    for quiet in (30.0, 2.0, None):
        subprocess.run([sys.executable, "-c", ""], timeout=quiet, check=False)
    assert waits == [30.0 * busy, 2.0, None]
