"""How a rank that a launcher has started ends, well or not. What ends NCCL is told: it waits for other ranks."""

import sys
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from zerolab import cli
from zerolab.cli import ending
from zerolab.ranks import folders, parting
from zerolab.ranks.failure import PeerLost, is_secondary


class Left(BaseException):
    """The process has ended with this status."""


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a rank of a world that it has joined does at its end, in order."""
    done: list[str] = []

    def leave(status: int) -> None:
        done.append(f"left with {status}")
        raise Left(status)

    monkeypatch.setattr(parting, "_joined", False)
    monkeypatch.setattr(parting, "_failed", False)
    monkeypatch.setattr(parting, "leave", leave)
    monkeypatch.setattr(parting.time, "sleep", lambda seconds: done.append(f"waited {seconds:g} s"))
    monkeypatch.setattr(folders, "remove_all", lambda: None)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("destroyed"))
    monkeypatch.setattr(parting.distributed_c10d, "_abort_process_group", lambda: done.append("cut"))
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: done.append(f"said {kind.__name__}"))
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setattr(parting.atexit, "register", lambda call: None)
    monkeypatch.setattr(parting.threading, "_register_atexit", lambda call: None)
    parting.join()
    return done


def raised(error: BaseException) -> None:
    """A launch in which this rank raises."""
    with pytest.raises(type(error)), parting.noted():
        parting.failed_first(not is_secondary(error))
        raise error


def uncaught(error: BaseException) -> None:
    with pytest.raises(Left):
        sys.excepthook(type(error), error, None)


def test_a_rank_that_ends_well_closes_its_connections(done: list[str]) -> None:
    with parting.noted():
        pass
    ending.part(0)
    parting.part()
    assert done == ["destroyed"]


@pytest.mark.parametrize(("error", "status"), [(ValueError(), 1), (KeyboardInterrupt(), 130)])
def test_a_rank_whose_error_nobody_catches_says_it_and_leaves_at_once_without_ending_nccl(
    error: BaseException, status: int, done: list[str]
) -> None:
    raised(error)
    uncaught(error)
    assert done == [f"said {type(error).__name__}", f"left with {status}"]


def test_a_rank_leaves_where_its_error_cannot_be_said(done: list[str]) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    with pytest.raises(Left):
        parting.leaving(broken)(ValueError, ValueError(), None)
    assert done == ["left with 1"]


def test_an_error_outside_of_launches_ends_a_rank_alike_since_others_may_be_in_the_next_one(done: list[str]) -> None:
    with parting.noted():
        pass
    uncaught(ValueError())
    assert done == ["said ValueError", "left with 1"]


def test_a_rank_that_fails_since_another_is_gone_lets_the_launcher_see_that_one_first(done: list[str]) -> None:
    error = PeerLost("rank 0 could not receive from rank 1, which is gone or hangs")
    raised(error)
    uncaught(error)
    assert done == ["said PeerLost", "waited 2 s", "left with 1"]


def test_a_command_that_fails_on_a_rank_leaves_with_its_status(
    done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_run", lambda argv: 2)
    monkeypatch.setattr(ending, "take_signals", lambda: None)
    with pytest.raises(Left):
        cli.main()
    assert done == ["left with 2"]
    # Called by a program, it is not the process that fails; nor is it where there are no others.
    assert cli.main(["train"]) == 2
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    assert cli.main() == 2
    assert done == ["left with 2"]


@pytest.mark.parametrize(("asked", "left"), [(3, 3), ("in its own words", 1)])
def test_a_script_that_says_the_error_itself_and_exits_leaves_with_its_status(
    asked: object, left: int, done: list[str]
) -> None:
    raised(ValueError())
    with pytest.raises(SystemExit):
        sys.exit(asked)  # type: ignore[arg-type]
    with pytest.raises(Left):
        parting.leave_as_asked()
    assert done == [f"left with {left}"]


def test_a_rank_function_that_exits_leaves_with_its_status(done: list[str]) -> None:
    raised(SystemExit(3))
    with pytest.raises(Left):
        parting.leave_as_asked()
    assert done == ["left with 3"]


def test_a_script_that_exits_well_or_after_another_launch_that_ended_well_ends_in_order(done: list[str]) -> None:
    raised(SystemExit(0))
    parting.leave_as_asked()
    raised(SystemExit(3))
    with parting.noted():
        pass
    with pytest.raises(SystemExit):
        sys.exit(2)
    parting.leave_as_asked()
    parting.part()
    assert done == ["destroyed"]


def test_after_a_failure_that_the_script_has_caught_the_connections_are_cut_not_closed(done: list[str]) -> None:
    raised(ValueError())
    parting.part()
    assert done == ["cut"]
    # All ranks have met again.
    with parting.noted():
        pass
    parting.part()
    assert done == ["cut", "destroyed"]


def test_at_a_prompt_an_error_is_no_end(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    sys.excepthook(ValueError, ValueError(), None)
    assert done == ["said ValueError"]
