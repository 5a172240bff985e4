"""A DeepSpeed configuration as settings of a run, and a run as one.

`TABLE` says key by key what becomes of it: it is honoured, refused by name, or taken with a note where it changes
nothing; none is ignored. What would change the numbers or the memory of a run is honoured or refused; what only tells
of it, or chooses among ways to the same, is taken. "auto" leaves a key to the run's own settings, as under Hugging
Face's trainer, and what it became is said. A key that is not in the file and changes the numbers has DeepSpeed's
default; other keys are left to the run. `docs/deepspeed.md` shows the table.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from zerolab.apps.dialects.keys import Rule, Settings, are_same, missing_of, run_of, whole_number
from zerolab.errors import InputError
from zerolab.precision.recipe import PRECISIONS, Precision
from zerolab.run import RunSpec
from zerolab.run.spec import SIZES, default_batch

Writer = Callable[[RunSpec], Any]


@dataclass(frozen=True)
class Key:
    """A key, or a section with all that is in it.

    rule      what its value means, or an InputError that goes on after its name
    says      for the documentation: what becomes of it
    settings  those that it sets
    wanted    the only value that there is, as JSON
    taken     it changes nothing here, for this reason, which is said at the start of a run; "" if it does
    when      it has a meaning only at stage 3 ("stage 3"), for a disk ("nvme"), or if fp16 is enabled ("fp16"), with a
              scheduler ("scheduler")
    missing   its value where the file does not give it: DeepSpeed's default, for a key that changes the numbers
    write     its value in a run; None where it is left out
    """

    rule: Rule
    says: str
    settings: tuple[str, ...] = ()
    wanted: str = ""
    taken: str = ""
    when: str = ""
    missing: Any = None
    write: Writer = lambda _: None


def honoured(setting: str, rule: Rule | None = None, when: str = "", missing: Any = None, write: Any = None) -> Key:
    """A key that sets one setting, to its own value unless a rule says another."""
    return Key(
        rule or (lambda value: {setting: value}), f"`--{setting.replace('_', '-')}`", (setting,), when=when,
        missing=missing, write=write or (lambda run: getattr(run, setting)),
    )  # fmt: skip


def counted(setting: str, least: int = 1, when: str = "", write: Any = None) -> Key:
    return honoured(setting, lambda value: {setting: whole_number(value, least)}, when, write=write)


def fixed(wanted: Any, why: str, write: Writer = lambda _: None) -> Key:
    """A key that may only say what zerolab does anyway."""
    said = json.dumps(wanted)

    def rule(value: Any) -> Settings:
        if value != wanted:
            raise InputError(f"must be {said}, not {json.dumps(value)}: {why}")
        return {}

    return Key(rule, f"must be `{said}`: {why}", wanted=said, write=write)


def taken(why: str) -> Key:
    return Key(lambda value: {}, f"taken, changes nothing: {why}", taken=why)


def refused(remedy: str, only_on: bool = False) -> Key:
    """A section or a switch that may not be there, or may be there if it is not enabled."""

    def rule(value: Any) -> Settings:
        said = "given" if isinstance(value, dict) else json.dumps(value)
        if only_on:
            if not (value.get("enabled") if isinstance(value, dict) else value):
                return {}
            said = "enabled"
        raise InputError(f"is {said}, and zerolab has nothing of the kind: {remedy}")

    return Key(rule, f"refused{' if it is enabled' if only_on else ''}: {remedy}")


def words(setting: str, meant: Mapping[Any, Any]) -> Rule:
    """The rule of a key that has a few values; what each means."""
    known = [value if isinstance(value, str) else json.dumps(value) for value in meant]

    def rule(value: Any) -> Settings:
        if not isinstance(value, str | bool) or value not in meant:
            raise InputError(f"is {json.dumps(value)}; give {', '.join(known[:-1])} or {known[-1]}")
        return {setting: meant[value]}

    return rule


def truth(setting: str) -> Rule:
    return words(setting, {True: True, False: False})


def check_count(value: Any) -> Settings:
    whole_number(value)
    return {}


def betas(value: Any) -> Settings:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"is {json.dumps(value)}; give two numbers, such as [0.9, 0.999]")
    return {"beta1": value[0], "beta2": value[1]}


def optimizer(value: Any) -> Settings:
    if str(value).lower() not in ("adam", "adamw"):
        raise InputError(f"is {json.dumps(value)}; give AdamW, which zerolab train uses (ZeroEngine takes others)")
    return {}


PLACES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
KINDS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""DeepSpeed's schedulers and ours: after a warm-up constant; to 0 at total_num_steps; to cos_min_ratio of the learning
rate there."""
SHAPES = {"log": "log", "linear": "line"}
"""Warm-ups follow a logarithm unless warmup_type is "linear". Ours begin two steps ahead: there, the first two steps
have the rate 0."""
DEVICES = {"device": None, "host": "cpu", "disk": "nvme"}


def kind_of(run: RunSpec) -> str:
    return next(name for name, ours in KINDS.items() if ours == run.lr_schedule)


def recipe(run: RunSpec) -> str:
    """The section that has the run's precision, "" for fp32; the dtypes in which gradients travel and are kept have
    keys of their own. Raises InputError for a precision that no section has."""
    precision = run.dtypes or Precision()
    if precision == Precision():
        return ""
    for name in ("bf16", "fp16"):
        if replace(PRECISIONS[name], reduce=precision.reduce, main_grads=precision.main_grads) == precision:
            return name
    raise InputError(
        f"precision {precision.name} cannot be said to DeepSpeed, which has bf16, fp16 and fp32; choose one"
    )


def unusual(state: str) -> Writer:
    """The dtype of a state, where it is another than that of the run's section."""

    def write(run: RunSpec) -> str | None:
        name, dtype = recipe(run), getattr(run.dtypes or Precision(), state)
        return dtype if name and dtype != getattr(PRECISIONS[name], state) else None

    return write


def keys(names: str, key: Key) -> dict[str, Key]:
    return dict.fromkeys(names.split(), key)


def unwritten(key: Key) -> Key:
    return replace(key, write=lambda _: None)


def old_offload(setting: str) -> Key:
    """DeepSpeed's older switch for an offload to the host."""
    return unwritten(
        honoured(setting, lambda value: words(setting, {True: "cpu", False: "none"})(value) if value else {})
    )


TELLS = "zerolab's own report, and --profile-json FILE, tell of a run"
FUSED = taken("torch's fused AdamW is what steps")
ANYWAY = taken("zerolab does so anyway, or has no need of it")
BUCKETS = taken("buckets are as reduce_bucket_size cuts them, in one stretch, and gathered in place")
DISK = taken("the disk is read ahead and written behind by threads of zerolab's own")
PINNED = taken("host memory that a GPU copies from or to is pinned")
CHECKPOINTS = taken("checkpoints are zerolab's own, which any number of ranks reads, shard by shard")
WHOLE_16BIT = honoured(
    "zero3_save_16bit_model", truth("zero3_save_16bit_model"), write=lambda run: run.zero3_save_16bit_model or None
)
STAGE_3 = {
    "param_persistence_threshold": counted("param_persistence_threshold", 0, "stage 3"),
    "prefetch_bucket_size": counted(
        "prefetch_bucket_size", 0, "stage 3", lambda run: run.prefetch_bucket_size if run.prefetch else 0
    ),
    "max_live_parameters": counted("max_live_parameters", 0, "stage 3"),
    "max_reuse_distance": counted("max_reuse_distance", 0, "stage 3"),
    "gather_16bit_weights_on_model_save": WHOLE_16BIT,
    "model_persistence_threshold": refused("lower stage3_param_persistence_threshold until what stays fits"),
    "module_granularity_threshold": fixed(0, "units are what the model says, or ZeroEngine(units=...)"),
    "use_all_reduce_for_fetch_params": fixed(False, "parameters are gathered by all-gather, which sends half as much"),
    "allgather_sequential": BUCKETS,
}
"""Keys that DeepSpeed has with and without `stage3_` before them; we write the first."""

ZERO: dict[str, Key] = {
    "stage": honoured("zero_stage"),
    "overlap_comm": honoured("overlap", lambda value: {} if value is None else truth("overlap")(value)),
    "contiguous_gradients": fixed(True, "gradients always lie in flat buffers", lambda _: True),
    "reduce_scatter": honoured(
        "reduction",
        words("reduction", {True: "reduce_scatter", False: "all_reduce"}),
        write=lambda run: run.reduction == "reduce_scatter",
    ),
    "sub_group_size": counted("sub_group_size"),
    "reduce_bucket_size": counted("bucket_numel"),
    "allgather_partitions": fixed(True, "new parameters are always handed around by all-gather"),
    "offload_optimizer.device": honoured(
        "offload_optimizer", words("offload_optimizer", PLACES), write=lambda run: DEVICES[run.places.optimizer]
    ),
    "offload_optimizer.nvme_path": honoured("offload_path", when="nvme"),
    "offload_optimizer.buffer_count": counted("buffer_count", when="nvme"),
    "offload_optimizer.ratio": fixed(1.0, "all of the optimizer's states have one place"),
    "offload_optimizer.super_offload": fixed(False, "leave it out"),
    "offload_optimizer.cpuadam_cores_perc": taken("the host's step runs in torch's threads"),
    "offload_param.device": honoured(
        "offload_param", words("offload_param", PLACES), write=lambda run: DEVICES[run.places.parameters]
    ),
    "offload_param.nvme_path": honoured("offload_path", when="nvme"),
    "offload_param.buffer_count": counted("buffer_count", when="nvme"),
    "offload_param.max_in_cpu": counted("max_in_cpu", 0, "nvme"),
    "offload_param.buffer_size": counted("buffer_size", when="nvme"),
    **keys("offload_optimizer.pin_memory offload_param.pin_memory cpu_offload_use_pin_memory", PINNED),
    **keys("offload_optimizer.pipeline_read offload_optimizer.pipeline_write offload_optimizer.fast_init", DISK),
    "cpu_offload": old_offload("offload_optimizer"),
    "cpu_offload_param": old_offload("offload_param"),
    **{f"stage3_{name}": key for name, key in STAGE_3.items()},
    **{name: unwritten(key) for name, key in STAGE_3.items()},
    "stage3_gather_fp16_weights_on_model_save": unwritten(WHOLE_16BIT),
    **keys("allgather_bucket_size round_robin_gradients use_multi_rank_bucket_allreduce parameter_alignment", BUCKETS),
    **keys("load_from_fp32_weights elastic_checkpoint pipeline_loading_checkpoint", CHECKPOINTS),
    **keys("memory_efficient_linear override_module_apply enable_sanity_checks", ANYWAY),
    "log_trace_cache_warnings": taken(TELLS),
    "ignore_unused_parameters": fixed(True, "a parameter that no rank used has gradient zero"),
    "legacy_stage1": fixed(False, "there is one stage 1"),
    "compute_grad_norm": fixed(True, "the norm is computed if gradient_clipping or a loss scale needs it"),
    "zero_hpz_partition_size": fixed(1, "see --num-distributed-optimizer-instances for shards within a machine"),
    **keys(
        "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients",
        fixed(False, "states rest and travel in dtypes of their own; see --params-dtype and --reduce-dtype"),
    ),
    "zenflow": refused("leave it out; offload_optimizer is the plain way"),
    "leaf_module": refused("name units by the model's units(), or ZeroEngine(units=...)"),
}

TABLE: dict[str, Key] = {
    "train_batch_size": counted("batch_size"),
    "train_micro_batch_size_per_gpu": Key(
        check_count,
        "`--batch-size` / (`--ranks` x `--grad-accum-steps`)",
        write=lambda run: run.micro_batch_size,
    ),
    "gradient_accumulation_steps": counted("grad_accum_steps"),
    "gradient_clipping": honoured("clip_norm", missing=1.0),
    **{f"zero_optimization.{name}": key for name, key in ZERO.items()},
    "optimizer.type": Key(optimizer, "Adam or AdamW, which are one in DeepSpeed, too", write=lambda _: "AdamW"),
    "optimizer.params.lr": honoured("lr", missing=1e-3),
    "optimizer.params.betas": Key(
        betas,
        "`--beta1`, `--beta2`",
        ("beta1", "beta2"),
        missing=[0.9, 0.999],
        write=lambda run: [run.beta1, run.beta2],
    ),
    "optimizer.params.eps": honoured("eps", missing=1e-8),
    "optimizer.params.weight_decay": replace(
        honoured("weight_decay", missing=0.0), says="`--weight-decay`, of matrices alone"
    ),
    "optimizer.params.adam_w_mode": fixed(True, "weights decay apart from gradients, as AdamW has it"),
    "optimizer.params.bias_correction": fixed(True, "AdamW corrects the bias of its moments"),
    "optimizer.params.amsgrad": fixed(False, "zerolab train uses AdamW as it is"),
    **keys("optimizer.params.torch_adam optimizer.params.fused optimizer.legacy_fusion", FUSED),
    "optimizer.params.max_grad_norm": refused("use gradient_clipping"),
    "scheduler.type": honoured("lr_schedule", words("lr_schedule", KINDS), write=kind_of),
    "scheduler.params.warmup_num_steps": counted("warmup_steps", 0),
    "scheduler.params.warmup_type": honoured(
        "warmup_shape", words("warmup_shape", SHAPES), write=lambda run: {"line": "linear"}.get(run.warmup_shape, "log")
    ),
    "scheduler.params.warmup_min_ratio": fixed(
        0, "every run begins there", lambda run: 0.0 if run.lr_schedule == "cosine" else None
    ),
    "scheduler.params.cos_min_ratio": honoured(
        "min_lr", write=lambda run: run.min_lr / run.lr if run.lr_schedule == "cosine" else None
    ),
    "scheduler.params.warmup_min_lr": fixed(
        0, "every run begins there", lambda run: 0.0 if run.lr_schedule != "cosine" else None
    ),
    "scheduler.params.warmup_max_lr": honoured("lr", write=lambda run: run.lr if run.lr_schedule != "cosine" else None),
    "scheduler.params.total_num_steps": counted(
        "decay_steps", write=lambda run: run.decay_steps or run.max_steps if run.lr_schedule != "constant" else None
    ),
    "scheduler.params.last_batch_iteration": fixed(-1, "every run begins there"),
    "bf16.enabled": honoured("bf16", truth("bf16"), missing=False, write=lambda run: recipe(run) == "bf16" or None),
    **keys("bf16.immediate_grad_update bf16.check_grad_overflow fp16.auto_cast", ANYWAY),
    **keys(
        "bf16.bf16_master_weights_and_grads bf16.bf16_optimizer_states fp16.fp16_master_weights_and_grads",
        fixed(False, "use --main-params-dtype, --main-grads-dtype, --exp-avg-dtype and --exp-avg-sq-dtype"),
    ),
    "fp16.enabled": honoured("fp16", truth("fp16"), missing=False, write=lambda run: recipe(run) == "fp16" or None),
    "fp16.loss_scale": honoured("loss_scale", missing=0.0),
    "fp16.initial_scale_power": honoured("initial_scale_power", missing=16),
    "fp16.loss_scale_window": honoured("loss_scale_window", missing=1000),
    "fp16.hysteresis": honoured("hysteresis", missing=2),
    "fp16.min_loss_scale": honoured("min_loss_scale", missing=1.0),
    "fp16.consecutive_hysteresis": fixed(False, "overflows are counted since the last change of the scale"),
    "communication_data_type": honoured("reduce_dtype", write=unusual("reduce")),
    "data_types.grad_accum_dtype": honoured("main_grads_dtype", write=unusual("main_grads")),
    "prescale_gradients": fixed(False, "gradients are added up and then divided"),
    "gradient_predivide_factor": fixed(1.0, "gradients are added up and then divided"),
    "gradient_allreduce_op": fixed("mean", "gradients are averaged over the ranks"),
    "sparse_gradients": fixed(False, "gradients are dense; embeddings' too"),
    "disable_allgather": fixed(False, "new parameters are always handed around by all-gather"),
    **keys("zero_allow_untested_optimizer zero_force_ds_cpu_optimizer dataloader_drop_last", ANYWAY),
    **keys("seq_parallel_communication_data_type vocabulary_size", ANYWAY),
    "activation_checkpointing.cpu_checkpointing": fixed(False, "activations stay, or --checkpoint-activations"),
    "activation_checkpointing": taken("whether layers recompute is --checkpoint-activations"),
    **keys("checkpoint", CHECKPOINTS),
    **keys("aio", DISK),
    **keys("steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level comms_logger", taken(TELLS)),
    **keys("comms_config monitor_config flops_profiler tensorboard wandb csv_monitor comet timers", taken(TELLS)),
    "elasticity": refused("leave it out; --resume goes on with another number of ranks", only_on=True),
    "torch_autocast": refused("use bf16.enabled or fp16.enabled", only_on=True),
    "autotuning": refused("leave it out; zerolab plan says what fits", only_on=True),
    "curriculum_learning": refused("leave it out; --seq-len is the same in every step", only_on=True),
    **keys("hybrid_engine data_efficiency progressive_layer_drop eigenvalue", refused("leave it out", only_on=True)),
    "compile": refused("leave it out; torch.compile works with ZeroEngine"),
    "sparse_attention": refused("leave it out; attention is torch's own"),
    **keys("pipeline tensor_parallel expert_parallel", refused("leave it out; all ranks are data-parallel")),
    "sequence_parallel_size": fixed(1, "all ranks are data-parallel"),
    "weight_quantization": refused("use --precision fp8"),
    **keys(
        "amp nebula compression_training quantize_training", refused("DeepSpeed has taken it out, too; leave it out")
    ),
}
"""By dotted name, in the order in which they are written. A section that stands here by its own name is taken or
refused as a whole."""
for name in TABLE:
    if name.startswith("scheduler.") or (name.startswith("fp16.") and name != "fp16.enabled"):
        TABLE[name] = replace(TABLE[name], when=name.partition(".")[0])

TORCH_ADAM = {"optimizer.params.weight_decay": 0.01}
"""With torch_adam, torch's own default for a key that is missing."""
HIDDEN: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: 9 * hidden * hidden // 10,
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What Hugging Face's trainer makes of "auto", from the model's hidden size."""
ZERO_, MICRO = "zero_optimization.", "train_micro_batch_size_per_gpu"
DEFAULTS = {"warmup_num_steps": 1000, "cos_min_ratio": 0.0001}
PEAK = 0.001
"""What DeepSpeed takes where a scheduler does not say it; PEAK is WarmupDecayLR's warmup_max_lr, which to WarmupLR is
the optimizer's lr."""


# Reading.


@dataclass
class FromDeepSpeed:
    """What was read: settings, and what is to be said of them at the start of a run, a sentence each. `missing` are the
    settings that the file does not give, which have DeepSpeed's defaults."""

    settings: Settings = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)


def read_deepspeed(path: Path, ranks: int, given: Mapping[str, Any] | None = None) -> FromDeepSpeed:
    """The settings in a DeepSpeed configuration, for so many ranks. `given` are the run's other settings, from which
    "auto" is resolved. Raises InputError that names file and key."""
    path = path.expanduser()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); name a DeepSpeed configuration") from None
    try:
        return read(config, ranks, given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read(config: Any, ranks: int, given: Mapping[str, Any] | None = None) -> FromDeepSpeed:
    """The same of a configuration that is a dict already. Raises InputError that names the key."""
    if not isinstance(config, dict):
        raise InputError(f"holds {json.dumps(config):.60}, but a DeepSpeed configuration is an object; give one")
    return _Reader(config, ranks, given or {}).reading


class _Reader:
    def __init__(self, config: dict[str, Any], ranks: int, given: Mapping[str, Any]) -> None:
        self.config = dict(config)
        if "bf16" not in config and "bfloat16" in config:
            self.config["bf16"] = self.config.pop("bfloat16")
        self.ranks, self.given = ranks, given
        scheduler: Any = self.config.get("scheduler")
        if isinstance(scheduler, dict) and scheduler:
            needs = ("warmup_num_steps", "cos_min_ratio")[: 1 + (scheduler.get("type") == "WarmupCosineLR")]
            common = {"warmup_type": "log"} | {name: DEFAULTS[name] for name in needs}
            params = common | (scheduler.get("params") or {})
            self.config["scheduler"] = {"type": None, **scheduler, "params": params}
        # The run as it would be without the file.
        self.run = {name: field.default for name, field in RunSpec.model_fields.items()}
        self.run |= {"batch_size": default_batch(given)} | dict(given)
        self.reading = FromDeepSpeed()
        self.settings, self.notes = self.reading.settings, self.reading.notes
        self.autos: list[str] = []
        self._taken: dict[str, list[str]] = {}
        self._said_by: dict[str, str] = {}
        stage = at(self.config, ZERO_ + "stage")
        self.stage = str(self.run["zero_stage"] if stage in (None, "auto") else stage)
        for name, key, value in self._entries():
            self._read(name, key, value)
        if self.config.get("optimizer") and at(self.config, "optimizer.type") is None:
            self.notes.append("optimizer.type is not given: AdamW")
        if at(self.config, "scheduler.type") is not None:
            self._schedule()
        self._batch()
        run = {**self.run, **self.settings}
        self.notes += [note.format(**run) for note in self.autos]
        for why, names in self._taken.items():
            self.notes.append(f"{', '.join(names)} {'changes' if len(names) == 1 else 'change'} nothing here: {why}")
        self._complete()

    def _entries(self) -> Iterator[tuple[str, Key, Any]]:
        """Each key that the table has with its value, or the section around it, once."""
        seen = set()
        for name, value in leaves(self.config):
            around = name
            while around not in TABLE and "." in around:
                around = around.rpartition(".")[0]
            if inside := [key.removeprefix(f"{name}.") for key in TABLE if key.startswith(f"{name}.")]:
                if value == {}:
                    continue
                said = json.dumps(value)
                raise InputError(f'{name} is {said}; give an object, with keys such as "{inside[0]}", or leave it out')
            if around not in TABLE:
                near = difflib.get_close_matches(name, TABLE, n=1, cutoff=0.85)
                remedy = f"did you mean {near[0]}?" if near else "leave it out"
                raise InputError(f"{name} is no key that zerolab knows; {remedy}")
            if around not in seen:
                seen.add(around)
                yield around, TABLE[around], value if around == name else at(self.config, around)

    def _read(self, name: str, key: Key, value: Any) -> None:
        if not self._applies(name, key):
            return
        if value == "auto" and (key.settings or key.wanted or name == MICRO):
            self._auto(name, key)
            return
        try:
            settings = key.rule(value)
        except InputError as error:
            raise InputError(f"{name} {error}") from None
        if key.taken and (is_on(value) or not (isinstance(value, dict) or key.taken == TELLS)):
            self._taken.setdefault(key.taken, []).append(name)
        for setting, meant in settings.items():
            self._set(name, setting, meant)

    def _set(self, name: str, setting: str, meant: Any) -> None:
        kind = RunSpec.model_fields[setting].annotation
        odd = isinstance(meant, bool | str) or (isinstance(meant, float) and not math.isfinite(meant))
        if odd and {int, float} & {kind, *get_args(kind)}:
            # A run would take true for 1.
            raise InputError(f"{name} is {json.dumps(meant)}; give a number")
        before = self.settings.setdefault(setting, meant)
        if setting == "buffer_count" and before != meant:
            self.settings[setting] = max(before, meant)
            self.notes.append(f"{name} and {self._said_by[setting]} are one: {self.settings[setting]} buffers")
        elif before != meant:
            raise InputError(
                f"{name} is {meant!r}, but {self._said_by[setting]} says {before!r} and zerolab has one setting for "
                "both; make them equal"
            )
        self._said_by.setdefault(setting, name)

    def _applies(self, name: str, key: Key) -> bool:
        """Whether a key has a meaning in this configuration. One of stage 3 or of nvme that has none is noted."""
        if key.when == "fp16":
            enabled = at(self.config, "fp16.enabled")
            return bool(self.run["fp16"] if enabled in (None, "auto") else enabled)
        device = at(self.config, name.rpartition(".")[0] + ".device")
        if (key.when == "stage 3" and self.stage != "3") or (key.when == "nvme" and device != "nvme"):
            self._taken.setdefault(f"it is for {key.when}", []).append(name)
            return False
        return True

    def _auto(self, name: str, key: Key) -> None:
        if key.wanted:
            self.notes.append(f"{name}: auto is {key.wanted}")
        known = name if name in HIDDEN else name.replace(ZERO_, ZERO_ + "stage3_")
        # What is asked for beside the file is what it becomes.
        if known in HIDDEN and not self.given.keys() & {*key.settings} and (hidden := self._hidden()) is not None:
            value = HIDDEN[known](hidden)
            self._set(name, key.settings[0], value)
            said = f"{value}, which follows from the hidden size {hidden} as under Hugging Face's trainer"
            self.autos.append(f"{name}: auto is {key.settings[0]} {said}")
            return
        for setting in key.settings:
            shown = "max_steps" if setting == "decay_steps" else setting
            self.autos.append(f"{name}: auto is {shown} {{{shown}}}")

    def _hidden(self) -> int | None:
        """The width of the model's hidden states; None for a model that there is not, which is said where the run is
        checked."""
        shaped = {name: self.given[name] for name in ("model", "model_size", "init_from", *SIZES) if name in self.given}
        try:
            return run_of({"seq_len": 1} | shaped).architecture.dim
        except InputError:
            return None

    def _schedule(self) -> None:
        """What of a scheduler follows from two keys."""
        run = {**self.run, **self.settings}
        kind, params = self.config["scheduler"].values()
        if kind != "WarmupLR" and "total_num_steps" not in params:
            raise InputError(f"scheduler.params.total_num_steps is missing; {kind} wants it")
        if kind == "WarmupDecayLR" and "warmup_max_lr" not in params and not are_same(run["lr"], PEAK):
            raise InputError(
                f"scheduler.params.warmup_max_lr is not given, and then {kind} rises to {PEAK} whatever the "
                f"optimizer's lr is, which is {run['lr']} here; give warmup_max_lr"
            )
        if "min_lr" in self.settings:
            self.settings["min_lr"] *= float(run["lr"])
        if not run["warmup_steps"]:
            self.settings.pop("warmup_shape", None)

    def _batch(self) -> None:
        """train_batch_size = micro batch per GPU x accumulation steps x ranks; the one that is missing follows."""
        micro, settings, ranks = self.config.get(MICRO), self.settings, self.ranks
        whole, steps = (self._asked(name) for name in ("batch_size", "grad_accum_steps"))
        if micro in (None, "auto"):
            run = {**self.given, **settings, "ranks": ranks}
            self.run["batch_size"] = run.get("batch_size", default_batch(run))
            if micro == "auto":
                each = int(self.run["batch_size"]) // (ranks * int(run.get("grad_accum_steps", 1)))
                self.autos.append(f"{MICRO}: auto is batch_size / (ranks x grad_accum_steps): {each}")
        else:
            names = (MICRO, "gradient_accumulation_steps", "train_batch_size")
            settings |= missing_of(int(micro), steps, whole, ranks, names)

    def _asked(self, setting: str) -> int | None:
        """A count that the file says, or else a flag."""
        value: Any = self.settings.get(setting, self.given.get(setting))
        return int(value) if str(value).isdecimal() else None

    def _complete(self) -> None:
        """DeepSpeed's defaults for keys that are not in the file; a flag goes before them."""
        by_torch = TORCH_ADAM if is_on(at(self.config, "optimizer.params.torch_adam")) else {}
        unless = ", unless the checkpoint has another" if "resume" in self.given else ""
        for name, key in TABLE.items():
            if key.missing is None or at(self.config, name) is not None or not self._applies(name, key):
                continue
            since = " since 0.19.3 (before, it clipped nothing)" if name == "gradient_clipping" else ""
            for setting, meant in key.rule(by_torch.get(name, key.missing)).items():
                if setting in {**self.settings, **self.given}:
                    continue
                self.settings[setting] = meant
                self.reading.missing.add(setting)
                if since or meant != RunSpec.model_fields[setting].default:
                    self.notes.append(f"{name} is not given: {setting} {meant}, DeepSpeed's default{since or unless}")
        if not (self.config.keys() | self.given.keys()) & {"train_batch_size", MICRO, "batch_size"}:
            batch = f"batch_size {self.run['batch_size']}{unless}"
            self.notes.append(f"neither train_batch_size nor {MICRO} is given: {batch}; DeepSpeed has no default")


def is_on(section: Any) -> bool:
    """Whether a section is enabled, or has something that is on; whether a switch is on."""
    if not isinstance(section, dict):
        return bool(section)
    return bool(section["enabled"]) if "enabled" in section else any(map(is_on, section.values()))


def at(config: Mapping[str, Any], name: str) -> Any:
    """The value under a dotted name, or None."""
    found: Any = config
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def leaves(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all keys with their values. An empty section is a value."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# Writing.


def write(settings: Settings) -> dict[str, Any]:
    """The configuration with which DeepSpeed does the same run. The model, its data and how many ranks there are stand
    in no configuration of DeepSpeed. Reading it back gives the same settings. Raises InputError for a setting that
    changes the run and that DeepSpeed has no key for."""
    run = run_of(settings)
    for name, why in (
        ("defer_reduction", "it has no key for when gradients are reduced; leave it out"),
        ("num_distributed_optimizer_instances", "it has no shards within a machine; give 1"),
    ):
        if getattr(run, name) != RunSpec.model_fields[name].default:
            raise InputError(f"{name} cannot be said to DeepSpeed: {why}")
    is_scheduled = run.lr_schedule != "constant" or run.warmup_steps > 0
    if is_scheduled and not run.warmup_steps:
        raise InputError(f"warmup_steps is 0, and DeepSpeed's {kind_of(run)} wants at least 1; give warmup_steps")
    if run.lr_schedule == "linear" and run.min_lr:
        raise InputError(
            f"min_lr is {run.min_lr}, and DeepSpeed's {kind_of(run)} ends at 0; give lr_schedule cosine, or no min_lr"
        )
    config: dict[str, Any] = {}
    for name, key in TABLE.items():
        *sections, last = name.split(".")
        has = {
            "stage 3": run.stage == 3,
            "nvme": at(config, ".".join([*sections, "device"])) == "nvme",
            "fp16": recipe(run) == "fp16",
            "scheduler": is_scheduled,
        }
        value = key.write(run) if has.get(key.when, True) else None
        if value is not None:
            section = config
            for part in sections:
                section = section.setdefault(part, {})
            section[last] = str(value) if isinstance(value, Path) else value
    return config
