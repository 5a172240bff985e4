"""A step's timeline and skyline show what ran: spans that fill the step, bytes that the tracker saw, one clock."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from zerolab.collectives import Collectives, Link
from zerolab.course.viz import StepRun, watch_step
from zerolab.course.viz.step import MODEL, watch_flow
from zerolab.errors import InputError
from zerolab.memory import KINDS, Sample, Tracker
from zerolab.memory.timeline import by_time
from zerolab.models import parameter_count
from zerolab.ranks import SimulatedCompute, launch, spend

SMALL = StepRun(ranks=2)


def lockstep(function, ranks: int = 2, link: Link | None = None):
    return launch(function, ranks=ranks, world="lockstep", link=link, trace=True, timeout=30)


# The tracker's clock


def test_a_trackers_samples_have_the_time_of_its_clock() -> None:
    def on_rank(comm: Collectives) -> list[tuple[float, int]]:
        with Tracker(clock=comm.transport.now) as tracker:
            spend(1.0)
            kept = torch.zeros(4)
            spend(1.0)
            passing = torch.zeros(2)
            spend(1.0)
            del passing
            spend(1.0)
            kept.add_(1)
        return [(sample.time, sample.total) for sample in tracker.samples]

    # A storage is gone when it was let go, not when the next operation comes.
    assert lockstep(on_rank)[0] == [(1.0, 16), (2.0, 24), (3.0, 16)]


def test_a_storage_emptied_behind_the_dispatcher_was_so_before_the_rank_waited() -> None:
    def on_rank(comm: Collectives) -> list[tuple[float, int]]:
        with Tracker(clock=comm.transport.now) as tracker:
            whole, other = torch.zeros(4), torch.zeros(1)
            whole.untyped_storage().resize_(0)
            # Seen once with another size, a storage is read again after each operation.
            tracker.now()
            whole.untyped_storage().resize_(16)
            spend(1.0)
            other.add_(1)
            whole.untyped_storage().resize_(0)
            spend(1.0)
            other.add_(1)
        return [(sample.time, sample.total) for sample in tracker.samples]

    assert lockstep(on_rank)[0][-1] == (1.0, 4)


def test_without_a_clock_samples_have_no_time() -> None:
    with Tracker() as tracker:
        torch.zeros(4).add_(1)
    assert tracker.samples and {sample.time for sample in tracker.samples} == {0.0}


def test_storages_that_outlive_a_failed_launch_are_let_go_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    def on_rank(comm: Collectives) -> None:
        with Tracker(clock=comm.transport.now):
            kept = torch.zeros(4)
            comm.all_reduce(kept)
            if comm.rank:
                raise ValueError("on purpose")
            comm.all_reduce(kept)

    with pytest.raises(RuntimeError, match="on purpose"):
        lockstep(on_rank)
    assert "Exception ignored" not in capfd.readouterr().err


def test_samples_by_time_are_the_same_changes_in_the_order_of_the_clock() -> None:
    # A lane's temporary buffer: late in the order of operations, early on the clock.
    samples = [
        Sample(1, "", {"activations": 10}, 0.0),
        Sample(2, "", {"activations": 30}, 2.0),
        Sample(3, "", {"activations": 30, "communication_buffers": 5}, 1.0),
        Sample(4, "", {"activations": 30}, 1.5),
    ]
    course = by_time(samples)
    assert [(sample.time, sample.total) for sample in course] == [(0.0, 10), (1.0, 15), (1.5, 10), (2.0, 30)]


# The pace


def test_operations_take_the_longer_of_arithmetic_and_traffic() -> None:
    def on_rank(comm: Collectives) -> list[float]:
        one, times = torch.zeros(10, 10), [comm.transport.now()]
        with SimulatedCompute(comm, gflop_per_s=1e-6, gbyte_per_s=1.0) as slow:
            one @ one
        times.append(comm.transport.now())
        with SimulatedCompute(comm, gflop_per_s=1.0, gbyte_per_s=1e-6):
            one @ one
            one.view(-1).detach()
            torch.empty(10)
        times.append(comm.transport.now())
        (span,) = slow.spans
        assert (span.start, span.stop) == (times[0], times[1])
        return [stop - start for start, stop in pairwise(times)]

    # 2 * 10^3 operations at 1,000 a second; then three matrices of 400 bytes at 1,000 bytes a second.
    assert lockstep(on_rank)[0] == pytest.approx([2.0, 1.2])


@pytest.mark.parametrize("speeds", [(0, 1), (1, -1)])
def test_a_pace_that_is_no_speed_is_refused(speeds: tuple) -> None:
    with pytest.raises(InputError, match="give speeds above 0"):
        SimulatedCompute(None, *speeds)  # type: ignore[arg-type]


# The step


@pytest.mark.parametrize("stage", range(4))
def test_a_step_holds_the_states_of_its_stage_and_never_less_than_nothing(stage: int) -> None:
    found = watch_step(replace(SMALL, stage=stage))
    whole = 4 * parameter_count(MODEL)
    for rank in found:
        for sample in rank.course:
            assert set(sample.bytes) <= set(KINDS) and min(sample.bytes.values()) >= 0
        assert all(0 <= sample.time <= rank.seconds for sample in rank.course)
        peak = rank.peak.bytes
        # Up to a few elements of padding.
        assert peak["parameters"] == pytest.approx(whole / (2 if stage == 3 else 1), rel=0.02)
        assert peak["gradients"] == pytest.approx(whole / (2 if stage >= 2 else 1), rel=0.02)
        assert peak["optimizer_states"] == pytest.approx(2 * whole / (2 if stage >= 1 else 1), rel=0.02)
        assert rank.peak.total == max(sample.total for sample in rank.course)


def test_each_stage_peaks_lower_and_only_the_third_gathers_units() -> None:
    # At two ranks the units at hand cost more than half the parameters save.
    ranks = [watch_step(StepRun(stage))[0] for stage in range(4)]
    peaks = [rank.peak.total for rank in ranks]
    assert peaks == sorted(peaks, reverse=True) and len(set(peaks)) == 4
    assert [max(s.bytes.get("gathered_units", 0) for s in rank.course) > 0 for rank in ranks] == [False] * 3 + [True]
    # Nothing is left of what passes.
    assert ranks[3].course[-1].bytes["gathered_units"] == 0


def test_prefetch_hides_gathering_under_computing() -> None:
    ahead, behind = (watch_step(replace(SMALL, prefetch=prefetch))[0] for prefetch in (True, False))
    assert ahead.overlapped > behind.overlapped and ahead.seconds < behind.seconds
    assert ahead.busy_seconds("compute") == pytest.approx(behind.busy_seconds("compute"))


def test_a_slower_link_makes_a_longer_step_of_the_same_peak_at_stage_0() -> None:
    fast, slow = (watch_step(replace(SMALL, stage=0, gbit_per_s=speed))[0] for speed in (10.0, 1.0))
    assert slow.seconds > fast.seconds and slow.busy_seconds("compute") == pytest.approx(fast.busy_seconds("compute"))
    assert slow.peak.total == fast.peak.total


def test_a_step_is_the_same_every_time() -> None:
    # Not from the cache.
    assert watch_flow.__wrapped__(SMALL).ranks == watch_flow.__wrapped__(SMALL).ranks


@pytest.mark.parametrize("ranks", [0, 9, True])
def test_a_step_that_cannot_be_drawn_is_refused(ranks: int) -> None:
    with pytest.raises(InputError, match="cannot be drawn; take 1 to 8"):
        watch_step(StepRun(ranks=ranks))
