"""A DeepSpeed configuration as settings of a run: each key is honoured or refused by name, none is ignored.

Key by key a function gives the settings of `TrainConfig` that mean the same. "auto" leaves a key to the run's own
settings, as it does under Hugging Face's trainer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerolab.dialects.keys import Rule, Settings, count, named, only, whole_number
from zerolab.errors import InputError


def reduction(value: Any) -> Settings:
    if not isinstance(value, bool):
        raise InputError(f"is {json.dumps(value)}; give true or false")
    return {"reduction": "reduce_scatter" if value else "all_reduce"}


RULES: dict[str, Rule] = {
    "train_batch_size": count("batch_size"),
    "gradient_accumulation_steps": count("grad_accum_steps"),
    "gradient_clipping": named("clip_norm"),
    "zero_optimization.stage": named("zero_stage"),
    "zero_optimization.overlap_comm": named("overlap"),
    "zero_optimization.contiguous_gradients": only(True, "gradients always lie in flat buffers"),
    "zero_optimization.reduce_scatter": reduction,
    "zero_optimization.reduce_bucket_size": count("bucket_numel"),
    "zero_optimization.sub_group_size": count("sub_group_size"),
    "zero_optimization.offload_optimizer.device": named("offload_optimizer"),
    "zero_optimization.offload_optimizer.nvme_path": named("offload_path"),
    "zero_optimization.offload_optimizer.buffer_count": named("buffer_count"),
    "zero_optimization.offload_optimizer.pin_memory": only(True, "host memory is pinned wherever a GPU is"),
    "zero_optimization.offload_optimizer.pipeline_read": only(True, "reads always run ahead"),
    "zero_optimization.offload_optimizer.pipeline_write": only(True, "writes always run behind"),
    "zero_optimization.offload_param.device": named("offload_param"),
    "zero_optimization.offload_param.nvme_path": named("offload_path"),
    "zero_optimization.offload_param.buffer_count": named("buffer_count"),
    "zero_optimization.offload_param.buffer_size": count("buffer_size"),
    "zero_optimization.offload_param.max_in_cpu": count("max_in_cpu", least=0),
    "zero_optimization.offload_param.pin_memory": only(True, "host memory is pinned wherever a GPU is"),
    "bf16.enabled": named("bf16"),
    "fp16.enabled": named("fp16"),
    "fp16.loss_scale": named("loss_scale"),
    "fp16.initial_scale_power": named("initial_scale_power"),
    "fp16.loss_scale_window": named("loss_scale_window"),
    "fp16.hysteresis": named("hysteresis"),
    "fp16.min_loss_scale": named("min_loss_scale"),
    "optimizer.type": only("AdamW", "zerolab train uses AdamW"),
    "optimizer.params.lr": named("lr"),
    "optimizer.params.weight_decay": named("weight_decay"),
}

NOT_A_FIELD = {
    "zero_optimization.allreduce_bucket_size": "reduce_bucket_size",
    "zero_optimization.offload_optimizer.max_in_cpu": "offload_param.max_in_cpu, since it counts parameters",
    "bf16.loss_scale": "fp16.loss_scale, since bf16 has fp32's range and no loss scale",
}
"""What texts on DeepSpeed name and DeepSpeed itself refuses, and what is meant."""


def read_deepspeed(path: Path, ranks: int) -> Settings:
    """The settings in a DeepSpeed configuration, for so many ranks. Raises InputError that names the key."""
    try:
        config = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}; name a DeepSpeed configuration") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error}; mend it") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} holds a {type(config).__name__}; a DeepSpeed configuration is an object")
    settings: Settings = {}
    micro = config.pop("train_micro_batch_size_per_gpu", None)
    fp16 = config.get("fp16")
    if isinstance(fp16, dict) and fp16.get("enabled") is False:
        # The rest of it says how fp16 would be done.
        config["fp16"] = {key: value for key, value in fp16.items() if f"fp16.{key}" not in RULES}
    for key, value in leaves(config):
        for setting, meant in translated(key, value, path).items():
            if settings.setdefault(setting, meant) != meant:
                raise InputError(
                    f"{path}: {key} is {meant!r}, but another key says {settings[setting]!r} and zerolab has one "
                    "setting for both; make them equal"
                )
    settings |= batch_equation(settings, micro, ranks, path)
    return settings


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all keys with their values."""
    for key, value in config.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def translated(key: str, value: Any, path: Path) -> Settings:
    if key in NOT_A_FIELD:
        raise InputError(f"{path}: DeepSpeed has no {key}; use {NOT_A_FIELD[key]}")
    if key not in RULES:
        raise InputError(f"{path}: {key} is not supported by zerolab train; leave it out")
    if value == "auto":
        return {}
    try:
        return RULES[key](value)
    except InputError as error:
        raise InputError(f"{path}: {key} {error}") from None


def batch_equation(settings: Settings, micro: Any, ranks: int, path: Path) -> Settings:
    """train_batch_size = micro batch per GPU x accumulation steps x ranks; the one that is missing follows."""
    if micro in (None, "auto"):
        return {}
    try:
        micro = whole_number(micro)
    except InputError as error:
        raise InputError(f"{path}: train_micro_batch_size_per_gpu {error}") from None
    whole, steps = settings.get("batch_size"), settings.get("grad_accum_steps")
    if whole is None:
        return {"batch_size": micro * (steps or 1) * ranks}
    if steps is None and whole % (micro * ranks) == 0:
        return {"grad_accum_steps": whole // (micro * ranks)}
    if whole != micro * (steps or 1) * ranks:
        raise InputError(
            f"{path}: train_batch_size is {whole}, but {micro} sequences a micro-batch x {steps or 1} accumulation "
            f"steps x {ranks} ranks are {micro * (steps or 1) * ranks}; change one of them"
        )
    return {}
