"""What a run is: its model and data, how it is sharded, in which dtypes and places, how it trains, saves and reports.

`zerolab train` carries such a run out, `zerolab plan` predicts it, sweeps vary it, and dialects read and write it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
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
from zerolab.precision.recipe import find_precision
from zerolab.run.schedule import Kind, LrSchedule, WarmupShape
from zerolab.zero.limits import Stage3Limits

SEQUENCES, MOST_SEQUENCES = 12, 1 << 20
"""Sequences of an optimizer step: by default, and at most in training, which draws each of them by itself."""
MOST = 1 << 31
"""Ranks, sequences or elements of a size, of which nobody has more."""
ROUND = 64
Count = Annotated[int, Field(ge=1)]
Size = Annotated[int, Field(ge=1, lt=MOST)]
Amount = Annotated[int, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Speed = Annotated[float, Field(gt=0)]
Float = Literal["fp32", "bf16", "fp16"]
Moment = Literal["fp32", "bf16", "fp16", "fp8"]
Place = Literal["device", "host", "disk", "none", "cpu", "nvme"]
STATE_OF = {
    "params_dtype": "params",
    "main_params_dtype": "main_params",
    "grads_dtype": "grads",
    "main_grads_dtype": "main_grads",
    "reduce_dtype": "reduce",
    "exp_avg_dtype": "exp_avg",
    "exp_avg_sq_dtype": "exp_avg_sq",
}
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
    them: stage, micro_batches, micro_batch_size, instances, offload (an `Offload`, or a name in `OFFLOADS`) and limits.

    Raises InputError, of one sentence, for values that there are not and for settings that contradict each other.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)

    zero_stage: Annotated[int, Field(ge=0, le=3)] = setting(
        0, "what is sharded: 0 nothing, 1 optimizer, 2 +gradients, 3 all"
    )
    ranks: Annotated[int, Field(ge=1, le=MOST)] = setting(
        2, "ranks: in training at most 128 processes of this machine, or those that torchrun brings"
    )
    collective_impl: Literal["auto", "shared", "ring", "torch"] = setting(
        "auto", "shared memory, our rings, or torch's; auto: shared memory on CPUs, torch's (NCCL) on GPUs"
    )
    seq_len: Annotated[int, Field(ge=1, le=MOST)] = setting(64, "tokens of a sequence")
    batch_size: Annotated[int, Field(ge=1, le=MOST)] = setting(
        SEQUENCES,
        "sequences of an optimizer step, over all ranks and micro-batches; the default is rounded up to a "
        "multiple of these",
    )
    grad_accum_steps: Count = setting(1, "micro-batches of an optimizer step")
    max_steps: Count = setting(100, "optimizer steps, with those before a checkpoint")
    lr: Speed = setting(1e-3, "learning rate of AdamW")
    weight_decay: Annotated[float, Field(ge=0)] = setting(0.1, "decay of parameters with two or more dimensions")
    beta1: Decay = setting(0.9, "decay of AdamW's first moment")
    beta2: Decay = setting(0.999, "decay of AdamW's second moment")
    eps: Speed = setting(1e-8, "what AdamW adds to the root of the second moment")
    clip_norm: Annotated[float, Field(ge=0)] = setting(1.0, "global gradient norm to clip to; 0 turns clipping off")
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = setting(0, "seed of weights and batches")
    reduction: Literal["reduce_scatter", "all_reduce"] = setting("reduce_scatter", "how stage 1 reduces gradients")
    num_distributed_optimizer_instances: Count = setting(
        1, "copies of the shards: ranks shard inside a copy and all-reduce gradients across copies"
    )
    defer_reduction: bool = setting(False, "reduce once a step, not every micro-batch; keeps whole gradients")
    overlap: bool = setting(True, "reduce while backward runs, gather while forward runs")
    prefetch: bool = setting(True, "stage 3: gather the next unit while this one computes")
    checkpoint_activations: bool = setting(False, "recompute activations in backward")
    bucket_numel: Count | None = setting(None, "cut units into buckets of at most so many elements")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where the ranks compute")

    model: Literal["llama", "gpt2"] = setting("llama", "architecture")
    model_size: str = setting("tiny", "nano, tiny, small, medium (llama); nano, tiny, 124m ... gpt3-175b (gpt2)")
    layers: Annotated[int, Field(ge=1, le=10_000)] | None = setting(
        None, "blocks, in the place of the named size's; so are those below"
    )
    heads: Size | None = setting(None, "attention heads")
    dim: Size | None = setting(None, "width of the hidden states, a multiple of the heads")
    kv_heads: Size | None = setting(None, "llama: heads of keys and values; none: the size's, or heads")
    ffn_dim: Size | None = setting(None, "llama: width of the feed-forward; none: the size's, or 8/3 dim")
    bias: bool | None = setting(None, "gpt2: linear layers and norms have biases; none: no")
    tied_head: bool | None = setting(None, "the head's weight is the embedding's; none: yes")
    context: Size | None = setting(None, "longest sequence that the model can read; none: seq-len")
    vocab_size: Size | None = setting(None, "tokens that the model knows; none: those of the data")
    init_from: Path | None = setting(
        None,
        "begin with the weights of a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3, GPT-2), and with their shape",
    )
    dropout: Decay = setting(0.0, "gpt2: share of activations that training leaves out")
    data_mode: str = setting(EMBEDDED, "embedded, synthetic, fineweb-edu, or the path of a text file")
    dataset: str | None = setting(
        None, "prepared tokens instead (zerolab prepare, or nanoGPT's .bin files): a folder, or a name in data/"
    )
    compile: bool = setting(False, "compile the model's blocks (torch.compile)")
    compile_backend: Literal["inductor", "aot_eager", "eager"] = setting("inductor", "what torch.compile makes of them")

    precision: Annotated[Precision | str | None, PlainValidator(check_precision)] = setting(
        None, f"dtypes of all states: {', '.join(PRECISIONS)}; none: fp32"
    )
    fp16: bool = setting(False, "the same as --precision fp16, with a dynamic loss scale")
    bf16: bool = setting(False, "the same as --precision bf16")
    fp8: bool = setting(False, "the same as --precision fp8: linear layers compute in fp8, states as in bf16")
    fp8_backend: Literal["emulated"] = setting("emulated", "fp8 is rounded to and multiplied in bf16")
    params_dtype: Float | None = setting(None, "parameters, as forward and backward use them")
    main_params_dtype: Float | None = setting(None, "parameters, as the optimizer updates them")
    grads_dtype: Float | None = setting(None, "gradients of one rank until they are reduced")
    main_grads_dtype: Float | None = setting(None, "reduced gradients until the step")
    reduce_dtype: Float | None = setting(None, "gradients while they travel and are added up")
    exp_avg_dtype: Moment | None = setting(None, "Adam's first moment")
    exp_avg_sq_dtype: Moment | None = setting(None, "Adam's second moment")
    loss_scale: Annotated[float, Field(ge=0)] = setting(0.0, "a fixed loss scale for fp16; 0: dynamic")
    initial_scale_power: Annotated[int, Field(ge=0, le=127)] = setting(
        16, "the dynamic scale begins at 2 to this power"
    )
    loss_scale_window: Count = setting(1000, "clean steps after which the scale doubles")
    hysteresis: Count = setting(2, "overflows until the scale is halved")
    min_loss_scale: Speed = setting(1.0, "the scale is not halved below this")

    offload_optimizer: Place = setting("device", "where main parameters and moments rest; step on the host")
    offload_param: Place = setting("device", "stage 3: where the shards of the parameters rest")
    offload_path: Path | None = setting(None, "folder for what rests on the disk (DeepSpeed: nvme_path)")
    buffer_count: Count = setting(3, "host buffers between disk and step; with 3 all of it overlaps")
    buffer_size: Count | None = setting(None, "elements of a host buffer for parameters on disk")
    sub_group_size: Count | None = setting(
        None, "elements that the step updates at a time; none: 4 million, on GPUs 67 million"
    )
    max_in_cpu: Amount = setting(0, "elements of the parameters on disk that stay on the host")

    param_persistence_threshold: Amount = setting(
        0, "stage 3: parameters of at most so many elements stay whole on every rank"
    )
    prefetch_bucket_size: Amount | None = setting(
        None, "stage 3: elements that may be gathered ahead; none: those of the next unit"
    )
    max_live_parameters: Amount | None = setting(
        None, "stage 3: gather ahead and keep units only while no more elements than these are here"
    )
    max_reuse_distance: Amount | None = setting(
        None,
        "stage 3: keep a unit that is used again before units of so many elements have run; none: 0, on GPUs 1",
    )

    save_folder: Path | None = setting(
        None, "folder of this run's checkpoints; the end of the run, and SIGTERM, make one"
    )
    save_every: Count | None = setting(None, "save after so many steps, again and again, while training goes on")
    keep: Count | None = setting(None, "checkpoints to keep, the newest; none: all")
    resume: Path | None = setting(
        None,
        "go on from the newest checkpoint of a folder, or from the checkpoint that it is; --resume alone "
        "takes --save-folder and begins anew where there is none yet; --max-steps is the total; --lr, --weight-decay, "
        "--beta1, --beta2, --eps, --dropout, --batch-size and the schedule are the checkpoint's unless they are given",
    )
    zero3_save_16bit_model: bool = setting(
        False, "at the end, write the whole weights in 16 bits into save-folder (model_16bit_stepN)"
    )

    lr_schedule: Kind = setting("constant", "how the learning rate falls after its warm-up, down to min-lr")
    warmup_steps: Amount = setting(0, "steps in which the learning rate rises to lr")
    warmup_shape: WarmupShape = setting("line", "how it rises: in a line, or steeply at first")
    decay_steps: Count | None = setting(None, "steps until it is min-lr, those of the warm-up counted; none: max-steps")
    min_lr: Annotated[float, Field(ge=0)] = setting(0.0, "the learning rate at the end of a cosine or linear schedule")

    eval_every: Count | None = setting(
        None, "evaluate on the held-out text before the first step, after each so many, and at the end"
    )
    eval_steps: Annotated[int, Field(ge=1, le=1 << 20)] = setting(
        10, "micro-batches of an evaluation, of batch-size / grad-accum-steps sequences over all ranks"
    )

    world: Literal["processes", "lockstep", "virtual"] = setting(
        "processes",
        "lockstep: all ranks in one process, one at a time, on a virtual clock; virtual: rank 0 alone, of "
        "up to 65536, on tensors without values",
    )
    gflop_per_s: Speed = setting(50.0, "lockstep, virtual: billions of operations a second, a rank")
    gbyte_per_s: Speed = setting(
        10.0, "lockstep, virtual: billions of bytes that its operations read or write a second"
    )
    gbit_per_s: Speed | None = setting(None, "simulate a link of this bandwidth")
    latency_us: Annotated[float, Field(ge=0, le=1e9)] = setting(
        0.0, "latency of the simulated link, microseconds a message"
    )

    timeout: Annotated[float, Field(gt=0, le=1e6)] | None = setting(
        None, "seconds until a run that has not ended is reported and ended"
    )
    collective_timeout: Annotated[float, Field(gt=0, le=1e6)] = setting(
        600.0, "seconds until a collective that has not ended is reported, and the run ended"
    )
    profile_json: Path | None = setting(None, "write losses, times, memory and traffic to this file")
    trace: Path | None = setting(
        None, "write what each rank did when to this file, for ui.perfetto.dev or chrome://tracing"
    )
    trace_steps: Count = setting(5, "steps to trace, the first ones; memory is tracked in two")

    zero_debug: bool = setting(False, "say what each rank keeps, and calls and bytes of each collective")
    zero_debug_max_steps: Amount = setting(3, "say so of so many steps, the first of this run")
    zero_debug_max_params: Amount = setting(8, "map so many parameters onto the shards at the start")

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
        if self.ranks % self.instances or (self.instances > 1 and self.stage == 0):
            said = f"num_distributed_optimizer_instances is {self.instances}"
            if self.stage == 0:
                raise InputError(f"{said}, but stage 0 shards nothing; choose stage 1, 2 or 3, or give 1")
            raise InputError(f"{said}, which does not divide {self.ranks} ranks; give a divisor of {self.ranks}")
        self._check_model()
        check_places(self.stage, self.dtypes, self.places)
        _ = self.scaler
        for names, matters, why in IDLE:
            if not matters(self):
                refuse_idle(self, names, why.format(run=self))
        if self.resume is None:
            # Else a checkpoint may give a part of the schedule, and the whole is checked once it has.
            self.check_schedule()
        return self

    def check_schedule(self) -> None:
        """Raise an InputError for settings that no schedule has."""
        if self.lr_schedule == "constant":
            why = "the learning rate never falls; give lr_schedule cosine or linear"
            refuse_idle(self, ("decay_steps", "min_lr"), why)
        if not self.warmup_steps:
            refuse_idle(self, ("warmup_shape",), "the learning rate does not warm up; give warmup_steps")
        _ = self.schedule

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
        config, given = (
            config_of(
                self.model,
                self.model_size,
                vocab_size=self.vocab_size or BYTE_VOCABULARY,
                max_seq_len=self.context or self.seq_len,
            ),
            self.own_sizes,
        )
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
        if not _scales(self):
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


def _scales(run: RunSpec) -> bool:
    return run.dtypes is not None and run.dtypes.scales_loss


AT_STAGE_3 = ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "prefetch")
"""Settings that no lower stage heeds."""
IDLE: list[tuple[tuple[str, ...], Callable[[RunSpec], Any], str]] = [
    (AT_STAGE_3, lambda run: run.stage == 3, "stage {run.stage} gathers nothing for a unit; give zero_stage 3"),
    (
        ("reduction",),
        lambda run: run.stage < 2,
        "stage {run.stage} keeps a shard of the gradients, which a reduce-scatter brings; choose zero_stage 1",
    ),
    (
        ("offload_path",),
        lambda run: run.places.on_disk,
        "no state rests on the disk; give offload_optimizer or offload_param",
    ),
    (
        ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"),
        _scales,
        "no state is fp16; choose fp16",
    ),
    (("dropout",), lambda run: isinstance(run.architecture, GPT2Config), "a llama has none; choose --model gpt2"),
    (("compile_backend",), lambda run: run.compile, "nothing is compiled; give compile, too"),
    (
        ("save_every", "keep", "zero3_save_16bit_model"),
        lambda run: run.save_folder,
        "there is no folder to save to; give save_folder",
    ),
    (("eval_steps",), lambda run: run.eval_every, "nothing is evaluated; give eval_every, too"),
    (("latency_us",), lambda run: run.gbit_per_s, "there is no simulated link; give gbit_per_s, too"),
    (
        ("gflop_per_s", "gbyte_per_s"),
        lambda run: run.world != "processes",
        "processes take the time that they take; give --world lockstep",
    ),
    (("trace_steps",), lambda run: run.trace, "nothing is traced; give --trace FILE"),
    (
        ("zero_debug_max_steps", "zero_debug_max_params"),
        lambda run: run.zero_debug,
        "nothing is logged; give --zero-debug",
    ),
]
"""Settings that change nothing unless something else is given: when they matter, and why else they do not."""


def names_in(group: str) -> list[str]:
    """The settings of one of `GROUPS`."""
    names = list(RunSpec.model_fields)
    starts = [names.index(first) for first in GROUPS]
    at = list(GROUPS.values()).index(group)
    return names[starts[at] : [*starts, names.index("shape")][at + 1]]


def refuse_idle(run: RunSpec, names: tuple[str, ...], why: str) -> None:
    """Raise an InputError for the first of these settings that is not as it is by default, where it changes nothing."""
    for name in names:
        value = getattr(run, name)
        if value != RunSpec.model_fields[name].default:
            said = repr(str(value)) if isinstance(value, Path) else value
            raise InputError(f"{name} is {said} but {why}, or leave it out")


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
        elif name == "limits":
            own = {setting: getattr(value, part) for setting, part in OF_LIMITS.items()}
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


def wanted_of(kind: str, message: str) -> str:
    """What a value should be, of the kind and the message of pydantic's error."""
    if kind in ("int_parsing", "int_type", "int_from_float"):
        return "give a whole number"
    if kind in ("float_parsing", "float_type", "finite_number"):
        return "give a number"
    if kind in ("bool_parsing", "bool_type"):
        return "give true or false"
    return message.replace("Input should be", "it should be").rstrip(".")


def sentence_of(error: ValidationError) -> str:
    """One sentence that names the setting, its value, and what to give."""
    first = error.errors()[0]
    if isinstance(cause := first.get("ctx", {}).get("error"), InputError):
        return str(cause)
    name = ".".join(str(part) for part in first["loc"][:1]) or "the run"
    if first["type"] == "extra_forbidden":
        return f"there is no setting {name!r}; see zerolab train --help"
    return f"{name} is {first['input']!r}; {wanted_of(first['type'], first['msg'])}"
