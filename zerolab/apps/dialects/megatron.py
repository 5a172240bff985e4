"""Megatron-LM's flags as settings of a run, and a run as its flags.

Its data parallelism has four sharding strategies, which are our stages:

    no_shard              stage 0    gradients all-reduced
    optim                 stage 1    gradients all-reduced; nobody keeps more than its slice of the optimizer
    optim_grads           stage 2    gradients reduce-scattered
    optim_grads_params    stage 3

`--use-distributed-optimizer` without a strategy is Megatron's older way: stage 1 whose gradients are reduce-scattered.
All names are Megatron-LM's but `--num-microbatches`, which a text on it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zerolab.apps.dialects.keys import Rule, Settings, run_of
from zerolab.errors import InputError
from zerolab.models import LlamaConfig
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec
from zerolab.run.spec import names_in

STRATEGIES: dict[str, Settings] = {
    "no_shard": {"zero_stage": 0},
    "optim": {"zero_stage": 1, "reduction": "all_reduce"},
    "optim_grads": {"zero_stage": 2},
    "optim_grads_params": {"zero_stage": 3},
}
MOST_MINUTES = 16_666
"""As many as are fewer than --collective-timeout's most seconds."""
NO_SIZES = {"vocab_size", "data_mode", "dataset", "compile", "compile_backend"}
"""Of the settings of a model, those that say nothing of its architecture."""
DTYPES = {
    "main_params": ("fp32", "fp16"),
    "main_grads": ("fp32", "bf16"),
    "exp_avg": ("fp32", "fp16", "bf16", "fp8"),
    "exp_avg_sq": ("fp32", "fp16", "bf16", "fp8"),
}
"""The dtypes that its precision-aware optimizer has for each state."""


Writer = Callable[[RunSpec], Any]


@dataclass(frozen=True)
class Flag:
    """One of Megatron-LM's flags.

    help       what `zerolab train --help` says of it; "" for a flag that `zerolab train` has by the same name
    takes      what stands for its value there; None if it takes none
    read       what its value means, or an InputError that goes on after the flag's name
    write      its value in a run; True for a switch, None or False where it is left out
    setting    the setting whose value it has as it is
    """

    help: str
    takes: str | None = "N"
    read: Rule = lambda _: {}
    write: Writer = lambda _: None
    setting: str = ""


def same(setting: str, takes: str = "N", write: Writer | None = None) -> Flag:
    """A flag that has a setting's value as it is."""
    said = f"the same as --{setting.replace('_', '-')}"
    return Flag(said, takes, lambda value: {setting: value}, write or (lambda run: getattr(run, setting)), setting)


def size(setting: str, takes: str = "N") -> Flag:
    """One that is written by `write_model`."""
    return same(setting, takes, lambda _: None)


def ours(write: Writer) -> Flag:
    """A flag that `zerolab train` has by the same name."""
    return Flag("", write=write)


def switch(help: str, meant: Settings, write: Writer = lambda _: None) -> Flag:
    return Flag(help, None, lambda _: meant, write)


def choice(help: str, words: Mapping[str, Settings], write: Writer = lambda _: None) -> Flag:
    def read(value: Any) -> Settings:
        if value not in words:
            raise InputError(f"is {value!r}; choose {' or '.join(words)}")
        return words[value]

    return Flag(help, "|".join(words), read, write)


def only(word: str, why: str, write: Writer = lambda _: None, meant: Settings | None = None) -> Flag:
    """A flag that may only say what zerolab does anyway."""

    def read(value: Any) -> Settings:
        if str(value) != word:
            raise InputError(f"is {value!r}, but in zerolab {why}; give {word}")
        return meant or {}

    return Flag(why, word, read, lambda run: word if write(run) else None)


def number(text: Any, least: int = 1) -> int:
    """A whole number as a flag has it. The InputError goes on after the flag's name."""
    if not str(text).isdecimal() or int(text) < least:
        raise InputError(f"is {text!r}; give a whole number of at least {least}")
    return int(text)


def power_of_two(value: Any) -> Settings:
    try:
        scale = float(value)
    except ValueError:
        scale = 0.0
    power = math.frexp(scale)[1] - 1
    if not 0 < scale < math.inf or scale != 2.0**power or not 0 <= power <= 127:
        raise InputError(f"is {value!r}; give a power of two, such as {2**16}, since the loss scale is one here")
    return {"initial_scale_power": power}


def minutes(value: Any) -> Settings:
    """Of one collective; we say it in seconds."""
    if number(value) > MOST_MINUTES:
        raise InputError(f"is {value}; give at most {MOST_MINUTES}")
    return {"collective_timeout": 60.0 * number(value)}


# What a run says.


def dtypes(run: RunSpec) -> Precision:
    return run.dtypes or Precision()


def by_fsdp(run: RunSpec) -> bool:
    return run.stage > 1 or (run.stage == 1 and run.reduction == "all_reduce")


def recomputes(run: RunSpec) -> bool:
    return run.checkpoint_activations


def offloads(run: RunSpec) -> bool:
    return run.places.optimizer == "host"


def falls(run: RunSpec) -> bool:
    return run.lr_schedule != "constant"


def state(name: str) -> Flag:
    """The dtype of a state of the optimizer, where one of them is not what Megatron-LM has anyway."""

    def write(run: RunSpec) -> str | None:
        return kept(run)[name] if is_aware(run) else None

    return ours(write)


def kept(run: RunSpec) -> dict[str, str]:
    """The dtypes of the optimizer's states. Where reduced gradients are fp16 here Megatron-LM keeps them in fp32, with
    more bytes and the same values."""
    found = {name: getattr(dtypes(run), name) for name in DTYPES}
    if dtypes(run).reduce == found["main_grads"] == "fp16":
        found["main_grads"] = "fp32"
    return found


def is_aware(run: RunSpec) -> bool:
    """With 16-bit gradients zerolab keeps reduced ones in 16 bits unless it is told otherwise; there it is fp32."""
    told = dtypes(run).reduce != "fp32" and dtypes(run).main_grads == "fp32"
    return told or {*kept(run).values()} != {"fp32"}


def scaled(write: Writer) -> Writer:
    """Of a dynamic loss scale."""
    return lambda run: write(run) if dtypes(run).scales_loss and not run.loss_scale else None


def has(reduce: str) -> Callable[[RunSpec], bool]:
    return lambda run: dtypes(run).params != "fp32" and dtypes(run).reduce == reduce


TABLE: dict[str, Flag] = {
    "tensor-model-parallel-size": Flag("1: zerolab builds no grids of parallelism yet", write=lambda run: 1),
    "pipeline-model-parallel-size": Flag("1, likewise", write=lambda run: 1),
    "expert-model-parallel-size": Flag("1, likewise"),
    "context-parallel-size": Flag("1, likewise"),
    "micro-batch-size": Flag("sequences of a rank in a micro-batch", write=lambda run: run.micro_batch_size),
    "global-batch-size": Flag("the same as --batch-size", write=lambda run: run.batch_size),
    "num-microbatches": Flag("the same as --grad-accum-steps"),
    "seq-length": same("seq_len"),
    "train-iters": same("max_steps"),
    "lr": ours(lambda run: run.lr),
    "lr-decay-style": same("lr_schedule", "constant|cosine|linear"),
    "adam-beta1": same("beta1", "X"),
    "adam-beta2": same("beta2", "X"),
    "adam-eps": same("eps", "X"),
    "weight-decay": ours(lambda run: run.weight_decay),
    "clip-grad": same("clip_norm", "X"),
    "seed": ours(lambda run: run.seed or None),  # It takes none below 1.
    "vocab-size": ours(lambda run: run.vocab_size),
    "use-megatron-fsdp": switch("shard; without a strategy: optim_grads_params", {}, by_fsdp),
    "use-distributed-optimizer": switch("shard; without a strategy: stage 1", {}, lambda run: run.stage > 0),
    "overlap-grad-reduce": switch("the same as --overlap", {"overlap": True}, lambda run: run.overlap),
    "overlap-param-gather": switch("likewise", {"overlap": True}, lambda run: run.overlap and run.stage > 0),
    "num-distributed-optimizer-instances": ours(lambda run: run.instances if run.instances > 1 else None),
    "data-parallel-sharding-strategy": choice(
        "ZeRO stage 0, 1 (gradients all-reduced), 2 or 3",
        STRATEGIES,
        lambda run: [*STRATEGIES][run.stage] if by_fsdp(run) else None,
    ),
    # Megatron-FSDP saves in no other format.
    "ckpt-format": Flag(
        "any: zerolab's checkpoints have a format of their own",
        "NAME",
        write=lambda run: "fsdp_dtensor" if by_fsdp(run) else None,
    ),
    "bf16": ours(lambda run: dtypes(run).params == "bf16"),
    "fp16": ours(lambda run: dtypes(run).params == "fp16"),
    "fp8-format": choice(
        "the same as --fp8: e4m3 forward, e5m2 backward",
        {"hybrid": {"fp8": True}},
        lambda run: "hybrid" if dtypes(run).fp8 else None,
    ),
    "grad-reduce-in-bf16": switch("the same as --reduce-dtype bf16", {"reduce_dtype": "bf16"}, has("bf16")),
    "accumulate-allreduce-grads-in-fp32": switch(
        "gradients are kept, reduced and kept again in fp32",
        dict.fromkeys(("grads_dtype", "reduce_dtype", "main_grads_dtype"), "fp32"),
        has("fp32"),
    ),
    "use-precision-aware-optimizer": switch("the dtypes of the optimizer's states are always heeded", {}, is_aware),
    **{f"{name.replace('_', '-')}-dtype": state(name) for name in DTYPES},
    "loss-scale": ours(lambda run: (dtypes(run).scales_loss and run.loss_scale) or None),
    "initial-loss-scale": Flag(
        "the dynamic loss scale's first value, a power of two",
        "X",
        power_of_two,
        scaled(lambda run: 2**run.initial_scale_power),
    ),
    "min-loss-scale": ours(scaled(lambda run: run.min_loss_scale)),
    "loss-scale-window": ours(scaled(lambda run: run.loss_scale_window)),
    "hysteresis": ours(scaled(lambda run: run.hysteresis)),
    "recompute-granularity": only("full", "whole blocks are recomputed", recomputes, {"checkpoint_activations": True}),
    "recompute-method": only("uniform", "each block is recomputed by itself", recomputes),
    "recompute-num-layers": only("1", "each block is recomputed by itself", recomputes),
    "ddp-bucket-size": same("bucket_numel"),
    "optimizer-cpu-offload": switch("as --offload-optimizer host", {"offload_optimizer": "host"}, offloads),
    "optimizer-offload-fraction": only("1.0", "all of the optimizer's states are offloaded, or none", offloads),
    "min-lr": ours(lambda run: run.min_lr if falls(run) else None),
    "lr-decay-iters": same("decay_steps", write=lambda run: run.decay_steps or run.max_steps if falls(run) else None),
    "lr-warmup-iters": same("warmup_steps", write=lambda run: run.warmup_steps or None),
    "eval-interval": same("eval_every"),
    "eval-iters": same("eval_steps", write=lambda run: run.eval_steps if run.eval_every else None),
    "distributed-timeout-minutes": Flag(
        "--collective-timeout, in minutes",
        "N",
        minutes,
        # Both have ten minutes by default.
        lambda run: f"{run.collective_timeout / 60:.0f}" if run.collective_timeout != 600 else None,
    ),
    "save": same("save_folder", "FOLDER"),
    "save-interval": same("save_every"),
    "load": same("resume", "FOLDER"),
    # What follows is written by `write_model`.
    "num-layers": size("layers"),
    "hidden-size": size("dim"),
    "ffn-hidden-size": size("ffn_dim"),
    "num-attention-heads": size("heads"),
    "num-query-groups": size("kv_heads"),
    "max-position-embeddings": size("context"),
    "position-embedding-type": choice(
        "what tells --model llama from gpt2", {"rope": {"model": "llama"}, "learned_absolute": {"model": "gpt2"}}
    ),
    "normalization": choice("likewise", {"RMSNorm": {"model": "llama"}, "LayerNorm": {"model": "gpt2"}}),
    "swiglu": switch("the feed-forward of --model llama", {"model": "llama"}),
    "group-query-attention": switch("as --num-query-groups says", {}),
    "rotary-base": only("500000", "--model llama has this base"),
    "disable-bias-linear": switch("as zerolab's models are, unless --bias is given", {}),
    "untie-embeddings-and-output-weights": switch("the same as --no-tied-head", {"tied_head": False}),
    "hidden-dropout": size("dropout", "X"),
    "attention-dropout": size("dropout", "X"),
}
"""By name, without the dashes before it, in the order in which they are written."""
FLAGS = {name: flag for name, flag in TABLE.items() if flag.help}
"""Those that `zerolab train` takes beside its own."""
SHARDING = {"use-distributed-optimizer", "use-megatron-fsdp", "data-parallel-sharding-strategy"}
"""Who gives one of these looks for the line in the log that says whether it was heeded."""
GRIDS = [name for name in FLAGS if name.endswith("parallel-size")]
BATCH = ("micro-batch-size", "num-microbatches", "global-batch-size")


def flags_of(names: Iterable[str]) -> dict[str, str]:
    """Of flags that were given, which one says which setting; of those whose value becomes a setting as it is."""
    return {FLAGS[name].setting: name for name in names if FLAGS[name].setting}


def read(flags: Mapping[str, Any], ranks: int) -> Settings:
    """The settings that flags of `FLAGS` mean, for so many ranks. A switch has the value True. Raises InputError of one
    sentence that names the flag and what to do."""
    settings: Settings = {}
    for name, value in flags.items():
        try:
            meant = FLAGS[name].read(value)
            if name in (*GRIDS, *BATCH):
                number(value)
        except InputError as error:
            raise InputError(f"--{name} {error}") from None
        for setting, value_of_it in meant.items():
            if str(settings.setdefault(setting, value_of_it)) != str(value_of_it):
                raise InputError(
                    f"--{name} means {setting} {value_of_it}, but another of Megatron-LM's flags means "
                    f"{settings[setting]}; give one of the two"
                )
    for name in GRIDS:
        degree = int(flags.get(name, 1))
        if degree > 1:
            why = f"but zerolab has no {name.split('-')[0]} parallelism yet"
            why = f"which does not divide {ranks} ranks" if ranks % degree else why
            raise InputError(f"--{name} is {degree}, {why}; give 1")
    return settings | read_sharding(flags) | read_batch(flags, ranks)


def read_sharding(flags: Mapping[str, Any]) -> Settings:
    """The stage; a strategy and the switch that turns it on must agree."""
    strategy, fsdp = flags.get("data-parallel-sharding-strategy"), flags.get("use-megatron-fsdp")
    on = flags.get("use-distributed-optimizer") or fsdp
    if strategy is None:
        older = {"zero_stage": 1, "reduction": "reduce_scatter"}
        return STRATEGIES["optim_grads_params"] if fsdp else older if on else {}
    if strategy != "no_shard" and not on:
        raise InputError(
            f"--data-parallel-sharding-strategy is {strategy} but nothing turns sharding on; add "
            "--use-distributed-optimizer"
        )
    if strategy == "no_shard" and on and not fsdp:
        raise InputError(
            "--use-distributed-optimizer is given but --data-parallel-sharding-strategy is no_shard, which shards "
            "nothing; choose optim, optim_grads or optim_grads_params, or leave the flag out"
        )
    return STRATEGIES[strategy]


def read_batch(flags: Mapping[str, Any], ranks: int) -> Settings:
    """global batch = micro-batch x micro-batches x ranks: what is missing follows, and all three must agree."""
    micro, steps, whole = (int(flags[name]) if name in flags else None for name in BATCH)
    if micro is None:
        found = {"grad_accum_steps": steps, "batch_size": whole}
        return {name: value for name, value in found.items() if value is not None}
    if whole is None:
        whole = micro * (steps or 1) * ranks
    if whole % (micro * ranks):
        raise InputError(
            f"--global-batch-size is {whole}, which micro-batches of {micro} (--micro-batch-size) on {ranks} ranks do "
            f"not divide; give a multiple of {micro * ranks}"
        )
    if steps is not None and whole != micro * steps * ranks:
        raise InputError(
            f"--num-microbatches is {steps}, but a global batch of {whole} is {whole // (micro * ranks)} micro-batches "
            f"of {micro} on {ranks} ranks; give that, or leave it out"
        )
    return {"batch_size": whole, "grad_accum_steps": whole // (micro * ranks)}


def write(settings: Settings) -> list[str]:
    """Megatron-LM's flags for a run, as words of a command line; how many processes there are is its launcher's to say.
    The model's sizes are among them if `settings` names the model. Raises InputError for what Megatron-LM has no flag
    for."""
    run = run_of(settings)
    check(run)
    values = {name: flag.write(run) for name, flag in TABLE.items()}
    if run.model_fields_set & {*names_in("model and data")} - NO_SIZES:
        values = {name: value for name, value in values.items() if value is not None} | write_model(run)
    words: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def check(run: RunSpec) -> None:
    """Raise an InputError for what Megatron-LM has no flag for."""
    if run.warmup_steps and run.warmup_shape != "line":
        raise InputError(f"warmup_shape is {run.warmup_shape}, and Megatron-LM warms up in a line; choose line")
    precision = dtypes(run)
    known = {"fp32": ("fp32",), "bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}[precision.params]
    for name in ("reduce", "grads"):
        # In which dtype gradients are kept until they are reduced, and travel: there these two are one.
        if (dtype := getattr(precision, name)) not in known or dtype != precision.reduce:
            raise InputError(
                f"{name}_dtype is {dtype}, and Megatron-LM keeps and reduces gradients of {precision.params} "
                f"parameters in {' or '.join(known)}; choose one for grads_dtype and reduce_dtype"
            )
    if has("fp32")(run) and precision.main_grads != "fp32":
        raise InputError(
            f"main_grads_dtype is {precision.main_grads}, and Megatron-LM keeps gradients that are reduced in fp32 so; "
            "choose fp32"
        )
    for name, dtype in kept(run).items():
        if dtype not in DTYPES[name]:
            raise InputError(
                f"{name}_dtype is {dtype}, and Megatron-LM keeps it in {' or '.join(DTYPES[name])} only; choose one"
            )
    if run.places.optimizer == "disk" or run.places.parameters != "device":
        raise InputError(
            f"offload_optimizer is {run.offload_optimizer} and offload_param {run.offload_param}, but Megatron-LM "
            "offloads optimizer states to the host only; choose that, or nothing"
        )
    if run.collective_timeout % 60:
        raise InputError(
            f"collective_timeout is {run.collective_timeout:g} s, and Megatron-LM has whole minutes; choose a multiple "
            "of 60"
        )


def write_model(run: RunSpec) -> dict[str, Any]:
    """The sizes of a model of `zerolab.models`."""
    shape = run.architecture
    sizes: dict[str, Any] = {
        "num-layers": shape.layers,
        "hidden-size": shape.dim,
        "num-attention-heads": shape.heads,
        "max-position-embeddings": shape.max_seq_len,
        "hidden-dropout": run.dropout,
        "attention-dropout": run.dropout,
    }
    if isinstance(shape, LlamaConfig):
        sizes |= {"ffn-hidden-size": shape.ffn_dim, "num-query-groups": shape.kv_heads, "normalization": "RMSNorm"}
        sizes |= {"position-embedding-type": "rope", "rotary-base": int(shape.rope_theta)}
        sizes |= dict.fromkeys(("group-query-attention", "swiglu", "disable-bias-linear"), True)
    else:
        sizes |= {"position-embedding-type": "learned_absolute", "normalization": "LayerNorm"}
        sizes["disable-bias-linear"] = not shape.bias
    return {**sizes, "untie-embeddings-and-output-weights": not shape.tied_head}
