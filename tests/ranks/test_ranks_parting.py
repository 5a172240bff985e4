"""How a rank that torchrun has started ends, well or not. What ends NCCL is told: it waits for other ranks."""

import sys
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from zerolab.apps import cli
from zerolab.apps.cli import ending
from zerolab.ranks import join
from zerolab.ranks.failure import PeerLost, RankFailure


class Left(BaseException):
    """The process has ended with this status."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a rank of a world that it has joined does at its end, in order."""
    done: list[str] = []

    def leave(status: int) -> None:
        done.append(f"left with {status}")
        raise Left(status)

    monkeypatch.setattr(join, "_made_world", False)
    monkeypatch.setattr(join, "_failed", False)
    monkeypatch.setattr(join, "leave", leave)
    monkeypatch.setattr(join.time, "sleep", lambda seconds: done.append(f"waited {seconds:g} s"))
    monkeypatch.setattr(join, "remove_all", lambda: None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroyed"))
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: done.append(f"said {kind.__name__}"))
    return done


@pytest.fixture
def at_end(done: list[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What Python calls at its end, once this process has joined a world."""
    registered: list[Callable[[], None]] = []
    monkeypatch.setattr(join.atexit, "register", registered.append)
    join._end_with_world()
    return registered[0]


def uncaught(error: BaseException) -> None:
    with pytest.raises(Left):
        sys.excepthook(type(error), error, None)


def test_a_rank_that_ends_well_closes_its_connections(done: list[str], at_end: Callable[[], None]) -> None:
    ending.leave_group(0)
    at_end()
    assert done == ["destroyed"]


@pytest.mark.usefixtures("at_end")
@pytest.mark.parametrize(("error", "status"), [(ValueError(), 1), (KeyboardInterrupt(), 130)])
def test_a_rank_whose_error_nobody_catches_says_it_and_leaves_at_once_without_ending_nccl(
    error: BaseException, status: int, done: list[str]
) -> None:
    uncaught(error)
    assert done == [f"said {type(error).__name__}", f"left with {status}"]


def test_a_rank_leaves_where_its_error_cannot_be_said(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(sys, "excepthook", broken)
    join._end_with_world()
    uncaught(ValueError())
    assert done == ["left with 1"]


@pytest.mark.usefixtures("at_end")
def test_a_rank_that_fails_since_another_is_gone_lets_torchrun_see_that_one_first(done: list[str]) -> None:
    error = RankFailure("rank 0 raised PeerLost", 0)
    error.__cause__ = PeerLost("rank 0 could not receive from rank 1, which is gone or hangs")
    uncaught(error)
    assert done == ["said RankFailure", "waited 2 s", "left with 1"]


@pytest.mark.usefixtures("at_end")
def test_a_command_that_fails_on_a_rank_leaves_with_its_status(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "run_command", lambda argv: 2)
    monkeypatch.setattr(ending, "take_signals", lambda: None)
    with pytest.raises(Left):
        cli.main()
    assert done == ["left with 2"]
    # Called by a program, it is not the process that fails; nor is it where there are no others.
    assert cli.main(["train"]) == 2
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    assert cli.main() == 2
    assert done == ["left with 2"]


def test_after_a_failure_that_the_script_has_caught_the_connections_are_not_closed(
    done: list[str], at_end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join, "_failed", True)
    at_end()
    assert done == []


@pytest.mark.usefixtures("at_end")
def test_at_a_prompt_an_error_is_no_end(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sys.excepthook(ValueError, ValueError(), None)
    assert done == ["said ValueError"]
