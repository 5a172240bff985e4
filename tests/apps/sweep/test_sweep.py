"""`zerolab sweep`: what it runs, what it keeps, and how it goes on (rows 19 to 21)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tiers
from zerolab.apps import cli
from zerolab.apps.cli.sweep import format_times
from zerolab.apps.cost import calibration
from zerolab.apps.dialects.deepspeed import read_deepspeed
from zerolab.apps.sweep import make_cases, read_file, sweep
from zerolab.apps.sweep import run as sweep_run
from zerolab.apps.sweep.rows import LINES, TABLE, hold, read_rows
from zerolab.apps.sweep.run import MACHINE, find_machine, intersect, part_step, read_seconds
from zerolab.collectives import Span
from zerolab.errors import InputError
from zerolab.models import SIZES
from zerolab.run import RunSpec
from zerolab.train import train

SMALL: dict[str, Any] = {"world": "lockstep", "model_size": "nano", "seq_len": 16, "batch_size": 4, "max_steps": 3}
SWEPT = {"zero_stage": [0, 3], "gbit_per_s": ["none", 1], **SMALL}


def test_cases_are_the_product_of_what_varies_the_first_slowest() -> None:
    rest = {name: value for name, value in SMALL.items() if name != "model_size"}
    cases = make_cases({"stages": [0, 3], "bandwidth": [10, "none"], "models": ["nano", "gpt2:nano"], **rest})
    assert [case.title for case in cases[:3]] == [
        "zero_stage 0, gbit_per_s 10, models nano",
        "zero_stage 0, gbit_per_s 10, models gpt2:nano",
        "zero_stage 0, gbit_per_s none, models nano",
    ]
    assert len(cases) == len({case.key for case in cases}) == 8
    assert (cases[1].config.model, cases[1].config.model_size, cases[2].config.link) == ("gpt2", "nano", None)


def test_a_key_is_made_of_settings_however_they_are_written() -> None:
    (case,), (same,) = make_cases({"zero_stage": 0, "lr": 0.001, **SMALL}), make_cases({"lr": "1e-3", **SMALL})
    (other,) = make_cases({"lr": 0.002, **SMALL})
    assert case.key == same.key != other.key
    assert len(make_cases({"zero_stage": [0, "0", 1], **SMALL})) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zero_stages": [0]}, "there is no setting 'zero_stages' in a sweep; did you mean zero_stage?"),
        ({"zero_stage": [0, 4]}, "zero_stage 4: zero_stage is 4; it should be less than or equal to 3"),
        ({"stages": [0], "zero_stage": 1}, "zero_stage is 1, and zero_stage is given, too; leave one of the two out"),
        ({"models": "nano", "model": "gpt2"}, "models is nano and model gpt2; leave one of the two out"),
        ({"save_folder": "a"}, "save_folder is a, and a sweep has traces and files of its own; leave it out"),
        ({"ranks": []}, "ranks is an empty list; give it a value or leave it out"),
        ({"cases": {"ranks": 2}}, "cases is {'ranks': 2}; give a list of settings, a line '- name: value' each"),
        ({"hosts": 2}, "hosts is 2 but no wire is shaped; give wire shaped, or leave it out"),
        ({"clip_norm": ["none", 2]}, "clip_norm none: clip_norm is 'none'; give a number"),
        ({"lr": None}, "lr is None; give a number"),
        ({"models": "none"}, "llama has no size 'none'; choose one of " + ", ".join(SIZES["llama"]) + "."),
        ({"trace_steps": 2}, "trace_steps is 2, and a sweep has traces and files of its own; leave it out"),
        ({"ranks": [[2]]}, "ranks is [2]; give a whole number"),
    ],
)
def test_settings_that_no_sweep_has_are_refused_in_a_sentence(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as refused:
        make_cases(settings)
    assert str(refused.value) == said


def test_none_is_a_value_of_settings_that_may_have_none_and_of_places() -> None:
    may = {"gbit_per_s": "none", "precision": "none", "offload_optimizer": "none", "timeout": None}
    (case,), (same,) = make_cases({**may, **SMALL}), make_cases(SMALL)
    assert case.key == same.key


def test_row_27_one_file_has_the_seven_configurations_that_guides_rank() -> None:
    cases = make_cases(read_file(Path(tiers.__file__).with_suffix(".yaml")))
    meant = [RunSpec(**{"ranks": 4, "max_steps": 12, **run}) for run in on_disk(tiers.RUNS.values())]
    assert [case.config for case in cases] == meant and len(meant) == 7
    assert cases[3].title == "zero_stage 2, offload_optimizer host, offload_param device, offload_path none"


def on_disk(runs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**run, **({"offload_path": "."} if "disk" in run.values() else {})} for run in runs]


def test_entries_multiply_with_what_varies_outside_and_come_before_it() -> None:
    entries = [{"ranks": 4}, {"zero_stage": [0, 1]}]
    cases = make_cases({"gbit_per_s": [1, 2], "zero_stage": 3, "cases": entries, **SMALL})
    assert [case.title for case in cases] == [
        "ranks 4, zero_stage 3, gbit_per_s 1", "ranks 4, zero_stage 3, gbit_per_s 2",
        "ranks 2, zero_stage 0, gbit_per_s 1", "ranks 2, zero_stage 1, gbit_per_s 1",
        "ranks 2, zero_stage 0, gbit_per_s 2", "ranks 2, zero_stage 1, gbit_per_s 2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stages: [0, 1", "expected ',' or ']', but got '<stream end>'"),
        ("stages: [0, 1", "); write a line 'name: value' for each setting"),
        ("", "holds no settings; write a line 'name: value' for each"),
        ("- 1", "holds no settings; write a line 'name: value' for each"),
        ("lr: 2020-13-45", "sweep.yaml is no YAML (month must be in 1..12); write a line"),
        ("zero_stgae: 1", "there is no setting 'zero_stgae' in a sweep; did you mean zero_stage?"),
    ],
)
def test_row_20_bad_yaml_is_refused_in_one_sentence(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    assert cli.main(["sweep", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_flags_come_before_a_file_traces_are_kept_by_key_and_paths_may_begin_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.yaml").write_text(json.dumps({**SMALL, "zero_stage": 2}))
    flags = ["--stages", "0,3", "--bandwidth", "1", "--max-steps", "2"]
    assert cli.main(["sweep", "~/sweep.yaml", *flags, "--traces", "--out=~/out"]) == 0
    cases = make_cases({**SWEPT, "gbit_per_s": 1, "max_steps": 2})
    files = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out" / "traces").iterdir()}
    assert files.keys() == {case.key for case in cases}
    assert [files[case.key]["otherData"]["run"][:21] for case in cases] == [f"zerolab train, ZeRO-{n}" for n in (0, 3)]
    assert all({"X", "C"} <= {event["ph"] for event in file["traceEvents"]} for file in files.values())
    assert cli.main(["sweep", "--plot=~/out"]) == 0
    assert (tmp_path / "out" / LINES).exists() and [*(tmp_path / "out" / "plots").iterdir()]
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 1}}')
    assert read_deepspeed(Path("~/ds.json"), 2).settings["zero_stage"] == 1
    assert not (tmp_path / "~").exists()


def test_a_flag_that_entries_of_a_file_would_overrule_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep.yaml").write_text("cases: [{stages: 1}]")
    assert cli.main(["sweep", str(tmp_path / "sweep.yaml"), "--stages", "3", "--out", str(tmp_path)]) == 2
    assert "zero_stage is given as a flag and in the file's cases; leave one of the two out" in capsys.readouterr().err
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert cli.main(["sweep", "--stages", "3", "--out", str(tmp_path)]) == 2
    assert "a sweep starts its own ranks, and torchrun has started some" in capsys.readouterr().err


def test_row_20_a_sweep_that_was_ended_goes_on_to_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, train, ran = make_cases(SWEPT), sweep_run.train, list[int]()
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    assert sweep(cases, whole).ran == 4
    predicted_is_beside_measured(whole)
    text = (whole / LINES).read_bytes()
    for cut in range(0, len(text) + 1, 41):
        (whole / LINES).write_bytes(text[:cut])
        assert len(read_rows(whole)) == text[:cut].count(b"\n"), "of a file cut anywhere the whole lines are there"
    (whole / LINES).write_bytes(text)

    def ended_in_the_third(config: Any, *args: Any, **more: Any) -> Any:
        ran.append(config.zero_stage)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return train(config, *args, **more)

    monkeypatch.setattr(sweep_run, "train", ended_in_the_third)
    with pytest.raises(KeyboardInterrupt):
        sweep(cases, ended)
    with open(ended / LINES, "a") as file:
        file.write('{"key": "cut o')
    assert sweep(cases, ended).ran == 2
    assert ran == [0, 0, 3, 3, 3]
    assert (ended / LINES).read_bytes() == text and (ended / TABLE).read_bytes() == (whole / TABLE).read_bytes()
    assert sweep(cases, ended).ran == 0 and len(ran) == 5
    # A changed setting is a new case beside the others.
    assert sweep(make_cases({**SWEPT, "zero_stage": [3, 2], "gbit_per_s": 1}), ended).ran == 1
    assert [row["case"] for row in read_rows(ended)][-2:] == ["zero_stage 3, gbit_per_s 1", "zero_stage 2"]
    assert len(read_rows(ended)) == 5


def predicted_is_beside_measured(whole: Path) -> None:
    rows = read_rows(whole)
    for row in rows:
        for what in ("sent_bytes", "state_bytes"):
            assert row[what] == row[f"{what}_predicted"] > 0
        assert row["step_seconds"] == pytest.approx(row["step_seconds_predicted"], rel=0.1)
        assert row["peak_bytes"] == pytest.approx(row["peak_bytes_predicted"], rel=1e-3)
    assert len({row["parameters_sha256"] for row in rows}) == 1, "the stages and links end with the same bits"
    assert rows[3]["state_bytes"] < rows[0]["state_bytes"] and rows[3]["sent_bytes"] > rows[0]["sent_bytes"]
    assert rows[1]["step_seconds"] > rows[0]["step_seconds"]
    table = [*csv.DictReader((whole / TABLE).open())]
    assert [line["zero_stage"] for line in table] == ["0", "0", "3", "3"]
    assert [float(line["step_seconds"]) for line in table] == [row["step_seconds"] for row in rows]


def test_row_20_a_case_that_fails_is_a_row_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model-size", "nano", "--world", "lockstep", "--max-steps", "2", "--batch-size", "4", "--seq-len", "8"]
    text = tmp_path / "text.txt"
    command = ["sweep", "--data-mode", f"embedded,{text}", *flags, "--out", str(tmp_path)]
    assert cli.main(command) == 1
    shown = capsys.readouterr().out
    assert f"data_mode {text} failed: there is no text file" in shown and "2 run now, 1 failed" in shown
    good, bad = read_rows(tmp_path)
    assert (good["status"], bad["status"], bad["error"][:21]) == ("done", "failed", "there is no text file")
    text.write_text("to be or not to be " * 20)
    assert cli.main(command) == 0
    assert "1 were there, 1 run now, 0 failed" in capsys.readouterr().out
    assert [row["status"] for row in read_rows(tmp_path)] == ["done", "done"]


def test_row_20_one_sweep_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(InputError, match="another sweep is writing to"):
        sweep([], tmp_path)


def test_a_prepared_text_of_any_size_changes_no_peak(tmp_path: Path) -> None:
    for name, size in (("train.bin", 5_000_000), ("val.bin", 3_000_000)):
        (tmp_path / name).write_bytes(b"a\0" * (size // 2))
    run = {**SMALL, "zero_stage": 1, "max_steps": 2, "dataset": str(tmp_path), "vocab_size": 256}
    (row,) = sweep(make_cases(run), tmp_path / "out").rows
    assert row["peak_bytes"] == pytest.approx(row["peak_bytes_predicted"], rel=1e-3)
    peak = train(RunSpec(**run)).peak
    assert peak["host:text"] == [8_000_000] * 2 and max(peak["other"]) < 1_000_000


def test_the_peak_is_predicted_with_the_dropout_of_its_case(tmp_path: Path) -> None:
    run = {**SMALL, "model": "gpt2", "max_steps": 2, "seq_len": 64, "dropout": [0.0, 0.1]}
    none, some = sweep(make_cases(run), tmp_path).rows
    assert some["peak_bytes"] > 1.05 * none["peak_bytes"]
    for row in (none, some):
        assert row["peak_bytes"] == pytest.approx(row["peak_bytes_predicted"], rel=0.01)


def test_buffers_through_which_parameters_pass_to_the_disk_are_in_the_hosts_ledger(tmp_path: Path) -> None:
    run = {**SMALL, "max_steps": 2, "zero_stage": 3, "offload_param": "disk", "offload_path": str(tmp_path)}
    (row,) = sweep(make_cases(run), tmp_path).rows
    assert row["peak_bytes"] == pytest.approx(row["peak_bytes_predicted"], rel=1e-3)


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Calibrations that a test asked for; each time the machine is slower, as one that others work on may be."""
    asked = list[tuple[Any, ...]]()

    def measure_ranks(*what: Any) -> dict[str, list[float]]:
        asked.append(what)
        seconds = {kind: [amount * len(asked) / 1e9 for amount in of] for kind, of in calibration.AMOUNTS.items()}
        return seconds | {"call": [1e-7], "overhead": [1e-6], "all_gather": [1e-3, 1e-2], "spread": [0.07]}

    def run_traced(config: Any, trace: Any) -> dict[str, Any]:
        return {"step_seconds": 0.5, "tokens_per_s": 64.0}

    monkeypatch.setattr(sweep_run, "measure_ranks", measure_ranks)
    monkeypatch.setattr(sweep_run, "run_traced", run_traced)
    return asked


PROCESSES = {**SMALL, "world": "processes", "ranks": [1, 2], "zero_stage": [0, 3], "gbit_per_s": ["none", 1]}


def test_processes_have_their_predicted_times_of_one_machine_for_ranks_and_collectives(
    calibrated: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    rows = sweep(make_cases(PROCESSES), tmp_path).rows
    assert calibrated == [(1, "auto", None), (1, "ring", None), (2, "auto", None), (2, "ring", None)]
    for row in rows:
        shares = row["communication_share_predicted"], row["waiting_share_predicted"]
        assert row["step_seconds_predicted"] > 0 and all(0 <= share < 1 for share in shares)
        assert (row["settings"]["ranks"] == 1) == (shares[0] == 0)
        assert row["machine_spread"] == 0.07
        shares = dict.fromkeys(("communication_share", "overlap_share", "waiting_share"))
        assert format_times(shares | row)[0].endswith(" ± 7% / 500")
    alone, linked = rows[6:]
    assert linked["step_seconds_predicted"] > alone["step_seconds_predicted"], "stage 3 on a link, and without"


def test_row_20_a_sweep_that_goes_on_predicts_by_the_machine_that_it_began_with(
    calibrated: list[tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, run_traced, ran = make_cases(PROCESSES), sweep_run.run_traced, list[Any]()
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    assert sweep(cases, whole).ran == 8

    def ended_in_the_sixth(config: Any, trace: Any) -> Any:
        ran.append(config)
        if len(ran) == 6:
            raise KeyboardInterrupt
        return run_traced(config, trace)

    calibrated.clear()
    monkeypatch.setattr(sweep_run, "run_traced", ended_in_the_sixth)
    with pytest.raises(KeyboardInterrupt):
        sweep(cases, ended)
    calibrated.append("another process")
    assert sweep(cases, ended).ran == 3
    for name in (LINES, TABLE, MACHINE):
        assert (ended / name).read_bytes() == (whole / name).read_bytes()
    assert len(calibrated) == 5


def test_figures_of_another_machine_are_taken_anew_and_what_is_no_machine_is_refused(
    calibrated: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    (case,) = make_cases({**SMALL, "world": "processes"})
    file = tmp_path / MACHINE
    sweep([case], tmp_path)
    file.write_text(file.read_text().replace('"cores"', '"other cores"'))
    found = [find_machine(case, read_seconds(tmp_path), tmp_path) for _ in range(2)]
    assert found[0] == found[1] and len(calibrated) == 2
    for text in ("{", "[]", '{"machine": 1}'):
        file.write_text(text)
        with pytest.raises(InputError, match=r"calibration\.json holds no machine of a sweep; take it away"):
            sweep([case], tmp_path)


def test_row_19_overlap_is_what_intervals_of_both_have_in_common() -> None:
    assert intersect([(0, 2), (1, 4), (6, 9)], [(3, 7), (8, 8.5)]) == [(3, 4), (6, 7), (8, 8.5)]
    step = Span(0, "compute", "step 3", 0, 10)
    spans = [
        Span(0, "compute", "forward", 0, 4), Span(0, "compute", "backward", 4, 9), Span(0, "wait", "all_reduce", 7, 9),
        # Two at once count once; what began before the step counts from its begin.
        Span(0, "collective", "all_gather", -1, 2), Span(0, "collective", "all_gather", 1, 3),
        Span(0, "collective", "all_reduce", 5, 9.5),
    ]  # fmt: skip
    parts = part_step(step, spans)
    assert (parts.step, parts.communication, parts.overlap, parts.waiting) == (10, 7.5, 5, 2)


def test_rows_of_another_kind_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / LINES).write_text('{"key": "a"}\n')
    with pytest.raises(InputError, match=r"rows\.jsonl has a line 1 that is no row of a sweep"):
        read_rows(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps(SWEPT))
    assert read_file(tmp_path / "sweep.json") == SWEPT
