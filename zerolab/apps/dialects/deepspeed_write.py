"""Settings of a run as a DeepSpeed configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zerolab.apps.dialects.deepspeed_schedule import write_scheduler
from zerolab.apps.dialects.keys import Settings, whole_run
from zerolab.errors import InputError
from zerolab.offload.places import TIER_OF
from zerolab.precision.recipe import PRECISIONS, Precision
from zerolab.run import RunSpec

DEVICES: dict[str, str] = {"device": "none", "host": "cpu", "disk": "nvme"}


def write(settings: Settings) -> dict[str, Any]:
    """The configuration with which DeepSpeed does the same run. The model, its data and how many ranks there are stand
    in no configuration of DeepSpeed. Reading it back gives the same settings. Raises InputError for a setting that
    changes the run and that DeepSpeed has no key for."""
    run = whole_run(settings)
    ranks, steps, batch = run["ranks"], run["grad_accum_steps"], run["batch_size"]
    if batch % (ranks * steps):
        raise InputError(f"batch_size is {batch}, which {ranks} ranks x {steps} accumulation steps do not divide")
    for name, why in (
        ("defer_reduction", "it has no key for when gradients are reduced; leave it out"),
        ("fp8", "its configuration has no fp8; choose bf16"),
    ):
        if run[name]:
            raise InputError(f"{name} cannot be said to DeepSpeed: {why}")
    if run["num_distributed_optimizer_instances"] != 1:
        raise InputError("num_distributed_optimizer_instances cannot be said to DeepSpeed; give 1")
    config: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": batch // (ranks * steps),
        "gradient_accumulation_steps": steps,
        "gradient_clipping": run["clip_norm"],
        "zero_optimization": zero_section(run),
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": run["lr"],
                "betas": [run["beta1"], run["beta2"]],
                "eps": run["eps"],
                "weight_decay": run["weight_decay"],
            },
        },
    }
    if scheduler := write_scheduler(run):
        config["scheduler"] = scheduler
    return config | precision_sections(settings, run)


def zero_section(run: Settings) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": run["zero_stage"],
        "overlap_comm": run["overlap"],
        "contiguous_gradients": True,
        "reduce_scatter": run["reduction"] == "reduce_scatter",
    }
    if run["sub_group_size"] is not None:
        zero["sub_group_size"] = run["sub_group_size"]
    if run["bucket_numel"] is not None:
        zero["reduce_bucket_size"] = run["bucket_numel"]
    for part in ("offload_optimizer", "offload_param"):
        place: str = run[part]
        device = DEVICES[TIER_OF.get(place, place)]
        if device == "none":
            continue
        zero[part] = {"device": device}
        if device == "nvme":
            if run["offload_path"] is None:
                raise InputError(f"{part} is {run[part]} but there is no offload_path; name a folder")
            zero[part] |= {"nvme_path": str(run["offload_path"]), "buffer_count": run["buffer_count"]}
            if part == "offload_param":
                zero[part]["max_in_cpu"] = run["max_in_cpu"]
                if run["buffer_size"] is not None:
                    zero[part]["buffer_size"] = run["buffer_size"]
    if run["zero_stage"] == 3:
        ahead = run["prefetch_bucket_size"] if run["prefetch"] else 0
        limits = {
            "stage3_param_persistence_threshold": run["param_persistence_threshold"],
            "stage3_prefetch_bucket_size": ahead,
            "stage3_max_live_parameters": run["max_live_parameters"],
            "stage3_max_reuse_distance": run["max_reuse_distance"],
        }
        zero |= {name: value for name, value in limits.items() if value is not None}
    if run["zero3_save_16bit_model"]:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return zero


def precision_sections(settings: Settings, run: Settings) -> dict[str, Any]:
    known = {name: value for name, value in settings.items() if name in RunSpec.model_fields}
    precision = RunSpec.model_construct(**known).dtypes or Precision()
    if precision == Precision():
        return {}
    for name in ("bf16", "fp16"):
        base = PRECISIONS[name]
        if replace(base, reduce=precision.reduce, main_grads=precision.main_grads) != precision:
            continue
        sections: dict[str, Any] = {name: {"enabled": True}}
        if precision.reduce != base.reduce:
            sections["communication_data_type"] = precision.reduce
        if precision.main_grads != base.main_grads:
            sections["data_types"] = {"grad_accum_dtype": precision.main_grads}
        if name == "fp16":
            keys = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
            sections[name] |= {key: run[key] for key in keys}
        return sections
    raise InputError(
        f"precision {precision.name} cannot be said to DeepSpeed, which has bf16, fp16 and fp32; choose one"
    )
