"""A DeepSpeed configuration as settings of a run, and a run as one.

A key is honoured, refused by name, or taken with a note (docs/deepspeed.md). A key that changes the numbers and is not
in the file has DeepSpeed's default.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from zerolab.apps.dialects.keys import ReadSettings, Rule, Settings, are_same, missing_of, require, require_of, run_of
from zerolab.errors import InputError
from zerolab.precision.recipe import PRECISIONS, Precision
from zerolab.run import RunSpec
from zerolab.run.spec import SIZES, default_batch


@dataclass(frozen=True)
class Key:
    """A key, or a section with all that is in it.

    rule            what its value means
    says            what becomes of it, for docs/deepspeed.md
    settings        those that it sets
    words           by value of its setting, what is written
    wanted          the only value that there is, as JSON
    without_effect  why it changes nothing here
    when            "stage 3", "nvme" or "fp16", without which it has no meaning
    missing         DeepSpeed's default, where the file does not give it
    always          what is written for every run
    is_read_only    nothing is ever written
    """

    rule: Rule
    says: str
    settings: tuple[str, ...] = ()
    words: Mapping[Any, Any] | None = None
    wanted: str = ""
    without_effect: str = ""
    when: str = ""
    missing: Any = None
    always: Any = None
    is_read_only: bool = False

    def write(self, facts: Mapping[str, Any]) -> Any:
        """Its value, of `facts_of` a run; None where it is left out."""
        if self.is_read_only or not self.settings:
            return self.always
        value = facts[self.settings[0]]
        return value if self.words is None else self.words.get(value)


def supported(setting: str, rule: Rule | None = None, when: str = "", missing: Any = None) -> Key:
    """A key that sets one setting, to its own value if no rule says another."""
    says = f"`--{setting.replace('_', '-')}`"
    return Key(rule or pass_on(setting), says, (setting,), when=when, missing=missing)


def count(setting: str, least: int = 1, when: str = "") -> Key:
    return supported(setting, lambda value: {setting: whole_number(value, least)}, when)


def choose(setting: str, words: Mapping[Any, Any], missing: Any = None) -> Key:
    """A key that has a few values, with what each means."""
    known = [value if isinstance(value, str) else json.dumps(value) for value in words]

    def rule(value: Any) -> Settings:
        if not isinstance(value, str | bool) or value not in words:
            raise InputError(f"is {json.dumps(value)}; give {', '.join(known[:-1])} or {known[-1]}")
        return {setting: words[value]}

    said = {ours: word for word, ours in words.items()}
    return replace(supported(setting, rule, missing=missing), words=said)


def fix(wanted: Any, why: str, always: Any = None) -> Key:
    """A key that may only say what zerolab does anyway."""
    said = json.dumps(wanted)

    def rule(value: Any) -> Settings:
        require(value == wanted, f"must be {said}, not {json.dumps(value)}: {why}")
        return {}

    return Key(rule, f"must be `{said}`: {why}", wanted=said, always=always)


def accepted_without_effect(why: str) -> Key:
    return Key(lambda value: {}, f"taken, changes nothing: {why}", without_effect=why)


def must_be_off(remedy: str) -> Key:
    """A section or a switch that may be there if it is not enabled."""

    def rule(value: Any) -> Settings:
        on = value.get("enabled") if isinstance(value, dict) else value
        require(not on, f"is enabled, and zerolab has nothing of the kind: {remedy}")
        return {}

    return Key(rule, f"refused if it is enabled: {remedy}")


def refuse(remedy: str) -> Key:
    """A section or a switch that may not be there."""

    def rule(value: Any) -> Settings:
        said = "given" if isinstance(value, dict) else json.dumps(value)
        raise InputError(f"is {said}, and zerolab has nothing of the kind: {remedy}")

    return Key(rule, f"refused: {remedy}")


def pass_on(setting: str) -> Rule:
    """The rule of a key with a setting's own values. A run would take true for 1."""
    kind = RunSpec.model_fields[setting].annotation
    is_number = {int, float} & {kind, *get_args(kind)}

    def rule(value: Any) -> Settings:
        odd = isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)
        require(not (is_number and odd), f"is {json.dumps(value)}; give a number")
        return {setting: value}

    return rule


def whole_number(value: Any, least: int = 1) -> int:
    """A number of at least `least`, which may be written as 5e8."""
    odd = isinstance(value, bool) or not isinstance(value, int | float) or value < least or value % 1 != 0
    require(not odd, f"is {json.dumps(value)}; give a whole number of at least {least}")
    return int(value)


def read_betas(value: Any) -> Settings:
    are_two = isinstance(value, list) and len(value) == 2
    require(are_two, f"is {json.dumps(value)}; give two numbers, such as [0.9, 0.999]")
    return pass_on("beta1")(value[0]) | pass_on("beta2")(value[1])


def check_count(value: Any) -> Settings:
    whole_number(value)
    return {}


def check_optimizer(value: Any) -> Settings:
    is_adam = str(value).lower() in ("adam", "adamw")
    require(is_adam, f"is {json.dumps(value)}; give AdamW (ZeroEngine takes others)")
    return {}


MICRO = "train_micro_batch_size_per_gpu"
BATCH = (MICRO, "gradient_accumulation_steps", "train_batch_size")
SWITCH = {True: True, False: False}
KINDS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""After a warm-up constant; to 0 at total_num_steps; to cos_min_ratio of the learning rate there."""
SHAPES = {"log": "log", "linear": "line"}
"""Its warm-ups. Ours begin two steps ahead: there, the first two have the rate 0."""
PLACES = {"none": "none", "cpu": "cpu", "nvme": "nvme"}
TIERS = {"host": "cpu", "disk": "nvme"}


def find_recipe(run: RunSpec) -> str:
    """The section of the run's precision, or "fp32"; gradients' dtypes have keys."""
    precision = run.dtypes or Precision()
    if precision == Precision():
        return "fp32"
    for name in ("bf16", "fp16"):
        if replace(PRECISIONS[name], reduce=precision.reduce, main_grads=precision.main_grads) == precision:
            return name
    said = f"precision {precision.name} cannot be said to DeepSpeed"
    raise InputError(f"{said}, which has bf16, fp16 and fp32; choose one")


def facts_of(run: RunSpec) -> dict[str, Any]:
    """A run's settings as DeepSpeed has them; None for one that is left out."""
    recipe, dtypes, decays = find_recipe(run), run.dtypes or Precision(), run.lr_schedule != "constant"
    usual = PRECISIONS[recipe]
    return {name: getattr(run, name) for name in RunSpec.model_fields} | {
        "bf16": recipe == "bf16" or None,
        "fp16": recipe == "fp16" or None,
        "reduce_dtype": None if dtypes.reduce == usual.reduce else dtypes.reduce,
        "main_grads_dtype": None if dtypes.main_grads == usual.main_grads else dtypes.main_grads,
        "offload_optimizer": TIERS.get(run.places.optimizer),
        "offload_param": TIERS.get(run.places.parameters),
        "offload_path": run.offload_path and str(run.offload_path),
        "zero3_save_16bit_model": run.zero3_save_16bit_model or None,
        "prefetch_bucket_size": run.prefetch_bucket_size if run.prefetch else 0,
        "decay_steps": (run.decay_steps or run.max_steps) if decays else None,
        "min_lr": run.min_lr / run.lr,
        "beta1": [run.beta1, run.beta2],
        "micro_batch_size": run.micro_batch_size,
    }


def keys(names: str, key: Key) -> dict[str, Key]:
    return dict.fromkeys(names.split(), key)


def ignore_in_writing(key: Key) -> Key:
    return replace(key, is_read_only=True)


def old_offload(setting: str) -> Key:
    """DeepSpeed's older switch for an offload to the host."""
    key = ignore_in_writing(choose(setting, {True: "cpu", False: "none"}))
    return replace(key, rule=lambda value: key.rule(value) if value else {})


TELLS = "zerolab's own report, and --profile-json FILE, tell of a run"
REPORTED = accepted_without_effect(TELLS)
ANYWAY = accepted_without_effect("zerolab does so, or has no need of it")
BUCKETS = accepted_without_effect("buckets are as reduce_bucket_size cuts them")
DISK = accepted_without_effect("threads of zerolab's own read and write the disk")
PINNED = accepted_without_effect("what a GPU copies from or to is pinned")
CHECKPOINTS = accepted_without_effect("checkpoints are zerolab's own")
BEGINS = "every run begins there"
OVERLAP = choose("overlap", SWITCH)
WHOLE = choose("zero3_save_16bit_model", SWITCH)
STAGE_3 = {
    "param_persistence_threshold": count("param_persistence_threshold", 0, "stage 3"),
    "prefetch_bucket_size": count("prefetch_bucket_size", 0, "stage 3"),
    "max_live_parameters": count("max_live_parameters", 0, "stage 3"),
    "max_reuse_distance": count("max_reuse_distance", 0, "stage 3"),
    "gather_16bit_weights_on_model_save": WHOLE,
}
"""Keys that DeepSpeed has with and without `stage3_` before them; we write the first."""

ZERO: dict[str, Key] = {
    "stage": supported("zero_stage"),
    "overlap_comm": supported("overlap", lambda value: {} if value is None else OVERLAP.rule(value)),
    "contiguous_gradients": fix(True, "gradients always lie in flat buffers", True),
    "reduce_scatter": choose("reduction", {True: "reduce_scatter", False: "all_reduce"}),
    "sub_group_size": count("sub_group_size"),
    "reduce_bucket_size": count("bucket_numel"),
    "allgather_partitions": fix(True, "all-gather always hands new parameters around"),
    "offload_optimizer.device": choose("offload_optimizer", PLACES),
    "offload_optimizer.nvme_path": supported("offload_path", when="nvme"),
    "offload_optimizer.buffer_count": count("buffer_count", when="nvme"),
    "offload_optimizer.ratio": fix(1.0, "the optimizer's states have one place"),
    "offload_param.device": choose("offload_param", PLACES),
    "offload_param.nvme_path": supported("offload_path", when="nvme"),
    "offload_param.buffer_count": count("buffer_count", when="nvme"),
    "offload_param.max_in_cpu": count("max_in_cpu", 0, "nvme"),
    "offload_param.buffer_size": count("buffer_size", when="nvme"),
    **keys("offload_optimizer.pin_memory offload_param.pin_memory cpu_offload_use_pin_memory", PINNED),
    **{f"offload_optimizer.{name}": DISK for name in ("pipeline_read", "pipeline_write", "fast_init")},
    "cpu_offload": old_offload("offload_optimizer"),
    "cpu_offload_param": old_offload("offload_param"),
    **{f"stage3_{name}": key for name, key in STAGE_3.items()},
    **{name: ignore_in_writing(key) for name, key in STAGE_3.items()},
    "stage3_gather_fp16_weights_on_model_save": ignore_in_writing(WHOLE),
    **keys("allgather_bucket_size round_robin_gradients", BUCKETS),
    **keys("load_from_fp32_weights elastic_checkpoint", CHECKPOINTS),
    "memory_efficient_linear": ANYWAY,
    "ignore_unused_parameters": fix(True, "a parameter that no rank used has gradient zero"),
    **keys(
        "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients",
        fix(False, "see --params-dtype and --reduce-dtype"),
    ),
}
ADAM: dict[str, Key] = {
    "lr": supported("lr", missing=1e-3),
    "betas": Key(read_betas, "`--beta1`, `--beta2`", ("beta1", "beta2"), missing=[0.9, 0.999]),
    "eps": supported("eps", missing=1e-8),
    "weight_decay": replace(supported("weight_decay", missing=0.0), says="`--weight-decay`, of matrices alone"),
    "adam_w_mode": fix(True, "weights decay apart from gradients"),
    "bias_correction": fix(True, "AdamW corrects the bias of its moments"),
    "amsgrad": fix(False, "zerolab train uses AdamW as it is"),
    **keys("torch_adam fused", accepted_without_effect("torch's fused AdamW is what steps")),
}
SCHEDULER: dict[str, Key] = {
    "warmup_num_steps": count("warmup_steps", 0),
    "warmup_type": choose("warmup_shape", SHAPES),
    "warmup_min_ratio": fix(0, BEGINS, 0.0),
    "cos_min_ratio": supported("min_lr"),
    "warmup_min_lr": fix(0, BEGINS, 0.0),
    "warmup_max_lr": supported("lr"),
    "total_num_steps": count("decay_steps"),
    "last_batch_iteration": fix(-1, BEGINS),
}
FP16: dict[str, Key] = {
    "loss_scale": supported("loss_scale", missing=0.0),
    "initial_scale_power": supported("initial_scale_power", missing=16),
    "loss_scale_window": supported("loss_scale_window", missing=1000),
    "hysteresis": supported("hysteresis", missing=2),
    "min_loss_scale": supported("min_loss_scale", missing=1.0),
    "consecutive_hysteresis": fix(False, "overflows count since the scale changed"),
    "auto_cast": ANYWAY,
    "fp16_master_weights_and_grads": fix(False, "use --main-params-dtype and --main-grads-dtype"),
}

TABLE: dict[str, Key] = {
    "train_batch_size": count("batch_size"),
    MICRO: Key(check_count, "`--batch-size` / (`--ranks` x `--grad-accum-steps`)"),
    "gradient_accumulation_steps": count("grad_accum_steps"),
    "gradient_clipping": supported("clip_norm", missing=1.0),
    **{f"zero_optimization.{name}": key for name, key in ZERO.items()},
    "optimizer.type": Key(check_optimizer, "Adam or AdamW, which are one", always="AdamW"),
    **{f"optimizer.params.{name}": key for name, key in ADAM.items()},
    "optimizer.params.max_grad_norm": refuse("use gradient_clipping"),
    "scheduler.type": choose("lr_schedule", KINDS),
    **{f"scheduler.params.{name}": key for name, key in SCHEDULER.items()},
    "bf16.enabled": choose("bf16", SWITCH, False),
    "fp16.enabled": choose("fp16", SWITCH, False),
    **{f"fp16.{name}": replace(key, when="fp16") for name, key in FP16.items()},
    "communication_data_type": supported("reduce_dtype"),
    "data_types.grad_accum_dtype": supported("main_grads_dtype"),
    "prescale_gradients": fix(False, "gradients are added up and then divided"),
    "gradient_predivide_factor": fix(1.0, "gradients are added up and then divided"),
    "sparse_gradients": fix(False, "gradients are dense; embeddings' too"),
    **keys("zero_allow_untested_optimizer zero_force_ds_cpu_optimizer dataloader_drop_last", ANYWAY),
    "activation_checkpointing.cpu_checkpointing": fix(False, "see --checkpoint-activations"),
    "activation_checkpointing": accepted_without_effect("see --checkpoint-activations"),
    "checkpoint": CHECKPOINTS,
    "aio": DISK,
    **keys("steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level", REPORTED),
    **keys("comms_logger comms_config monitor_config flops_profiler tensorboard wandb csv_monitor comet", REPORTED),
    "elasticity": must_be_off("leave it out; --resume takes any ranks"),
    "autotuning": must_be_off("leave it out; zerolab plan says what fits"),
    "curriculum_learning": must_be_off("leave it out; --seq-len stays"),
    **keys("hybrid_engine data_efficiency progressive_layer_drop eigenvalue", must_be_off("leave it out")),
    "amp": refuse("DeepSpeed has taken it out, too; leave it out"),
}
"""By dotted name, in the order of writing; a section's own name stands for all in it."""

TORCH_ADAM = {"optimizer.params.weight_decay": 0.01}
"""With torch_adam, torch's own default for a key that is missing."""
HIDDEN: dict[str, Callable[[int], int]] = {
    "bucket_numel": lambda hidden: hidden * hidden,
    "prefetch_bucket_size": lambda hidden: 9 * hidden * hidden // 10,
    "param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What Hugging Face's trainer makes of "auto", from the model's hidden size."""
DEFAULTS = {"warmup_num_steps": 1000, "cos_min_ratio": 0.0001}
PEAK = 0.001
"""Of a scheduler that does not say it; PEAK is WarmupDecayLR's warmup_max_lr, elsewhere the lr."""


# Reading.


def read_deepspeed(path: Path, ranks: int, given: Mapping[str, Any] | None = None) -> ReadSettings:
    """The settings in a file for so many ranks, beside those `given`. Raises InputError that names the key."""
    path = path.expanduser()
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); name a DeepSpeed configuration") from None
    try:
        return read(config, ranks, given)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read(config: Any, ranks: int, given: Mapping[str, Any] | None = None) -> ReadSettings:
    """The same of a configuration that is a dict already."""
    if not isinstance(config, dict):
        said = json.dumps(config)[:60]
        raise InputError(f"holds {said}, but a DeepSpeed configuration is an object; give one")
    given, file, found = given or {}, entries_of(config), ReadSettings()
    settings, notes = found.settings, found.notes
    # The run as it would be without the file.
    run = {name: field.default for name, field in RunSpec.model_fields.items()}
    run |= {"batch_size": default_batch(given)} | dict(given)
    stage, fp16 = (
        run[setting] if file.get(name) in (None, "auto") else file[name]
        for name, setting in (("zero_optimization.stage", "zero_stage"), ("fp16.enabled", "fp16"))
    )
    heeds = partial(is_heeded, stage, fp16, file)
    autos, idle = list[str](), dict[str, list[str]]()
    for name, value in file.items():
        if name not in TABLE:
            near = difflib.get_close_matches(name, TABLE, n=1, cutoff=0.85)
            remedy = f"did you mean {near[0]}?" if near else "leave it out"
            raise InputError(f"{name} is no key that zerolab knows; {remedy}")
        key = TABLE[name]
        if not heeds(name):
            if key.when != "fp16":
                idle.setdefault(f"it is for {key.when}", []).append(name)
        elif value == "auto" and (key.settings or key.wanted or name == MICRO):
            autos += read_auto(name, given, found)
        else:
            try:
                meant = key.rule(value)
            except InputError as error:
                raise InputError(f"{name} {error}") from None
            if key.without_effect and (is_on(value) or not (isinstance(value, dict) or key.without_effect == TELLS)):
                idle.setdefault(key.without_effect, []).append(name)
            before, buffers = settings.get("buffer_count"), meant.get("buffer_count")
            if before and buffers and before != buffers:
                settings |= (meant := {"buffer_count": max(before, buffers)})
                other = found.source["buffer_count"]
                notes.append(f"{name} and {other} are one: {settings['buffer_count']} buffers")
            found.add(name, meant)
    if file.get("optimizer.type") is None and any(name.startswith("optimizer.") for name in file):
        notes.append("optimizer.type is not given: AdamW")
    run |= settings
    if file.get("scheduler.type") is not None:
        fit_schedule(settings, run, file)
    micro, asked = file.get(MICRO), Settings(given) | settings
    if micro in (None, "auto"):
        asked["ranks"] = ranks
        run["batch_size"] = asked.get("batch_size", default_batch(asked))
        if micro == "auto":
            each = int(run["batch_size"]) // (ranks * int(asked.get("grad_accum_steps", 1)))
            autos.append(f"{MICRO}: auto is batch_size / (ranks x grad_accum_steps): {each}")
    else:
        counts = [str(asked.get(name)) for name in ("grad_accum_steps", "batch_size")]
        steps, whole = (int(count) if count.isdecimal() else None for count in counts)
        settings |= missing_of(int(micro), steps, whole, ranks, BATCH)
    notes += [said.format(**run | settings) for said in autos]
    for why, names in idle.items():
        notes.append(f"{', '.join(names)} {'changes' if len(names) == 1 else 'change'} nothing here: {why}")
    # DeepSpeed's defaults for keys that are not in the file; a flag goes before them.
    by_torch = TORCH_ADAM if is_on(file.get("optimizer.params.torch_adam")) else {}
    unless = ", unless the checkpoint has another" if "resume" in given else ""
    for name, key in TABLE.items():
        if key.missing is None or file.get(name) is not None or not heeds(name):
            continue
        since = " since 0.19.3 (before, it clipped nothing)" if name == "gradient_clipping" else ""
        for setting, meant in key.rule(by_torch.get(name, key.missing)).items():
            if setting not in settings.keys() | given.keys():
                settings[setting] = meant
                found.missing.add(setting)
                if since or meant != RunSpec.model_fields[setting].default:
                    by_default = f"DeepSpeed's default{since or unless}"
                    notes.append(f"{name} is not given: {setting} {meant}, {by_default}")
    if not (file.keys() | given.keys()) & {"train_batch_size", MICRO, "batch_size"}:
        batch = f"batch_size {run['batch_size']}{unless}"
        notes.append(f"neither train_batch_size nor {MICRO} is given: {batch}; DeepSpeed has no default")
    return found


def read_auto(name: str, given: Mapping[str, Any], found: ReadSettings) -> list[str]:
    """What "auto" becomes, a sentence a setting, to be filled in once all settings are known."""
    if TABLE[name].wanted:
        found.notes.append(f"{name}: auto is {TABLE[name].wanted}")
    said = []
    for setting in TABLE[name].settings:
        shown, why = "max_steps" if setting == "decay_steps" else setting, ""
        # What is asked for beside the file is what it becomes.
        width = find_width(given) if setting in HIDDEN and setting not in given else None
        if width is not None:
            found.add(name, {setting: HIDDEN[setting](width)})
            why = f", which follows from the hidden size {width} as under Hugging Face's trainer"
        said.append(f"{name}: auto is {shown} {{{shown}}}{why}")
    return said


def entries_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the table's names, with what a scheduler does not say."""
    found: dict[str, Any] = {}
    for name, value in leaves(config):
        around = name
        while around not in TABLE and "." in around:
            around = around.rpartition(".")[0]
        if inside := [key.removeprefix(f"{name}.") for key in TABLE if key.startswith(f"{name}.")]:
            if value == {}:
                continue
            like = f'with keys such as "{inside[0]}"'
            raise InputError(f"{name} is {json.dumps(value)}; give an object, {like}, or leave it out")
        found[around if around in TABLE else name] = at(config, around) if around in TABLE else value
    if any(name.startswith("scheduler.") for name in found):
        cosine = found.setdefault("scheduler.type", None) == "WarmupCosineLR"
        for name, default in {"warmup_type": "log", **DEFAULTS}.items():
            if cosine or name != "cos_min_ratio":
                found.setdefault(f"scheduler.params.{name}", default)
    return found


def is_heeded(stage: Any, fp16: Any, values: Mapping[str, Any], name: str) -> bool:
    """Whether a key has a meaning beside these others."""
    device = values.get(f"{name.rpartition('.')[0]}.device")
    has = {"stage 3": str(stage) == "3", "nvme": device == "nvme", "fp16": bool(fp16)}
    return has.get(TABLE[name].when, True)


def find_width(given: Mapping[str, Any]) -> int | None:
    """The model's width; None if there is no such model, which the run says."""
    shaped = {name: given[name] for name in ("model", "model_size", "init_from", *SIZES) if name in given}
    try:
        return run_of({"seq_len": 1} | shaped).architecture.dim
    except InputError:
        return None


def fit_schedule(settings: Settings, run: Mapping[str, Any], file: Mapping[str, Any]) -> None:
    """What of a scheduler follows from two keys."""
    kind = file["scheduler.type"]
    if kind != "WarmupLR" and "scheduler.params.total_num_steps" not in file:
        raise InputError(f"scheduler.params.total_num_steps is missing; {kind} wants it")
    no_height = kind == "WarmupDecayLR" and "scheduler.params.warmup_max_lr" not in file
    if no_height and not are_same(run["lr"], PEAK):
        raise InputError(
            f"scheduler.params.warmup_max_lr is not given, and then {kind} rises to {PEAK} whatever the "
            f"optimizer's lr is, which is {run['lr']} here; give warmup_max_lr"
        )
    if "min_lr" in settings:
        settings["min_lr"] *= float(run["lr"])
    if not run["warmup_steps"]:
        settings.pop("warmup_shape", None)


def is_on(section: Any) -> bool:
    """Whether a switch is on, or a section, or something in it."""
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
    """All keys by dotted names. An empty section is a value."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


# Writing.


def write(settings: Settings) -> dict[str, Any]:
    """The configuration of the same run; model, data and ranks stand in none. Read back it gives the same settings.
    Raises InputError for a setting that has no key there."""
    run = run_of(settings)
    facts, is_scheduled = facts_of(run), run.lr_schedule != "constant" or run.warmup_steps > 0
    no = "cannot be said to DeepSpeed: it has no"
    its = f"DeepSpeed's {TABLE['scheduler.type'].write(facts)}"
    require(not run.defer_reduction, f"defer_reduction {no} key for it; leave it out")
    require(run.instances == 1, f"num_distributed_optimizer_instances {no} shards within a machine; give 1")
    fits = run.warmup_steps > 0 or not is_scheduled
    require_of(run, "warmup_steps", fits, f"{its} wants at least 1; give warmup_steps")
    fits = run.lr_schedule != "linear" or not run.min_lr
    require_of(run, "min_lr", fits, f"{its} ends at 0; give lr_schedule cosine, or no min_lr")
    others = ("warmup_min_lr", "warmup_max_lr")
    if run.lr_schedule != "cosine":
        others = ("warmup_min_ratio", "cos_min_ratio")
    config, values = Settings(), Settings()
    for name, key in TABLE.items():
        *sections, last = name.split(".")
        value = facts["micro_batch_size"] if name == MICRO else key.write(facts)
        heeded = is_heeded(run.stage, facts["fp16"], values, name)
        heeded = heeded and (is_scheduled or sections[:1] != ["scheduler"])
        if heeded and value is not None and last not in others:
            section = config
            for part in sections:
                section = section.setdefault(part, {})
            section[last] = values[name] = value
    return config
