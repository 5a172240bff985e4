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
from types import SimpleNamespace
from typing import Any

from zerolab.apps.dialects.keys import Rule, Settings, missing_of, run_of
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


Writer = Callable[[Any], Any]
"""Of what `facts_of` a run says."""


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
    return Flag(said, takes, lambda value: {setting: value}, write or (lambda m: getattr(m.run, setting)), setting)


def ours(write: Writer) -> Flag:
    """A flag that `zerolab train` has by the same name."""
    return Flag("", write=write)


def switch(help: str, meant: Settings, write: Writer = lambda _: None) -> Flag:
    return Flag(help, None, lambda _: meant, write)


def choice(help: str, words: Mapping[str, Settings], write: Writer = lambda _: None) -> Flag:
    """A flag of a few words, each of which means settings; one word alone is written where `write` says so."""

    def read(value: Any) -> Settings:
        if value not in words:
            raise InputError(f"is {value!r}; give {' or '.join(words)}")
        return words[value]

    return Flag(help, "|".join(words), read, lambda m: next(iter(words)) if write(m) is True else write(m))


def only(word: str, why: str, write: Writer = lambda _: None) -> Flag:
    """A flag that may only say what zerolab does anyway."""
    return choice(why, {word: {}}, write)


def number(text: Any) -> int:
    """A whole number as a flag has it. The InputError goes on after the flag's name."""
    if not str(text).isdecimal() or int(text) < 1:
        raise InputError(f"is {text!r}; give a whole number of at least 1")
    return int(text)


def power_of_two(value: Any) -> Settings:
    try:
        fraction, power = math.frexp(float(value))
    except ValueError:
        fraction, power = 0.0, 0
    if fraction != 0.5 or not 1 <= power <= 128:
        raise InputError(f"is {value!r}; give a power of two, such as {2**16}, since the loss scale is one here")
    return {"initial_scale_power": power - 1}


def minutes(value: Any) -> Settings:
    """Of one collective; we say it in seconds."""
    if number(value) > MOST_MINUTES:
        raise InputError(f"is {value}; give at most {MOST_MINUTES}")
    return {"collective_timeout": 60.0 * number(value)}


def facts_of(run: RunSpec) -> SimpleNamespace:
    """What several flags ask of a run."""
    dtypes = run.dtypes or Precision()
    kept = {name: getattr(dtypes, name) for name in DTYPES}
    if dtypes.reduce == kept["main_grads"] == "fp16":
        # Megatron-LM keeps them in fp32 there, with more bytes and the same values.
        kept["main_grads"] = "fp32"
    # With 16-bit gradients zerolab keeps reduced ones in 16 bits unless it is told otherwise; there it is fp32.
    told = dtypes.reduce != "fp32" and dtypes.main_grads == "fp32"
    named = run.model_fields_set & {*names_in("model and data")} - NO_SIZES
    return SimpleNamespace(
        run=run,
        shape=run.architecture if named else None,
        llama=run.architecture if named and isinstance(run.architecture, LlamaConfig) else None,
        dtypes=dtypes,
        kept=kept,
        aware=told or {*kept.values()} != {"fp32"},
        reduces=None if dtypes.params == "fp32" else dtypes.reduce,
        dynamic=dtypes.scales_loss and not run.loss_scale,
        fsdp=run.stage > 1 or (run.stage == 1 and run.reduction == "all_reduce"),
        recomputes=run.checkpoint_activations,
        offloads=run.places.optimizer == "host",
        falls=run.lr_schedule != "constant",
    )


TABLE: dict[str, Flag] = {
    "tensor-model-parallel-size": Flag("1: zerolab builds no grids of parallelism yet", write=lambda m: 1),
    "pipeline-model-parallel-size": Flag("1, likewise", write=lambda m: 1),
    "expert-model-parallel-size": Flag("1, likewise"),
    "context-parallel-size": Flag("1, likewise"),
    "micro-batch-size": Flag("sequences of a rank in a micro-batch", write=lambda m: m.run.micro_batch_size),
    "global-batch-size": Flag("the same as --batch-size", write=lambda m: m.run.batch_size),
    "num-microbatches": Flag("the same as --grad-accum-steps"),
    "seq-length": same("seq_len"),
    "train-iters": same("max_steps"),
    "lr": ours(lambda m: m.run.lr),
    "lr-decay-style": same("lr_schedule", "constant|cosine|linear"),
    "adam-beta1": same("beta1", "X"),
    "adam-beta2": same("beta2", "X"),
    "adam-eps": same("eps", "X"),
    "weight-decay": ours(lambda m: m.run.weight_decay),
    "clip-grad": same("clip_norm", "X"),
    "seed": ours(lambda m: m.run.seed or None),  # It takes none below 1.
    "vocab-size": ours(lambda m: m.run.vocab_size),
    "use-megatron-fsdp": switch("shard; without a strategy: optim_grads_params", {}, lambda m: m.fsdp),
    "use-distributed-optimizer": switch("shard; without a strategy: stage 1", {}, lambda m: m.run.stage > 0),
    "overlap-grad-reduce": switch("the same as --overlap", {"overlap": True}, lambda m: m.run.overlap),
    "overlap-param-gather": switch("likewise", {"overlap": True}, lambda m: m.run.overlap and m.run.stage > 0),
    "num-distributed-optimizer-instances": ours(lambda m: m.run.instances if m.run.instances > 1 else None),
    "data-parallel-sharding-strategy": choice(
        "ZeRO stage 0, 1 (gradients all-reduced), 2 or 3",
        STRATEGIES,
        lambda m: [*STRATEGIES][m.run.stage] if m.fsdp else None,
    ),
    # Megatron-FSDP saves in no other format.
    "ckpt-format": Flag("any", "NAME", write=lambda m: "fsdp_dtensor" if m.fsdp else None),
    "bf16": ours(lambda m: m.dtypes.params == "bf16"),
    "fp16": ours(lambda m: m.dtypes.params == "fp16"),
    "fp8-format": choice("the same as --fp8", {"hybrid": {"fp8": True}}, lambda m: m.dtypes.fp8),
    "grad-reduce-in-bf16": switch(
        "the same as --reduce-dtype bf16", {"reduce_dtype": "bf16"}, lambda m: m.reduces == "bf16"
    ),
    "accumulate-allreduce-grads-in-fp32": switch(
        "gradients are kept, reduced and kept again in fp32",
        dict.fromkeys(("grads_dtype", "reduce_dtype", "main_grads_dtype"), "fp32"),
        lambda m: m.reduces == "fp32",
    ),
    "use-precision-aware-optimizer": switch(
        "the dtypes of the optimizer's states are always heeded", {}, lambda m: m.aware
    ),
    "main-params-dtype": ours(lambda m: m.kept["main_params"] if m.aware else None),
    "main-grads-dtype": ours(lambda m: m.kept["main_grads"] if m.aware else None),
    "exp-avg-dtype": ours(lambda m: m.kept["exp_avg"] if m.aware else None),
    "exp-avg-sq-dtype": ours(lambda m: m.kept["exp_avg_sq"] if m.aware else None),
    "loss-scale": ours(lambda m: (m.dtypes.scales_loss and m.run.loss_scale) or None),
    "initial-loss-scale": Flag(
        "a power of two", "X", power_of_two, lambda m: 2**m.run.initial_scale_power if m.dynamic else None
    ),
    "min-loss-scale": ours(lambda m: m.run.min_loss_scale if m.dynamic else None),
    "loss-scale-window": ours(lambda m: m.run.loss_scale_window if m.dynamic else None),
    "hysteresis": ours(lambda m: m.run.hysteresis if m.dynamic else None),
    "recompute-granularity": choice(
        "--checkpoint-activations", {"full": {"checkpoint_activations": True}}, lambda m: m.recomputes
    ),
    "recompute-method": only("uniform", "each block is recomputed by itself", lambda m: m.recomputes),
    "recompute-num-layers": only("1", "each block is recomputed by itself", lambda m: m.recomputes),
    "ddp-bucket-size": same("bucket_numel"),
    "optimizer-cpu-offload": switch("as --offload-optimizer host", {"offload_optimizer": "host"}, lambda m: m.offloads),
    "optimizer-offload-fraction": only(
        "1.0", "all of the optimizer's states are offloaded, or none", lambda m: m.offloads
    ),
    "min-lr": ours(lambda m: m.run.min_lr if m.falls else None),
    "lr-decay-iters": same("decay_steps", write=lambda m: m.run.decay_steps or m.run.max_steps if m.falls else None),
    "lr-warmup-iters": same("warmup_steps", write=lambda m: m.run.warmup_steps or None),
    "eval-interval": same("eval_every"),
    "eval-iters": same("eval_steps", write=lambda m: m.run.eval_steps if m.run.eval_every else None),
    "distributed-timeout-minutes": Flag(
        "--collective-timeout, in minutes",
        "N",
        minutes,
        # Both have ten minutes by default.
        lambda m: f"{m.run.collective_timeout / 60:.0f}" if m.run.collective_timeout != 600 else None,
    ),
    "save": same("save_folder", "FOLDER"),
    "save-interval": same("save_every"),
    "load": same("resume", "FOLDER"),
    "num-layers": same("layers", write=lambda m: m.shape and m.shape.layers),
    "hidden-size": same("dim", write=lambda m: m.shape and m.shape.dim),
    "num-attention-heads": same("heads", write=lambda m: m.shape and m.shape.heads),
    "max-position-embeddings": same("context", write=lambda m: m.shape and m.shape.max_seq_len),
    "hidden-dropout": same("dropout", "X", lambda m: m.shape and m.run.dropout),
    "attention-dropout": same("dropout", "X", lambda m: m.shape and m.run.dropout),
    "ffn-hidden-size": same("ffn_dim", write=lambda m: m.llama and m.llama.ffn_dim),
    "num-query-groups": same("kv_heads", write=lambda m: m.llama and m.llama.kv_heads),
    "normalization": choice(
        "what tells --model llama from gpt2",
        {"RMSNorm": {"model": "llama"}, "LayerNorm": {"model": "gpt2"}},
        lambda m: m.shape and ("RMSNorm" if m.llama else "LayerNorm"),
    ),
    "position-embedding-type": choice(
        "likewise",
        {"rope": {"model": "llama"}, "learned_absolute": {"model": "gpt2"}},
        lambda m: m.shape and ("rope" if m.llama else "learned_absolute"),
    ),
    "rotary-base": only("500000", "--model llama has this base", lambda m: m.llama and int(m.llama.rope_theta)),
    "group-query-attention": switch("as --num-query-groups says", {}, lambda m: m.llama is not None),
    "swiglu": switch("the feed-forward of --model llama", {"model": "llama"}, lambda m: m.llama is not None),
    "disable-bias-linear": switch(
        "as zerolab's models are, unless --bias is given", {}, lambda m: bool(m.llama or (m.shape and not m.shape.bias))
    ),
    "untie-embeddings-and-output-weights": switch(
        "the same as --no-tied-head", {"tied_head": False}, lambda m: m.shape and not m.shape.tied_head
    ),
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
    """The batch; what is missing of it follows."""
    micro, steps, whole = (int(flags[name]) if name in flags else None for name in BATCH)
    found: Settings = {"grad_accum_steps": steps, "batch_size": whole}
    if micro is not None:
        follows = missing_of(micro, steps, whole, ranks, [f"--{name}" for name in BATCH])
        found = {"batch_size": whole, "grad_accum_steps": steps or 1} | follows
    return {name: value for name, value in found.items() if value is not None}


def write(settings: Settings) -> list[str]:
    """Megatron-LM's flags for a run, as words of a command line; how many processes there are is its launcher's to say.
    The model's sizes are among them if `settings` names the model. Raises InputError for what Megatron-LM has no flag
    for."""
    run = run_of(settings)
    facts = facts_of(run)
    check(run, facts.dtypes, facts.kept)
    values = {name: flag.write(facts) for name, flag in TABLE.items()}
    if not facts.llama:
        # A GPT's norm is said after its positions.
        values |= {name: values.pop(name) for name in [*values][[*values].index("normalization") :] if name[0] != "p"}
    words: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def check(run: RunSpec, precision: Precision, kept: Mapping[str, str]) -> None:
    """Raise an InputError for what Megatron-LM has no flag for."""
    if run.warmup_steps and run.warmup_shape != "line":
        raise InputError(f"warmup_shape is {run.warmup_shape}, and Megatron-LM warms up in a line; choose line")
    known = {"fp32": ("fp32",), "bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}[precision.params]
    for name in ("reduce", "grads"):
        # In which dtype gradients are kept until they are reduced, and travel: there these two are one.
        if (dtype := getattr(precision, name)) not in known or dtype != precision.reduce:
            raise InputError(
                f"{name}_dtype is {dtype}, and Megatron-LM keeps and reduces gradients of {precision.params} "
                f"parameters in {' or '.join(known)}; choose one for grads_dtype and reduce_dtype"
            )
    if precision.params != "fp32" and precision.reduce == "fp32" != precision.main_grads:
        raise InputError(
            f"main_grads_dtype is {precision.main_grads}, and Megatron-LM keeps gradients that are reduced in fp32 so; "
            "choose fp32"
        )
    for name, dtype in kept.items():
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
