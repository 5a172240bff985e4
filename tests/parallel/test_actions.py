"""Schedules of pipelines: as text, as torch reads them, without deadlock, with the bubbles and peaks of the papers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torchs

from zerolab.errors import InputError
from zerolab.parallel.actions import (
    Schedule,
    gpipe,
    interleaved,
    one_forward_one_backward,
    read_schedule,
    zero_bubble,
)

SIZES = [(1, 3), (2, 2), (2, 5), (4, 4), (4, 8), (4, 3)]


@pytest.mark.parametrize(("ranks", "micros"), SIZES)
@pytest.mark.parametrize("make", [gpipe, one_forward_one_backward, zero_bubble])
def test_a_schedule_is_complete_goes_through_text_and_back_and_torch_reads_the_same(
    make: Callable[[int, int], Schedule], ranks: int, micros: int
) -> None:
    schedule = make(ranks, micros)
    assert read_schedule(str(schedule)) == schedule
    assert (schedule.stages, schedule.micro_batches, len(schedule.rows)) == (ranks, micros, ranks)
    for row in schedule.rows:
        assert [str(torchs._Action.from_str(str(action))) for action in row] == [*map(str, row)]


@pytest.mark.parametrize(("ranks", "micros"), SIZES)
def test_the_bubble_is_that_of_the_papers(ranks: int, micros: int) -> None:
    """In units of a forward; a backward takes two, its halves one each."""
    steps = ranks - 1
    for schedule in (gpipe(ranks, micros), one_forward_one_backward(ranks, micros)):
        assert schedule.bubble() == pytest.approx(3 * steps / (3 * micros + 3 * steps))
    if micros >= ranks:
        assert zero_bubble(ranks, micros).bubble() == pytest.approx(steps / (3 * micros + steps))
    for chunks in (2, 3):
        if micros % ranks == 0:
            each = {"F": 1 / chunks, "B": 2 / chunks}
            due = 3 * steps / chunks / (3 * micros + 3 * steps / chunks)
            assert interleaved(ranks, micros, chunks).bubble(each) == pytest.approx(due)


def test_1f1b_and_zero_bubble_keep_as_many_micro_batches_as_stages_are_left_and_gpipe_all() -> None:
    assert gpipe(4, 8).most_in_flight() == [8] * 4
    assert one_forward_one_backward(4, 8).most_in_flight() == [4, 3, 2, 1]
    assert max(zero_bubble(4, 8).most_in_flight()) == 4


def test_an_interleaved_schedule_has_more_messages_and_the_order_of_torch() -> None:
    schedule = interleaved(2, 4, 2)
    assert one_forward_one_backward(2, 4).messages() == [4, 4] and schedule.messages() == [12, 12]
    assert [schedule.rank_of(stage) for stage in range(4)] == [0, 1, 0, 1]


def test_torch_writes_what_we_read(tmp_path: Path) -> None:
    """Its own interleaved schedule, whose rows have pauses, as its own CSV file has them."""

    class Stage:
        def __init__(self, index: int) -> None:
            self.stage_index, self.group_size, self.num_stages, self.group_rank, self.group = index, 2, 4, 0, None
            self.has_backward, self.is_first, self.is_last, self.stage_index_to_group_rank = True, False, False, {}
            self.submod: Any = None

    theirs = torchs.ScheduleInterleaved1F1B.__new__(torchs.ScheduleInterleaved1F1B)
    theirs.pp_group_size, theirs.n_local_stages, theirs._n_microbatches = 2, 2, 4
    theirs.rank, theirs.number_of_rounds, theirs.microbatches_per_round = 0, 2, 2
    theirs.pipeline_order = {rank: theirs._calculate_single_rank_operations(rank) for rank in range(2)}
    torchs._PipelineScheduleRuntime._dump_csv  # noqa: B018 (the name that is used below)
    torchs.PipelineScheduleMulti._dump_csv(theirs, str(tmp_path / "order.csv"))
    read = read_schedule((tmp_path / "order.csv").read_text())
    assert read == interleaved(2, 4, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0,0B0\n1B0,1F0", "deadlock: rank 0 waits at 0B0 for 1B0 or 1I0, rank 1 waits at 1B0 for 1F0"),
        ("0F0,0B0\n0F1,0B1", "stage 0 is on ranks 0 and 1"),
        ("0F0\n1F0,1B0", "stage 0 does F of micro-batch 0; it should do F and B"),
        ("0F0,0B0,0F0", "stage 0 does B, F, F of micro-batch 0"),
        ("0F0,0B0\n2F0,2B0", "stage 1 is not in the schedule"),
        ("0F1,0B1", "micro-batch 0 is not in the schedule"),
        ("0F0,0SEND_F0,0B0", "'0SEND_F0' is no action"),
        ("", "the schedule is empty"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_the_action(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_schedule(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: gpipe(0, 1), "ranks is 0"),
        (lambda: zero_bubble(2, 0), "micro_batches is 0"),
        (lambda: interleaved(2, 3, 2), "3 micro-batches are no multiple of 2 ranks"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make: Callable[[], Schedule], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()
