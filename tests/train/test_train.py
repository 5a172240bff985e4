"""`zerolab train`: every stage learns, ends with the same parameters, and measures what it predicted."""

from __future__ import annotations

import json
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

import born
import pytest
import torch

from zerolab.apps.cli import main
from zerolab.apps.cli.tables import text_of
from zerolab.apps.interop.huggingface import export, save_folder, weights_of, with_shape
from zerolab.data import prepare
from zerolab.errors import InputError
from zerolab.models import build_model
from zerolab.run import RunSpec
from zerolab.train import Report, parts, train, write_json
from zerolab.zero import ZeroEngine

TINY_RUN = {"model_size": "nano", "seq_len": 32, "max_steps": 3, "timeout": 60.0}


def run(**settings: object) -> Report:
    return train(RunSpec(**{**TINY_RUN, **settings}))


def agrees(report: Report) -> bool:
    memory = all(report.memory_measured[kind] == sizes for kind, sizes in report.memory_predicted.items())
    return memory and report.traffic_measured == report.traffic_predicted


@pytest.fixture(scope="module")
def reports() -> dict[tuple[int, int], Report]:
    return {(ranks, stage): run(ranks=ranks, zero_stage=stage) for ranks, stage in product((1, 2, 3, 4), range(4))}


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_all_stages_end_with_the_same_parameters(reports: dict[tuple[int, int], Report], ranks: int) -> None:
    assert len({reports[ranks, stage].parameters_sha256 for stage in range(4)}) == 1
    assert len({tuple(reports[ranks, stage].loss) for stage in range(4)}) == 1


@pytest.mark.ranks
def test_predicted_bytes_are_measured_bytes_at_every_stage(reports: dict[tuple[int, int], Report]) -> None:
    assert [key for key, report in reports.items() if not agrees(report)] == []


@pytest.mark.ranks
def test_higher_stages_keep_less(reports: dict[tuple[int, int], Report]) -> None:
    kept = [sum(map(sum, reports[4, stage].memory_measured.values())) for stage in range(4)]
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 4


@pytest.mark.ranks
def test_the_loss_does_not_depend_on_the_number_of_ranks(reports: dict[tuple[int, int], Report]) -> None:
    for ranks in (2, 3, 4):
        assert reports[ranks, 2].loss == pytest.approx(reports[1, 0].loss, rel=1e-5)


@pytest.mark.ranks
@pytest.mark.parametrize(
    "settings",
    [
        {"zero_stage": 2, "grad_accum_steps": 2},
        {"zero_stage": 2, "grad_accum_steps": 2, "defer_reduction": True},
        {"zero_stage": 3, "grad_accum_steps": 3, "checkpoint_activations": True, "clip_norm": 0},
        {"zero_stage": 1, "reduction": "all_reduce", "overlap": False},
        {"zero_stage": 3, "prefetch": False, "bucket_numel": 5000, "model": "gpt2"},
        {"zero_stage": 3, "param_persistence_threshold": 100, "max_reuse_distance": 60_000, "model": "gpt2"},
        {"zero_stage": 2, "collective_impl": "torch"},
    ],
    ids=str,
)
def test_every_way_of_training_measures_what_it_predicts(settings: dict[str, object]) -> None:
    report = run(ranks=2, **settings)
    assert agrees(report)
    # Torch's own messages cannot be counted, and the report says so.
    assert report.traffic_is_stated == ("stated by the ring's formula" in " ".join(text_of(report).split()))
    assert report.traffic_is_stated == (settings.get("collective_impl") == "torch")


@pytest.mark.ranks
def test_training_learns() -> None:
    report = run(ranks=2, zero_stage=3, max_steps=30, lr=1e-2)
    assert report.loss[-1] < 0.8 * report.loss[0]


@pytest.mark.ranks
def test_the_profile_holds_what_a_reader_of_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "profile.json"
    settings = "--zero-stage 2 --ranks 2 --model-size nano --seq-len 32 --max-steps 3 --profile-json"
    flags = settings.split()
    assert main(["train", *flags, str(path)]) == 0
    profile = json.loads(path.read_text())
    assert profile["zero_stage"] == 2 and profile["ranks"] == 2
    assert len(profile["loss"]) == len(profile["step_seconds"]) == 3
    assert len(profile["parameters_sha256"]) == 64
    for ledger in ("memory", "traffic"):
        assert all(len(by_rank) == 2 for side in profile[ledger].values() for by_rank in side.values())
    assert set(profile["memory"]["predicted"]) == {"parameters", "gradients", "optimizer_states"}
    assert set(profile["memory"]["predicted"]) < set(profile["memory"]["measured"])
    printed = capsys.readouterr().out
    assert profile["parameters_sha256"] in printed
    assert "NO" not in printed


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--zero-stage 4", ["--zero-stage is", "4"]),
        ("--zero-stage two", ["--zero-stage is", "two"]),
        ("--ranks 0", ["ranks", "0"]),
        ("--ranks 5 --batch-size 12", ["--batch-size 12", "5"]),
        ("--grad-accum-steps 7 --batch-size 12", ["--batch-size 12", "7"]),
        ("--model-size giant", ["giant", "tiny"]),
        ("--collective-impl nccl", ["nccl", "ring"]),
        ("--data-mode no/such/file.txt", ["no/such/file.txt"]),
        ("--profile-json no/such/folder/p.json", ["no/such/folder"]),
        ("--lr nan", ["lr", "nan"]),
        ("--lr 0", ["lr", "0"]),
        ("--gbit-per-s 0", ["--gbit-per-s", "0"]),
        ("--latency-us 5", ["--latency-us", "--gbit-per-s"]),
        ("--seq-len 10000000", ["10000000"]),
    ],
)
def test_a_flag_that_cannot_work_is_refused_in_one_sentence(
    flags: str, named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *flags.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
    assert all(word in captured.err for word in named)


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="zero_stag"):
        RunSpec(zero_stag=1)


def test_every_setting_is_a_flag_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    flags = {name: field for name, field in RunSpec.model_fields.items() if not field.exclude}
    assert len(flags) > 80 and all("--" + name.replace("_", "-") in shown for name in flags)
    assert all(field.description for field in flags.values())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--zero-stge 2", "unrecognized arguments: --zero-stge 2 (did you mean --zero-stage?)"),
        ("--num_microbatches=2 --qqqq", "unrecognized arguments: --qqqq;"),
        ("--ranks", "--ranks is given without a value; give one;"),
    ],
)
def test_a_flag_that_there_is_not_is_one_sentence_with_the_nearest(
    flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, captured = main(["train", *flags.split()]), capsys.readouterr()
    assert status == 2 and captured.out == "" and len(captured.err.splitlines()) == 1
    assert said in captured.err and "zerolab train --help" in captured.err


def test_a_profile_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "profile.json"
    path.write_text("the one before")
    monkeypatch.setattr(Report, "as_json", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_json(Report.__new__(Report), path)
    assert path.read_text() == "the one before"


def torchrun(*flags: str, ranks: int, extra: tuple[str, ...] = ("--standalone",)) -> list[str]:
    launcher = ["-m", "torch.distributed.run", *extra, f"--nproc_per_node={ranks}", "-m", "zerolab"]
    return [*launcher, "train", *flags]


@pytest.mark.ranks
def test_row_13_torchrun_trains_a_nanogpt_configuration_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fox.txt").write_text("the quick brown fox jumps over the lazy dog; " * 40)
    prepare("fox.txt", Path("data/fox"))
    Path("fox.py").write_text("n_layer = 2\nn_head = n_layer\nn_embd = 32\nblock_size = 16\n")
    keys = ["fox.py", "--dataset=fox", "--max_iters=3", "--warmup_iters=1", "--lr_decay_iters=3", "--batch_size=2"]
    flags = [*keys, "--gradient_accumulation_steps=2", "--eval_iters=1", "--zero-stage", "3", "--profile-json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = torchrun(*flags, "torchrun.json", ranks=2)
    born.ran(*words, check=True, timeout=100, env=environment, capture_output=True)
    profile = json.loads(Path("torchrun.json").read_text())
    assert (profile["ranks"], profile["zero_stage"]) == (2, 3)
    assert main(["train", *flags, "here.json", "--ranks", "2"]) == 0
    assert profile["parameters_sha256"] == json.loads(Path("here.json").read_text())["parameters_sha256"]
    assert profile["traffic"]["measured"] == profile["traffic"]["predicted"]


def test_the_model_of_a_run_on_gpus_is_built_unit_by_unit_with_the_values_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parts.builds_by_unit(torch.device("cuda:1")) and not parts.builds_by_unit(torch.device("cpu"))
    small: dict[str, Any] = {"world": "lockstep", "ranks": 2}
    given = build_model(RunSpec(**TINY_RUN, **small, model="gpt2").architecture)
    save_folder(tmp_path / "gpt2", given.config, export(given.config, given.state_dict().__getitem__))
    settings = {**small, "seq_len": 32, "max_steps": 2, "zero_stage": 3, "init_from": tmp_path / "gpt2"}
    from_folder = RunSpec(**with_shape(settings))
    of_plain = train(from_folder, weights=weights_of(from_folder)).parameters_sha256

    class OnMeta(ZeroEngine):
        def __init__(self, model: torch.nn.Module, *args: Any, **settings: Any) -> None:
            assert all(parameter.is_meta for parameter in model.parameters())
            super().__init__(model, *args, **settings)

    monkeypatch.setattr(parts, "builds_by_unit", lambda device: True)
    monkeypatch.setattr(parts, "ZeroEngine", OnMeta)
    assert train(from_folder, weights=weights_of(from_folder)).parameters_sha256 == of_plain
    with pytest.raises(InputError, match="nobody reads its weights"):
        train(from_folder)
    drawn = {run(**small, zero_stage=stage).parameters_sha256 for stage in (0, 3)}
    assert len(drawn) == 1 and drawn != {of_plain}
