"""`zerolab train --trace`: what ran when, in a file for a viewer and as a table (row 28)."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from zerolab.apps.cli.train import main
from zerolab.collectives import Span
from zerolab.errors import InputError
from zerolab.run import RunSpec
from zerolab.train import Report, train
from zerolab.train.here import check_here
from zerolab.train.trace import RankTrace, chrome_json, rows_of, times_of, times_of_step

NANO = {"model_size": "nano", "seq_len": 16, "batch_size": 4, "max_steps": 4}


@pytest.fixture(scope="module")
def traced() -> Report:
    """Stage 3 on two ranks in lockstep, on a link."""
    return train(
        RunSpec(**NANO, zero_stage=3, ranks=2, world="lockstep", gbit_per_s=10.0, trace=Path("t"), trace_steps=3)
    )


def test_computing_waiting_and_what_runs_beside_them_are_told_apart() -> None:
    step = Span(0, "compute", "step 3", 0.0, 10.0)
    spans = [
        Span(0, "compute", "forward", 1.0, 5.0),
        Span(0, "compute", "backward", 5.0, 9.0),
        Span(0, "wait", "all_gather", 2.0, 3.0),
        Span(0, "wait", "all_gather", 5.0, 5.5),
        Span(0, "collective", "all_gather", 0.5, 3.0),
        Span(0, "collective", "all_gather", 4.0, 5.5),
        Span(0, "transfer", "read", 8.0, 12.0),
        Span(0, "collective", "broadcast", 10.0, 11.0),
    ]
    found = {time.what: (time.milliseconds, time.hidden, time.calls) for time in times_of_step(step, spans)}
    assert found == {
        "forward": (3000.0, None, None),
        "backward": (3500.0, None, None),
        "optimizer step": (0.0, None, None),
        "waiting": (1500.0, None, None),
        "all_gather": (4000.0, 2500.0, 2),
        "read of the disk": (2000.0, None, 1),
        "the rest": (2000.0, None, None),
        "whole step": (10000.0, None, None),
    }


def test_a_mean_counts_steps_in_which_there_was_nothing_of_it() -> None:
    steps = [Span(0, "compute", f"step {number}", number, number + 1.0) for number in (1, 2, 3)]
    call = Span(0, "collective", "barrier", 2.0, 2.5)
    (barrier,) = (time for time in times_of([RankTrace([*steps, call], [])], 2) if time.what == "barrier")
    assert (barrier.milliseconds, barrier.calls) == (250.0, 0.5)


def test_row_28_times_of_a_step_add_up_to_it(traced: Report) -> None:
    times = {time.what: time for time in traced.times}
    assert {"all_gather", "reduce_scatter"} < times.keys()
    parts = ("forward", "backward", "optimizer step", "waiting", "the rest")
    assert sum(times[part].milliseconds for part in parts) == pytest.approx(times["whole step"].milliseconds)
    assert all(time.milliseconds > 0 for what, time in times.items() if what != "the rest")
    assert all(time.hidden <= time.milliseconds * (1 + 1e-9) for time in times.values() if time.hidden is not None)


def test_the_steps_that_were_asked_for_are_traced_and_no_others(traced: Report) -> None:
    for trace in traced.traces:
        assert [span.name for span in trace.spans if span.name.startswith("step ")] == ["step 1", "step 2", "step 3"]
    # The first two were tracked, which slows a step down.
    assert [span.name for span in traced.traces[0].spans if span.name == "forward"] == ["forward"] * 3


def test_a_trace_has_each_rank_s_calls_and_what_lies_in_a_row_nests(traced: Report) -> None:
    events = json.loads(chrome_json(traced.traces, "a run"))["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    whole = [event for event in events if event["ph"] == "X"]
    rows = {(event["pid"], event["tid"]) for event in whole}
    assert rows == {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    for row in rows:
        within: list[float] = []
        for event in sorted((e for e in whole if (e["pid"], e["tid"]) == row), key=lambda e: (e["ts"], -e["dur"])):
            while within and within[-1] <= event["ts"] + 2e-3:
                within.pop()
            end = event["ts"] + event["dur"]
            assert not within or end <= within[-1] + 2e-3
            within.append(end)
    calls = [sum(event["pid"] == rank and event["cat"] == "collective" for event in whole) for rank in range(2)]
    assert calls[0] > 20 and len(set(calls)) == 1


def test_the_memory_counter_reaches_the_peak_of_the_report(traced: Report) -> None:
    by_kind = {kind: sizes[0] for kind, sizes in traced.peak.items()}
    highest = max(sum(kinds.values()) for _, kinds in traced.traces[0].memory)
    assert highest == pytest.approx(sum(by_kind.values()), rel=0.05)
    moments = [seconds for seconds, _ in traced.traces[0].memory]
    assert all(one <= other for one, other in pairwise(moments))


def test_calls_that_are_under_way_at_once_have_rows_of_their_own() -> None:
    calls = [Span(0, "collective", "all_gather", *when) for when in ((0.0, 2.0), (1.0, 3.0), (2.0, 4.0))]
    rows = [(name, len(spans)) for name, spans in rows_of(calls)]
    assert rows == [("computing and waiting", 0), ("collectives", 2), ("collectives", 1)]


@pytest.mark.ranks
@pytest.mark.timeout(120)
def test_row_28_a_run_with_its_states_on_disk_shows_reads_and_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    flags = ["--model-size", "nano", "--seq-len", "16", "--batch-size", "4", "--max-steps", "4", "--zero-stage", "3"]
    places = ["--offload-optimizer", "disk", "--offload-param", "disk", "--offload-path", str(tmp_path)]
    profile = tmp_path / "profile.json"
    assert main([*flags, *places, "--trace", str(path), "--profile-json", str(profile)]) == 0
    events = json.loads(path.read_text())["traceEvents"]
    assert {"read", "write", "forward", "backward", "optimizer step", "step 1"} <= {event["name"] for event in events}
    assert {event["cat"] for event in events if event["ph"] == "X"} == {"compute", "collective", "wait", "transfer"}
    shown = capsys.readouterr().out
    assert "times of a step" in shown and "read of the disk" in shown and f"trace written to {path}" in shown
    assert {time["what"] for time in json.loads(profile.read_text())["times"]} >= {"forward", "read of the disk"}


def test_a_run_that_is_not_traced_has_no_times() -> None:
    report = train(RunSpec(**NANO | {"max_steps": 1}, ranks=1, world="lockstep"))
    assert report.traces == () and report.times == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"trace_steps": 3}, "trace_steps is 3 but nothing is traced"),
        ({"gflop_per_s": 1.0}, "gflop_per_s is 1.0 but processes take the time that they take"),
        ({"zero_debug_max_steps": 1}, "zero_debug_max_steps is 1 but nothing is logged"),
        ({"latency_us": 5.0}, "latency_us is 5.0 but there is no simulated link"),
    ],
)
def test_a_setting_that_would_change_nothing_is_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        RunSpec(**settings)


def test_lockstep_under_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    with pytest.raises(InputError, match="torchrun has started several"):
        check_here(RunSpec(world="lockstep"))
