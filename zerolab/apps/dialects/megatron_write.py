"""Settings of a run as Megatron-LM's flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerolab.apps.dialects.keys import Settings, whole_run
from zerolab.apps.interop.huggingface.start import with_shape
from zerolab.errors import InputError
from zerolab.models.llama import LlamaConfig
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec
from zerolab.run.spec import names_in
from zerolab.train.debug import STRATEGIES

NO_SIZES = {"vocab_size", "data_mode", "dataset", "compile", "compile_backend"}
"""Of the settings of a model, those that say nothing of its architecture."""


def write(settings: Settings) -> list[str]:
    """Megatron-LM's flags for a run, as words of a command line; how many processes there are is its launcher's to say.
    The model's sizes are among them if `settings` names the model. Raises InputError for what Megatron-LM has no flag
    for."""
    run = whole_run(settings)
    steps, ranks = run["grad_accum_steps"], run["ranks"]
    if run["warmup_steps"] and run["warmup_shape"] != "line":
        raise InputError(f"warmup_shape is {run['warmup_shape']}, and Megatron-LM warms up in a line; choose line")
    values = {
        "tensor-model-parallel-size": 1,
        "pipeline-model-parallel-size": 1,
        "micro-batch-size": run["batch_size"] // (steps * ranks),
        "global-batch-size": run["batch_size"],
        "seq-length": run["seq_len"],
        "train-iters": run["max_steps"],
        "lr": run["lr"],
        "lr-decay-style": run["lr_schedule"],
        "adam-beta1": run["beta1"],
        "adam-beta2": run["beta2"],
        "adam-eps": run["eps"],
        "weight-decay": run["weight_decay"],
        "clip-grad": run["clip_norm"],
    }
    if run["seed"]:
        # It takes none below 1.
        values["seed"] = run["seed"]
    if run["vocab_size"] is not None:
        values["vocab-size"] = run["vocab_size"]
    flags = shown(values) + sharding_flags(run) + precision_flags(settings)
    if run["checkpoint_activations"]:
        flags += ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if run["bucket_numel"] is not None:
        flags += ["--ddp-bucket-size", str(run["bucket_numel"])]
    flags += offload_flags(run)
    if run["lr_schedule"] != "constant":
        flags += shown({"min-lr": run["min_lr"], "lr-decay-iters": run["decay_steps"] or run["max_steps"]})
    if run["warmup_steps"]:
        flags += ["--lr-warmup-iters", str(run["warmup_steps"])]
    if run["eval_every"] is not None:
        flags += shown({"eval-interval": run["eval_every"], "eval-iters": run["eval_steps"]})
    flags += timeout_flags(run)
    folders = {"save": run["save_folder"], "save-interval": run["save_every"], "load": run["resume"]}
    flags += shown({name: value for name, value in folders.items() if value is not None})
    return flags + model_flags(settings, run)


def timeout_flags(run: Settings) -> list[str]:
    """The limit of one collective, where it is not the ten minutes that both have by default."""
    seconds = run["collective_timeout"]
    if seconds == RunSpec.model_fields["collective_timeout"].default:
        return []
    if seconds % 60:
        raise InputError(
            f"collective_timeout is {seconds:g} s, and Megatron-LM has whole minutes; choose a multiple of 60"
        )
    return ["--distributed-timeout-minutes", f"{seconds / 60:.0f}"]


def shown(values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def sharding_flags(run: Settings) -> list[str]:
    stage, overlap = run["zero_stage"], ["--overlap-grad-reduce"] if run["overlap"] else []
    if stage == 0:
        return overlap
    flags = ["--use-distributed-optimizer", *overlap, *(["--overlap-param-gather"] if overlap else [])]
    if run["num_distributed_optimizer_instances"] > 1:
        flags += ["--num-distributed-optimizer-instances", str(run["num_distributed_optimizer_instances"])]
    if stage == 1 and run["reduction"] == "reduce_scatter":
        return flags
    # Megatron-FSDP saves in no other format.
    return [
        "--use-megatron-fsdp", *flags, "--data-parallel-sharding-strategy", STRATEGIES[stage],
        "--ckpt-format", "fsdp_dtensor",
    ]  # fmt: skip


MEGATRON = {
    "main_params": ("fp32", "fp16"),
    "main_grads": ("fp32", "bf16"),
    "exp_avg": ("fp32", "fp16", "bf16", "fp8"),
    "exp_avg_sq": ("fp32", "fp16", "bf16", "fp8"),
}
"""The dtypes that its precision-aware optimizer has for each state."""


def precision_flags(settings: Settings) -> list[str]:
    known = {name: value for name, value in settings.items() if name in RunSpec.model_fields}
    precision = RunSpec.model_construct(**known).dtypes or Precision()
    flags = [] if precision.params == "fp32" else [f"--{precision.params}"]
    flags += ["--fp8-format", "hybrid"] if precision.fp8 else []
    flags += reduction_flags(precision)
    dtypes = {state: getattr(precision, state) for state in MEGATRON}
    if precision.reduce == "fp16" and dtypes["main_grads"] == "fp16":
        # Megatron-LM keeps reduced gradients in fp32 there, with more bytes and the same values.
        dtypes["main_grads"] = "fp32"
    for state, dtype in dtypes.items():
        if dtype not in MEGATRON[state]:
            raise InputError(
                f"{state}_dtype is {dtype}, and Megatron-LM keeps it in {' or '.join(MEGATRON[state])} only; choose one"
            )
    # With 16-bit gradients zerolab keeps reduced ones in 16 bits unless it is told otherwise; there it is fp32.
    told = precision.reduce != "fp32" and precision.main_grads == "fp32"
    if told or any(dtype != "fp32" for dtype in dtypes.values()):
        flags += [
            "--use-precision-aware-optimizer",
            *shown({f"{s.replace('_', '-')}-dtype": d for s, d in dtypes.items()}),
        ]
    if precision.scales_loss:
        run = whole_run(settings)
        scale = {"loss-scale": run["loss_scale"]} if run["loss_scale"] else {
            "initial-loss-scale": 2 ** run["initial_scale_power"],
            "min-loss-scale": run["min_loss_scale"],
            "loss-scale-window": run["loss_scale_window"],
            "hysteresis": run["hysteresis"],
        }  # fmt: skip
        flags += shown(scale)
    return flags


def reduction_flags(precision: Precision) -> list[str]:
    """In which dtype gradients are kept until they are reduced, and travel: there these two are one."""
    known = {"fp32": ("fp32",), "bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}[precision.params]
    for name, dtype in (("reduce", precision.reduce), ("grads", precision.grads)):
        if dtype not in known or dtype != precision.reduce:
            raise InputError(
                f"{name}_dtype is {dtype}, and Megatron-LM keeps and reduces gradients of {precision.params} "
                f"parameters in {' or '.join(known)}; choose one for grads_dtype and reduce_dtype"
            )
    if precision.params == "fp32" or precision.reduce == "fp16":
        return []
    if precision.reduce == "bf16":
        return ["--grad-reduce-in-bf16"]
    if precision.main_grads != "fp32":
        raise InputError(
            f"main_grads_dtype is {precision.main_grads}, and Megatron-LM keeps gradients that are reduced in fp32 so; "
            "choose fp32"
        )
    return ["--accumulate-allreduce-grads-in-fp32"]


def offload_flags(run: Settings) -> list[str]:
    optimizer, parameters = run["offload_optimizer"], run["offload_param"]
    if optimizer in ("disk", "nvme") or parameters not in ("device", "none"):
        where = f"offload_optimizer is {optimizer} and offload_param {parameters}"
        raise InputError(
            f"{where}, but Megatron-LM offloads optimizer states to the host only; choose that, or nothing"
        )
    return [] if optimizer in ("device", "none") else ["--optimizer-cpu-offload", "--optimizer-offload-fraction", "1.0"]


def model_flags(settings: Settings, run: Settings) -> list[str]:
    """The sizes of a model of `zerolab.models`, if `settings` says anything of one."""
    if not settings.keys() & {*names_in("model and data")} - NO_SIZES:
        return []
    shape = RunSpec.model_construct(**with_shape(run)).architecture
    sizes: dict[str, Any] = {
        "num-layers": shape.layers,
        "hidden-size": shape.dim,
        "num-attention-heads": shape.heads,
        "max-position-embeddings": shape.max_seq_len,
        "hidden-dropout": run["dropout"],
        "attention-dropout": run["dropout"],
    }
    untied = [] if shape.tied_head else ["--untie-embeddings-and-output-weights"]
    if not isinstance(shape, LlamaConfig):
        sizes |= {"position-embedding-type": "learned_absolute", "normalization": "LayerNorm"}
        return [*shown(sizes), *([] if shape.bias else ["--disable-bias-linear"]), *untied]
    sizes |= {"ffn-hidden-size": shape.ffn_dim, "num-query-groups": shape.kv_heads, "normalization": "RMSNorm"}
    sizes |= {"position-embedding-type": "rope", "rotary-base": int(shape.rope_theta)}
    switches = ["--group-query-attention", "--swiglu", "--disable-bias-linear"]
    return [*shown(sizes), *switches, *untied]
