"""The checks of `make gpu-test`, tried without a GPU: what they compare, what they say, and that they see a mistake."""

import re
import shlex
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpucheck import checks, training
from gpucheck.__main__ import main
from gpucheck.__main__ import make_parser as main_parser
from gpucheck.checks import CHECKS, ROOT, ROUNDING, SMALL, Place, carried_out, kept_as_predicted, largest
from gpucheck.report import Finding, Outcome, driver, system, text, verdict, way
from gpucheck.streams import CYCLES, SYNCHRONIZES, host_waits, late
from gpucheck.training import Size

from zerolab.apps.cli.launch import LaunchFlags
from zerolab.apps.cli.train import read_flags
from zerolab.collectives import LocalTransport
from zerolab.gpu import door
from zerolab.run import RunSpec

CPU = Place("cpu", 0, replace(SMALL, steps=2))
HELD, WRONG, LEFT = Finding("a", "x", True, "1"), Finding("a", "y", False, "2"), Finding("b", "z", None, "none")


@pytest.mark.ranks
def test_a_peer_and_a_stage_are_compared_and_a_gradient_that_is_not_averaged_is_seen() -> None:
    first = training.first_values(CPU.size)
    peer = CPU.start(training.peers, ("FSDP2",))[0]["FSDP2"]
    right = CPU.start(training.ours, "torch", (3,))
    assert largest(right, [peer], first)[0] <= ROUNDING
    wrong = {name: value + (value - first[name]) for name, value in peer.items()}
    assert largest([[wrong]], [peer], first)[0] == pytest.approx(1)
    # Ranks share the batch, so one process alone sees what they see.
    assert way(CPU.start(training.peers, ("DDP",), ranks=1)[0]["DDP"], peer, first) <= ROUNDING


def test_a_distance_is_told_by_how_far_values_went_and_what_is_no_number_is_far() -> None:
    first, ended = {"w": torch.zeros(3)}, {"w": torch.tensor([0.0, 1.0, 4.0])}
    assert way({"w": torch.tensor([0.0, 1.0, 3.0])}, ended, first) == 0.25
    assert way(ended, ended, first) == 0
    assert way({"w": torch.tensor([0.0, float("nan"), 4.0])}, ended, first) == float("inf")
    assert way(ended, {"w": ended["w"] * float("nan")}, first) == float("inf")
    assert way({"v": ended["w"]}, ended, first) == float("inf")
    # Who never trained proves nothing.
    assert way(first, first, first) == float("inf")


def test_ranks_follow_the_gpus_and_share_the_only_one() -> None:
    one, eight = Place("cuda", 1), Place("cuda", 8)
    assert (one.ranks, one.impls, one.peers) == (2, ("ring",), 1)
    assert (eight.ranks, eight.impls, eight.peers) == (8, ("torch", "ring"), 8)
    assert Place("cuda", 8, ranks_wanted=2).impls == ("torch", "ring")
    assert (CPU.ranks, CPU.impls, CPU.words("torch"), eight.words("torch")) == (2, ("torch", "ring"), "gloo", "NCCL")
    # Each of eight ranks has as many rows as the others.
    assert {rows.shape[0] for rows, _ in Size().batches(7, 8, torch.device("cpu"))} == {2}


@pytest.mark.parametrize("which", ["computing", "collectives"])
def test_the_stream_that_is_late_sleeps_whenever_the_library_goes_to_another(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seen = ["computing"], []
    original = door.on

    def on(stream: str) -> object:
        now.append(stream)
        return nullcontext()

    monkeypatch.setattr(door, "on", on)
    with late(which, sleep=lambda cycles: seen.append((now[-1], cycles))), door.on("collectives"):
        assert seen == [(which, CYCLES)]
    monkeypatch.undo()
    assert door.on == original


def test_waits_of_the_host_are_counted_torch_s_and_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    modes, finished = [], []
    monkeypatch.setattr(door, "finish", finished.append)
    monkeypatch.setattr(door, "happened", lambda event: event == "long ago")
    with host_waits(modes.append) as seen:
        warnings.warn(f"called a {SYNCHRONIZES}", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        warnings.warn(f"called a {SYNCHRONIZES}", stacklevel=1)
        door.finish("event")
        door.finish("long ago")
    assert sum(seen.values()) == 3 and seen["door.finish"] == 1
    assert all("test_gpucheck.py" in site for site in seen if site != "door.finish")
    assert (modes, finished) == (["warn", "default"], ["event", "long ago"])


@pytest.mark.ranks
def test_the_loop_s_waits_are_asked_for_by_case_and_the_third_step_is_counted() -> None:
    by_rank = CPU.start(training.waits, "ring", ({"stage": 3}, {"stage": 0, "clip_norm": 0.1}), a_count)
    assert by_rank == [[["counted"], ["counted"]]] * 2


def a_count() -> nullcontext:
    """Stands for what counts on a GPU."""
    return nullcontext(["counted"])


def test_memory_that_is_not_predicted_is_seen() -> None:
    of = {"predicted": 100_000_000, "buffers": 1_000_000, "kept": 102_000_000}
    assert kept_as_predicted(3, of).ok
    assert kept_as_predicted(3, {**of, "kept": 140_000_000}).ok is False
    assert kept_as_predicted(3, {**of, "kept": 60_000_000}).ok is False


class Alone(Place):
    """A machine of GPUs on which each function runs as the only rank, here, on the CPU."""

    def start(self, fn: Any, *args: Any, ranks: int | None = None, **kwargs: Any) -> Any:
        return [fn(LocalTransport(), self.size, *args, **kwargs)]


@pytest.fixture
def told_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A GPU's allocator and its modes, told: how many bytes it has is the first of this list."""
    has = [0]
    for name in ("synchronize", "reset_peak_memory_stats", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: has[0])
    monkeypatch.setattr(training, "wrapped", lambda name, model, device, ranks: model)
    return has


def test_checks_that_need_a_gpu_hold_what_they_are_told_of_one(
    told_gpu: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = replace(SMALL, layers=1, steps=1)
    eight = Alone("cuda", 8, tiny)
    cases = {name: checks.WAITING[name] for name in ("stage 0", "stage 3, bf16")}
    monkeypatch.setattr(checks, "WAITING", cases)
    late_ones = carried_out("late streams", eight).findings
    assert [finding.ok for finding in late_ones] == [True] * 4
    assert ["(NCCL)" in finding.claim for finding in late_ones] == [True, True, False, False]
    waits = carried_out("host waits", eight).findings
    assert len(waits) == 2 * len(cases) and all(finding.ok for finding in waits)
    alone = carried_out("host waits", Alone("cuda", 1, tiny)).findings
    assert len(alone) == len(cases) and all(finding.ok and "NCCL, 1 rank)" in finding.claim for finding in alone)
    # An allocator that has nothing has not what is predicted, and no peak is below another.
    outcome = carried_out("memory", eight)
    assert [finding.ok for finding in outcome.findings] == [False] * 5
    assert "| DDP (8 ranks) | 0.00 |" in outcome.appendix and "| stage 3 (8 ranks) |" in outcome.appendix
    (one,) = training.our_memory(LocalTransport(), tiny, "local", (0,))
    assert one["ledger"] >= one["predicted"] > 0
    monkeypatch.setattr(checks, "largest", lambda by_rank, others, first: [1.0] * 4)
    assert not any(finding.ok for finding in carried_out("late streams", eight).findings)


def test_the_report_names_what_it_was_tried_on_what_failed_and_what_was_left_out() -> None:
    outcomes = [Outcome("a", [HELD, WRONG], 2.0), Outcome("b", [LEFT], appendix="| t |")]
    assert verdict(outcomes) == "1 of 2 claims FAILED; 1 left out"
    assert verdict(outcomes[1:]) == "all 0 claims hold; 1 left out"
    assert verdict([Outcome("a", [HELD])]) == "all 1 claims hold"
    report = text(system("cpu"), outcomes, "title")
    assert report.startswith("## title: 1 of 2 claims FAILED")
    assert "| a | y | FAILED | 2 |" in report and "| b | z | left out | none |" in report
    assert f"| torch | {torch.__version__} |" in report and report.endswith("| t |\n")
    assert "| a\\|b c |" in text([], [Outcome("a", [replace(HELD, found="a|b\nc")])], "title")


def test_a_driver_that_nobody_tells_is_not_known() -> None:
    assert driver(("no-such-command-here",)) == "not known (FileNotFoundError)"
    assert driver(("echo", "570.1")) == "570.1"


def test_a_check_that_raises_has_failed_and_one_that_needs_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(place: Place) -> Outcome:
        raise ValueError("no such thing")

    monkeypatch.setitem(CHECKS, "memory", broken)
    (finding,) = carried_out("memory", CPU).findings
    assert (finding.ok, finding.found) == (False, "ValueError: no such thing")
    for name in ("late streams", "host waits"):
        (finding,) = carried_out(name, CPU).findings
        assert finding.ok is None and "CPU" in finding.found


def test_a_command_that_fails_is_a_failed_claim_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "COMMAND_SECONDS", 20.0)
    monkeypatch.setattr(checks.sys, "executable", "/bin/false")
    for name in ("torchrun", "benchmarks.peers"):
        (finding,) = carried_out(name, CPU).findings
        assert finding.ok is False, name
    assert checks.last_words("a\n\nb \nc\nd\n") == "b / c / d"


def test_without_a_gpu_the_command_says_so_in_a_sentence_and_fails(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main([]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "sees no GPU here" in said and torch.__version__ in said
    out = tmp_path / "new" / "report.md"
    assert main(["--device", "cpu", "--only", "late streams", "--out", str(out)]) == 0
    assert out.read_text() in capsys.readouterr().out
    monkeypatch.setitem(CHECKS, "memory", lambda place: Outcome("memory", [WRONG]))
    assert main(["--device", "cpu", "--only", "memory", "--out", str(out)]) == 1


@pytest.mark.parametrize("word", ["1", "two", "999"])
def test_a_number_of_ranks_that_cannot_be_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--device", "cpu", "--ranks", word])
    assert f"{word!r}; give a whole number" in capsys.readouterr().err


# docs/gpus.md says what is there.

PAGE = (ROOT / "docs" / "gpus.md").read_text()


def test_the_page_on_gpus_names_the_checks_and_files_that_there_are() -> None:
    found = re.search(r"\| check \| what it holds \|\n.*\n((?:\|.*\n)+)", PAGE)
    assert found is not None
    assert [line.split(" | ")[0].strip("| ") for line in found[1].splitlines()] == list(CHECKS)
    named = set(re.findall(r"`(tests/[\w/.]+)`", PAGE))
    assert len(named) >= 6 and all((ROOT / name).exists() for name in named)
    assert str(main_parser().parse_args([]).out) in PAGE


LINES = [line for line in PAGE.splitlines() if re.search(r"train --|-- train ", line) and not line.startswith("|")]


@pytest.mark.parametrize("line", [line for line in LINES if not line.startswith(("`", "**", " ", "-"))])
def test_the_commands_of_the_page_are_taken_for_their_ranks(line: str) -> None:
    words = shlex.split(line)
    flags = words[len(words) - words[::-1].index("train") :]
    ranks = [] if "--ranks" in flags else ["--ranks=16" if "--nnodes" in words else "--ranks=8"]
    config = RunSpec(**read_flags([*flags, *ranks])[0])
    assert config.ranks in (8, 16) and config.zero_stage == 3
    if words[:2] == ["zerolab", "launch"]:
        given = LaunchFlags.read("zerolab launch", words[2 : words.index("--")])
        assert (given.module, given.ranks) == ("zerolab", 8)
    assert len(LINES) >= 6
