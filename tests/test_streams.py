"""What the library queues on a GPU's streams is in order: nothing is read before it is there, written while others read
it, or given back while it is used. Told without a GPU, see `tests/streams/`."""

from streams.runs import Case, run


def test_stage_3_on_a_gpu_touches_nothing_too_early() -> None:
    assert run(Case(3)).races == []


def test_the_checker_sees_a_stage_3_that_does_not_wait_for_what_it_gathers() -> None:
    [site] = [site for site in run(Case(3)).sites if site[0] == "zero/stage3.py"]
    found = run(Case(3), without=site).races
    assert any("all_gather" in race and "touch the same memory in no order" in race for race in found)
