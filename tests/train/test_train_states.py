"""`zerolab train` with every dtype and every place: the command line, its refusals, DeepSpeed's configurations."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from zerolab.apps.cli import main
from zerolab.apps.dialects.deepspeed import TABLE, read_deepspeed
from zerolab.errors import InputError
from zerolab.precision import Precision
from zerolab.run import RunSpec
from zerolab.train import train

SMALL = {"model_size": "nano", "seq_len": 16, "batch_size": 6, "max_steps": 4, "ranks": 2}
MIXED = ["--model-size=nano", "--seq-len=16", "--batch-size=6", "--max-steps=4", "--ranks=2"]

DIGESTS: dict[str, str] = {}
"""Of the parameters at the end, by precision: places change nothing."""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
@pytest.mark.parametrize(
    ("stage", "places"),
    [
        (0, {}),
        (1, {"offload_optimizer": "host"}),
        (2, {"offload_optimizer": "nvme", "sub_group_size": 9000}),
        (3, {"offload_optimizer": "disk", "offload_param": "cpu", "buffer_count": 1}),
        (3, {"offload_optimizer": "cpu", "offload_param": "nvme", "max_in_cpu": 4000}),
    ],
)
def test_a_run_agrees_with_both_ledgers_and_places_change_no_bit(
    precision: str, stage: int, places: dict[str, Any], tmp_path: Path
) -> None:
    if {"disk", "nvme"} & {*map(str, places.values())}:
        places = {**places, "offload_path": tmp_path}
    report = train(RunSpec(**SMALL, zero_stage=stage, **{precision: True}, **places))
    assert report.memory_predicted == {kind: report.memory_measured[kind] for kind in report.memory_predicted}
    assert report.traffic_predicted == report.traffic_measured
    assert report.loss[-1] < report.loss[0]
    assert DIGESTS.setdefault(precision, report.parameters_sha256) == report.parameters_sha256
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_one_rank_cuts_its_step_into_the_sub_groups_that_it_is_told(stage: int) -> None:
    run = {**SMALL, "ranks": 1, "world": "lockstep", "bf16": True, "max_steps": 2, "zero_stage": stage}
    whole, cut = train(RunSpec(**run)), train(RunSpec(**run, sub_group_size=7000))
    assert cut.memory_predicted == {kind: cut.memory_measured[kind] for kind in cut.memory_predicted}
    assert cut.memory_predicted != whole.memory_predicted, "each sub-group has a step counter of its own"
    assert cut.parameters_sha256 == whole.parameters_sha256


@pytest.mark.timeout(100)
def test_skipped_steps_are_logged_listed_and_counted_in_the_traffic(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = tmp_path / "run.json"
    flags = ["--fp16", "--initial-scale-power=20", "--hysteresis=1", "--max-steps=12", f"--profile-json={profile}"]
    places = ["--zero-stage=2", "--offload-optimizer=nvme", f"--offload-path={tmp_path}"]
    assert main(["train", *MIXED, *flags, *places]) == 0
    seen, record = capfd.readouterr(), json.loads(profile.read_text())
    skipped = record["skipped_steps"]
    assert 1 in skipped and len(skipped) < 10
    assert record["loss_scale"] == [2.0 ** (20 - sum(step <= at for step in skipped)) for at in range(12)]
    assert f"skipped steps: {', '.join(map(str, skipped))}" in seen.out
    assert re.findall(r"step (\d+) was skipped", seen.err) == [*map(str, skipped)]
    done = [step for step in range(1, 13) if step not in skipped]
    assert record["tracked_steps"] == done[1]
    assert "NO" not in seen.out


@pytest.mark.timeout(60)
def test_a_dtype_for_each_state_is_what_the_tracker_shows(tmp_path: Path) -> None:
    flags = {"params_dtype": "bf16", "main_grads_dtype": "fp32", "exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "fp8"}
    config = RunSpec(**SMALL, zero_stage=1, **flags)
    assert config.dtypes == Precision("bf16", "fp32", "fp32", "fp32", "bf16", "fp8")
    report = train(config)
    assert report.memory_predicted == {kind: report.memory_measured[kind] for kind in report.memory_predicted}
    parameters = report.memory_measured["parameters"][0] // 2
    assert report.memory_measured["gradients"][0] == 4 * parameters
    kept = sum(report.memory_measured["optimizer_states"]) / parameters
    assert 0.6 * (4 + 2 + 1 + 4 / 128) < kept < 1.02 * (4 + 2 + 1 + 4 / 128)


REFUSED = {
    "two modes": (["--fp16", "--bf16"], "fp16 and bf16 are both asked for"),
    "a mode and a recipe": (["--fp8", "--precision=bf16"], "fp8 and precision bf16 are both asked for"),
    "an unknown recipe": (["--precision=fp4"], "there is no precision 'fp4'; choose one of fp32, bf16, fp16"),
    "an unknown dtype": (["--exp-avg-dtype=int4"], "--exp-avg-dtype is 'int4'; it should be 'fp32', 'bf16', 'fp16' or"),
    "8 bits for parameters": (["--params-dtype=fp8"], "--params-dtype is 'fp8'"),
    "narrow main parameters": (["--main-params-dtype=bf16"], "main_params is bf16 and params fp32"),
    "a mode and its contrary": (
        ["--bf16", "--params-dtype=fp16"],
        "bf16 computes with bf16 parameters but",
    ),
    "a scale for bf16": (["--bf16", "--loss-scale=8"], "--loss-scale is 8.0 but no state is fp16"),
    "hysteresis without fp16": (["--hysteresis=3"], "hysteresis is 3 but no state is fp16"),
    "a least scale above the first": (
        ["--fp16", "--min-loss-scale=1e10"],
        "--min-loss-scale is 1e+10, above the scale at the start, 2**16; give a smaller --min-loss-scale or a larger "
        "--initial-scale-power",
    ),
    "another fp8": (["--fp8", "--fp8-backend=transformer_engine"], "--fp8-backend is 'transformer_engine'"),
    "FSDP2's way at stage 2": (["--precision=fsdp2", "--zero-stage=2"], "--precision fsdp2 has no stage 2"),
    "parameters at stage 2": (["--zero-stage=2", "--offload-param=cpu"], "parameters can rest on the host at stage 3"),
    "an unknown tier": (["--offload-optimizer=tape"], "--offload-optimizer is 'tape'"),
    "a disk without a path": (["--offload-optimizer=nvme"], "name a folder there, in a command by --offload-path"),
    "a path without a disk": (["--offload-path=."], "--offload-path is '.' but no state rests on the disk"),
    "no such folder": (
        ["--offload-optimizer=disk", "--offload-path=/no/such"],
        "/no/such, which is to hold a",
    ),
    "max_in_cpu on the device": (["--max-in-cpu=5"], "--max-in-cpu is 5 but parameters rest on the device"),
    "no buffer": (["--buffer-count=0"], "--buffer-count is '0'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_combination_is_refused_by_name_in_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = REFUSED[name]
    assert main(["train", *MIXED, *flags]) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1 and "Traceback" not in said


# DeepSpeed's configurations

FULL: dict[str, Any] = {
    "train_batch_size": 24,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_clipping": 0.5,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": False,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "sub_group_size": 1e9,
        "offload_optimizer": {"device": "nvme", "nvme_path": ".", "buffer_count": 4, "pin_memory": True},
        "offload_param": {"device": "cpu", "buffer_size": 1e8},
    },
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": "auto"}},
}


def written(folder: Path, config: Any) -> Path:
    path = folder / "ds.json"
    path.write_text(json.dumps(config))
    return path


def changed(key: str, value: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(FULL))
    *parents, last = key.split(".")
    place = config
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return config


def test_a_deepspeed_configuration_becomes_settings(tmp_path: Path) -> None:
    settings = read_deepspeed(written(tmp_path, FULL), ranks=2).settings
    assert settings == {
        "batch_size": 24, "grad_accum_steps": 3, "clip_norm": 0.5, "zero_stage": 3, "overlap": False,
        "reduction": "reduce_scatter", "bucket_numel": 500_000_000, "sub_group_size": 10**9,
        "offload_optimizer": "nvme", "offload_path": ".", "buffer_count": 4, "offload_param": "cpu",
        "fp16": True, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500,
        "hysteresis": 1, "lr": 0.01,
        # What the file leaves out has DeepSpeed's defaults.
        "min_loss_scale": 1.0, "bf16": False, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
    }  # fmt: skip
    config = RunSpec(ranks=2, **settings)
    assert config.places.optimizer == "disk" and config.scaler is not None


def test_every_setting_that_a_rule_gives_is_one_of_a_run() -> None:
    for name, key in TABLE.items():
        assert {*key.settings} <= RunSpec.model_fields.keys(), name
        assert bool(key.settings) + bool(key.wanted) + bool(key.without_effect) <= 1, name


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("zero_optimization.stage3_max_live_parameters", -1, "stage3_max_live_parameters is -1; give a whole number"),
        (
            "zero_optimization.stage3_max_live_paramters",
            1,
            "did you mean zero_optimization.stage3_max_live_parameters?",
        ),
        ("zero_optimization.offload_param.device", "ssd", 'device is "ssd"; give none, cpu or nvme'),
        ("gradient_clipping", "much", 'gradient_clipping is "much"; give a number'),
        ("bf16.enabled", "yes", 'bf16.enabled is "yes"; give true or false'),
        ("frobnicate.much", 1, "frobnicate.much is no key that zerolab knows; leave it out"),
        ("amp.enabled", False, "amp is given, and zerolab has nothing of the kind: DeepSpeed has taken it out, too"),
        (
            "elasticity.enabled",
            True,
            "elasticity is enabled, and zerolab has nothing of the kind: leave it out; --resume",
        ),
        ("scheduler.type", "OneCycle", 'scheduler.type is "OneCycle"; give WarmupLR, WarmupDecayLR or WarmupCosineLR'),
        (
            "scheduler",
            {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0}},
            "scheduler.params.warmup_max_lr is 1.0, but optimizer.params.lr",
        ),
        ("scheduler", {"type": "WarmupDecayLR", "params": {}}, "total_num_steps is missing; WarmupDecayLR wants it"),
        ("scheduler", {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-5}}, "warmup_min_lr must be 0, not 1e-05"),
        ("optimizer.params.betas", 0.9, "optimizer.params.betas is 0.9; give two numbers"),
        ("prescale_gradients", True, "prescale_gradients must be false, not true"),
        ("zero_optimization.contiguous_gradients", False, "contiguous_gradients must be true, not false"),
        ("optimizer.type", "Lamb", 'optimizer.type is "Lamb"; give AdamW'),
        ("train_batch_size", 25, "train_batch_size is 25, but train_micro_batch_size_per_gpu 4"),
        ("train_micro_batch_size_per_gpu", 0, "train_micro_batch_size_per_gpu is 0"),
        ("zero_optimization.sub_group_size", "many", 'sub_group_size is "many"; give a whole number of at least 1'),
        ("zero_optimization.reduce_bucket_size", float("inf"), "reduce_bucket_size is Infinity; give a whole number"),
        ("zero_optimization.reduce_bucket_size", True, "reduce_bucket_size is true; give a whole number"),
        ("zero_optimization.reduce_scatter", "no", 'reduce_scatter is "no"; give true or false'),
        ("train_batch_size", "24", 'train_batch_size is "24"; give a whole number of at least 1'),
        ("train_batch_size", [24], "train_batch_size is [24]; give a whole number of at least 1"),
        ("gradient_accumulation_steps", 1.5, "gradient_accumulation_steps is 1.5; give a whole number of at least 1"),
        ("train_micro_batch_size_per_gpu", "4", 'train_micro_batch_size_per_gpu is "4"; give a whole number'),
        (
            "zero_optimization.offload_param",
            {"device": "nvme", "nvme_path": "/other"},
            "nvme_path is '/other', but zero_optimization.offload_optimizer.nvme_path says '.'",
        ),
        (
            "zero_optimization.offload_param",
            {"device": "nvme", "nvme_path": ".", "max_in_cpu": -1},
            "max_in_cpu is -1; give a whole number of at least 0",
        ),
    ],
)
def test_a_key_that_cannot_be_honoured_is_refused_by_name(key: str, value: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        read_deepspeed(written(tmp_path, changed(key, value)), ranks=2)


def test_fp16_that_is_off_says_nothing(tmp_path: Path) -> None:
    read = read_deepspeed(written(tmp_path, changed("fp16.enabled", False)), 2).settings
    assert read["fp16"] is False and "loss_scale" not in read


def test_a_file_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("{")
    cases = (("none.json", "cannot be read"), ("bad.json", "bad.json cannot be read as JSON"))
    for name, said in cases:
        assert main(["train", *MIXED, f"--deepspeed-config={tmp_path / name}"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("ranks", ["²", "two", "0"])
def test_a_configuration_needs_a_number_of_ranks(
    ranks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", f"--deepspeed-config={written(tmp_path, {})}", f"--ranks={ranks}"]) == 2
    assert f"ranks is '{ranks}'; it should be a whole number" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_a_configuration_trains_and_a_flag_that_contradicts_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offload = {"device": "nvme", "nvme_path": str(tmp_path)}
    config = {"zero_optimization": {"stage": 2, "offload_optimizer": offload}, "bf16": {"enabled": True}}
    flag = f"--deepspeed-config={written(tmp_path, config)}"
    assert main(["train", *MIXED, flag]) == 0
    shown = capsys.readouterr().out
    assert "ZeRO-2" in shown and "params bf16" in shown and "disk:optimizer_states" in shown and "NO" not in shown
    assert main(["train", *MIXED, flag, "--zero-stage=1"]) == 2
    assert "--zero-stage is 1, but in " in capsys.readouterr().err
