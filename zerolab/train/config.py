"""The flags of `zerolab train`, read and checked before any rank starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from zerolab.apps.plan import RunSpec, shape_of
from zerolab.apps.plan.instances import check_instances
from zerolab.collectives import Link
from zerolab.data import Corpus, check_division
from zerolab.errors import InputError
from zerolab.models import Config
from zerolab.offload.files import check_folder
from zerolab.train.evaluate import EvaluationSettings
from zerolab.train.model import ModelSettings, vocabulary
from zerolab.train.schedule import LrSchedule, ScheduleSettings
from zerolab.train.states import (
    DebugSettings,
    GatheringSettings,
    OffloadSettings,
    PrecisionSettings,
    ReportSettings,
    SavingSettings,
    SimulationSettings,
    refuse_idle,
)
from zerolab.train.virtual import MAX_VIRTUAL_RANKS, check_world

SEQUENCES, MOST_SEQUENCES = 12, 1 << 20
"""Sequences of an optimizer step: by default, and at most, since each of them is drawn by itself."""


class TrainConfig(
    ModelSettings,
    PrecisionSettings,
    OffloadSettings,
    GatheringSettings,
    SavingSettings,
    ScheduleSettings,
    EvaluationSettings,
    SimulationSettings,
    ReportSettings,
    DebugSettings,
):
    """A run of `zerolab train`. Field names are its flags; descriptions are its help. `spec` is the run that they
    describe, as the rest of the library knows it; what goes beyond it says how this machine carries it out."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    zero_stage: int = Field(0, ge=0, le=3, description="what is sharded: 0 nothing, 1 optimizer, 2 +gradients, 3 all")
    ranks: int = Field(
        2, ge=1, le=MAX_VIRTUAL_RANKS, description="processes on this machine (torchrun brings its own), at most 128"
    )
    collective_impl: Literal["auto", "shared", "ring", "torch"] = Field(
        "auto",
        description="shared memory, our rings, or torch's; auto: shared memory on CPUs, torch's (NCCL) on GPUs",
    )
    seq_len: int = Field(64, ge=1, description="tokens of a sequence")
    batch_size: int = Field(
        SEQUENCES,
        ge=1,
        le=MOST_SEQUENCES,
        description="sequences of an optimizer step, over all ranks and micro-batches; the default is rounded up to a "
        "multiple of these",
    )
    grad_accum_steps: int = Field(1, ge=1, description="micro-batches of an optimizer step")
    max_steps: int = Field(100, ge=1, description="optimizer steps, with those before a checkpoint")
    lr: float = Field(1e-3, gt=0, description="learning rate of AdamW")
    weight_decay: float = Field(0.1, ge=0, description="decay of parameters with two or more dimensions")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of AdamW's first moment")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of AdamW's second moment")
    eps: float = Field(1e-8, gt=0, description="what AdamW adds to the root of the second moment")
    clip_norm: float = Field(1.0, ge=0, description="global gradient norm to clip to; 0 turns clipping off")
    seed: int = Field(0, ge=0, lt=1 << 63, description="seed of weights and batches")
    reduction: Literal["reduce_scatter", "all_reduce"] = Field(
        "reduce_scatter", description="how stage 1 reduces gradients"
    )
    num_distributed_optimizer_instances: int = Field(
        1, ge=1, description="copies of the shards: ranks shard inside a copy and all-reduce gradients across copies"
    )
    defer_reduction: bool = Field(False, description="reduce once a step, not every micro-batch; keeps whole gradients")
    overlap: bool = Field(True, description="reduce while backward runs, gather while forward runs")
    prefetch: bool = Field(True, description="stage 3: gather the next unit while this one computes")
    checkpoint_activations: bool = Field(False, description="recompute activations in backward")
    bucket_numel: int | None = Field(None, ge=1, description="cut units into buckets of at most so many elements")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="where the ranks compute")

    @model_validator(mode="wrap")
    @classmethod
    def _with_batch(cls, given: Any, made: ModelWrapValidatorHandler[TrainConfig]) -> TrainConfig:
        """A batch that the ranks divide, where nobody says one; it does not count as given, so that a checkpoint's goes
        before it."""
        if not isinstance(given, dict) or "batch_size" in given:
            return made(given)
        config = made({**given, "batch_size": default_batch(given)})
        config.model_fields_set.discard("batch_size")
        return config

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        check_world(self)
        check_division(self.batch_size, self.ranks, self.grad_accum_steps)
        check_instances(self.num_distributed_optimizer_instances, self.ranks, self.zero_stage)
        self.check_model()
        offload = self.spec.places
        self.make_scaler()
        self.check_saving()
        self.check_evaluation()
        self.check_simulation()
        self.check_reports()
        self.check_debug()
        if self.resume is None:
            # Else a checkpoint may give a part of the schedule: find_start checks the whole.
            self.check_schedule()
        self.check_stage()
        if self.offload_path is not None and "disk" not in (offload.optimizer, offload.parameters):
            raise InputError(
                f"offload_path is {str(self.offload_path)!r} but no state rests on the disk; give offload_optimizer or "
                "offload_param, or leave the path out"
            )
        if offload.on_disk:
            check_folder(offload.folder, 0)
        return self

    def check_stage(self) -> None:
        """Raise an InputError for settings that this stage does not heed."""
        if self.zero_stage != 3:
            names = ("prefetch_bucket_size", "max_live_parameters", "max_reuse_distance", "prefetch")
            refuse_idle(self, names, f"stage {self.zero_stage} gathers nothing for a unit; give zero_stage 3")
        if self.zero_stage > 1 and self.reduction == "all_reduce":
            raise InputError(
                f"reduction is all_reduce, but stage {self.zero_stage} keeps a shard of the gradients, which a "
                "reduce-scatter brings; choose zero_stage 1, or leave it out"
            )

    def check_schedule(self) -> None:
        """Raise an InputError for settings that no schedule has."""
        if self.lr_schedule == "constant" and (self.decay_steps is not None or self.min_lr):
            name, value = ("min_lr", self.min_lr) if self.decay_steps is None else ("decay_steps", self.decay_steps)
            raise InputError(f"{name} is {value} but the learning rate never falls; give lr_schedule cosine or linear")
        if not self.warmup_steps:
            refuse_idle(self, ("warmup_shape",), "the learning rate does not warm up; give warmup_steps")
        _ = self.schedule

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
    def shape(self) -> Config:
        """The model's shape; its vocabulary is the 256 bytes where nobody has said another."""
        return self.shape_for(self.seq_len)

    @property
    def spec(self) -> RunSpec:
        """What the planner and the predictions know of this run."""
        return RunSpec(
            shape_of(self.shape, self.model_name),
            self.ranks,
            self.zero_stage,
            precision=self.make_precision(),
            micro_batch_size=self.batch_size // (self.ranks * self.grad_accum_steps),
            seq_len=self.seq_len,
            checkpoint_activations=self.checkpoint_activations,
            offload=self.make_offload(),
            micro_batches=self.grad_accum_steps,
            reduction=self.reduction,
            reduce_each=not self.defer_reduction,
            prefetch=self.prefetch,
            bucket_numel=self.bucket_numel,
            limits=self.make_limits(),
            instances=self.num_distributed_optimizer_instances,
        )

    def on(self, corpus: Corpus) -> TrainConfig:
        """This run with the vocabulary of its data. Raises InputError if the model's is too small for it."""
        return self.model_copy(update={"vocab_size": vocabulary(self, corpus)})

    @property
    def link(self) -> Link | None:
        return None if self.gbit_per_s is None else Link(self.gbit_per_s, self.latency_us)


def default_batch(given: Mapping[str, Any]) -> int:
    """Sequences of a step of a run with these settings, where nobody says how many: a few that ranks and micro-batches
    divide."""
    parts = 1
    for name in ("ranks", "grad_accum_steps"):
        value = str(given.get(name, TrainConfig.model_fields[name].default))
        parts *= int(value) if value.isdecimal() and 0 < int(value) <= MOST_SEQUENCES else 1
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


def make_config(**settings: object) -> TrainConfig:
    """A checked configuration, or an InputError of one sentence that names the setting and its value."""
    try:
        return TrainConfig.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):
            raise InputError(str(cause)) from None
        name = ".".join(str(part) for part in first["loc"]) or "the configuration"
        if first["type"] == "extra_forbidden":
            raise InputError(f"there is no setting {name!r}; see zerolab train --help") from None
        wanted = wanted_of(first["type"], first["msg"])
        raise InputError(f"{name} is {first['input']!r}; {wanted}") from None
