"""The board and what is concluded from it, without a process."""

import math

import pytest
import torch

from zerolab.collectives import LocalCollectives, LocalTransport
from zerolab.collectives.call import Call
from zerolab.errors import DeadlockError, MismatchError, RankError
from zerolab.gpu import door
from zerolab.ranks.board import Board, BoardPen, Hangs, find_failure, report_overdue
from zerolab.ranks.process_transport import ProcessTransport

RECEIVE = 2


@pytest.fixture
def board(tmp_path):
    return Board(3, tmp_path / "board")


def pens(board):
    return [BoardPen(board, rank) for rank in range(board.size)]


def test_a_note_reads_as_it_was_written(board):
    pen = pens(board)[1]
    pen.enter(Call("all_gather", 4096, "float32", 4, 2))
    pen.wait(RECEIVE, 0, 1024)
    assert board.read(1).describe() == "waits to receive from rank 0 (1024 bytes) in #2 all_gather of 4096 float32"
    pen.wait(0)
    assert board.read(1).describe() == "is in #2 all_gather of 4096 float32"
    pen.leave()
    assert board.read(1).describe() == ""
    assert board.read(1).entered() == {0: 2}
    assert board.read(0).changes == 0


def test_a_call_inside_a_call_gives_way_to_the_outer_one(board):
    pen = pens(board)[0]
    outer, inner = Call("all_reduce", 8, "float32", 4, 1), Call("barrier", number=2)
    pen.enter(outer)
    pen.enter(inner)
    pen.leave()
    assert board.read(0).describe() == f"is in {outer}"


def test_a_mismatch_needs_two_equal_readings(board):
    first, second, _ = pens(board)
    first.enter(Call("all_reduce", 8, "float32", 4, 1))
    second.enter(Call("all_reduce", 9, "float32", 4, 1))
    earlier = board.read_all()
    first.wait(RECEIVE, 2, 4)
    assert find_failure(earlier, board.read_all(), set()) is None
    found = find_failure(board.read_all(), board.read_all(), set())
    assert isinstance(found, MismatchError)
    assert "rank 0 is in #1 all_reduce of 8 float32 while rank 1 is in #1 all_reduce of 9" in str(found)


def test_ranks_in_different_rounds_are_no_mismatch(board):
    first, second, _ = pens(board)
    first.enter(Call("all_reduce", 8, "float32", 4, 1))
    second.enter(Call("all_gather", 9, "float32", 4, 2))
    assert find_failure(board.read_all(), board.read_all(), set()) is None


def test_a_message_still_on_its_way_is_no_deadlock(board):
    """Rank 1 posted its send and returned; rank 0 merely has not got it yet."""
    first, second, _ = pens(board)
    first.post("received", 1)
    first.wait(RECEIVE, 1, 4)
    second.post("sent", 0)
    assert find_failure(board.read_all(), board.read_all(), {1}) is None
    first.post("received", 1)
    assert isinstance(find_failure(board.read_all(), board.read_all(), {1}), DeadlockError)


def test_an_overdue_report_tells_waiting_from_computing(board):
    pens(board)[0].wait(RECEIVE, 1, 4)
    report = report_overdue(board.read_all(), {2}, {1: "computes in train, line 12"}, 3.0)
    assert str(report) == (
        "the ranks did not finish within 3 s: rank 0 waits to receive from rank 1 (4 bytes); "
        "rank 1 computes in train, line 12; rank 2 has returned"
    )
    assert type(report) is RankError
    pens(board)[1].wait(RECEIVE, 0, 4)
    assert isinstance(report_overdue(board.read_all(), {2}, {}, 3.0), DeadlockError)


def test_a_call_that_lasts_is_a_hang_and_messages_alike_one_after_the_other_are_none(board):
    first, second, _ = pens(board)
    hangs = Hangs(10.0)
    first.enter(Call("all_reduce", 8, "float32", 4, 1))
    for now in range(20):
        # The second one receives ever again; the first sends within one call.
        second.wait(0)
        second.wait(RECEIVE, 0, 4)
        first.wait(RECEIVE, 1, 4 * now)
        assert not hangs.find(board.read_all(), now)
        first.wait(0)
        first.leave()
        first.enter(Call("all_reduce", 8, "float32", 4, now + 2))
    second.wait(0)
    assert [hangs.find(board.read_all(), now) for now in (20, 29, 30)] == [False, False, True]
    first.leave()
    second.wait(RECEIVE, 0, 4)
    assert [hangs.find(board.read_all(), now) for now in (31, 40, 41)] == [False, False, True]
    assert not Hangs(math.inf).find(board.read_all(), 1e9)


@pytest.mark.parametrize("beside_others", [False, True], ids=["alone", "after a call under way"])
def test_a_barrier_that_a_gpu_does_not_end_is_named_while_its_rank_waits(board, monkeypatch, beside_others):
    """The host waits for all that the GPU was given, on the rank's own thread or on that of its lane."""
    pen_of_rank, waiting = pens(board)[0], []
    monkeypatch.setattr(door, "drives", lambda device: True)
    monkeypatch.setattr(door, "enter", lambda device: None)
    monkeypatch.setattr(door, "drain", lambda device: waiting.append(board.read(0).describe()))

    class Noting(LocalTransport):
        pen = pen_of_rank
        entered, left = ProcessTransport.entered, ProcessTransport.left

    comm = LocalCollectives(Noting())
    handle = comm.all_reduce_async(torch.ones(2)) if beside_others else None
    comm.barrier()
    assert waiting == ["is in #2 barrier" if handle else "is in #1 barrier"]
    assert board.read(0).describe() == ""
    comm.close()
