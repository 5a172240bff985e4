"""Settings as a file for `accelerate launch`: FSDP2 at stages 2 and 3, DeepSpeed's plugin at stage 1 and for other
places, plain data parallelism at stage 0."""

from __future__ import annotations

from typing import Any

import yaml

from zerolab.apps.dialects.keys import Settings, check_fp32, require, require_of, run_of
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

Keys = dict[str, Any]
DEEPSPEED_PLACE = {"device": "none", "host": "cpu", "disk": "nvme"}


def write(settings: Settings) -> str:
    """The text of the YAML file. Raises InputError for what Accelerate has no key for."""
    run = run_of(settings)
    precision, places = run.dtypes or Precision(), (run.places.optimizer, run.places.parameters)
    check_fp32(precision, "Accelerate keeps that state in fp32")
    why = "precision is fp8, for which Accelerate needs another library's layers"
    require(not precision.fp8, f"{why}; choose bf16")
    kind, sections = "MULTI_CPU" if run.device == "cpu" else "MULTI_GPU", Keys()
    if run.stage >= 2 and places in [("device", "device"), ("host", "host")][: run.stage - 1]:
        kind, sections = "FSDP", make_fsdp(run)
    elif run.stage:
        why = "Accelerate does so with FSDP2 only; choose stage 2 or 3 without offloading, or 1 instance"
        require_of(run, "num_distributed_optimizer_instances", run.instances == 1, why)
        kind, sections = "DEEPSPEED", {"deepspeed_config": make_deepspeed(run, places)}
    keys: Keys = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "num_machines": 1,
        "machine_rank": 0,
        "num_processes": run.ranks,
        # What it computes with is updated in fp32, and moments are kept in it.
        "mixed_precision": "no" if precision.params == "fp32" else precision.params,
        "use_cpu": run.device == "cpu",
        "main_training_function": "main",
    } | sections
    remarks = "".join(f"# {line}\n" for line in make_remarks(run, kind))
    return remarks + yaml.safe_dump(keys, sort_keys=False)


def make_fsdp(run: RunSpec) -> Keys:
    sections: Keys = {
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
        sections["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": run.instances,
            "parallelism_config_dp_shard_size": run.sharing,
        }
    return sections


def make_deepspeed(run: RunSpec, places: tuple[str, str]) -> Keys:
    paths = {
        f"offload_{name}_nvme_path": str(run.offload_path or ".")
        for name, place in zip(("optimizer", "param"), places, strict=True)
        if place == "disk"
    }
    return {
        "zero_stage": run.zero_stage,
        "gradient_accumulation_steps": run.grad_accum_steps,
        "gradient_clipping": run.clip_norm,
        "offload_optimizer_device": DEEPSPEED_PLACE[places[0]],
        "offload_param_device": DEEPSPEED_PLACE[places[1]],
        "zero3_init_flag": run.zero_stage == 3,
        "zero3_save_16bit_model": run.zero_stage == 3,
        **paths,
    }


def make_remarks(run: RunSpec, kind: str) -> list[str]:
    """What the file is, and what a script must say itself."""
    steps, ranks, rates = run.grad_accum_steps, run.ranks, f"lr={run.lr}, betas=({run.beta1}, {run.beta2})"
    lines = [
        f"ZeRO stage {run.stage} on {ranks} ranks: accelerate launch --config_file THIS_FILE script.py",
        "On several machines set num_machines, and machine_rank on each. In the script:",
        f"  micro-batches of {run.micro_batch_size} a rank, Accelerator(gradient_accumulation_steps={steps}),",
        f"  AdamW({rates}, eps={run.eps}, weight_decay={run.weight_decay})",
    ]
    if run.lr_schedule != "constant" or run.warmup_steps:
        end = run.decay_steps or run.max_steps
        rise = f"rises for {run.warmup_steps} steps ({run.warmup_shape})"
        lines.append(f"  a learning rate that {rise}, then is {run.lr_schedule} to {run.min_lr} at step {end}")
    if run.clip_norm:
        lines.append(f"  accelerator.clip_grad_norm_(model.parameters(), {run.clip_norm}) before each step")
    if run.checkpoint_activations and kind != "FSDP":
        lines.append("  model.gradient_checkpointing_enable(), or torch.utils.checkpoint in the model")
    return lines
