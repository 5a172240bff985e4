"""What a run is: `train` carries it out, `plan` predicts it, sweeps vary it, dialects write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    ValidationError,
    model_validator,
)

from zerolab.collectives import Link
from zerolab.data import EMBEDDED, check_division
from zerolab.errors import InputError
from zerolab.flat.layout import check_count
from zerolab.models import BYTE_VOCABULARY, Config, GPT2Config, LlamaConfig, config_of
from zerolab.offload.places import NO_OFFLOAD, TIER_OF, Offload, check_places
from zerolab.precision import PRECISIONS, LossScaler, Precision
from zerolab.precision.recipe import STATES, find_precision
from zerolab.run.schedule import Kind, LrSchedule, WarmupShape
from zerolab.zero.limits import Stage3Limits

RANKS, SEQUENCES, MOST_SEQUENCES = 2, 12, 1 << 20
"""By default; and sequences of a step at most in training, which draws each."""
MOST = 1 << 31
"""Nobody has more ranks, sequences or elements."""
ROUND = 64
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[int, Field(ge=0)]
Most = Annotated[int, Field(ge=1, le=MOST)]
Size = Annotated[int, Field(ge=1, lt=MOST)]
Stage = Annotated[int, Field(ge=0, le=3)]
Power = Annotated[int, Field(ge=0, le=127)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
Evaluated = Annotated[int, Field(ge=1, le=1 << 20)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Speed = Annotated[float, Field(gt=0)]
Level = Annotated[float, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
Latency = Annotated[float, Field(ge=0, le=1e9)]
Float = Literal["fp32", "bf16", "fp16"]
Moment = Literal["fp32", "bf16", "fp16", "fp8"]
Place = Literal["device", "host", "disk", "none", "cpu", "nvme"]
Recipe = Annotated[Precision | str | None, PlainValidator(lambda given: find_precision(given) and given)]
STATE_OF = {f"{state}_dtype": state for state in STATES}
SIZES = ("layers", "heads", "dim", "kv_heads", "ffn_dim", "bias", "tied_head")
SECOND_NAMES = {
    "stage": "zero_stage",
    "micro_batches": "grad_accum_steps",
    "instances": "num_distributed_optimizer_instances",
}
OF_OFFLOAD = {
    "offload_optimizer": "optimizer",
    "offload_param": "parameters",
    "offload_path": "path",
    "buffer_count": "buffer_count",
    "buffer_size": "buffer_numel",
    "sub_group_size": "sub_group_numel",
    "max_in_cpu": "max_in_cpu",
}
OF_LIMITS = {
    "param_persistence_threshold": "persistence_numel",
    "prefetch_bucket_size": "prefetch_numel",
    "max_live_parameters": "live_numel",
    "max_reuse_distance": "reuse_numel",
}
"""Settings, and what a Precision, an Offload and limits call them."""
OFFLOADS = {
    "nothing": NO_OFFLOAD,
    "optimizer": Offload("host"),
    "optimizer and parameters": Offload("host", "host"),
}
"""What may lie in the host's memory, by name."""


GROUPS = {
    "model": "model and data",
    "precision": "precision",
    "offload_optimizer": "offload",
    "param_persistence_threshold": "gathering",
    "save_folder": "checkpoints",
    "lr_schedule": "learning rate",
    "eval_every": "evaluation",
    "world": "simulation",
    "timeout": "reports",
    "zero_debug": "debugging",
}
"""How help groups settings, by the first of each."""


def flag(description: str, default: Any = None) -> Any:
    """A field with its help."""
    return Field(default, description=description)


class RunSpec(BaseModel):
    """A run; its fields are the flags of `zerolab train`. What cannot be is an InputError.

    `RunSpec(shape, ...)` begins as plans do, with 8 ranks, bf16, and one sequence of 1024 tokens a rank. It also
    takes `SECOND_NAMES`, micro_batch_size and offload.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True
    )  # fmt: skip

    zero_stage: Stage = flag("0 shards nothing, 1 optimizer, 2 +gradients, 3 all", 0)
    ranks: Most = flag("how many ranks: at most 128 here, or torchrun's", RANKS)
    collective_impl: Literal["auto", "shared", "ring", "torch"] = flag(
        "shared memory, our rings, or torch's; auto: torch's on GPUs", "auto"
    )
    seq_len: Most = flag("tokens of a sequence", 64)
    batch_size: Most = flag("sequences of a step, over all ranks", SEQUENCES)
    grad_accum_steps: Count = flag("micro-batches of an optimizer step", 1)
    max_steps: Count = flag("optimizer steps, with those before a checkpoint", 100)
    lr: Speed = flag("learning rate of AdamW", 1e-3)
    weight_decay: Level = flag("decay of matrices", 0.1)
    beta1: Decay = flag("decay of the first moment", 0.9)
    beta2: Decay = flag("decay of the second moment", 0.999)
    eps: Speed = flag("added to the root of the second moment", 1e-8)
    clip_norm: Level = flag("global gradient norm to clip to; 0: none", 1.0)
    seed: Seed = flag("seed of weights and batches", 0)
    reduction: Literal["reduce_scatter", "all_reduce"] = flag("at stage 1", "reduce_scatter")
    num_distributed_optimizer_instances: Count = flag("copies of the shards", 1)
    defer_reduction: bool = flag("reduce once a step, of whole gradients", False)
    overlap: bool = flag("reduce and gather beside computing", True)
    prefetch: bool = flag("stage 3: gather the next unit ahead", True)
    checkpoint_activations: bool = flag("recompute activations in backward", False)
    bucket_numel: Count | None = flag("elements of a bucket at most")
    device: Literal["auto", "cpu", "cuda"] = flag("where the ranks compute", "auto")

    model: Literal["llama", "gpt2"] = flag("architecture", "llama")
    model_size: str = flag("nano, tiny, small, medium; nano, tiny, 124m ... gpt3-175b (gpt2)", "tiny")
    layers: Layers | None = flag("blocks; if given, with what follows, not the size's")
    heads: Size | None = flag("attention heads")
    dim: Size | None = flag("width of the hidden states")
    kv_heads: Size | None = flag("llama: heads of keys and values")
    ffn_dim: Size | None = flag("llama: width of the feed-forward")
    bias: bool | None = flag("gpt2: linear layers and norms have biases")
    tied_head: bool | None = flag("the head's weight is the embedding's")
    context: Size | None = flag("longest sequence that it reads")
    vocab_size: Size | None = flag("tokens that the model knows")
    init_from: Path | None = flag("a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, GPT-2)")
    dropout: Decay = flag("gpt2: share of activations left out", 0.0)
    data_mode: str = flag("embedded, synthetic, fineweb-edu, or a text file", EMBEDDED)
    dataset: str | None = flag("prepared: a folder, or a name in data/")
    compile: bool = flag("compile the model's blocks", False)
    compile_backend: Literal["inductor", "aot_eager", "eager"] = flag("of torch.compile", "inductor")

    precision: Recipe = flag(f"dtypes of all states: {', '.join(PRECISIONS)}")
    fp16: bool = flag("the same as --precision fp16", False)
    bf16: bool = flag("the same as --precision bf16", False)
    fp8: bool = flag("the same as --precision fp8", False)
    fp8_backend: Literal["emulated"] = flag("multiplied in bf16", "emulated")
    params_dtype: Float | None = flag("parameters, as forward uses them")
    main_params_dtype: Float | None = flag("those that are updated")
    grads_dtype: Float | None = flag("gradients until they are reduced")
    main_grads_dtype: Float | None = flag("reduced gradients until the step")
    reduce_dtype: Float | None = flag("gradients while they travel")
    exp_avg_dtype: Moment | None = flag("Adam's first moment")
    exp_avg_sq_dtype: Moment | None = flag("Adam's second moment")
    loss_scale: Level = flag("a fixed loss scale for fp16; 0: dynamic", 0.0)
    initial_scale_power: Power = flag("the scale begins at 2 to this power", 16)
    loss_scale_window: Count = flag("clean steps until it doubles", 1000)
    hysteresis: Count = flag("overflows until it is halved", 2)
    min_loss_scale: Speed = flag("its least", 1.0)

    offload_optimizer: Place = flag("where main parameters and moments rest", "device")
    offload_param: Place = flag("stage 3: where parameters rest", "device")
    offload_path: Path | None = flag("folder for what rests on the disk")
    buffer_count: Count = flag("host buffers between disk and step", 3)
    buffer_size: Count | None = flag("elements of a buffer for parameters on disk")
    sub_group_size: Count | None = flag("elements updated at a time")
    max_in_cpu: Amount = flag("of parameters on disk, elements on the host", 0)

    param_persistence_threshold: Amount = flag("stage 3: up to this size they stay whole", 0)
    prefetch_bucket_size: Amount | None = flag("stage 3: elements to gather ahead")
    max_live_parameters: Amount | None = flag("stage 3: elements here at most")
    max_reuse_distance: Amount | None = flag("stage 3: keep what is used again so soon")

    save_folder: Path | None = flag("of checkpoints; the end, and SIGTERM, make one")
    save_every: Count | None = flag("save after each so many steps, too")
    keep: Count | None = flag("newest checkpoints to keep (default: all)")
    resume: Path | None = flag(
        "go on from a checkpoint, or a folder's newest (alone: save-folder's, if there is one); "
        "optimizer, schedule, dropout and batch-size are as there unless given"
    )
    zero3_save_16bit_model: bool = flag("at the end, write 16-bit weights, too", False)

    lr_schedule: Kind = flag("how the learning rate falls, down to min-lr", "constant")
    warmup_steps: Amount = flag("steps in which the learning rate rises to lr", 0)
    warmup_shape: WarmupShape = flag("how it rises", "line")
    decay_steps: Count | None = flag("steps until it is min-lr (default: max-steps)")
    min_lr: Level = flag("the learning rate at the end", 0.0)

    eval_every: Count | None = flag("evaluate after each so many steps")
    eval_steps: Evaluated = flag("micro-batches of an evaluation", 10)

    world: Literal["processes", "lockstep", "virtual"] = flag(
        "lockstep: one process, a virtual clock; virtual: rank 0, without values",
        "processes",
    )
    gflop_per_s: Speed = flag("with such a clock: 10^9 operations a second", 50.0)
    gbyte_per_s: Speed = flag("with such a clock: 10^9 bytes a second of memory", 10.0)
    gbit_per_s: Speed | None = flag("bandwidth of a simulated link")
    latency_us: Latency = flag("its microseconds a message", 0.0)

    timeout: Seconds | None = flag("seconds until the run is reported and ended")
    collective_timeout: Seconds = flag("the same of a collective", 600.0)
    profile_json: Path | None = flag("write all that is measured to this file")
    trace: Path | None = flag("write what ran when, for ui.perfetto.dev")
    trace_steps: Count = flag("first steps to trace", 5)

    zero_debug: bool = flag("log what each rank keeps, calls and sends", False)
    zero_debug_max_steps: Amount = flag("of the first so many steps", 3)
    zero_debug_max_params: Amount = flag("and so many parameters", 8)

    # No flags of `zerolab train`, and in no file.
    shape: Any = Field(None, exclude=True)
    """Another model, with a `name` and a `config`."""
    attention: Literal["flash", "eager"] = Field(
        "flash",
        exclude=True,
        description="as planned: by a kernel that keeps no scores, or eager",
    )
    on_gpus: bool = Field(False, exclude=True)
    """Whether defaults are those of GPUs."""

    def __init__(self, shape: Any = None, /, **settings: Any) -> None:
        if shape is not None:
            batch = {} if "batch_size" in settings else {"micro_batch_size": 1}
            settings = {"ranks": 8, "precision": "bf16", "seq_len": 1024, **batch, **settings, "shape": shape}
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(sentence_of(error)) from None

    def but(self, **changes: Any) -> RunSpec:
        """The same run with other settings, but for its micro-batch unless one is given."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if not {"batch_size", "micro_batch_size"} & changes.keys():
            changes["micro_batch_size"] = self.micro_batch_size
        if "micro_batch_size" in changes:
            given.pop("batch_size", None)
        return RunSpec(**given | first_names(changes))

    @model_validator(mode="wrap")
    @classmethod
    def _with_batch(cls, given: Any, made: ModelWrapValidatorHandler[Self]) -> Self:
        """A batch that is filled in is not given: a checkpoint's goes before."""
        given = first_names(given)
        if "micro_batch_size" in given:
            sequences = given.pop("micro_batch_size")
            check_count("micro_batch_size", sequences)
            if "batch_size" in given:
                raise InputError("batch_size and micro_batch_size are both given; leave one out")
            given["batch_size"] = _parts(given) * sequences
        if "batch_size" in given:
            return made(given)
        run = made({**given, "batch_size": default_batch(given)})
        run.model_fields_set.discard("batch_size")
        return run

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_division(self.batch_size, self.ranks, self.grad_accum_steps)
        if self.ranks % self.instances:
            said = f"num_distributed_optimizer_instances is {self.instances}"
            raise InputError(f"{said}, which does not divide {self.ranks} ranks; give a divisor")
        self._check_model()
        check_places(self.stage, self.dtypes, self.places)
        _ = self.scaler
        self._refuse_unused(UNUSED)
        if self.resume is None:
            # Else a checkpoint may give a part of it.
            self.check_schedule()
        return self

    def check_schedule(self) -> None:
        self._refuse_unused(UNUSED_OF_SCHEDULE)
        _ = self.schedule

    def _refuse_unused(self, table: Table) -> None:
        for names, (condition, why) in table.items():
            matters = condition(self) if callable(condition) else attrgetter(condition)(self)
            for name in [] if matters else names.split():
                value = getattr(self, name)
                if value != RunSpec.model_fields[name].default:
                    said = repr(str(value)) if isinstance(value, Path) else value
                    raise InputError(f"{name} is {said} but {why.format(run=self)}, or leave it out")

    def _check_model(self) -> None:
        if self.dataset is not None and self.data_mode != EMBEDDED:
            raise InputError(f"data_mode is {self.data_mode!r} and dataset {self.dataset!r}; choose one")
        shaped = ("model", "model_size", "context", *self.own_sizes)
        given = [name for name in shaped if getattr(self, name) != RunSpec.model_fields[name].default]
        if self.init_from is not None and given:
            said = f"init_from is {str(self.init_from)!r}, whose model has its own shape"
            raise InputError(f"{said}, and {given[0]} is {getattr(self, given[0])}; leave one of the two out")
        longest = self.architecture.max_seq_len
        if self.seq_len > longest:
            most = f"the context of {self.model_name}, {longest}"
            raise InputError(f"{self.seq_len} tokens are more than {most}; give fewer")

    @property
    def own_sizes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}

    @property
    def model_name(self) -> str:
        if self.shape is not None:
            return str(self.shape.name)
        if not self.own_sizes:
            return f"{self.model} {self.model_size}"
        sizes = [f"{name} {value}" for name, value in self.own_sizes.items()]
        return f"{self.model} {', '.join(sizes)}"

    @property
    def architecture(self) -> Config:
        """The model's sizes; of bytes, unless there is a vocabulary."""
        if self.shape is not None:
            config: Config = self.shape.config
            return config
        if self.init_from is not None:
            raise InputError(f"init_from is {str(self.init_from)!r}, whose shape nobody has read")
        sizes = {"vocab_size": self.vocab_size or BYTE_VOCABULARY}
        sizes["max_seq_len"] = self.context or self.seq_len
        config = config_of(self.model, self.model_size, **sizes)
        given = self.own_sizes
        for name in given:
            if name not in {field.name for field in fields(config)}:
                raise InputError(f"{name} is {given[name]}, which {self.model} does not have; leave it out")
        if isinstance(config, LlamaConfig):
            if "heads" in given:
                given.setdefault("kv_heads", given["heads"])
            if "dim" in given:
                given.setdefault("ffn_dim", -(-8 * given["dim"] // (3 * ROUND)) * ROUND)
        return replace(config, **given)

    stage = property(attrgetter("zero_stage"))
    micro_batches = property(attrgetter("grad_accum_steps"))
    instances = property(attrgetter("num_distributed_optimizer_instances"))

    @property
    def micro_batch_size(self) -> int:
        return self.batch_size // (self.ranks * self.grad_accum_steps)

    @property
    def sharing(self) -> int:
        """How many ranks share the states out among them."""
        return self.ranks // self.instances

    @property
    def places(self) -> Offload:
        parts = {part: getattr(self, setting) for setting, part in OF_OFFLOAD.items()}
        for part in ("optimizer", "parameters"):
            parts[part] = TIER_OF.get(parts[part], parts[part])
        return Offload(**parts)

    @property
    def limits(self) -> Stage3Limits:
        return Stage3Limits(**{part: getattr(self, setting) for setting, part in OF_LIMITS.items()})

    @property
    def dtypes(self) -> Precision | None:
        """The dtypes of the states; None if nothing is asked for: fp32."""
        asked = [name for name in ("fp16", "bf16", "fp8") if getattr(self, name)]
        asked += [f"precision {self.precision}"] if self.precision else []
        if len(asked) > 1:
            raise InputError(f"{' and '.join(asked)} are both asked for; choose one")
        name = self.precision or (asked[0] if asked else None)
        base = find_precision(name) or Precision()
        given = {state: getattr(self, flag) for flag, state in STATE_OF.items()}
        changes = {state: dtype for state, dtype in given.items() if dtype is not None}
        if name is None and not changes:
            return None
        if name is not None and changes.get("params", base.params) != base.params:
            said = f"{asked[0]} computes with {base.params} parameters"
            raise InputError(f"{said} but params_dtype is {self.params_dtype}; leave one of the two out")
        if "grads" in changes and "reduce" not in changes:
            changes["reduce"] = changes["grads"]
        return replace(base, **changes)

    @property
    def scaler(self) -> LossScaler | None:
        if self.dtypes is None or not self.dtypes.scales_loss:
            return None
        if not self.loss_scale and 2.0**self.initial_scale_power < self.min_loss_scale:
            raise InputError(
                f"min_loss_scale is {self.min_loss_scale:g}, above the scale at the start, "
                f"2**{self.initial_scale_power}; give a smaller min_loss_scale or a larger initial_scale_power"
            )
        options = (self.loss_scale_window, self.hysteresis, self.min_loss_scale)
        return LossScaler(self.initial_scale_power, *options, self.loss_scale or None)

    @property
    def schedule(self) -> LrSchedule:
        end = self.decay_steps or max(self.max_steps, self.warmup_steps)
        kind, shape = self.lr_schedule, self.warmup_shape
        return LrSchedule(self.lr, kind, self.warmup_steps, end, self.min_lr, shape)

    @property
    def link(self) -> Link | None:
        return None if self.gbit_per_s is None else Link(self.gbit_per_s, self.latency_us)


AT_STAGE_3 = ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "prefetch")
"""Settings that no lower stage heeds."""
Table = dict[str, tuple[str | Callable[[RunSpec], bool], str]]
UNUSED: Table = {
    " ".join(AT_STAGE_3): (
        lambda run: run.stage == 3,
        "stage {run.stage} gathers nothing for a unit; give zero_stage 3",
    ),
    "reduction": (
        lambda run: run.stage < 2,
        "stage {run.stage} keeps a shard of the gradients; choose zero_stage 1",
    ),
    "num_distributed_optimizer_instances": ("stage", "stage 0 shards nothing; choose stage 1, 2 or 3"),
    "offload_path": ("places.on_disk", "no state rests on the disk; give offload_optimizer"),
    "loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale": (
        "scaler",
        "no state is fp16; choose fp16",
    ),
    "dropout": (lambda run: isinstance(run.architecture, GPT2Config), "a llama has none; choose --model gpt2"),
    "compile_backend": ("compile", "nothing is compiled; give compile, too"),
    "save_every keep zero3_save_16bit_model": ("save_folder", "there is no folder to save to; give save_folder"),
    "eval_steps": ("eval_every", "nothing is evaluated; give eval_every, too"),
    "latency_us": ("gbit_per_s", "there is no simulated link; give gbit_per_s, too"),
    "gflop_per_s gbyte_per_s": (
        lambda run: run.world != "processes",
        "processes take the time that they take; give --world lockstep",
    ),
    "trace_steps": ("trace", "nothing is traced; give --trace FILE"),
    "zero_debug_max_steps zero_debug_max_params": ("zero_debug", "nothing is logged; give --zero-debug"),
}
"""Settings that matter only with another: which, or when; and why else not."""
UNUSED_OF_SCHEDULE: Table = {
    "decay_steps min_lr": (
        lambda run: run.lr_schedule != "constant",
        "the learning rate never falls; give lr_schedule cosine or linear",
    ),
    "warmup_shape": ("warmup_steps", "the learning rate does not warm up; give warmup_steps"),
}
"""The same, of settings that a checkpoint may give."""


def names_in(group: str) -> list[str]:
    """The settings of one of `GROUPS`."""
    names = list(RunSpec.model_fields)
    starts = [names.index(first) for first in GROUPS]
    at = list(GROUPS.values()).index(group)
    return names[starts[at] : [*starts, names.index("shape")][at + 1]]


def first_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names of fields, each of which may be given once."""
    found, source = dict[str, Any](), dict[str, str]()
    for name, value in given.items():
        own = {SECOND_NAMES.get(name, name): value}
        if name == "offload":
            if not isinstance(value, Offload) and value not in OFFLOADS:
                raise InputError(f"offload is {value!r}; choose one of {', '.join(OFFLOADS)}")
            offload = value if isinstance(value, Offload) else OFFLOADS[value]
            own = {setting: getattr(offload, part) for setting, part in OF_OFFLOAD.items()}
        if twice := sorted(own.keys() & found.keys()):
            raise InputError(f"{source[twice[0]]} is given, and {name}, too; leave one of the two out")
        found |= own
        source |= dict.fromkeys(own, name)
    return found


def _parts(given: Mapping[str, Any]) -> int:
    texts = [str(given.get("ranks", RANKS)), str(given.get("grad_accum_steps", 1))]
    return prod(int(text) for text in texts if text.isdecimal() and 0 < int(text) < MOST)


def default_batch(given: Mapping[str, Any]) -> int:
    """A few sequences that ranks and micro-batches divide."""
    parts = _parts(given)
    return -(-SEQUENCES // parts) * parts


WANTED = {
    "int": "give a whole number",
    "float": "give a number",
    "finite": "give a number",
    "bool": "give true or false",
}
"""What a value should be, by the kind of pydantic's error."""


def sentence_of(error: ValidationError) -> str:
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return str(cause)
    name = ".".join(str(part) for part in first["loc"][:1]) or "the run"
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}; see zerolab train --help"
    said = first["msg"].replace("Input should be", "it should be").rstrip(".")
    return f"{name} is {first['input']!r}; {WANTED.get(first['type'].partition('_')[0], said)}"
