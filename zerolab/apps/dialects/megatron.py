"""Megatron-LM's flags as settings of a run, and a run as its flags.

Its four sharding strategies are our stages. `--use-distributed-optimizer` alone is its older way: stage 1 whose
gradients are reduce-scattered. `--num-microbatches` is of a text on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from zerolab.apps.dialects.keys import Settings, missing_of, require, require_of, run_of
from zerolab.errors import InputError
from zerolab.models import LlamaConfig
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec
from zerolab.run.spec import SIZES, names_in

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


@dataclass(frozen=True)
class Flag:
    """One of Megatron-LM's flags.

    help     what `zerolab train --help` says of it; "" if that has such a flag itself
    takes    what stands for its value there; None if it takes none
    setting  the setting whose value it has as it is
    words    else its values, with what each means; of a switch, True
    parse    else what its value means, or an InputError that goes on after its name
    make     its value in a run, of `facts_of` it, where neither says it
    when     the fact without which it is left out
    """

    help: str = ""
    takes: str | None = "N"
    setting: str = ""
    words: Mapping[Any, Settings] = field(default_factory=dict)
    parse: Callable[[Any], Settings] = lambda _: {}
    make: Callable[[Any], Any] = lambda _: None
    when: str = ""

    def read(self, value: Any) -> Settings:
        if self.setting:
            return {self.setting: value}
        if not self.words:
            return self.parse(value)
        if value not in self.words:
            raise InputError(f"is {value!r}; give {' or '.join(self.words)}")
        return self.words[value]

    def write(self, facts: Any) -> Any:
        """Its value in a run; True for a switch, None or False where it is left out."""
        if self.when and not getattr(facts, self.when):
            return None
        for word, meant in self.words.items():
            if all(getattr(facts, setting) == value for setting, value in meant.items()):
                return word
        return getattr(facts, self.setting) if self.setting else self.make(facts)


def share(setting: str, takes: str = "N", when: str = "") -> Flag:
    """A flag that has a setting's value as it is."""
    return Flag(f"the same as --{setting.replace('_', '-')}", takes, setting, when=when)


def own(setting: str, when: str = "") -> Flag:
    """A flag that `zerolab train` has by the same name."""
    return Flag(setting=setting, when=when)


def switch(help: str, meant: Settings, when: str = "") -> Flag:
    return Flag(help, None, words={True: meant}, when=when)


def choose(help: str, words: Mapping[str, Settings], when: str = "") -> Flag:
    return Flag(help, "|".join(words), words=words, when=when)


def parse_number(text: Any) -> int:
    """A whole number as a flag has it. The InputError goes on after the flag's name."""
    require(str(text).isdecimal() and int(text) > 0, f"is {text!r}; give a whole number of at least 1")
    return int(text)


def parse_power_of_two(value: Any) -> Settings:
    try:
        fraction, power = math.frexp(float(value))
    except ValueError:
        fraction, power = 0.0, 0
    fits = fraction == 0.5 and 1 <= power <= 128
    require(fits, f"is {value!r}; give a power of two, such as {2**16}, which the scale is here")
    return {"initial_scale_power": power - 1}


def parse_minutes(value: Any) -> Settings:
    """Of one collective; we say it in seconds."""
    require(parse_number(value) <= MOST_MINUTES, f"is {value}; give at most {MOST_MINUTES}")
    return {"collective_timeout": 60.0 * parse_number(value)}


def facts_of(run: RunSpec) -> SimpleNamespace:
    """A run's settings as Megatron-LM has them, and what else its flags say."""
    dtypes = run.dtypes or Precision()
    kept = {name: getattr(dtypes, name) for name in DTYPES}
    if dtypes.reduce == kept["main_grads"] == "fp16":
        # Megatron-LM keeps them in fp32 there, with more bytes and the same values.
        kept["main_grads"] = "fp32"
    # With 16-bit gradients zerolab keeps reduced ones in 16 bits, Megatron-LM in fp32.
    told = dtypes.reduce != "fp32" and dtypes.main_grads == "fp32"
    named = run.model_fields_set & {*names_in("model and data")} - NO_SIZES
    shape = run.architecture if named else None
    is_llama = isinstance(shape, LlamaConfig)
    reduce = None if dtypes.params == "fp32" else dtypes.reduce
    return SimpleNamespace(
        **{name: getattr(run, name) for name in RunSpec.model_fields}
        | {name: getattr(shape, name, None) for name in (*SIZES, "rope_theta")}
        | {f"{name}_dtype": dtype for name, dtype in kept.items()}
        | {
            "shape": shape,
            "model": "llama" if is_llama else "gpt2",
            "context": shape and shape.max_seq_len,
            "has_no_bias": is_llama or (shape and not getattr(shape, "bias", True)),
            "params_dtype": dtypes.params,
            "grads_dtype": reduce,
            "reduce_dtype": reduce,
            "fp8": dtypes.fp8,
            "is_aware": told or {*kept.values()} != {"fp32"},
            "is_dynamic": dtypes.scales_loss and not run.loss_scale,
            "is_static": dtypes.scales_loss and run.loss_scale,
            "is_fsdp": run.stage > 1 or (run.stage == 1 and run.reduction == "all_reduce"),
            "offload_optimizer": run.places.optimizer,
            "is_offloaded": run.places.optimizer == "host",
            "is_copied": run.instances > 1,
            "micro_batch_size": run.micro_batch_size,
            "falls": run.lr_schedule != "constant",
            "decay_steps": run.decay_steps or run.max_steps,
        }
    )


RECOMPUTED = "each block is recomputed by itself"
IN_FP32 = dict.fromkeys(("grads_dtype", "reduce_dtype", "main_grads_dtype"), "fp32")
NORMS: dict[str, Settings] = {"RMSNorm": {"model": "llama"}, "LayerNorm": {"model": "gpt2"}}
POSITIONS: dict[str, Settings] = {"rope": {"model": "llama"}, "learned_absolute": {"model": "gpt2"}}
TABLE: dict[str, Flag] = {
    "tensor-model-parallel-size": Flag("1: zerolab builds no grids of parallelism yet", make=lambda _: 1),
    "pipeline-model-parallel-size": Flag("1, likewise", make=lambda _: 1),
    "expert-model-parallel-size": Flag("1, likewise"),
    "context-parallel-size": Flag("1, likewise"),
    "micro-batch-size": Flag("sequences of a rank in a micro-batch", make=lambda m: m.micro_batch_size),
    "global-batch-size": Flag("the same as --batch-size", make=lambda m: m.batch_size),
    "num-microbatches": Flag("the same as --grad-accum-steps"),
    "seq-length": share("seq_len"),
    "train-iters": share("max_steps"),
    "lr": own("lr"),
    "lr-decay-style": share("lr_schedule", "constant|cosine|linear"),
    "adam-beta1": share("beta1", "X"),
    "adam-beta2": share("beta2", "X"),
    "adam-eps": share("eps", "X"),
    "weight-decay": own("weight_decay"),
    "clip-grad": share("clip_norm", "X"),
    "seed": own("seed", "seed"),  # It takes none below 1.
    "vocab-size": own("vocab_size"),
    "use-megatron-fsdp": switch("shard; without a strategy: optim_grads_params", {}, "is_fsdp"),
    "use-distributed-optimizer": switch("shard; without a strategy: stage 1", {}, "zero_stage"),
    "overlap-grad-reduce": switch("the same as --overlap", {"overlap": True}),
    "overlap-param-gather": switch("likewise", {"overlap": True}, "zero_stage"),
    "num-distributed-optimizer-instances": own("num_distributed_optimizer_instances", "is_copied"),
    "data-parallel-sharding-strategy": choose(
        "ZeRO stage 0, 1 (gradients all-reduced), 2 or 3", STRATEGIES, "is_fsdp"
    ),
    # Megatron-FSDP saves in no other format.
    "ckpt-format": Flag("any", "NAME", make=lambda _: "fsdp_dtensor", when="is_fsdp"),
    "bf16": Flag(words={True: {"params_dtype": "bf16"}}),
    "fp16": Flag(words={True: {"params_dtype": "fp16"}}),
    "fp8-format": choose("the same as --fp8", {"hybrid": {"fp8": True}}),
    "grad-reduce-in-bf16": switch("the same as --reduce-dtype bf16", {"reduce_dtype": "bf16"}),
    "accumulate-allreduce-grads-in-fp32": switch("gradients are kept, reduced and kept again in fp32", IN_FP32),
    "use-precision-aware-optimizer": switch(
        "the dtypes of the optimizer's states are always heeded", {}, "is_aware"
    ),
    **{f"{name.replace('_', '-')}-dtype": own(f"{name}_dtype", "is_aware") for name in DTYPES},
    "loss-scale": own("loss_scale", "is_static"),
    "initial-loss-scale": Flag(
        "a power of two", "X", parse=parse_power_of_two, make=lambda m: 2**m.initial_scale_power,
        when="is_dynamic",
    ),
    "min-loss-scale": own("min_loss_scale", "is_dynamic"),
    "loss-scale-window": own("loss_scale_window", "is_dynamic"),
    "hysteresis": own("hysteresis", "is_dynamic"),
    "recompute-granularity": choose("--checkpoint-activations", {"full": {"checkpoint_activations": True}}),
    "recompute-method": choose(RECOMPUTED, {"uniform": {}}, "checkpoint_activations"),
    "recompute-num-layers": choose(RECOMPUTED, {"1": {}}, "checkpoint_activations"),
    "ddp-bucket-size": share("bucket_numel"),
    "optimizer-cpu-offload": switch("as --offload-optimizer host", {"offload_optimizer": "host"}),
    "optimizer-offload-fraction": choose(
        "all of the optimizer's states are offloaded, or none", {"1.0": {}}, "is_offloaded"
    ),
    "min-lr": own("min_lr", "falls"),
    "lr-decay-iters": share("decay_steps", when="falls"),
    "lr-warmup-iters": share("warmup_steps", when="warmup_steps"),
    "eval-interval": share("eval_every"),
    "eval-iters": share("eval_steps", when="eval_every"),
    "distributed-timeout-minutes": Flag(
        "--collective-timeout, in minutes", parse=parse_minutes,
        # Both have ten minutes by default.
        make=lambda m: f"{m.collective_timeout / 60:.0f}" if m.collective_timeout != 600 else None,
    ),
    "save": share("save_folder", "FOLDER"),
    "save-interval": share("save_every"),
    "load": share("resume", "FOLDER"),
    "num-layers": share("layers"),
    "hidden-size": share("dim"),
    "num-attention-heads": share("heads"),
    "max-position-embeddings": share("context"),
    "hidden-dropout": share("dropout", "X", "shape"),
    "attention-dropout": share("dropout", "X", "shape"),
    "ffn-hidden-size": share("ffn_dim"),
    "num-query-groups": share("kv_heads"),
    "normalization": choose("what tells --model llama from gpt2", NORMS, "shape"),
    "position-embedding-type": choose("likewise", POSITIONS, "shape"),
    "rotary-base": choose("--model llama has this base", {"500000": {}}, "rope_theta"),
    "group-query-attention": switch("as --num-query-groups says", {}, "kv_heads"),
    "swiglu": switch("the feed-forward of --model llama", {"model": "llama"}, "shape"),
    "disable-bias-linear": switch("as zerolab's models are, unless --bias is given", {}, "has_no_bias"),
    "untie-embeddings-and-output-weights": switch("the same as --no-tied-head", {"tied_head": False}),
}  # fmt: skip
"""By name, without the dashes before it, in the order in which they are written."""
FLAGS = {name: flag for name, flag in TABLE.items() if flag.help}
"""Those that `zerolab train` takes beside its own."""
SHARDING = {"use-distributed-optimizer", "use-megatron-fsdp", "data-parallel-sharding-strategy"}
"""Who gives one of these looks for the line in the log that says whether it was heeded."""
GRIDS = [name for name in FLAGS if name.endswith("parallel-size")]
BATCH = ("micro-batch-size", "num-microbatches", "global-batch-size")


def flags_of(names: Iterable[str]) -> dict[str, str]:
    """By setting, which of these flags has its value."""
    return {FLAGS[name].setting: name for name in names if FLAGS[name].setting}


def read(flags: Mapping[str, Any], ranks: int) -> Settings:
    """What `FLAGS` mean for so many ranks; a switch is True. Raises InputError that names the flag."""
    settings: Settings = {}
    for name, value in flags.items():
        try:
            meant = FLAGS[name].read(value)
            if name in (*GRIDS, *BATCH):
                parse_number(value)
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
    said = f"--data-parallel-sharding-strategy is {strategy}"
    shards = strategy != "no_shard"
    require(on or not shards, f"{said} but nothing turns sharding on; add --use-distributed-optimizer")
    shards_nothing = f"--use-distributed-optimizer is given but {said}, which shards nothing"
    require(shards or fsdp or not on, f"{shards_nothing}; choose another, or leave the flag out")
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
    """Words of a command line, with the model's sizes if `settings` names it. Raises InputError for what Megatron-LM
    has no flag for."""
    run = run_of(settings)
    facts = facts_of(run)
    check(run, facts)
    values = {name: flag.write(facts) for name, flag in TABLE.items()}
    if facts.model == "gpt2":
        # A GPT's norm is said after its positions.
        later = [*values][[*values].index("normalization") :]
        values |= {name: values.pop(name) for name in later if name[0] != "p"}
    words: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return words


def check(run: RunSpec, facts: SimpleNamespace) -> None:
    """Raise an InputError for what Megatron-LM has no flag for."""
    precision = run.dtypes or Precision()
    fits = not run.warmup_steps or run.warmup_shape == "line"
    require_of(run, "warmup_shape", fits, "Megatron-LM warms up in a line; choose line")
    known = {"fp32": ("fp32",), "bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}[precision.params]
    for name in ("reduce", "grads"):
        # In which dtype gradients are kept until they are reduced, and travel: there these two are one.
        dtype = getattr(precision, name)
        require(
            dtype in known and dtype == precision.reduce,
            f"{name}_dtype is {dtype}, and Megatron-LM keeps and reduces gradients of {precision.params} "
            f"parameters in {' or '.join(known)}; choose one for grads_dtype and reduce_dtype",
        )
    fits, kept_in = "fp32" in (precision.params, precision.main_grads), precision.main_grads
    why = "and Megatron-LM keeps gradients that are reduced in fp32 so; choose fp32"
    require(fits or precision.reduce != "fp32", f"main_grads_dtype is {kept_in}, {why}")
    for name in DTYPES:
        dtype = getattr(facts, f"{name}_dtype")
        why = f"and Megatron-LM keeps it in {' or '.join(DTYPES[name])} only; choose one"
        require(dtype in DTYPES[name], f"{name}_dtype is {dtype}, {why}")
    fits = run.places.optimizer != "disk" and run.places.parameters == "device"
    why = "Megatron-LM offloads optimizer states to the host only; choose that, or nothing"
    require_of(run, "offload_optimizer offload_param", fits, why)
    why = "Megatron-LM has whole minutes; choose a multiple of 60"
    require_of(run, "collective_timeout", run.collective_timeout % 60 == 0, why)
