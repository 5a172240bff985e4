"""Settings as a configuration for `accelerate launch --config_file`: FSDP2 at stages 2 and 3, DeepSpeed's plugin at
stage 1 and for what rests elsewhere than FSDP2 puts it, plain data parallelism at stage 0. It has no keys for batch
sizes, learning rate and clipping, which a script gives; they stand in its comments."""

from __future__ import annotations

from typing import Any

import yaml

from zerolab.apps.dialects.keys import Settings, check_fp32, run_of
from zerolab.errors import InputError
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

Keys = dict[str, Any]
DEEPSPEED_PLACE = {"device": "none", "host": "cpu", "disk": "nvme"}


def write(settings: Settings) -> str:
    """The text of the YAML file. Raises InputError for what Accelerate has no key for."""
    run = run_of(settings)
    places = run.places.optimizer, run.places.parameters
    if run.stage == 0:
        how: Keys = {"distributed_type": "MULTI_CPU" if run.device == "cpu" else "MULTI_GPU"}
    elif run.stage >= 2 and (places == ("device", "device") or (run.stage == 3 and places == ("host", "host"))):
        how = fsdp(run)
    else:
        how = deepspeed(run, places)
    keys: Keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": how["distributed_type"],
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": run.ranks,
        "mixed_precision": mixed_precision(run.dtypes or Precision()),
        "use_cpu": run.device == "cpu",
        "main_training_function": "main",
    } | how
    return "".join(f"# {line}\n" for line in remarks(run, keys)) + yaml.safe_dump(keys, sort_keys=False)


def mixed_precision(precision: Precision) -> str:
    """Its word for these dtypes; what it computes with is updated in fp32, and moments are kept in it."""
    check_fp32(precision, "Accelerate keeps that state in fp32")
    if precision.fp8:
        raise InputError("precision is fp8, for which Accelerate needs another library's layers; choose bf16")
    return "no" if precision.params == "fp32" else precision.params


def fsdp(run: RunSpec) -> Keys:
    keys: Keys = {
        "distributed_type": "FSDP",
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": run.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_offload_params": run.places.parameters == "host",
            "fsdp_activation_checkpointing": run.checkpoint_activations,
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
    }
    if run.instances > 1:
        keys["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": run.instances,
            "parallelism_config_dp_shard_size": run.sharing,
        }
    return keys


def deepspeed(run: RunSpec, places: tuple[str, ...]) -> Keys:
    if run.instances > 1:
        raise InputError(
            f"num_distributed_optimizer_instances is {run.instances}, which Accelerate "
            "does with FSDP2 only; choose stage 2 or 3 without offloading, or 1 instance"
        )
    inside: Keys = {
        "zero_stage": run.zero_stage,
        "gradient_accumulation_steps": run.grad_accum_steps,
        "gradient_clipping": run.clip_norm,
        "offload_optimizer_device": DEEPSPEED_PLACE[places[0]],
        "offload_param_device": DEEPSPEED_PLACE[places[1]],
        "zero3_init_flag": run.zero_stage == 3,
        "zero3_save_16bit_model": run.zero_stage == 3,
    }
    for name, place in zip(("optimizer", "param"), places, strict=True):
        if place == "disk":
            inside[f"offload_{name}_nvme_path"] = str(run.offload_path or ".")
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": inside}


def remarks(run: RunSpec, keys: Keys) -> list[str]:
    """What the file is, and what a script must say itself."""
    steps, ranks = run.grad_accum_steps, run.ranks
    lines = [
        f"ZeRO stage {run.zero_stage} on {ranks} ranks: accelerate launch --config_file THIS_FILE script.py",
        "On several machines set num_machines, and machine_rank on each. In the script:",
        f"  micro-batches of {run.micro_batch_size} a rank, Accelerator(gradient_accumulation_steps={steps}),",
        f"  AdamW(lr={run.lr}, betas=({run.beta1}, {run.beta2}), eps={run.eps}, weight_decay={run.weight_decay})",
    ]
    if run.lr_schedule != "constant" or run.warmup_steps:
        end = run.decay_steps or run.max_steps
        rise = f"rises for {run.warmup_steps} steps ({run.warmup_shape})"
        lines.append(f"  a learning rate that {rise}, then is {run.lr_schedule} to {run.min_lr} at step {end}")
    if run.clip_norm:
        lines.append(f"  accelerator.clip_grad_norm_(model.parameters(), {run.clip_norm}) before each step")
    if run.checkpoint_activations and keys["distributed_type"] != "FSDP":
        lines.append("  model.gradient_checkpointing_enable(), or torch.utils.checkpoint in the model")
    return lines
