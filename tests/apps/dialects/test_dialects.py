"""Runs written in each dialect, and read again where somebody reads it (rows 3, 22 and 27 of the sources)."""

import json
import random
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from zerolab import ZeroEngine, launch
from zerolab.apps.cli.train import read_flags
from zerolab.apps.dialects import DIALECTS
from zerolab.apps.dialects.zerolab import write as write_own
from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.precision import PRECISIONS
from zerolab.run import RunSpec

RUNS: list[dict[str, Any]] = [
    {},
    {"zero_stage": 1, "reduction": "all_reduce", "ranks": 4, "overlap": False},
    {"zero_stage": 2, "bf16": True, "checkpoint_activations": True, "lr": 3e-4, "exp_avg_dtype": "fp8"},
    {"zero_stage": 3, "ranks": 4, "num_distributed_optimizer_instances": 2, "offload_optimizer": "host"},
    {"zero_stage": 3, "model": "gpt2", "model_size": "nano", "save_folder": Path("a b"), "save_every": 3},
]

NANOGPT: list[dict[str, Any]] = [
    {"model": "gpt2"},
    {"model": "gpt2", "model_size": "124m", "zero_stage": 1, "ranks": 4},
]
"""nanoGPT has GPT-2 and stages 0 and 1."""


@pytest.mark.parametrize("settings", RUNS)
def test_our_own_command_line_is_read_as_the_same_run(settings: dict[str, Any]) -> None:
    program, command, *words = shlex.split(DIALECTS["zerolab"](settings).replace("\\\n", " "))
    assert [program, command, *words] == write_own(settings)
    assert RunSpec(**read_flags(words)[0]) == RunSpec(**settings)


def test_every_setting_can_be_written_and_no_other() -> None:
    defaults = {name: field.default for name, field in RunSpec.model_fields.items()}
    assert write_own(defaults) == ["zerolab", "train"]
    with pytest.raises(InputError, match="zero_stag is no setting"):
        write_own({"zero_stag": 1})


@pytest.mark.parametrize("name", DIALECTS)
def test_a_dialect_writes_flags_a_line_each_and_ends_its_text(name: str) -> None:
    for settings in [*RUNS, *NANOGPT]:
        try:
            text = DIALECTS[name](settings)
        except InputError:
            continue
        assert text.endswith("\n") and not text.endswith("\n\n")
        assert all(len(line) <= 120 for line in text.splitlines())


# FSDP2

TINY = {
    "model": "gpt2",
    "model_size": "nano",
    "seq_len": 16,
    "batch_size": 8,
    "grad_accum_steps": 2,
    "max_steps": 4,
    "clip_norm": 0.2,
}
SCHEDULE = {"lr_schedule": "cosine", "warmup_steps": 1, "min_lr": 1e-4, "lr": 1e-2}
PROGRAMS: list[dict[str, Any]] = [
    {"zero_stage": 0, "defer_reduction": True},
    {"zero_stage": 1},
    {"zero_stage": 2, "checkpoint_activations": True},
    {"zero_stage": 3, "defer_reduction": True},
]


def of_program(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(text, "emitted.py", "exec"), names)
    return names


def train_emitted_and_ours(comm: Collectives, programs: list[str], settings: list[dict[str, Any]]) -> list[Any]:
    """The losses of each program, and those of our engine for the same model and data."""
    found = []
    for text, run in zip(programs, settings, strict=True):
        names = of_program(text)
        emitted = names["main"]()
        torch.manual_seed(names["SEED"])
        engine = ZeroEngine(
            names["Model"](),
            comm,
            run["zero_stage"],
            names["LR"],
            clip_norm=names["CLIP_NORM"],
            groups=lambda _name, parameter: {"weight_decay": 0.1 if parameter.dim() >= 2 else 0.0},
        )
        losses = []
        for step in range(names["STEPS"]):
            total = torch.zeros(())
            for group in engine.optimizer.param_groups:
                group["lr"] = names["rate_of"](step)
            for micro in range(names["MICRO_BATCHES"]):
                rows = names["batch_of"](step, micro, comm.rank, comm.size)
                loss = engine(rows[:, :-1], rows[:, 1:]) / names["MICRO_BATCHES"]
                engine.backward(loss)
                total += loss.detach()
            engine.step()
            losses.append(comm.all_reduce(total, average=True).item())
        engine.close()
        found.append((emitted, losses))
    return found


@pytest.mark.ranks
@pytest.mark.timeout(100)
def test_row_03_the_emitted_fsdp2_programs_train_on_two_ranks_with_our_losses() -> None:
    runs = [TINY | SCHEDULE | run for run in PROGRAMS]
    programs = [DIALECTS["fsdp2"](run) for run in runs]
    for of_rank in launch(train_emitted_and_ours, programs, runs, ranks=2, timeout=80, prints="quiet"):
        for emitted, ours in of_rank:
            assert len(emitted) == 4 and emitted[-1] < emitted[0]
            assert emitted == pytest.approx(ours, abs=2e-5)


def test_an_emitted_program_says_what_the_run_says() -> None:
    assert "reshard_after_forward=False" in DIALECTS["fsdp2"](TINY | {"zero_stage": 2})
    assert "reshard_after_forward=True" in DIALECTS["fsdp2"](TINY | {"zero_stage": 3})
    whole = {stage: "Model().to(device)" in DIALECTS["fsdp2"](TINY | {"zero_stage": stage}) for stage in range(4)}
    assert whole == {0: True, 1: True, 2: False, 3: False}
    text = DIALECTS["fsdp2"](
        {"zero_stage": 3, "ranks": 8, "num_distributed_optimizer_instances": 2, "precision": "bf16_fp32_grads"}
        | {"offload_optimizer": "host", "offload_param": "host", "compile": True}
    )
    assert "(2, dist.get_world_size() // 2)" in text and "--nproc_per_node 8" in text
    assert "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)" in text
    assert "offload_policy=CPUOffloadPolicy()" in text and "block.compile()" in text
    for run in [TINY | run for run in PROGRAMS] + [{"zero_stage": 1, "bf16": True, "lr_schedule": "linear"}]:
        assert callable(of_program(DIALECTS["fsdp2"](run))["main"])
    assert callable(of_program(text)["main"])


def test_the_emitted_program_finds_a_rank_s_own_gpu_whoever_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    own_gpu = of_program(DIALECTS["fsdp2"](TINY | {"zero_stage": 3}))["own_gpu"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    names = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name in names:
        with monkeypatch.context() as one:
            one.setenv(name, "3")
            assert str(own_gpu()) == "cuda:3"
            one.setattr(torch.cuda, "device_count", lambda: 1)
            assert str(own_gpu()) == "cuda:0"
    with pytest.raises(RuntimeError, match="all ranks would take GPU 0: set LOCAL_RANK"):
        own_gpu()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert str(own_gpu()) == "cuda:0"


NOT_FSDP2: dict[str, dict[str, Any]] = {
    "exp_avg_dtype is fp8": {"zero_stage": 3, "bf16": True, "exp_avg_dtype": "fp8"},
    "reduce_dtype is fp16": {"zero_stage": 2, "bf16": True, "reduce_dtype": "fp16"},
    "precision is fp16": {"zero_stage": 2, "fp16": True},
    "precision is fp8": {"zero_stage": 2, "fp8": True},
    "offload_optimizer is disk": {"zero_stage": 3, "offload_optimizer": "disk", "offload_path": "."},
    "num_distributed_optimizer_instances is 2": {"zero_stage": 1, "num_distributed_optimizer_instances": 2},
}


@pytest.mark.parametrize("said", NOT_FSDP2)
def test_what_fsdp2_does_not_do_is_refused_with_what_it_does(said: str) -> None:
    with pytest.raises(InputError, match=rf"{said}.*; choose"):
        DIALECTS["fsdp2"](NOT_FSDP2[said])


# Accelerate

# Facts of Accelerate 1.15.0: fields of ClusterConfig (commands/config/config_args.py), and arguments of its launcher
# (commands/launch.py), to which the keys of a section go.
CLUSTER = {
    "compute_environment",
    "deepspeed_config",
    "distributed_type",
    "fsdp_config",
    "machine_rank",
    "main_training_function",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "parallelism_config",
    "use_cpu",
}
SECTIONS = {
    "deepspeed_config": {
        "gradient_accumulation_steps",
        "gradient_clipping",
        "offload_optimizer_device",
        "offload_optimizer_nvme_path",
        "offload_param_device",
        "offload_param_nvme_path",
        "zero3_init_flag",
        "zero3_save_16bit_model",
        "zero_stage",
    },
    "fsdp_config": {
        "fsdp_activation_checkpointing",
        "fsdp_auto_wrap_policy",
        "fsdp_cpu_ram_efficient_loading",
        "fsdp_offload_params",
        "fsdp_reshard_after_forward",
        "fsdp_state_dict_type",
        "fsdp_version",
    },
    "parallelism_config": {"parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"},
}
HOST = {"offload_optimizer": "host", "offload_param": "host"}
DISK = {"offload_optimizer": "disk", "offload_param": "nvme", "offload_path": Path("a b/c")}
# A run, what does it there, and some of what it is told.
YAMLS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({}, "MULTI_GPU", {}),
    ({"device": "cpu", "ranks": 4}, "MULTI_CPU", {}),
    ({"zero_stage": 1, "fp16": True, "clip_norm": 0.5}, "DEEPSPEED", {"zero_stage": 1, "gradient_clipping": 0.5}),
    ({"zero_stage": 2, "bf16": True}, "FSDP", {"fsdp_reshard_after_forward": False, "fsdp_version": 2}),
    ({"zero_stage": 3, "checkpoint_activations": True}, "FSDP", {"fsdp_activation_checkpointing": True}),
    ({"zero_stage": 3, **HOST}, "FSDP", {"fsdp_offload_params": True, "fsdp_reshard_after_forward": True}),
    ({"zero_stage": 2, "offload_optimizer": "cpu"}, "DEEPSPEED", {"offload_optimizer_device": "cpu"}),
    ({"zero_stage": 3, **DISK}, "DEEPSPEED", {"offload_param_device": "nvme", "offload_param_nvme_path": "a b/c"}),
    (
        {"zero_stage": 3, "ranks": 8, "batch_size": 16, "num_distributed_optimizer_instances": 2},
        "FSDP",
        {"parallelism_config_dp_replicate_size": 2, "parallelism_config_dp_shard_size": 4},
    ),
]


@pytest.mark.parametrize(("settings", "kind", "told"), YAMLS)
def test_row_22_an_accelerate_file_has_its_keys_and_says_the_run(
    settings: dict[str, Any], kind: str, told: dict[str, Any]
) -> None:
    text = DIALECTS["accelerate"](settings)
    config = yaml.safe_load(text)
    sections = {name: section for name, section in config.items() if isinstance(section, dict)}
    assert config.keys() <= CLUSTER
    assert all(section.keys() <= SECTIONS[name] for name, section in sections.items())
    assert config["distributed_type"] == kind and config["num_processes"] == settings.get("ranks", 2)
    assert config["mixed_precision"] == next((name for name in ("bf16", "fp16") if name in settings), "no")
    said = {key: value for section in sections.values() for key, value in section.items()}
    assert {key: said.get(key) for key in told} == told
    ranks = settings.get("ranks", 2)
    assert f"micro-batches of {settings.get('batch_size', 12) // ranks} a rank" in text


@pytest.mark.parametrize(("settings", "kind", "told"), YAMLS)
def test_accelerates_own_loader_reads_the_file(
    settings: dict[str, Any], kind: str, told: dict[str, Any], tmp_path: Path
) -> None:
    config_args = pytest.importorskip(
        "accelerate.commands.config.config_args", reason="accelerate is not installed; pip install accelerate"
    )
    (tmp_path / "run.yaml").write_text(DIALECTS["accelerate"](settings))
    loaded = config_args.load_config_from_file(str(tmp_path / "run.yaml"))
    assert loaded.distributed_type == kind and loaded.num_processes == settings.get("ranks", 2)


NOT_ACCELERATE: dict[str, dict[str, Any]] = {
    "exp_avg_sq_dtype is bf16": {"zero_stage": 3, "bf16": True, "exp_avg_sq_dtype": "bf16"},
    "precision is fp8": {"zero_stage": 2, "fp8": True},
    "num_distributed_optimizer_instances is 2": {"zero_stage": 1, "num_distributed_optimizer_instances": 2},
}


@pytest.mark.parametrize("said", NOT_ACCELERATE)
def test_what_accelerate_has_no_key_for_is_refused_with_what_it_has(said: str) -> None:
    with pytest.raises(InputError, match=rf"{said}.*; choose"):
        DIALECTS["accelerate"](NOT_ACCELERATE[said])


def test_the_deepspeed_dialect_is_json_that_is_read_as_the_same_stage(tmp_path: Path) -> None:
    file = tmp_path / "deepspeed.json"
    file.write_text(DIALECTS["deepspeed"]({"zero_stage": 2, "bf16": True}))
    assert json.loads(file.read_text())["zero_optimization"]["stage"] == 2


DRAWN: dict[str, list[Any]] = {
    "zero_stage": [0, 1, 2, 3],
    "ranks": [1, 2, 4, 8],
    "batch_size": [8, 16],
    "precision": [*PRECISIONS],
    "reduce_dtype": ["fp16", "bf16", "fp32"],
    "main_grads_dtype": ["fp16", "bf16", "fp32"],
    "exp_avg_dtype": ["fp8", "bf16"],
    "loss_scale": [128.0],
    "offload_optimizer": ["host", "disk", "cpu", "none"],
    "offload_param": ["host", "nvme", "device"],
    "num_distributed_optimizer_instances": [1, 2],
    "model": ["gpt2", "llama"],
    "vocab_size": [500],
    "lr_schedule": ["cosine", "linear"],
    "warmup_steps": [2],
    "defer_reduction": [True],
    "overlap": [False],
    "reduction": ["all_reduce"],
    "bucket_numel": [1000],
    "clip_norm": [0.0],
    "compile": [True],
    "device": ["cpu"],
}


def test_whatever_a_run_is_each_dialect_writes_it_or_refuses_it_in_a_sentence() -> None:
    chance, written, runs = random.Random(0), Counter[str](), 0
    while runs < 80:
        settings = {name: chance.choice(values) for name, values in DRAWN.items() if chance.random() < 0.15}
        try:
            config = RunSpec(**settings)
        except InputError:
            continue
        runs += 1
        for name, write in DIALECTS.items():
            try:
                text = write(settings)
            except InputError as error:
                assert ";" in str(error) and "\n" not in str(error), f"{name}: {error}"
                continue
            written[name] += 1
            if name == "fsdp2":
                compile(text, "emitted.py", "exec")
            elif name in ("zerolab", "megatron"):
                words = shlex.split(text.replace("\\\n", " "))[2 * (name == "zerolab") :]
                back = RunSpec(**read_flags([f"--ranks={config.ranks}", *words])[0])
                assert (back.zero_stage, back.batch_size) == (config.zero_stage, config.batch_size)
                assert name == "megatron" or back == config
    # nanoGPT knows GPT-2 and two stages alone.
    assert all(written[name] >= 20 for name in DIALECTS.keys() - {"nanogpt"}), written
