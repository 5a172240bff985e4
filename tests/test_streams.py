"""What the library queues on a GPU's streams is in order: nothing is read before it is there, written while others read
it, or given back while it is used. Told without a GPU, see `tests/streams/`."""

import pytest
from streams.runs import Case, Seen, loop, run


def test_stage_3_on_a_gpu_touches_nothing_too_early() -> None:
    assert run(Case(3)).races == []


def test_the_checker_sees_a_stage_3_that_does_not_wait_for_what_it_gathers() -> None:
    [site] = [site for site in run(Case(3)).sites if site[0] == "zero/stage3.py"]
    found = run(Case(3), without=site).races
    assert any("all_gather" in race and "touch the same memory in no order" in race for race in found)


# How often the host waits for the device. A wait empties the queue: nothing is computed until the host has queued more.


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("stage", range(4))
def test_the_host_waits_at_most_once_a_step(stage: int, clip_norm: float | None) -> None:
    for precision in (None, "bf16") if stage == 3 else (None,):
        check_waits(loop(Case(stage, micro_batches=2, steps=3, settings={"precision": precision}), clip_norm))


def test_fp8_layers_that_share_an_input_find_that_out_without_the_host() -> None:
    check_waits(loop(Case(3, steps=3, settings={"precision": "fp8"}), 0.1))


def check_waits(seen: Seen) -> None:
    assert max(sum(waits.values()) for waits in seen.waits[1:]) <= 1, seen.waits
    assert seen.races == []
    assert seen.parameters["loss"].isfinite().all()
