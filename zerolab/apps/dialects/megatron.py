"""Megatron-LM's flags as settings of a run; `megatron_write.py` has the way back.

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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zerolab.apps.dialects.keys import Rule, Settings, named
from zerolab.errors import InputError

STRATEGIES: dict[str, Settings] = {
    "no_shard": {"zero_stage": 0},
    "optim": {"zero_stage": 1, "reduction": "all_reduce"},
    "optim_grads": {"zero_stage": 2},
    "optim_grads_params": {"zero_stage": 3},
}


@dataclass(frozen=True)
class Flag:
    """A flag that `zerolab train` takes from Megatron-LM: what its value means, its help, and what stands for its value
    there (None: it takes none)."""

    rule: Rule
    help: str
    takes: str | None = "N"


def number(text: Any, least: int = 1) -> int:
    """A whole number as a flag has it. The InputError goes on after the flag's name."""
    if not str(text).isdecimal() or int(text) < least:
        raise InputError(f"is {text!r}; give a whole number of at least {least}")
    return int(text)


def alone(kind: str) -> Rule:
    """A grid's size. What is asked of it besides is said where all sizes are known (`check_grid`)."""

    def rule(value: Any) -> Settings:
        number(value)
        return {}

    return rule


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


MOST_MINUTES = 16_666
"""As many as are fewer than --collective-timeout's most seconds."""


def recomputed(value: Any) -> Settings:
    if value != "full":
        raise InputError(f"is {value!r}, but zerolab recomputes whole blocks; give full, or leave it out")
    return {"checkpoint_activations": True}


def only_word(word: str, why: str) -> Rule:
    """A flag that may only say what zerolab does anyway."""

    def rule(value: Any) -> Settings:
        if str(value) != word:
            raise InputError(f"is {value!r}, but in zerolab {why}; give {word}")
        return {}

    return rule


def choice(words: Mapping[str, Settings]) -> Rule:
    def rule(value: Any) -> Settings:
        if value not in words:
            raise InputError(f"is {value!r}; choose {' or '.join(words)}")
        return words[value]

    return rule


def says_nothing(_value: Any) -> Settings:
    """A flag that is read together with others, or asks for what zerolab does anyway."""
    return {}


FLAGS: dict[str, Flag] = {
    "use-distributed-optimizer": Flag(says_nothing, "shard as --data-parallel-sharding-strategy says", None),
    "use-megatron-fsdp": Flag(says_nothing, "the same; without a strategy: optim_grads_params", None),
    "data-parallel-sharding-strategy": Flag(
        choice(STRATEGIES), "ZeRO stage 0, 1 (gradients all-reduced), 2 or 3", "|".join(STRATEGIES)
    ),
    "tensor-model-parallel-size": Flag(alone("tensor"), "1: zerolab builds no grids of parallelism yet"),
    "pipeline-model-parallel-size": Flag(alone("pipeline"), "1, likewise"),
    "expert-model-parallel-size": Flag(alone("expert"), "1, likewise"),
    "context-parallel-size": Flag(alone("context"), "1, likewise"),
    "micro-batch-size": Flag(says_nothing, "sequences of a rank in a micro-batch"),
    "global-batch-size": Flag(says_nothing, "the same as --batch-size"),
    "num-microbatches": Flag(says_nothing, "the same as --grad-accum-steps"),
    "train-iters": Flag(named("max_steps"), "the same as --max-steps"),
    "seq-length": Flag(named("seq_len"), "the same as --seq-len"),
    "lr-decay-style": Flag(named("lr_schedule"), "the same as --lr-schedule", "constant|cosine|linear"),
    "lr-warmup-iters": Flag(named("warmup_steps"), "the same as --warmup-steps"),
    "lr-decay-iters": Flag(named("decay_steps"), "the same as --decay-steps"),
    "eval-interval": Flag(named("eval_every"), "the same as --eval-every"),
    "eval-iters": Flag(named("eval_steps"), "the same as --eval-steps"),
    "num-layers": Flag(named("layers"), "the same as --layers"),
    "hidden-size": Flag(named("dim"), "the same as --dim"),
    "ffn-hidden-size": Flag(named("ffn_dim"), "the same as --ffn-dim"),
    "num-attention-heads": Flag(named("heads"), "the same as --heads"),
    "num-query-groups": Flag(named("kv_heads"), "the same as --kv-heads"),
    "max-position-embeddings": Flag(named("context"), "the same as --context"),
    "position-embedding-type": Flag(
        choice({"rope": {"model": "llama"}, "learned_absolute": {"model": "gpt2"}}),
        "what tells --model llama from gpt2",
        "rope|learned_absolute",
    ),
    "normalization": Flag(
        choice({"RMSNorm": {"model": "llama"}, "LayerNorm": {"model": "gpt2"}}), "likewise", "RMSNorm|LayerNorm"
    ),
    "swiglu": Flag(lambda _: {"model": "llama"}, "the feed-forward of --model llama", None),
    "group-query-attention": Flag(says_nothing, "as --num-query-groups says", None),
    "rotary-base": Flag(only_word("500000", "--model llama has this base"), "500000"),
    "disable-bias-linear": Flag(says_nothing, "as zerolab's models are, unless --bias is given", None),
    "untie-embeddings-and-output-weights": Flag(
        lambda _: {"tied_head": False}, "the head has a weight of its own, as with --no-tied-head", None
    ),
    "hidden-dropout": Flag(named("dropout"), "the same as --dropout", "X"),
    "attention-dropout": Flag(named("dropout"), "the same as --dropout", "X"),
    "clip-grad": Flag(named("clip_norm"), "the same as --clip-norm", "X"),
    "adam-beta1": Flag(named("beta1"), "the same as --beta1", "X"),
    "adam-beta2": Flag(named("beta2"), "the same as --beta2", "X"),
    "adam-eps": Flag(named("eps"), "the same as --eps", "X"),
    "initial-loss-scale": Flag(power_of_two, "the dynamic loss scale's first value, a power of two", "X"),
    "fp8-format": Flag(choice({"hybrid": {"fp8": True}}), "the same as --fp8: e4m3 forward, e5m2 backward", "hybrid"),
    "use-precision-aware-optimizer": Flag(says_nothing, "the dtypes of the optimizer's states are always heeded", None),
    "recompute-granularity": Flag(recomputed, "the same as --checkpoint-activations", "full"),
    "recompute-method": Flag(only_word("uniform", "each block is recomputed by itself"), "uniform", "uniform"),
    "recompute-num-layers": Flag(only_word("1", "each block is recomputed by itself"), "1"),
    "grad-reduce-in-bf16": Flag(lambda _: {"reduce_dtype": "bf16"}, "the same as --reduce-dtype bf16", None),
    "accumulate-allreduce-grads-in-fp32": Flag(
        lambda _: dict.fromkeys(("grads_dtype", "reduce_dtype", "main_grads_dtype"), "fp32"),
        "gradients are kept, reduced and kept again in fp32",
        None,
    ),
    "overlap-grad-reduce": Flag(lambda _: {"overlap": True}, "the same as --overlap", None),
    "overlap-param-gather": Flag(lambda _: {"overlap": True}, "the same as --overlap", None),
    "ddp-bucket-size": Flag(named("bucket_numel"), "the same as --bucket-numel"),
    "optimizer-cpu-offload": Flag(lambda _: {"offload_optimizer": "host"}, "as --offload-optimizer host", None),
    "optimizer-offload-fraction": Flag(
        only_word("1.0", "all of the optimizer's states are offloaded, or none"),
        "1.0: all of the optimizer's states",
        "X",
    ),
    "distributed-timeout-minutes": Flag(minutes, "--collective-timeout, in minutes"),
    "save": Flag(named("save_folder"), "the same as --save-folder", "FOLDER"),
    "save-interval": Flag(named("save_every"), "the same as --save-every"),
    "ckpt-format": Flag(says_nothing, "any: zerolab's checkpoints have a format of their own", "NAME"),
    "load": Flag(named("resume"), "the same as --resume FOLDER", "FOLDER"),
}
"""By name, without the dashes before it. Beside these, `zerolab train` has flags of its own that Megatron-LM has, too:
--fp16, --bf16, --main-params-dtype and its kin, --loss-scale-window, --num-distributed-optimizer-instances and more."""

SHARDING = {"use-distributed-optimizer", "use-megatron-fsdp", "data-parallel-sharding-strategy"}
"""Who gives one of these looks for the line in the log that says whether it was heeded."""
GRIDS = {
    "tensor-model-parallel-size": "tensor",
    "pipeline-model-parallel-size": "pipeline",
    "expert-model-parallel-size": "expert",
    "context-parallel-size": "context",
}


def flags_of(names: Iterable[str]) -> dict[str, str]:
    """Of flags that were given, which one says which setting; of those whose value becomes a setting as it is."""
    found: dict[str, str] = {}
    for name in names:
        with suppress(InputError):
            found |= dict.fromkeys((setting for setting, value in FLAGS[name].rule("1").items() if value == "1"), name)
    return found


def read(flags: Mapping[str, Any], ranks: int) -> Settings:
    """The settings that flags of `FLAGS` mean, for so many ranks. A switch has the value True. Raises InputError of one
    sentence that names the flag and what to do."""
    settings: Settings = {}
    for name, value in flags.items():
        try:
            meant = FLAGS[name].rule(value)
        except InputError as error:
            raise InputError(f"--{name} {error}") from None
        for setting, value_of_it in meant.items():
            if str(settings.setdefault(setting, value_of_it)) != str(value_of_it):
                raise InputError(
                    f"--{name} means {setting} {value_of_it}, but another of Megatron-LM's flags means "
                    f"{settings[setting]}; give one of the two"
                )
    check_grid(flags, ranks)
    return settings | sharding(flags) | batch(flags, ranks)


def sharding(flags: Mapping[str, Any]) -> Settings:
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


def check_grid(flags: Mapping[str, Any], ranks: int) -> None:
    """Sizes of a grid must divide the ranks, and be 1 until grids are built."""
    for name, kind in GRIDS.items():
        size = number(flags.get(name, 1))
        if ranks % size:
            raise InputError(f"--{name} is {size}, which does not divide {ranks} ranks; give 1")
        if size > 1:
            raise InputError(
                f"--{name} is {size}, but zerolab builds no grids of parallelism yet, and so no {kind} parallelism; "
                "give 1"
            )


def batch(flags: Mapping[str, Any], ranks: int) -> Settings:
    """global batch = micro-batch x micro-batches x ranks: what is missing follows, and all three must agree."""
    names = ("micro-batch-size", "num-microbatches", "global-batch-size")
    given: dict[str, int] = {}
    for name in names:
        if name in flags:
            try:
                given[name] = number(flags[name])
            except InputError as error:
                raise InputError(f"--{name} {error}") from None
    micro, steps, whole = map(given.get, names)
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
