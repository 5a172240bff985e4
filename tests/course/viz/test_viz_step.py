"""A step's timeline and skyline show what ran: spans that fill the step, bytes that the tracker saw, one clock."""

from dataclasses import replace

import pytest

from zerolab.course.viz import StepRun, watch_step
from zerolab.course.viz.step import MODEL, watch_flow
from zerolab.errors import InputError
from zerolab.memory import KINDS
from zerolab.models import parameter_count

SMALL = StepRun(ranks=2)


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
