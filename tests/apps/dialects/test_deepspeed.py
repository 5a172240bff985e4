"""Row 22: DeepSpeed configurations as people have them become settings of a run, or are refused by the key that stands
in the way; settings of a run become configurations that DeepSpeed itself reads."""

import copy
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_configs import GIVEN, RANKS, WILD, Wild
from hypothesis import given, settings
from hypothesis import strategies as st

from zerolab import ZeroEngine, launch
from zerolab.apps.cli import main
from zerolab.apps.dialects.deepspeed import (
    DEFAULTS,
    PEAK,
    TABLE,
    TELLS,
    TORCH_ADAM,
    Key,
    at,
    is_on,
    leaves,
    read,
    write,
)
from zerolab.apps.interop.huggingface import export, save_folder
from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.models import GPT2Config, build_model, config_of
from zerolab.run import RunSpec

ACCEPTED = [name for name, wild in WILD.items() if not wild.refused]


def with_path(config: Any, folder: Path) -> Any:
    return json.loads(json.dumps(config).replace('"NVME"', json.dumps(str(folder))))


@pytest.mark.parametrize("name", WILD)
def test_row_22_a_configuration_from_the_wild_is_read_or_refused_by_the_key_in_the_way(
    name: str, tmp_path: Path
) -> None:
    wild = WILD[name]
    config = with_path(wild.config, tmp_path)
    if wild.refused:
        with pytest.raises(InputError) as caught:
            RunSpec(**{**GIVEN, **read(config, RANKS, GIVEN).settings}, ranks=RANKS)
        assert str(caught.value).startswith(wild.refused)
        return
    reading = read(config, RANKS, GIVEN)
    said = {name: value for name, value in reading.settings.items() if name not in reading.missing}
    assert said == with_path(wild.settings, tmp_path)
    # A run takes them; whole weights want a folder.
    RunSpec(**{**GIVEN, "save_folder": tmp_path / "saved", **reading.settings}, ranks=RANKS)


@pytest.mark.parametrize("name", ACCEPTED)
def test_row_22_no_key_is_taken_in_silence(name: str) -> None:
    """Each becomes a setting, may only say what is done anyway, or is said at the start."""
    reading = read(WILD[name].config, RANKS, GIVEN)
    said = " ".join(reading.notes)
    for leaf, value in leaves(WILD[name].config):
        around = leaf
        while around not in TABLE and "." in around:
            around = around.rpartition(".")[0]
        if value == "auto" and "warmup_min_lr" not in leaf:
            assert f"{leaf}: auto is " in said, leaf
        elif leaf.startswith("scheduler."):
            assert {"lr_schedule", "warmup_steps"} & reading.settings.keys(), leaf
        elif not value:
            continue
        elif TABLE[around].settings and TABLE[around].when != "fp16":
            assert {*TABLE[around].settings} <= reading.settings.keys() or f"{leaf}" in said, leaf
        elif TABLE[around].without_effect:
            assert around in said or not is_on(at(WILD[name].config, around)), leaf


ZERO = "zero_optimization."
FP16 = "fp16.enabled"
NAMED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    ZERO + "overlap_comm": ({ZERO + "overlap_comm": False}, {"overlap": False}),
    ZERO + "reduce_scatter": ({ZERO + "reduce_scatter": False}, {"reduction": "all_reduce"}),
    ZERO + "reduce_bucket_size": ({ZERO + "reduce_bucket_size": 5e8}, {"bucket_numel": 500_000_000}),
    ZERO + "sub_group_size": ({ZERO + "sub_group_size": 1e9}, {"sub_group_size": 1_000_000_000}),
    ZERO + "stage3_prefetch_bucket_size": (
        {ZERO + "stage": 3, ZERO + "stage3_prefetch_bucket_size": 7}, {"prefetch_bucket_size": 7}
    ),
    ZERO + "stage3_param_persistence_threshold": (
        {ZERO + "stage": 3, ZERO + "stage3_param_persistence_threshold": 7}, {"param_persistence_threshold": 7}
    ),
    ZERO + "stage3_max_live_parameters": (
        {ZERO + "stage": 3, ZERO + "stage3_max_live_parameters": 7}, {"max_live_parameters": 7}
    ),
    ZERO + "stage3_max_reuse_distance": (
        {ZERO + "stage": 3, ZERO + "stage3_max_reuse_distance": 7}, {"max_reuse_distance": 7}
    ),
    ZERO + "stage3_gather_16bit_weights_on_model_save": (
        {ZERO + "stage": 3, ZERO + "stage3_gather_16bit_weights_on_model_save": True}, {"zero3_save_16bit_model": True}
    ),
    ZERO + "offload_optimizer, cpu": ({ZERO + "offload_optimizer.device": "cpu"}, {"offload_optimizer": "cpu"}),
    ZERO + "offload_optimizer, nvme": (
        {ZERO + "offload_optimizer.device": "nvme", ZERO + "offload_optimizer.nvme_path": "d"},
        {"offload_optimizer": "nvme", "offload_path": "d"},
    ),
    ZERO + "offload_param, cpu": (
        {ZERO + "stage": 3, ZERO + "offload_param.device": "cpu"}, {"offload_param": "cpu"}
    ),
    ZERO + "offload_param, nvme, max_in_cpu": (
        {ZERO + "stage": 3, ZERO + "offload_param.device": "nvme", ZERO + "offload_param.nvme_path": "d",
         ZERO + "offload_param.max_in_cpu": 9},
        {"offload_param": "nvme", "offload_path": "d", "max_in_cpu": 9},
    ),
    "bf16": ({"bf16.enabled": True}, {"bf16": True}),
    "fp16.loss_scale": ({FP16: True, "fp16.loss_scale": 128}, {"fp16": True, "loss_scale": 128}),
    "fp16.loss_scale_window": ({FP16: True, "fp16.loss_scale_window": 9}, {"loss_scale_window": 9}),
    "fp16.initial_scale_power": ({FP16: True, "fp16.initial_scale_power": 9}, {"initial_scale_power": 9}),
    "fp16.hysteresis": ({FP16: True, "fp16.hysteresis": 9}, {"hysteresis": 9}),
    "fp16.min_loss_scale": ({FP16: True, "fp16.min_loss_scale": 9}, {"min_loss_scale": 9}),
    "gradient_accumulation_steps": ({"gradient_accumulation_steps": 3}, {"grad_accum_steps": 3}),
    "gradient_clipping": ({"gradient_clipping": 0.5}, {"clip_norm": 0.5}),
    "train_batch_size": ({"train_batch_size": 24}, {"batch_size": 24}),
}  # fmt: skip
"""What row 22 names and is honoured: as a file says it, and our settings."""


@pytest.mark.parametrize("name", NAMED)
def test_row_22_each_key_that_the_row_names_becomes_a_setting(name: str) -> None:
    given, settings = NAMED[name]
    config: dict[str, Any] = {"zero_optimization": {"stage": 1}}
    for path, value in given.items():
        section = config
        *around, key = path.split(".")
        for part in around:
            section = section.setdefault(part, {})
        section[key] = value
    found = read(config, RANKS).settings
    assert {setting: found.get(setting) for setting in settings} == settings


def test_row_22_the_other_keys_that_the_row_names_are_taken_with_a_note_or_refused() -> None:
    taken = {"allgather_bucket_size": 5e8, "contiguous_gradients": True, "offload_optimizer": {"pin_memory": True}}
    notes = " ".join(read({"zero_optimization": {"stage": 2, **taken}}, RANKS).notes)
    assert "allgather_bucket_size" in notes and "offload_optimizer.pin_memory" in notes
    with pytest.raises(InputError, match="contiguous_gradients must be true, not false"):
        read({"zero_optimization": {"stage": 2, "contiguous_gradients": False}}, RANKS)
    # The equation: batch = micro-batch x accumulation x ranks.
    sizes = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
    assert read(sizes, 2).settings.items() >= {"batch_size": 24, "grad_accum_steps": 3}.items()
    with pytest.raises(
        InputError, match="train_batch_size is 24, but train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 3"
    ):
        read(sizes, 4)


def test_auto_follows_from_the_width_that_the_model_is_given(tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": "auto"}}
    assert read(config, 2, {"dim": "64", "model_size": "nano"}).settings["param_persistence_threshold"] == 640
    model = build_model(GPT2Config(256, 48, 1, 2, 16))
    save_folder(tmp_path, model.config, export(model.config, model.state_dict().__getitem__))
    assert read(config, 2, {"init_from": tmp_path}).settings["param_persistence_threshold"] == 480


def test_row_22_auto_is_resolved_and_shown() -> None:
    reading = read(WILD["transformers, stage 3"].config, RANKS, {**GIVEN, "batch_size": "24", "clip_norm": "0.5"})
    for note in (
        "train_batch_size: auto is batch_size 24",
        "train_micro_batch_size_per_gpu: auto is batch_size / (ranks x grad_accum_steps): 12",
        "gradient_clipping: auto is clip_norm 0.5",
        "zero_optimization.stage3_param_persistence_threshold: auto is param_persistence_threshold 320, which follows "
        "from the hidden size 32 as under Hugging Face's trainer",
        "bf16.enabled: auto is bf16 False",
    ):
        assert note in reading.notes
    # What is asked for beside the file wins over the trainer's rule.
    beside = read(WILD["transformers, stage 3"].config, RANKS, {"param_persistence_threshold": "7"})
    assert "param_persistence_threshold" not in beside.settings
    assert "zero_optimization.stage3_param_persistence_threshold: auto is param_persistence_threshold 7" in beside.notes


def test_what_changes_nothing_here_is_said_with_its_reason() -> None:
    config = {
        "zero_optimization": {"stage": 2, "stage3_max_live_parameters": 5, "offload_optimizer": {"device": "cpu"}},
        "steps_per_print": 7, "wall_clock_breakdown": True, "prescale_gradients": "auto", "gradient_clipping": 0,
        "train_batch_size": 8, "tensorboard": {"enabled": True},
    }  # fmt: skip
    assert read(config, RANKS).notes == [
        "prescale_gradients: auto is false",
        "zero_optimization.stage3_max_live_parameters changes nothing here: it is for stage 3",
        f"steps_per_print, wall_clock_breakdown, tensorboard change nothing here: {TELLS}",
        "optimizer.params.weight_decay is not given: weight_decay 0.0, DeepSpeed's default",
    ]


def test_a_key_that_the_file_leaves_out_and_that_changes_the_numbers_has_deepspeeds_default() -> None:
    adam = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    config: dict[str, Any] = {"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}
    reading = read(config, RANKS)
    assert reading.settings == {**adam, "lr": 3e-4, "clip_norm": 1.0, "bf16": False, "fp16": False, "batch_size": 4}
    assert reading.missing == reading.settings.keys() - {"lr", "batch_size"}
    # What differs from zerolab's own default, or from an earlier DeepSpeed's, is said.
    assert reading.notes == [
        "gradient_clipping is not given: clip_norm 1.0, DeepSpeed's default since 0.19.3 (before, it clipped nothing)",
        "optimizer.params.weight_decay is not given: weight_decay 0.0, DeepSpeed's default",
    ]
    beside = read(config, RANKS, {"weight_decay": "0.05", "clip_norm": "2"})
    assert not beside.notes and not beside.settings.keys() & {"weight_decay", "clip_norm"}
    config["optimizer"]["params"]["torch_adam"] = True
    assert read(config, RANKS).settings["weight_decay"] == 0.01
    config["optimizer"]["params"]["weight_decay"] = "auto"
    assert "weight_decay" not in read(config, RANKS).settings
    scale = {
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }
    assert read({"fp16": {"enabled": True}}, RANKS).settings.items() >= {"fp16": True, **adam, **scale}.items()
    assert (
        "neither train_batch_size nor train_micro_batch_size_per_gpu is given: batch_size 12; " in read({}, 2).notes[2]
    )
    # A flag enables fp16 where the file does not say whether.
    assert read({"fp16": {"loss_scale": 128}}, RANKS, {"fp16": True}).settings["loss_scale"] == 128


def test_a_decay_without_its_height_is_refused_where_deepspeeds_default_is_not_the_optimizers_rate() -> None:
    config: dict[str, Any] = {
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}},
    }
    with pytest.raises(InputError, match=r"warmup_max_lr is not given, and then WarmupDecayLR rises to 0.001"):
        read(config, RANKS)
    config["scheduler"]["params"]["warmup_max_lr"] = 3e-4
    assert read(config, RANKS).settings["lr"] == 3e-4
    config["scheduler"] = {"type": "WarmupLR"}
    assert read(config, RANKS).settings["lr"] == 3e-4


def test_a_batch_that_is_asked_for_beside_the_file_is_cut_into_its_micro_batches() -> None:
    config = {"train_micro_batch_size_per_gpu": 3, "gradient_clipping": 1.0, "scheduler": {}}
    beside = read(config, 2, {"batch_size": "24"}).settings
    assert beside["grad_accum_steps"] == 4 and "batch_size" not in beside
    beside = read(config, 2, {"grad_accum_steps": "2"}).settings
    assert beside["batch_size"] == 12 and "grad_accum_steps" not in beside
    with pytest.raises(InputError, match="train_batch_size is 20, but train_micro_batch_size_per_gpu 3 x"):
        read(config, 2, {"batch_size": "20"})


# The way back

COUNT = st.integers(1, 10**9)
RATE = st.floats(1e-6, 1.0)
RUNS = st.fixed_dictionaries(
    {"ranks": st.sampled_from([1, 2, 4]), "batch_size": st.sampled_from([8, 16, 48]), "zero_stage": st.integers(0, 3)},
    optional={
        "grad_accum_steps": st.sampled_from([1, 2]),
        "clip_norm": st.floats(0, 10),
        "overlap": st.booleans(),
        "reduction": st.sampled_from(["reduce_scatter", "all_reduce"]),
        "bucket_numel": COUNT,
        "sub_group_size": COUNT,
        "offload_optimizer": st.sampled_from(["device", "host", "none", "cpu"]),
        "lr": RATE,
        "beta1": st.floats(0, 0.99),
        "beta2": st.floats(0, 0.99),
        "eps": RATE,
        "weight_decay": RATE,
        "warmup_steps": st.integers(1, 50),
        "lr_schedule": st.sampled_from(["constant", "cosine", "linear"]),
        "precision": st.sampled_from([None, "fp32", "bf16", "fp16"]),
        "reduce_dtype": st.sampled_from(["fp32"]),
        "main_grads_dtype": st.sampled_from(["fp32"]),
        "hysteresis": st.integers(1, 4),
        "loss_scale": st.sampled_from([0.0, 128.0]),
    },
)
OF_STAGE_3 = st.fixed_dictionaries(
    {},
    optional={
        "param_persistence_threshold": COUNT,
        "prefetch_bucket_size": COUNT,
        "max_live_parameters": COUNT,
        "max_reuse_distance": COUNT,
        "offload_param": st.sampled_from(["host", "cpu", "none"]),
    },
)


def meaning(config: RunSpec) -> dict[str, Any]:
    """A run by what it does, whatever its settings are called."""
    words = {"precision", "bf16", "fp16", "offload_optimizer", "offload_param", "decay_steps", "reduce_dtype"}
    found = {name: value for name, value in config if name not in words | {"main_grads_dtype"}}
    precision, schedule = config.dtypes, config.schedule
    plain = precision if precision is not None and precision.name != "fp32" else None
    rates = [pytest.approx(schedule(step)) for step in range(0, 120, 7)]
    return {**found, "precision": plain, "offload": config.places, "rates": rates}


@settings(max_examples=60, deadline=None)
@given(run=RUNS, more=OF_STAGE_3)
def test_what_is_written_reads_as_the_same_run(run: dict[str, Any], more: dict[str, Any]) -> None:
    run |= more if run["zero_stage"] == 3 else {}
    if run.get("precision") != "fp16":
        run = {name: value for name, value in run.items() if name not in ("hysteresis", "loss_scale")}
    if run.get("lr_schedule", "constant") != "constant":
        run.setdefault("warmup_steps", 3)
    if run["zero_stage"] > 1:
        run.pop("reduction", None)
    config = json.loads(json.dumps(write(run)))
    reading = read(config, run["ranks"])
    assert not reading.notes and reading.missing <= {"bf16", "fp16"}
    again = RunSpec(**reading.settings, ranks=run["ranks"])
    assert meaning(again) == meaning(RunSpec(**run))


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ({"defer_reduction": True}, "defer_reduction cannot be said to DeepSpeed"),
        ({"precision": "fp8"}, "precision fp8 cannot be said to DeepSpeed, which has bf16, fp16 and fp32"),
        ({"precision": "bf16_fp32_grads"}, "precision bf16_fp32_grads cannot be said to DeepSpeed"),
        ({"bf16": True, "exp_avg_dtype": "fp8"}, "cannot be said to DeepSpeed"),
        (
            {"zero_stage": 1, "num_distributed_optimizer_instances": 2},
            "num_distributed_optimizer_instances cannot be said",
        ),
        ({"lr_schedule": "cosine"}, "warmup_steps is 0, and DeepSpeed's WarmupCosineLR wants at least 1"),
        ({"lr_schedule": "linear", "warmup_steps": 2, "min_lr": 1e-5}, "WarmupDecayLR ends at 0"),
    ],
)
def test_what_deepspeed_has_no_key_for_is_refused_by_name(run: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says.replace("(", r"\(")):
        write(run)


# DeepSpeed itself

CONFIGS: dict[str, Wild | dict[str, Any]] = {
    **{name: WILD[name] for name in ACCEPTED},
    "written, stage 3": {"zero_stage": 3, "precision": "bf16", "param_persistence_threshold": 5, "batch_size": 12,
                         "lr_schedule": "cosine", "warmup_steps": 2, "offload_param": "host"},
    "written, stage 1 on a disk": {"zero_stage": 1, "fp16": True, "offload_optimizer": "disk", "offload_path": "."},
}  # fmt: skip


def filled(config: dict[str, Any]) -> dict[str, Any]:
    """With the batch sizes that a trainer gives, for one rank."""
    config = copy.deepcopy(config)
    steps, micro = (config.get(name) for name in ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu"))
    if "auto" in (steps, micro, config.get("train_batch_size")):
        config |= {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
        del config["train_batch_size"]
    elif micro is not None:
        config.pop("train_batch_size", None)
    return config


@pytest.mark.parametrize("name", CONFIGS)
def test_what_zerolab_accepts_deepspeeds_own_class_accepts(name: str, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is in the bench extra: make bench-env")
    from deepspeed.runtime.config import DeepSpeedConfig

    logging.disable(logging.WARNING)
    given = CONFIGS[name]
    config = with_path(given.config if isinstance(given, Wild) else write(given), tmp_path)
    read_by_it = DeepSpeedConfig(filled(config))
    logging.disable(logging.NOTSET)
    assert read_by_it.zero_optimization_stage == config["zero_optimization"]["stage"]


def test_every_key_of_its_typed_sections_that_is_taken_is_one_that_deepspeed_has() -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is in the bench extra: make bench-env")
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.runtime.zero.offload_config import (
        DeepSpeedZeroOffloadOptimizerConfig,
        DeepSpeedZeroOffloadParamConfig,
    )

    sections = {
        "zero_optimization": DeepSpeedZeroConfig,
        "zero_optimization.offload_optimizer": DeepSpeedZeroOffloadOptimizerConfig,
        "zero_optimization.offload_param": DeepSpeedZeroOffloadParamConfig,
        "fp16": DeepSpeedFP16Config,
        "bf16": DeepSpeedBF16Config,
    }
    checked = 0
    for name in TABLE:
        section, _, last = name.rpartition(".")
        if section in sections:
            fields = sections[section].model_fields
            assert last in fields or last in {field.alias for field in fields.values()}, name
            checked += 1
    assert checked > 50


def test_a_missing_key_has_the_default_that_deepspeed_itself_has() -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is in the bench extra: make bench-env")
    from inspect import signature

    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.runtime.lr_schedules import WarmupCosineLR, WarmupDecayLR, WarmupLR

    theirs = DeepSpeedConfig({"train_batch_size": 4})
    sections = {"fp16": theirs.float16_config, "bf16": theirs.bfloat16_config, "zero_optimization": theirs.zero_config}
    offload = DeepSpeedConfig(
        {"train_batch_size": 4, "zero_optimization": {"stage": 3, "offload_optimizer": {}, "offload_param": {}}}
    ).zero_config
    sections["zero_optimization.offload_optimizer"] = offload.offload_optimizer
    sections["zero_optimization.offload_param"] = offload.offload_param
    steps = [{name: found.default for name, found in signature(kind).parameters.items()}
             for kind in (FusedAdam, DeepSpeedCPUAdam)]  # fmt: skip
    checked = set()
    for name, key in TABLE.items():
        section, _, last = name.rpartition(".")
        ours = key.missing if key.missing is not None else json.loads(key.wanted) if key.wanted else None
        if ours is None or (section == "" and not hasattr(theirs, last)):
            continue
        if section == "optimizer.params":
            found = [step[last.replace("adam_w", "adamw")] if last not in step else step[last] for step in steps]
        elif section in ("", *sections):
            found = [getattr(sections.get(section, theirs), last.removeprefix("stage3_"))]
        else:
            continue
        assert all(json.loads(json.dumps(value)) == ours for value in found), name
        checked.add(name)
    assert {name for name, key in TABLE.items() if key.missing is not None} <= checked and len(checked) > 20
    of_torch = signature(torch.optim.AdamW).parameters
    assert {"optimizer.params.weight_decay": of_torch["weight_decay"].default} == TORCH_ADAM
    assert all(of_torch[name].default == steps[0][name] for name in ("lr", "betas", "eps"))
    heights = {kind: signature(kind).parameters["warmup_max_lr"].default for kind in (WarmupLR, WarmupDecayLR)}
    assert heights == {WarmupLR: None, WarmupDecayLR: PEAK}
    cosine = signature(WarmupCosineLR).parameters
    assert {name: cosine[name].default for name in DEFAULTS} == DEFAULTS


# A run


def test_a_run_without_weight_decay_in_its_file_has_none_and_says_so_and_a_checkpoint_keeps_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, profile = tmp_path / "ds.json", tmp_path / "p.json"
    config.write_text(json.dumps({"train_batch_size": 4, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}))
    small = ["--model-size=nano", "--seq-len=16", "--world=lockstep", f"--profile-json={profile}"]
    flags = ["train", *small, f"--deepspeed-config={config}"]

    def decay(*more: str) -> tuple[float, str]:
        assert main([*flags, *more]) == 0
        return json.loads(profile.read_text())["config"]["weight_decay"], capsys.readouterr().err

    decays, said = decay("--max-steps=1")
    assert decays == 0.0 and "optimizer.params.weight_decay is not given: weight_decay 0.0" in said
    decays, said = decay("--max-steps=1", "--weight-decay=0.05", f"--save-folder={tmp_path / 'saved'}")
    assert decays == 0.05 and "weight_decay" not in said
    decays, said = decay("--max-steps=2", f"--resume={tmp_path / 'saved'}")
    assert decays == 0.05 and "unless the checkpoint has another" in said and "weight decay 0.05" in said


CONFIG = {
    "train_micro_batch_size_per_gpu": 3,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "stage3_param_persistence_threshold": 100,
        "stage3_max_reuse_distance": 1e5,
        "stage3_max_live_parameters": 1e6,
        "stage3_prefetch_bucket_size": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}


def test_row_24_a_configuration_trains_at_stage_3_and_leaves_whole_weights_in_16_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file

    (tmp_path / "ds.json").write_text(json.dumps(CONFIG))
    small = ["--model-size=nano", "--seq-len=16", "--max-steps=3", "--world=lockstep"]
    flags = [*small, f"--deepspeed-config={tmp_path / 'ds.json'}"]
    assert main(["train", *flags, f"--save-folder={tmp_path / 'saved'}"]) == 0
    seen = capsys.readouterr()
    assert "stage3_prefetch_bucket_size: auto is prefetch_bucket_size 921" in seen.err
    assert "ZeRO-3" in seen.out and "NO" not in seen.out
    whole = tmp_path / "saved" / "model_16bit_step3"
    weights = load_file(whole / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16} and (whole / "config.json").is_file()
    # Again into the same folder: said before the work, by what is in the way.
    assert main(["train", *flags, f"--save-folder={tmp_path / 'saved'}"]) == 2
    assert "model_16bit_step3, which has something in it" in capsys.readouterr().err


def test_whole_weights_want_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--zero3_save_16bit_model"]) == 2
    assert "--zero3-save-16bit-model is True but there is no folder to save to" in capsys.readouterr().err


def as_markdown(table: dict[str, Key]) -> str:
    """The table of docs/deepspeed.md."""
    conditions = {
        "": "",
        "stage 3": " (at stage 3)",
        "nvme": " (for nvme)",
        "fp16": " (if fp16 is enabled)",
        "scheduler": "",
    }
    lines = ["| key | what zerolab makes of it |", "|---|---|"]
    for name, key in table.items():
        without = "" if key.missing is None else f"; without it `{json.dumps(key.missing)}`"
        without += f", with `torch_adam` `{TORCH_ADAM[name]}`" if name in TORCH_ADAM else ""
        lines.append(f"| `{name}` | {key.says}{conditions[key.when]}{without} |")
    return "\n".join(lines)


def test_the_page_has_the_table_of_keys() -> None:
    page = (Path(__file__).parents[3] / "docs" / "deepspeed.md").read_text()
    assert as_markdown(TABLE) in page


def rows_of(step: int) -> torch.Tensor:
    """A step's tokens; int64 [4, 17]."""
    return torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(step))


def of_deepspeed(config: dict[str, Any], steps: int) -> list[float]:
    """The losses of DeepSpeed's engine, in a process of its own."""
    import deepspeed

    torch.manual_seed(0)
    model = build_model(config_of("gpt2", "nano"))
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    losses = []
    for step in range(steps):
        rows = rows_of(step)
        loss = engine(rows[:, :-1], rows[:, 1:])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def of_ours(comm: Collectives, settings: dict[str, Any], steps: int) -> list[float]:
    """The losses of our engine for the same settings."""
    torch.manual_seed(0)
    decay = {"weight_decay": settings["weight_decay"], "betas": (settings["beta1"], settings["beta2"])}
    engine = ZeroEngine(
        build_model(config_of("gpt2", "nano")), comm, settings["zero_stage"], settings["lr"],
        clip_norm=settings["clip_norm"], groups=lambda _name, _parameter: decay,
    )  # fmt: skip
    losses = []
    for step in range(steps):
        rows = rows_of(step)
        loss = engine(rows[:, :-1], rows[:, 1:])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@pytest.mark.timeout(600)
def test_row_22_deepspeed_trains_by_the_emitted_configuration_with_our_losses(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed", reason="DeepSpeed is in the bench extra: make bench-env")
    run = {"ranks": 1, "batch_size": 4, "lr": 1e-2, "clip_norm": 0.5}
    configs = [write({**run, "zero_stage": stage}) for stage in range(4)]
    for config in configs:
        # Torch's AdamW: DeepSpeed compiles its own otherwise. What it compiles for its messages is in a folder of ours.
        config["optimizer"]["params"]["torch_adam"] = True
    file = tmp_path / "configs.json"
    file.write_text(json.dumps(configs))
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577"}
    chosen = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path / "built")}
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    program = (
        "import json, sys, test_deepspeed\n"
        "found = [test_deepspeed.of_deepspeed(config, 4) for config in json.load(open(sys.argv[1]))]\n"
        "json.dump(found, open(sys.argv[1], 'w'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)],
        env={**os.environ, **alone, **chosen, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=580,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for losses, config in zip(json.loads(file.read_text()), configs, strict=True):
        ours = launch(of_ours, read(config, 1).settings, 4, ranks=1, world="lockstep", timeout=60)[0]
        assert losses == pytest.approx(ours, abs=1e-4)
        assert losses[0] != losses[1]
