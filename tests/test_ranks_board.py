"""The board and what is concluded from it, without a process."""

import pytest

from zerolab.collectives.call import Call
from zerolab.errors import DeadlockError, MismatchError, RankError
from zerolab.ranks.board import Board, BoardPen
from zerolab.ranks.watch import certain_failure, overdue

RECEIVE = 2


@pytest.fixture
def board(tmp_path):
    board = Board.create(tmp_path / "board", 3)
    yield board
    board.close()


def pens(board):
    return [BoardPen(board, rank) for rank in range(board.size)]


def test_a_note_reads_as_it_was_written(board):
    pen = pens(board)[1]
    pen.entered(Call("all_gather", 4096, "float32", 4, 2))
    pen.waits(RECEIVE, 0, 1024)
    assert board.read(1).describe() == "waits to receive from rank 0 (1024 bytes) in #2 all_gather of 4096 float32"
    pen.waits(0)
    assert board.read(1).describe() == "is in #2 all_gather of 4096 float32"
    pen.left()
    assert board.read(1).describe() == ""
    assert board.read(1).last == 2
    assert board.read(0).changes == 0


def test_a_call_inside_a_call_gives_way_to_the_outer_one(board):
    pen = pens(board)[0]
    outer, inner = Call("all_reduce", 8, "float32", 4, 1), Call("barrier", number=2)
    pen.entered(outer)
    pen.entered(inner)
    pen.left()
    assert board.read(0).describe() == f"is in {outer}"


def test_a_mismatch_needs_two_equal_readings(board):
    first, second, _ = pens(board)
    first.entered(Call("all_reduce", 8, "float32", 4, 1))
    second.entered(Call("all_reduce", 9, "float32", 4, 1))
    earlier = board.read_all()
    first.waits(RECEIVE, 2, 4)
    assert certain_failure(earlier, board.read_all(), set()) is None
    found = certain_failure(board.read_all(), board.read_all(), set())
    assert isinstance(found, MismatchError)
    assert "rank 0 is in #1 all_reduce of 8 float32 while rank 1 is in #1 all_reduce of 9" in str(found)


def test_ranks_in_different_rounds_are_no_mismatch(board):
    first, second, _ = pens(board)
    first.entered(Call("all_reduce", 8, "float32", 4, 1))
    second.entered(Call("all_gather", 9, "float32", 4, 2))
    assert certain_failure(board.read_all(), board.read_all(), set()) is None


def test_a_message_still_on_its_way_is_no_deadlock(board):
    """Rank 1 posted its send and returned; rank 0 merely has not got it yet."""
    first, second, _ = pens(board)
    first.posted_receive(1)
    first.waits(RECEIVE, 1, 4)
    second.posted_send(0)
    assert certain_failure(board.read_all(), board.read_all(), {1}) is None
    first.posted_receive(1)
    assert isinstance(certain_failure(board.read_all(), board.read_all(), {1}), DeadlockError)


def test_an_overdue_report_tells_waiting_from_computing(board):
    pens(board)[0].waits(RECEIVE, 1, 4)
    report = overdue(board.read_all(), {2}, {1: "computes in train, line 12"}, 3.0)
    assert str(report) == (
        "the ranks did not finish within 3 s: rank 0 waits to receive from rank 1 (4 bytes); "
        "rank 1 computes in train, line 12; rank 2 has returned"
    )
    assert type(report) is RankError
    pens(board)[1].waits(RECEIVE, 0, 4)
    assert isinstance(overdue(board.read_all(), {2}, {}, 3.0), DeadlockError)
