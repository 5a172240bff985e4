"""What a run is: its model and data, how it is sharded, in which dtypes and places, how it trains, saves and reports.

`zerolab train` carries such a run out, `zerolab plan` predicts it, sweeps vary it, and dialects read and write it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
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
from zerolab.offload.formats import check_places
from zerolab.offload.places import NO_OFFLOAD, TIER_OF, Offload
from zerolab.precision import PRECISIONS, LossScaler, Precision
from zerolab.precision.recipe import STATES, find_precision
from zerolab.run.schedule import Kind, LrSchedule, WarmupShape
from zerolab.zero.limits import Stage3Limits

SEQUENCES, MOST_SEQUENCES = 12, 1 << 20
"""Sequences of an optimizer step: by default, and at most in training, which draws each of them by itself."""
MOST = 1 << 31
"""Ranks, sequences or elements of a size, of which nobody has more."""
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
"""Settings, and what a Precision, an Offload and Stage3Limits call them."""
OFFLOADS = {
    "nothing": NO_OFFLOAD,
    "optimizer": Offload("host"),
    "optimizer and parameters": Offload("host", "host"),
}
"""What may lie in the host's memory instead of the GPU's, by name."""


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
"""The groups in which help shows settings, each by its first."""


def check_precision(precision: Any) -> Any:
    """What names a recipe, or is one. Raises InputError for another."""
    find_precision(precision)
    return precision


def setting(default: Any, description: str) -> Any:
    """A field with its help."""
    return Field(default, description=description)


class RunSpec(BaseModel):
    """A run. Names of fields are the flags of `zerolab train`, descriptions their help.

    `RunSpec(shape, ...)` begins as plans do, with 8 ranks, bf16, and one sequence of 1024 tokens a rank; without a
    shape the model is one of ours by name and sizes. Some things have a second name, as the rest of the library calls
    them: stage, micro_batches, micro_batch_size, instances, and offload (an `Offload`, or a name in `OFFLOADS`).

    Raises InputError, of one sentence, for values that there are not and for settings that contradict each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    zero_stage: Stage = setting(0, "what is sharded: 0 nothing, 1 optimizer, 2 +gradients, 3 all")
    ranks: Most = setting(2, "at most 128 here, or those that torchrun brings")
    collective_impl: Literal["auto", "shared", "ring", "torch"] = setting(
        "auto", "shared memory, our rings, or torch's; auto: shared on CPUs, torch's (NCCL) on GPUs"
    )
    seq_len: Most = setting(64, "tokens of a sequence")
    batch_size: Most = setting(SEQUENCES, "sequences of a step, over all ranks; by default rounded up")
    grad_accum_steps: Count = setting(1, "micro-batches of an optimizer step")
    max_steps: Count = setting(100, "optimizer steps, with those before a checkpoint")
    lr: Speed = setting(1e-3, "learning rate of AdamW")
    weight_decay: Level = setting(0.1, "decay of matrices")
    beta1: Decay = setting(0.9, "decay of the first moment")
    beta2: Decay = setting(0.999, "decay of the second moment")
    eps: Speed = setting(1e-8, "added to the root of the second moment")
    clip_norm: Level = setting(1.0, "global gradient norm to clip to; 0: none")
    seed: Seed = setting(0, "seed of weights and batches")
    reduction: Literal["reduce_scatter", "all_reduce"] = setting("reduce_scatter", "how stage 1 reduces gradients")
    num_distributed_optimizer_instances: Count = setting(1, "copies of the shards")
    defer_reduction: bool = setting(False, "reduce once a step, and keep whole gradients until then")
    overlap: bool = setting(True, "reduce while backward runs, gather while forward runs")
    prefetch: bool = setting(True, "stage 3: gather the next unit ahead")
    checkpoint_activations: bool = setting(False, "recompute activations in backward")
    bucket_numel: Count | None = setting(None, "elements of a bucket at most; none: a unit's")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where the ranks compute")

    model: Literal["llama", "gpt2"] = setting("llama", "architecture")
    model_size: str = setting("tiny", "nano, tiny, small, medium (llama); nano, tiny, 124m ... gpt3-175b (gpt2)")
    layers: Layers | None = setting(None, "blocks, in place of the named size's; so are those below")
    heads: Size | None = setting(None, "attention heads")
    dim: Size | None = setting(None, "width of the hidden states")
    kv_heads: Size | None = setting(None, "llama: heads of keys and values")
    ffn_dim: Size | None = setting(None, "llama: width of the feed-forward")
    bias: bool | None = setting(None, "gpt2: linear layers and norms have biases")
    tied_head: bool | None = setting(None, "the head's weight is the embedding's; none: yes")
    context: Size | None = setting(None, "longest sequence that the model can read")
    vocab_size: Size | None = setting(None, "tokens that the model knows")
    init_from: Path | None = setting(None, "begin with a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, GPT-2)")
    dropout: Decay = setting(0.0, "gpt2: share of activations left out")
    data_mode: str = setting(EMBEDDED, "embedded, synthetic, fineweb-edu, or the path of a text file")
    dataset: str | None = setting(None, "prepared tokens: a folder, or a name in data/")
    compile: bool = setting(False, "compile the model's blocks")
    compile_backend: Literal["inductor", "aot_eager", "eager"] = setting("inductor", "of torch.compile")

    precision: Annotated[Precision | str | None, PlainValidator(check_precision)] = setting(
        None, f"dtypes of all states: {', '.join(PRECISIONS)}; none: fp32"
    )
    fp16: bool = setting(False, "the same as --precision fp16")
    bf16: bool = setting(False, "the same as --precision bf16")
    fp8: bool = setting(False, "the same as --precision fp8")
    fp8_backend: Literal["emulated"] = setting("emulated", "fp8 is rounded to and multiplied in bf16")
    params_dtype: Float | None = setting(None, "parameters, as forward uses them")
    main_params_dtype: Float | None = setting(None, "parameters, as the optimizer updates them")
    grads_dtype: Float | None = setting(None, "gradients until they are reduced")
    main_grads_dtype: Float | None = setting(None, "reduced gradients until the step")
    reduce_dtype: Float | None = setting(None, "gradients while they travel")
    exp_avg_dtype: Moment | None = setting(None, "Adam's first moment")
    exp_avg_sq_dtype: Moment | None = setting(None, "Adam's second moment")
    loss_scale: Level = setting(0.0, "a fixed loss scale for fp16; 0: dynamic")
    initial_scale_power: Power = setting(16, "the dynamic scale begins at 2 to this power")
    loss_scale_window: Count = setting(1000, "clean steps until it doubles")
    hysteresis: Count = setting(2, "overflows until it is halved")
    min_loss_scale: Speed = setting(1.0, "its least")

    offload_optimizer: Place = setting("device", "where main parameters and moments rest")
    offload_param: Place = setting("device", "stage 3: where parameters rest")
    offload_path: Path | None = setting(None, "folder for what rests on the disk")
    buffer_count: Count = setting(3, "host buffers between disk and step")
    buffer_size: Count | None = setting(None, "elements of a host buffer for parameters on disk")
    sub_group_size: Count | None = setting(None, "elements that the step updates at a time")
    max_in_cpu: Amount = setting(0, "of parameters on disk, elements on the host")

    param_persistence_threshold: Amount = setting(0, "stage 3: parameters up to this size stay whole")
    prefetch_bucket_size: Amount | None = setting(None, "stage 3: elements to gather ahead")
    max_live_parameters: Amount | None = setting(None, "stage 3: gather ahead and keep up to so many")
    max_reuse_distance: Amount | None = setting(None, "stage 3: keep a unit that is used again within so many elements")

    save_folder: Path | None = setting(None, "folder of checkpoints; the end, and SIGTERM, make one")
    save_every: Count | None = setting(None, "save after each so many steps, too")
    keep: Count | None = setting(None, "newest checkpoints to keep; none: all")
    resume: Path | None = setting(
        None,
        "go on from a checkpoint, or the newest of a folder (--resume alone: of save-folder, or anew where there is "
        "none); settings of optimizer and schedule, dropout and batch-size are its unless they are given",
    )
    zero3_save_16bit_model: bool = setting(False, "at the end, write the weights in 16 bits, too")

    lr_schedule: Kind = setting("constant", "how the learning rate falls, down to min-lr")
    warmup_steps: Amount = setting(0, "steps in which the learning rate rises to lr")
    warmup_shape: WarmupShape = setting("line", "how it rises")
    decay_steps: Count | None = setting(None, "steps until it is min-lr; none: max-steps")
    min_lr: Level = setting(0.0, "the learning rate at the end")

    eval_every: Count | None = setting(None, "evaluate on held-out text after each so many steps")
    eval_steps: Evaluated = setting(10, "micro-batches of an evaluation")

    world: Literal["processes", "lockstep", "virtual"] = setting(
        "processes",
        "lockstep: all ranks in one process, on a virtual clock; virtual: rank 0, without values",
    )
    gflop_per_s: Speed = setting(50.0, "with such a clock: 10^9 operations a second")
    gbyte_per_s: Speed = setting(10.0, "with such a clock: 10^9 bytes a second of memory")
    gbit_per_s: Speed | None = setting(None, "bandwidth of a simulated link")
    latency_us: Latency = setting(0.0, "its microseconds a message")

    timeout: Seconds | None = setting(None, "seconds until the run is reported and ended")
    collective_timeout: Seconds = setting(600.0, "the same of a collective")
    profile_json: Path | None = setting(None, "write losses, times, memory and traffic to this file")
    trace: Path | None = setting(None, "write what ran when to this file, for ui.perfetto.dev")
    trace_steps: Count = setting(5, "first steps to trace")

    zero_debug: bool = setting(False, "log what each rank keeps, calls and sends")
    zero_debug_max_steps: Amount = setting(3, "of the first so many steps")
    zero_debug_max_params: Amount = setting(8, "and so many parameters")

    # No flags of `zerolab train`, and in no file.
    shape: Any = Field(None, exclude=True)
    """A model of another description, with a `name` and a `config`; None: the named one."""
    attention: Literal["flash", "eager"] = Field(
        "flash",
        exclude=True,
        description="as planned: by a kernel that keeps no scores, as torch takes it on CPUs and GPUs, or eager",
    )
    on_gpus: bool = Field(False, exclude=True)
    """Whether defaults are planned as those of ranks on GPUs (`Offload.on`, `Stage3Limits.on`)."""

    def __init__(self, shape: Any = None, /, **settings: Any) -> None:
        if shape is not None:
            batch = {} if "batch_size" in settings else {"micro_batch_size": 1}
            settings = {"ranks": 8, "precision": "bf16", "seq_len": 1024, **batch, **settings, "shape": shape}
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(sentence_of(error)) from None

    def but(self, **changes: Any) -> RunSpec:
        """The same run with other settings. Each rank's micro-batch stays, unless one is given."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        if not {"batch_size", "micro_batch_size"} & changes.keys():
            changes["micro_batch_size"] = self.micro_batch_size
        if "micro_batch_size" in changes:
            given.pop("batch_size", None)
        return RunSpec(**given | first_names(changes))

    @model_validator(mode="wrap")
    @classmethod
    def _with_batch(cls, given: Any, made: ModelWrapValidatorHandler[Self]) -> Self:
        """Second names, and a batch that the ranks divide, where nobody says one; it does not count as given, so that a
        checkpoint's goes before it."""
        if not isinstance(given, Mapping):
            return made(given)
        given = first_names(given)
        if "micro_batch_size" in given:
            sequences = given.pop("micro_batch_size")
            check_count("micro_batch_size", sequences)
            if "batch_size" in given:
                raise InputError("batch_size and micro_batch_size are both given; leave one of the two out")
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
            raise InputError(f"{said}, which does not divide {self.ranks} ranks; give a divisor of {self.ranks}")
        self._check_model()
        check_places(self.stage, self.dtypes, self.places)
        _ = self.scaler
        self._refuse_unused(UNUSED)
        if self.resume is None:
            # Else a checkpoint may give a part of the schedule, and the whole is checked once it has.
            self.check_schedule()
        return self

    def check_schedule(self) -> None:
        """Raise an InputError for settings that no schedule has."""
        self._refuse_unused(UNUSED_OF_SCHEDULE)
        _ = self.schedule

    def _refuse_unused(self, table: Table) -> None:
        for names, (matters, why) in table.items():
            for name in [] if matters(self) else names.split():
                value = getattr(self, name)
                if value != RunSpec.model_fields[name].default:
                    said = repr(str(value)) if isinstance(value, Path) else value
                    raise InputError(f"{name} is {said} but {why.format(run=self)}, or leave it out")

    def _check_model(self) -> None:
        if self.dataset is not None and self.data_mode != EMBEDDED:
            raise InputError(
                f"data_mode is {self.data_mode!r} and dataset {self.dataset!r}; a run has one, so choose one"
            )
        shaped = ("model", "model_size", "context", *self.own_sizes)
        given = [name for name in shaped if getattr(self, name) != RunSpec.model_fields[name].default]
        if self.init_from is not None and given:
            raise InputError(
                f"init_from is {str(self.init_from)!r}, whose model has its own shape, and {given[0]} is "
                f"{getattr(self, given[0])}; leave one of the two out"
            )
        longest = self.architecture.max_seq_len
        if self.seq_len > longest:
            raise InputError(
                f"{self.seq_len} tokens are more than the context of {self.model_name}, {longest}; give fewer, or "
                "another model"
            )

    # The model.

    @property
    def own_sizes(self) -> dict[str, Any]:
        """The sizes that are given, in the place of a named one's."""
        return {name: getattr(self, name) for name in SIZES if getattr(self, name) is not None}

    @property
    def model_name(self) -> str:
        """What titles and errors call the model."""
        if self.shape is not None:
            return str(self.shape.name)
        if not self.own_sizes:
            return f"{self.model} {self.model_size}"
        return f"{self.model} {', '.join(f'{name} {value}' for name, value in self.own_sizes.items())}"

    @property
    def architecture(self) -> Config:
        """The model's sizes; its vocabulary is the 256 bytes where nobody has said another."""
        if self.shape is not None:
            config: Config = self.shape.config
            return config
        if self.init_from is not None:
            raise InputError(f"init_from is {str(self.init_from)!r}, and nobody has read the shape of its model")
        vocabulary, longest = self.vocab_size or BYTE_VOCABULARY, self.context or self.seq_len
        config = config_of(self.model, self.model_size, vocab_size=vocabulary, max_seq_len=longest)
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

    # How it is sharded, and where its states are.

    @property
    def stage(self) -> int:
        return self.zero_stage

    @property
    def micro_batches(self) -> int:
        return self.grad_accum_steps

    @property
    def micro_batch_size(self) -> int:
        """Sequences that a rank computes at a time."""
        return self.batch_size // (self.ranks * self.grad_accum_steps)

    @property
    def instances(self) -> int:
        return self.num_distributed_optimizer_instances

    @property
    def sharing(self) -> int:
        """How many ranks share the states out among them."""
        return self.ranks // self.instances

    @property
    def places(self) -> Offload:
        """Where the states rest."""
        parts = {part: getattr(self, setting) for setting, part in OF_OFFLOAD.items()}
        tiers = {part: TIER_OF.get(parts[part], parts[part]) for part in ("optimizer", "parameters")}
        return Offload(**parts | tiers)

    @property
    def limits(self) -> Stage3Limits:
        """What stage 3 has whole, in elements."""
        return Stage3Limits(**{part: getattr(self, setting) for setting, part in OF_LIMITS.items()})

    @property
    def dtypes(self) -> Precision | None:
        """The dtypes of the states; None if nothing is asked for, which is fp32."""
        asked = [name for name in ("fp16", "bf16", "fp8") if getattr(self, name)]
        asked += [f"precision {self.precision}"] if self.precision else []
        if len(asked) > 1:
            raise InputError(f"{' and '.join(asked)} are both asked for; a run has one precision, so choose one")
        name = self.precision or (asked[0] if asked else None)
        base = find_precision(name) or Precision()
        changes = {STATE_OF[flag]: getattr(self, flag) for flag in STATE_OF if getattr(self, flag) is not None}
        if name is None and not changes:
            return None
        if name is not None and changes.get("params", base.params) != base.params:
            raise InputError(
                f"{asked[0]} computes with {base.params} parameters but params_dtype is {self.params_dtype}; "
                "leave one of the two out"
            )
        if "grads" in changes and "reduce" not in changes:
            changes["reduce"] = changes["grads"]
        return replace(base, **changes)

    @property
    def scaler(self) -> LossScaler | None:
        """The loss scale, where the precision has fp16."""
        if self.dtypes is None or not self.dtypes.scales_loss:
            return None
        if not self.loss_scale and 2.0**self.initial_scale_power < self.min_loss_scale:
            raise InputError(
                f"min_loss_scale is {self.min_loss_scale:g}, above the scale at the start, "
                f"2**{self.initial_scale_power}; give a smaller min_loss_scale or a larger initial_scale_power"
            )
        return LossScaler(
            self.initial_scale_power, self.loss_scale_window, self.hysteresis, self.min_loss_scale,
            static=self.loss_scale or None,
        )  # fmt: skip

    @property
    def schedule(self) -> LrSchedule:
        """The learning rate by step."""
        return LrSchedule(
            self.lr,
            self.lr_schedule,
            self.warmup_steps,
            self.decay_steps or max(self.max_steps, self.warmup_steps),
            self.min_lr,
            self.warmup_shape,
        )

    @property
    def link(self) -> Link | None:
        return None if self.gbit_per_s is None else Link(self.gbit_per_s, self.latency_us)


AT_STAGE_3 = ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "prefetch")
"""Settings that no lower stage heeds."""
Table = dict[str, tuple[Callable[[RunSpec], Any], str]]
UNUSED: Table = {
    " ".join(AT_STAGE_3): (
        lambda run: run.stage == 3,
        "stage {run.stage} gathers nothing for a unit; give zero_stage 3",
    ),
    "reduction": (
        lambda run: run.stage < 2,
        "stage {run.stage} keeps a shard of the gradients, which a reduce-scatter brings; choose zero_stage 1",
    ),
    "num_distributed_optimizer_instances": (attrgetter("stage"), "stage 0 shards nothing; choose stage 1, 2 or 3"),
    "offload_path": (
        attrgetter("places.on_disk"),
        "no state rests on the disk; give offload_optimizer or offload_param",
    ),
    "loss_scale initial_scale_power loss_scale_window hysteresis min_loss_scale": (
        attrgetter("scaler"),
        "no state is fp16; choose fp16",
    ),
    "dropout": (lambda run: isinstance(run.architecture, GPT2Config), "a llama has none; choose --model gpt2"),
    "compile_backend": (attrgetter("compile"), "nothing is compiled; give compile, too"),
    "save_every keep zero3_save_16bit_model": (
        attrgetter("save_folder"),
        "there is no folder to save to; give save_folder",
    ),
    "eval_steps": (attrgetter("eval_every"), "nothing is evaluated; give eval_every, too"),
    "latency_us": (attrgetter("gbit_per_s"), "there is no simulated link; give gbit_per_s, too"),
    "gflop_per_s gbyte_per_s": (
        lambda run: run.world != "processes",
        "processes take the time that they take; give --world lockstep",
    ),
    "trace_steps": (attrgetter("trace"), "nothing is traced; give --trace FILE"),
    "zero_debug_max_steps zero_debug_max_params": (
        attrgetter("zero_debug"),
        "nothing is logged; give --zero-debug",
    ),
}
"""Settings that change nothing unless something else is given: when they matter, and why else they do not."""
UNUSED_OF_SCHEDULE: Table = {
    "decay_steps min_lr": (
        lambda run: run.lr_schedule != "constant",
        "the learning rate never falls; give lr_schedule cosine or linear",
    ),
    "warmup_shape": (attrgetter("warmup_steps"), "the learning rate does not warm up; give warmup_steps"),
}
"""The same, of settings that a checkpoint may give where the run resumes."""


def names_in(group: str) -> list[str]:
    """The settings of one of `GROUPS`."""
    names = list(RunSpec.model_fields)
    starts = [names.index(first) for first in GROUPS]
    at = list(GROUPS.values()).index(group)
    return names[starts[at] : [*starts, names.index("shape")][at + 1]]


def first_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by the names of `RunSpec`'s fields. Raises an InputError for one that is given twice."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        own = {SECOND_NAMES.get(name, name): value}
        if name == "offload":
            if not isinstance(value, Offload) and value not in OFFLOADS:
                raise InputError(f"offload is {value!r}; choose one of {', '.join(OFFLOADS)}")
            offload = value if isinstance(value, Offload) else OFFLOADS[value]
            own = {setting: getattr(offload, part) for setting, part in OF_OFFLOAD.items()}
        if twice := sorted(own.keys() & found.keys()):
            raise InputError(f"{name} is given, and {twice[0]}, too, which it says; leave one of the two out")
        found |= own
    return found


def _parts(given: Mapping[str, Any]) -> int:
    """Into how many parts ranks and micro-batches cut a batch."""
    parts = 1
    for name in ("ranks", "grad_accum_steps"):
        value = str(given.get(name, RunSpec.model_fields[name].default))
        parts *= int(value) if value.isdecimal() and 0 < int(value) < MOST else 1
    return parts


def default_batch(given: Mapping[str, Any]) -> int:
    """Sequences of a step of a run with these settings, where nobody says how many: a few that ranks and micro-batches
    divide."""
    parts = _parts(given)
    return -(-SEQUENCES // parts) * parts


WANTED = {
    "int": "give a whole number",
    "float": "give a number",
    "finite": "give a number",
    "bool": "give true or false",
}
"""What a value should be, by the first word of the kind of pydantic's error."""


def sentence_of(error: ValidationError) -> str:
    """One sentence that names the setting, its value, and what to give."""
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return str(cause)
    name = ".".join(str(part) for part in first["loc"][:1]) or "the run"
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}; see zerolab train --help"
    said = first["msg"].replace("Input should be", "it should be").rstrip(".")
    return f"{name} is {first['input']!r}; {WANTED.get(first['type'].partition('_')[0], said)}"
