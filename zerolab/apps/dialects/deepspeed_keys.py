"""Every key of DeepSpeed's configuration that zerolab knows: the table that reading, the documentation and tests share.

What would change the numbers or the memory of a run is honoured or refused; what only tells of it, or chooses among
ways to the same, is taken with a note. `docs/deepspeed.md` shows this table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerolab.apps.dialects.keys import Rule, Settings, count, named, only, whole_number
from zerolab.errors import InputError

HIDDEN: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: 9 * hidden * hidden // 10,
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What Hugging Face's trainer makes of "auto", from the model's hidden size."""


@dataclass(frozen=True)
class Key:
    """A key, or a section with all that is in it.

    rule      what its value means, or an InputError that goes on after its name
    says      for the documentation: what becomes of it
    settings  those that it sets
    wanted    the only value that there is, as JSON
    taken     it changes nothing here, for this reason, which is said at the start of a run; "" if it does
    when      it has a meaning only at stage 3 ("stage 3"), for a disk ("nvme"), or if fp16 is enabled ("fp16")
    missing   its value where the file does not give it: DeepSpeed's default, for a key that changes the numbers
    """

    rule: Rule
    says: str
    settings: tuple[str, ...] = ()
    wanted: str = ""
    taken: str = ""
    when: str = ""
    missing: Any = None


def honoured(setting: str, rule: Rule | None = None, when: str = "", missing: Any = None) -> Key:
    return Key(rule or named(setting), f"`--{setting.replace('_', '-')}`", (setting,), when=when, missing=missing)


def counted(setting: str, least: int = 1, when: str = "") -> Key:
    return honoured(setting, count(setting, least), when)


def fixed(wanted: Any, why: str) -> Key:
    """A key that may only say what zerolab does anyway."""
    return Key(only(wanted, why), f"must be `{json.dumps(wanted)}`: {why}", wanted=json.dumps(wanted))


def taken(why: str) -> Key:
    return Key(lambda value: {}, f"taken, changes nothing: {why}", taken=why)


def refused(remedy: str) -> Key:
    def rule(value: Any) -> Settings:
        said = "given" if isinstance(value, dict) else json.dumps(value)
        raise InputError(f"is {said}, and zerolab has nothing of the kind: {remedy}")

    return Key(rule, f"refused: {remedy}")


def is_on(section: Any) -> bool:
    """Whether a section is enabled, or has something that is on; whether a switch is on."""
    if not isinstance(section, dict):
        return bool(section)
    return bool(section["enabled"]) if "enabled" in section else any(map(is_on, section.values()))


def only_off(remedy: str) -> Key:
    """A section or a switch that may be there if it is not enabled."""

    def rule(value: Any) -> Settings:
        if value.get("enabled") if isinstance(value, dict) else value:
            raise InputError(f"is enabled, and zerolab has nothing of the kind: {remedy}")
        return {}

    return Key(rule, f"refused if it is enabled: {remedy}")


def truth(setting: str, true: Any = True, false: Any = False) -> Rule:
    def rule(value: Any) -> Settings:
        if not isinstance(value, bool):
            raise InputError(f"is {json.dumps(value)}; give true or false")
        return {setting: true if value else false}

    return rule


def overlap(value: Any) -> Settings:
    return {} if value is None else truth("overlap")(value)


def betas(value: Any) -> Settings:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"is {json.dumps(value)}; give two numbers, such as [0.9, 0.999]")
    return {"beta1": value[0], "beta2": value[1]}


def optimizer(value: Any) -> Settings:
    if not isinstance(value, str) or value.lower() not in ("adam", "adamw"):
        raise InputError(f"is {json.dumps(value)}; give AdamW, which zerolab train uses (ZeroEngine takes others)")
    return {}


def dtype(setting: str) -> Rule:
    def rule(value: Any) -> Settings:
        if value not in ("fp32", "fp16", "bf16", None):
            raise InputError(f"is {json.dumps(value)}; give fp32, fp16 or bf16")
        return {} if value is None else {setting: value}

    return rule


def place(setting: str) -> Rule:
    def rule(value: Any) -> Settings:
        if value not in ("none", "cpu", "nvme"):
            raise InputError(f"is {json.dumps(value)}; give none, cpu or nvme")
        return {setting: value}

    return rule


def sub_group(value: Any) -> Settings:
    if value == 0:
        raise InputError("is 0; give the elements that a step updates at a time, at least 1")
    return {"sub_group_size": whole_number(value)}


def cpu(setting: str) -> Rule:
    """DeepSpeed's older switch for an offload to the host."""
    return lambda value: truth(setting, "cpu", "none")(value) if value else {}


TELLS = "zerolab's own report, and --profile-json FILE, tell of a run"
GONE = "DeepSpeed has taken it out, too; leave it out"
PLAIN = "use --main-params-dtype, --main-grads-dtype, --exp-avg-dtype and --exp-avg-sq-dtype"
WHOLE_16BIT = honoured("zero3_save_16bit_model", truth("zero3_save_16bit_model"))
STAGE_3 = {
    "prefetch_bucket_size": counted("prefetch_bucket_size", 0, "stage 3"),
    "param_persistence_threshold": counted("param_persistence_threshold", 0, "stage 3"),
    "max_live_parameters": counted("max_live_parameters", 0, "stage 3"),
    "max_reuse_distance": counted("max_reuse_distance", 0, "stage 3"),
    "gather_16bit_weights_on_model_save": WHOLE_16BIT,
    "model_persistence_threshold": refused("lower stage3_param_persistence_threshold until what stays fits"),
    "module_granularity_threshold": fixed(0, "units are what the model says, or ZeroEngine(units=...)"),
    "use_all_reduce_for_fetch_params": fixed(False, "parameters are gathered by all-gather, which sends half as much"),
    "allgather_sequential": taken("each bucket is gathered by a call of its own, in place"),
}
"""Keys that DeepSpeed has with and without `stage3_` before them."""

ZERO: dict[str, Key] = {
    "stage": honoured("zero_stage"),
    "overlap_comm": honoured("overlap", overlap),
    "contiguous_gradients": fixed(True, "gradients always lie in flat buffers"),
    "reduce_scatter": honoured("reduction", truth("reduction", "reduce_scatter", "all_reduce")),
    "reduce_bucket_size": counted("bucket_numel"),
    "allgather_partitions": fixed(True, "new parameters are always handed around by all-gather"),
    "allgather_bucket_size": taken("parameters are gathered in place, in the buckets that reduce_bucket_size cuts"),
    "sub_group_size": honoured("sub_group_size", sub_group),
    "offload_optimizer.device": honoured("offload_optimizer", place("offload_optimizer")),
    "offload_optimizer.nvme_path": honoured("offload_path", when="nvme"),
    "offload_optimizer.buffer_count": counted("buffer_count", when="nvme"),
    "offload_optimizer.pin_memory": taken("host memory that a GPU copies from or to is pinned"),
    "offload_optimizer.pipeline_read": taken("reads always run ahead"),
    "offload_optimizer.pipeline_write": taken("writes always run behind"),
    "offload_optimizer.fast_init": taken("states are written once, when they come into being"),
    "offload_optimizer.ratio": fixed(1.0, "all of the optimizer's states have one place"),
    "offload_optimizer.super_offload": fixed(False, "leave it out"),
    "offload_optimizer.cpuadam_cores_perc": taken("the host's step runs in torch's threads"),
    "offload_param.device": honoured("offload_param", place("offload_param")),
    "offload_param.nvme_path": honoured("offload_path", when="nvme"),
    "offload_param.buffer_count": counted("buffer_count", when="nvme"),
    "offload_param.buffer_size": counted("buffer_size", when="nvme"),
    "offload_param.max_in_cpu": counted("max_in_cpu", 0, "nvme"),
    "offload_param.pin_memory": taken("host memory that a GPU copies from or to is pinned"),
    "cpu_offload": honoured("offload_optimizer", cpu("offload_optimizer")),
    "cpu_offload_param": honoured("offload_param", cpu("offload_param")),
    "cpu_offload_use_pin_memory": taken("host memory that a GPU copies from or to is pinned"),
    **STAGE_3,
    **{f"stage3_{name}": key for name, key in STAGE_3.items()},
    "stage3_gather_fp16_weights_on_model_save": WHOLE_16BIT,
    "ignore_unused_parameters": fixed(True, "a parameter that no rank used has gradient zero"),
    "round_robin_gradients": taken("a rank's gradients are one stretch of each bucket, which is copied at once"),
    "load_from_fp32_weights": taken("a checkpoint keeps main parameters, and they are what is loaded"),
    "elastic_checkpoint": taken("any number of ranks reads a checkpoint"),
    "use_multi_rank_bucket_allreduce": taken("a bucket holds a stretch of every rank anyway"),
    "memory_efficient_linear": taken("a gathered weight is not saved for backward, but gathered again"),
    "override_module_apply": taken("first values come from each module's own reset_parameters"),
    "pipeline_loading_checkpoint": taken("a checkpoint is read shard by shard"),
    "parameter_alignment": taken("parameters always begin at aligned addresses"),
    "log_trace_cache_warnings": taken(TELLS),
    "enable_sanity_checks": taken("the engine's checks are always on"),
    "legacy_stage1": fixed(False, "there is one stage 1"),
    "compute_grad_norm": fixed(True, "the norm is computed if gradient_clipping or a loss scale needs it"),
    "zero_hpz_partition_size": fixed(1, "see --num-distributed-optimizer-instances for shards within a machine"),
    "zero_quantized_weights": fixed(False, "parameters travel in their own dtype; see --params-dtype"),
    "zero_quantized_nontrainable_weights": fixed(False, "parameters rest in their own dtype; see --params-dtype"),
    "zero_quantized_gradients": fixed(False, "gradients travel in communication_data_type"),
    "zenflow": refused("leave it out; offload_optimizer is the plain way"),
    "leaf_module": refused("name units by the model's units(), or ZeroEngine(units=...)"),
}

FP16 = {
    "loss_scale": honoured("loss_scale", missing=0.0),
    "initial_scale_power": honoured("initial_scale_power", missing=16),
    "loss_scale_window": honoured("loss_scale_window", missing=1000),
    "hysteresis": honoured("hysteresis", missing=2),
    "min_loss_scale": honoured("min_loss_scale", missing=1.0),
    "consecutive_hysteresis": fixed(False, "overflows are counted since the last change of the scale"),
    "auto_cast": taken("inputs are cast to the dtype of the parameters"),
    "fp16_master_weights_and_grads": fixed(False, PLAIN),
}

TORCH_ADAM = {"optimizer.params.weight_decay": 0.01}
"""With torch_adam, torch's own default for a key that is missing."""

TOP: dict[str, Key] = {
    "train_batch_size": counted("batch_size"),
    "train_micro_batch_size_per_gpu": Key(lambda value: {}, "`--batch-size` / (`--ranks` x `--grad-accum-steps`)"),
    "gradient_accumulation_steps": counted("grad_accum_steps"),
    "gradient_clipping": honoured("clip_norm", missing=1.0),
    "bf16.enabled": honoured("bf16", truth("bf16"), missing=False),
    "bf16.immediate_grad_update": taken("each bucket is reduced when backward has filled it"),
    "bf16.check_grad_overflow": taken("a norm that is not finite makes all ranks skip the step"),
    "bf16.bf16_master_weights_and_grads": fixed(False, PLAIN),
    "bf16.bf16_optimizer_states": fixed(False, PLAIN),
    "fp16.enabled": honoured("fp16", truth("fp16"), missing=False),
    **{f"fp16.{name}": replace(key, when="fp16") for name, key in FP16.items()},
    "optimizer.type": Key(optimizer, "Adam or AdamW, which are one in DeepSpeed, too"),
    "optimizer.params.lr": honoured("lr", missing=1e-3),
    "optimizer.params.betas": Key(betas, "`--beta1`, `--beta2`", ("beta1", "beta2"), missing=[0.9, 0.999]),
    "optimizer.params.eps": honoured("eps", missing=1e-8),
    "optimizer.params.weight_decay": replace(
        honoured("weight_decay", missing=0.0), says="`--weight-decay`, of matrices alone"
    ),
    "optimizer.params.adam_w_mode": fixed(True, "weights decay apart from gradients, as AdamW has it"),
    "optimizer.params.bias_correction": fixed(True, "AdamW corrects the bias of its moments"),
    "optimizer.params.amsgrad": fixed(False, "zerolab train uses AdamW as it is"),
    "optimizer.params.torch_adam": taken("torch's fused AdamW is what steps"),
    "optimizer.params.fused": taken("torch's fused AdamW is what steps"),
    "optimizer.params.max_grad_norm": refused("use gradient_clipping"),
    "optimizer.legacy_fusion": taken("torch's fused AdamW is what steps"),
    "communication_data_type": honoured("reduce_dtype", dtype("reduce_dtype")),
    "data_types.grad_accum_dtype": honoured("main_grads_dtype", dtype("main_grads_dtype")),
    "prescale_gradients": fixed(False, "gradients are added up and then divided"),
    "gradient_predivide_factor": fixed(1.0, "gradients are added up and then divided"),
    "gradient_allreduce_op": fixed("mean", "gradients are averaged over the ranks"),
    "sparse_gradients": fixed(False, "gradients are dense; embeddings' too"),
    "disable_allgather": fixed(False, "new parameters are always handed around by all-gather"),
    "zero_allow_untested_optimizer": taken("every optimizer is probed for being elementwise"),
    "zero_force_ds_cpu_optimizer": taken("the host's step is torch's fused AdamW"),
    "dataloader_drop_last": taken("batches are cut from one long text"),
    "seq_parallel_communication_data_type": taken("sequences are not split over ranks"),
    "activation_checkpointing.cpu_checkpointing": fixed(False, "activations stay, or --checkpoint-activations"),
    "activation_checkpointing": taken("whether layers recompute is --checkpoint-activations"),
    "checkpoint": taken("checkpoints are zerolab's own, which any number of ranks reads"),
    "aio": taken("the disk is read and written by zerolab's own threads"),
    "steps_per_print": taken(TELLS),
    "wall_clock_breakdown": taken(TELLS),
    "memory_breakdown": taken(TELLS),
    "dump_state": taken(TELLS),
    "log_level": taken(TELLS),
    "vocabulary_size": taken("the vocabulary is the model's"),
    **dict.fromkeys(
        ("comms_logger", "comms_config", "monitor_config", "flops_profiler", "tensorboard", "wandb", "csv_monitor",
         "comet", "timers"),
        taken(TELLS),
    ),
    "elasticity": only_off("leave it out; --resume goes on with another number of ranks"),
    "torch_autocast": only_off("use bf16.enabled or fp16.enabled"),
    "autotuning": only_off("leave it out; zerolab plan says what fits"),
    "hybrid_engine": only_off("leave it out"),
    "data_efficiency": only_off("leave it out"),
    "progressive_layer_drop": only_off("leave it out"),
    "curriculum_learning": only_off("leave it out; --seq-len is the same in every step"),
    "eigenvalue": only_off("leave it out"),
    "compile": refused("leave it out; torch.compile works with ZeroEngine"),
    "sparse_attention": refused("leave it out; attention is torch's own"),
    "pipeline": refused("leave it out; all ranks are data-parallel"),
    "tensor_parallel": refused("leave it out; all ranks are data-parallel"),
    "expert_parallel": refused("leave it out; all ranks are data-parallel"),
    "sequence_parallel_size": fixed(1, "all ranks are data-parallel"),
    "weight_quantization": refused("use --precision fp8"),
    **dict.fromkeys(("amp", "nebula", "compression_training", "quantize_training"), refused(GONE)),
}  # fmt: skip

TABLE: dict[str, Key] = {**{f"zero_optimization.{name}": key for name, key in ZERO.items()}, **TOP}
"""By dotted name. A section that stands here by its own name is taken or refused as a whole."""

NOT_A_FIELD = {
    "zero_optimization.allreduce_bucket_size": "reduce_bucket_size",
    "zero_optimization.offload_optimizer.max_in_cpu": "offload_param.max_in_cpu, since it counts parameters",
    "zero_optimization.mics_shard_size": "--num-distributed-optimizer-instances, since MiCS is gone from it",
    "zero_optimization.mics_hierarchical_params_gather": "--num-distributed-optimizer-instances, since MiCS is gone "
    "from it",
    "bf16.loss_scale": "fp16.loss_scale, since bf16 has fp32's range and no loss scale",
}
"""What texts on DeepSpeed name and DeepSpeed itself refuses, and what is meant."""


def as_markdown(table: Mapping[str, Key] = TABLE) -> str:
    """The table of docs/deepspeed.md."""
    lines = ["| key | what zerolab makes of it |", "|---|---|"]
    for name, key in table.items():
        condition = {"": "", "stage 3": " (at stage 3)", "nvme": " (for nvme)", "fp16": " (if fp16 is enabled)"}[
            key.when
        ]
        without = "" if key.missing is None else f"; without it `{json.dumps(key.missing)}`"
        without += f", with `torch_adam` `{TORCH_ADAM[name]}`" if name in TORCH_ADAM else ""
        lines.append(f"| `{name}` | {key.says}{condition}{without} |")
    return "\n".join(
        [*lines, "| `scheduler.*` | `--lr-schedule`, `--warmup-steps`, `--warmup-shape`, `--decay-steps`, `--min-lr` |"]
    )
