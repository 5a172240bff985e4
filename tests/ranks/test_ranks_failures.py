"""A rank that raises, dies, hangs or calls something else: the caller learns which one and why, and nothing is left."""

import math
import os
import select
import signal
import sys
import tempfile
import threading
import time

import psutil
import pytest
import rank_functions as functions
import torch

from zerolab.collectives.call import Call
from zerolab.errors import DeadlockError, MismatchError, RankError
from zerolab.ranks import RankFailure, forkserver, join, launch
from zerolab.ranks.board import RECEIVE, Board, BoardPen
from zerolab.ranks.forkserver import die_with_parent
from zerolab.ranks.job import Job
from zerolab.ranks.lockstep import scheduler

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(60)]


def wait_until_gone(pids):
    """Fails the test if one of these processes is still there after some seconds."""
    alive = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(alive, timeout=10)
    assert alive == []


def noted_processes(folder):
    return [int(path.read_text()) for path in folder.glob("pid-*") if path.suffix != ".part"]


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_an_exception_comes_with_rank_type_and_traceback(world, capsys):
    with pytest.raises(RankFailure, match=r"^rank 1 raised ValueError: bad shard$") as caught:
        launch(functions.raises_on, 1, ranks=3, world=world, timeout=30)
    assert caught.value.rank == 1
    assert caught.value.error == "ValueError"
    assert "in raises_on" in caught.value.traceback
    assert "raise ValueError(message)" in str(caught.value.__cause__)
    # Only what the user wrote: the frames that called the function are ours.
    assert "zerolab/ranks" not in caught.value.traceback
    assert capsys.readouterr().out == "before the failure\n"


def test_an_exception_of_the_users_own_class_is_named():
    class ShardError(Exception):
        pass

    def rank_function(comm):
        raise ShardError("mine")

    with pytest.raises(RankFailure, match=r"rank 0 raised .*ShardError: mine"):
        launch(rank_function, ranks=1, timeout=30)


def test_of_ranks_that_fail_alike_the_lowest_is_named():
    # Rank 3 raises first; a notebook's output must not depend on it.
    with pytest.raises(RankFailure, match="rank 0 raised ValueError: every rank is wrong"):
        launch(functions.all_raise_alike, ranks=4, timeout=30)


def test_a_lost_connection_does_not_hide_its_cause():
    with pytest.raises(RankFailure, match="rank 1 raised ValueError: the first cause"):
        launch(functions.raises_after_a_peer_is_gone, ranks=3, timeout=30)


def refused_by_one_that_is_killed(comm, note):
    """As where rank 0 is killed before the others have reached it."""
    if comm.rank == 0:
        note.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while not note.exists():
        time.sleep(0.01)
    time.sleep(0.1)
    raise RuntimeError(
        "Gloo connectFullMesh failed with [pair.cc:152] timed out connecting: SO_ERROR: Connection refused"
    )


def test_a_refused_connection_does_not_hide_its_cause(tmp_path):
    with pytest.raises(RankError, match=r"rank 0 .*SIGKILL"):
        launch(refused_by_one_that_is_killed, tmp_path / "here", ranks=2, timeout=60)


def test_a_killed_rank_is_named_with_its_signal():
    with pytest.raises(RankFailure, match="rank 2 was killed by SIGKILL; it may have run out of memory") as caught:
        launch(functions.is_killed, ranks=3, timeout=30)
    assert caught.value.rank == 2


@pytest.mark.parametrize(
    ("world", "how", "said"),
    [
        ("processes", "torch", "raised RuntimeError: .*allocate memory"),
        ("lockstep", "python", "raised MemoryError"),
    ],
)
def test_a_rank_that_asks_for_more_memory_than_there_is_is_named(world, how, said):
    with pytest.raises(RankFailure, match=f"rank 1 {said}") as caught:
        launch(functions.takes_more_memory_than_there_is, how, ranks=2, world=world, timeout=30)
    assert caught.value.rank == 1 and "takes_more_memory_than_there_is" in caught.value.traceback


def test_ranks_that_all_die_at_once_are_named_too() -> None:
    # Nobody is left at the other end of the pipe for reports, which is no reason to end in an EOFError.
    with pytest.raises(RankFailure, match="rank 0 was killed by SIGSEGV"):
        launch(lambda comm: os.kill(os.getpid(), signal.SIGSEGV), ranks=2, timeout=30)


@pytest.mark.skipif(sys.platform != "linux", reason="another system has other signals")
def test_a_signal_without_a_name_is_named_by_its_number():
    with pytest.raises(RankFailure, match=r"rank 0 was killed by signal 40$"):
        launch(lambda comm: os.kill(os.getpid(), 40), ranks=1, timeout=30)


def test_os_exit_is_named_with_its_code():
    with pytest.raises(RankFailure, match="rank 1 ended with exit code 7 before it returned"):
        launch(functions.leaves_by_os_exit, ranks=3, timeout=30)


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_sys_exit_is_named_with_its_code(world):
    with pytest.raises(RankFailure, match=r"rank 1 called sys.exit\(3\)"):
        launch(functions.leaves_by_sys_exit, ranks=3, world=world, timeout=30)


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_an_error_that_is_no_exception_is_named_as_well(world):
    with pytest.raises(RankFailure, match=r"rank 1 raised \S*OutOfTheOrdinary: seen"):
        launch(functions.raises_a_base_exception, ranks=3, world=world, timeout=30)


def test_nothing_is_left_of_a_failed_launch(monkeypatch, tmp_path):
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    pids.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    launch(functions.who_and_how_many, ranks=3, timeout=30)
    descriptors = psutil.Process().num_fds()
    with pytest.raises(RankFailure, match="rank 0 raised ValueError: now"):
        launch(functions.ignores_the_end, str(pids), ranks=3, timeout=30)
    assert 0 in {int(path.name.removeprefix("pid-")) for path in pids.glob("pid-?")}
    wait_until_gone(noted_processes(pids))
    assert list(temporary.iterdir()) == []
    assert psutil.Process().num_fds() == descriptors


def test_processes_that_a_failed_rank_started_end_with_it(tmp_path):
    with pytest.raises(RankFailure, match="the helper is left alone"):
        launch(functions.fails_with_a_helper_running, str(tmp_path), ranks=2, timeout=30)
    assert len(noted_processes(tmp_path)) == 2
    wait_until_gone(noted_processes(tmp_path))


@pytest.mark.parametrize(
    ("world", "collectives", "function"),
    [
        ("processes", "ring", functions.other_collective),
        ("processes", "shared", functions.other_size),
        ("lockstep", "ring", functions.other_size),
    ],
)
def test_different_collectives_are_named_at_once(world, collectives, function):
    """Between processes, by the first two that see it, whichever they are."""
    named = r"rank 0 is in #1 all_reduce of 8 float32 while rank 1 is in #1 all_"
    if world == "processes":
        named = r"rank [01] is in #1 all_\w+ of \d+ float32 while rank [12] is in #1 all_\w+ of \d+ float32"
    with pytest.raises(MismatchError, match=named):
        launch(function, ranks=3, world=world, collectives=collectives, timeout=50)


def calls_more_at_the_end(comm):
    for step in range(3):
        comm.all_reduce(torch.ones(4 if step < 2 or comm.rank == 1 else 400))


@pytest.mark.parametrize("function", [functions.other_size, calls_more_at_the_end])
def test_of_two_ranks_one_of_which_dies_of_a_call_of_another_size_both_calls_are_named(function):
    """gloo ends a process that is sent more than it asked for; the other one sees no more than that it is gone."""
    named = r"rank 0 is in #(1|3) all_reduce of \d+ float32 while rank 1 is in #\1 all_reduce of \d+ float32"
    for _ in range(2):
        with pytest.raises(MismatchError, match=named):
            launch(function, ranks=2, collectives="torch", timeout=50)


def test_a_rank_that_returned_early_is_named_at_once():
    with pytest.raises(DeadlockError, match=r"^(?!the ranks did not finish).*rank 1 has returned"):
        launch(functions.returns_early, ranks=3, world="lockstep", timeout=50)


@pytest.mark.parametrize("collectives", ["auto", "ring", "torch"])
def test_a_rank_that_returns_while_the_others_are_in_a_call_is_named_before_the_time_out(collectives):
    """As with uneven batches. The report of the time-out begins with other words."""
    with pytest.raises(DeadlockError, match=r"^rank [02] .* #3 all_reduce of 8 float32, but rank 1 has already return"):
        launch(functions.has_one_batch_fewer, ranks=3, collectives=collectives, timeout=50)


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_a_message_that_was_never_sent_is_named_at_once(world):
    with pytest.raises(DeadlockError, match=r"rank 2 waits to receive from rank 1 \(40 bytes\)"):
        launch(functions.never_sent, ranks=3, world=world, timeout=50)


@pytest.mark.parametrize(("world", "collectives", "function", "said"), [
    ("processes", "auto", functions.drops_its_send,
     r"rank 0 .* what it is sending to rank 1 \(16 bytes\); keep .* isend returns"),
    ("processes", "auto", functions.drops_its_receive,
     r"rank 1 .* what it is receiving from rank 0 \(16 bytes\); keep .* irecv returns"),
    ("lockstep", "transport", functions.drops_many,
     r"rank 0 .* what it is sending to rank 1 \(1 byte\), and for 2 more; keep"),
])  # fmt: skip
def test_a_request_that_was_never_waited_for_is_named_when_its_rank_returns(world, collectives, function, said):
    with pytest.raises(RankFailure, match=said) as failure:
        launch(function, ranks=2, world=world, collectives=collectives, timeout=50)
    assert failure.value.rank == (1 if function is functions.drops_its_receive else 0)


@pytest.mark.parametrize(
    ("world", "sent", "received"), [("processes", 2, 4), ("processes", 4, 2), ("processes", 0, 1), ("lockstep", 2, 4)]
)
def test_messages_of_two_sizes_are_named(world, sent, received):
    """gloo would fill a part of the tensor in silence, or end the process."""
    said = f"rank 0 sends {4 * sent} bytes to rank 1, which receives {4 * received}; make both tensors alike"
    with pytest.raises(MismatchError, match=said):
        launch(functions.sends_another_size, sent, received, ranks=2, world=world, collectives="ring", timeout=50)


@pytest.mark.parametrize(("world", "collectives"), [("processes", "auto"), ("lockstep", "ring")])
def test_a_late_call_that_others_never_make_is_a_deadlock(world, collectives):
    with pytest.raises(DeadlockError, match=r"^(?!the ranks did not finish).*rank 1 has (already )?returned"):
        launch(functions.calls_once_more_and_late, ranks=2, world=world, collectives=collectives, timeout=50)


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_a_message_passes_although_its_request_was_thrown_away(world):
    """Its rank then goes on, and fails at its end; in between nobody waits for ever."""
    with pytest.raises(RankFailure, match=r"rank 0 raised ValueError: heard 4\.0"):
        launch(functions.drops_its_send_and_listens, ranks=2, world=world, collectives="ring", timeout=50)


@pytest.mark.parametrize(("world", "timeout"), [("processes", 1.5), ("lockstep", 50)])
def test_a_circle_of_receives_is_reported_rank_by_rank(world, timeout):
    """In lockstep at once; between processes, where a message may always be on its way, after the time-out."""
    with pytest.raises(DeadlockError) as caught:
        launch(functions.circle_of_receives, ranks=3, world=world, timeout=timeout)
    for rank in range(3):
        assert f"rank {rank} waits to receive from rank {(rank + 1) % 3} (40 bytes)" in str(caught.value)


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_after_the_time_out_each_ranks_pending_call_is_reported(world):
    with pytest.raises(RankError, match=r"did not finish within 1.5 s") as caught:
        launch(functions.spins_on_rank_1, ranks=3, world=world, timeout=1.5)
    report = str(caught.value)
    assert "rank 0 waits to" in report and "in #1 barrier" in report
    assert "rank 1 computes in spins_on_rank_1, line" in report


def test_a_collective_that_hangs_is_reported_in_a_run_that_has_no_limit():
    with pytest.raises(RankError, match=r"a collective or a message did not end within 1.5 s") as caught:
        launch(functions.spins_on_rank_1, ranks=2, timeout=None, collective_timeout=1.5)
    assert "rank 0 waits to" in str(caught.value) and "in #1 barrier" in str(caught.value)
    assert "rank 1 computes in spins_on_rank_1, line" in str(caught.value)


def test_a_rank_that_hangs_in_the_middle_of_a_collective_is_reported_when_that_takes_too_long(tmp_path):
    with pytest.raises(RankError, match=r"a collective or a message did not end within 1.5 s") as caught:
        launch(functions.spins_in_the_middle_of_a_call, tmp_path / "note", ranks=2, timeout=30, collective_timeout=1.5)
    assert "rank 0 waits to" in str(caught.value)
    assert "rank 1 computes in spins_on_rank_1, line" in str(caught.value)


def test_a_rank_that_torchrun_started_says_that_it_hangs(monkeypatch, capfd):
    """Its pending call is told; so is the time-out that torch has for its collectives, which is none of a run's."""
    left, ended = [], threading.Event()
    monkeypatch.setattr(join, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(join, "leave", lambda status: left.append(status) or ended.set())
    pen = BoardPen(Board(2), 0)
    pen.enter(Call("barrier", number=1))
    job = Job(2, math.inf, "ring", ("cpu", "cpu"), "gloo", 1, collective_timeout=0.05)
    assert job.call_seconds == 0.05
    with join._reported_when_overdue(job, 0, pen):
        pen.wait(RECEIVE, 1, 4)
        assert ended.wait(20)
    assert left[0] == 1
    said = "zerolab: rank 0 hangs: a collective or a message did not end within 0.05 s: it waits to receive from rank 1"
    assert said in capfd.readouterr().err


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_lockstep_rank_whose_thread_is_about_to_end_is_not_said_to_go_on(monkeypatch, ranks):
    live = scheduler.Scheduler._live

    def takes_its_time(self, task, body):
        live(self, task, body)
        # The rank is done; its thread is not, as on a machine with other work.
        time.sleep(0.3)

    monkeypatch.setattr(scheduler.Scheduler, "_live", takes_its_time)
    with pytest.raises(RankFailure, match="raised ValueError: bad shard") as caught:
        launch(functions.raises_on, ranks - 1, ranks=ranks, world="lockstep", timeout=30)
    assert getattr(caught.value, "__notes__", []) == []
    assert not [thread for thread in threading.enumerate() if "lockstep" in thread.name]


def test_a_lockstep_rank_that_cannot_be_stopped_is_owned_up_to():
    with pytest.raises(RankError, match="rank 1 computes in sleeps_on_rank_1") as caught:
        launch(functions.sleeps_on_rank_1, 5, ranks=2, world="lockstep", timeout=0.5)
    assert caught.value.__notes__ == ["rank 1 could not be stopped; its thread goes on"]


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_a_result_that_cannot_travel_is_named_by_rank_and_type(world):
    with pytest.raises(RankFailure, match="rank 0 returned a generator that cannot travel back"):
        launch(functions.returns_a_generator, ranks=2, world=world, timeout=30)


def test_a_result_over_the_limit_is_named_by_rank_and_size():
    with pytest.raises(RankFailure, match=r"rank 0 returned a Tensor of 2000\d\d\d bytes, over the limit of 1000000"):
        launch(functions.returns_megabytes, 2, ranks=2, max_result_mb=1, timeout=30)
    assert [result.numel() for result in launch(functions.returns_megabytes, 2, ranks=2, timeout=30)] == [500_000] * 2


def test_a_launch_works_after_every_failure():
    for function in (functions.is_killed, functions.leaves_by_os_exit):
        with pytest.raises(RankFailure):
            launch(function, ranks=3, timeout=30)
        assert launch(functions.total_of_ranks, ranks=3, timeout=30) == [3.0] * 3


def test_a_fork_whose_parent_ended_before_it_asked_to_end_with_it_ends_too() -> None:
    ended, held = os.pipe()
    if not (parent := os.fork()):
        asks = os.getpid()
        if not os.fork():
            while os.getppid() == asks:
                time.sleep(0.01)
            die_with_parent(asks)
            time.sleep(60)
        os._exit(0)
    os.close(held)
    os.waitpid(parent, 0)
    assert select.select([ended], [], [], 20)[0], "the fork lives on"
    os.close(ended)


def test_a_killed_server_is_replaced():
    launch(functions.who_and_how_many, ranks=1, timeout=30)
    os.kill(forkserver._server._forkserver_pid, 9)
    os.waitid(os.P_PID, forkserver._server._forkserver_pid, os.WEXITED | os.WNOWAIT)
    assert launch(functions.total_of_ranks, ranks=2, timeout=50) == [1.0, 1.0]


def test_ranks_that_all_end_at_once_are_named():
    with pytest.raises(RankError, match=r"rank [0-2] ended with exit code 3 before it returned"):
        launch(ends_at_once, ranks=3, timeout=60)


def ends_at_once(comm):
    os._exit(3)
