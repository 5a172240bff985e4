"""The settings of a run that say in which dtype and in which place its states are, and when they are saved; their names
are those of Megatron-LM (dtypes) and DeepSpeed (loss scale, offload)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from zerolab.errors import InputError
from zerolab.memory import Stage3Limits
from zerolab.offload import Offload
from zerolab.offload.places import TIER_OF
from zerolab.precision import PRECISIONS, LossScaler, Precision
from zerolab.precision.recipe import find_precision
from zerolab.ranks.join import is_torchrun

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


class PrecisionSettings(BaseModel):
    """A recipe by name or by switch, dtypes that depart from it, and the loss scale."""

    precision: str | None = Field(None, description=f"dtypes of all states: {', '.join(PRECISIONS)}; none: fp32")
    fp16: bool = Field(False, description="the same as --precision fp16, with a dynamic loss scale")
    bf16: bool = Field(False, description="the same as --precision bf16")
    fp8: bool = Field(False, description="the same as --precision fp8: linear layers compute in fp8, states as in bf16")
    fp8_backend: Literal["emulated"] = Field("emulated", description="fp8 is rounded to and multiplied in bf16")
    params_dtype: Float | None = Field(None, description="parameters, as forward and backward use them")
    main_params_dtype: Float | None = Field(None, description="parameters, as the optimizer updates them")
    grads_dtype: Float | None = Field(None, description="gradients of one rank until they are reduced")
    main_grads_dtype: Float | None = Field(None, description="reduced gradients until the step")
    reduce_dtype: Float | None = Field(None, description="gradients while they travel and are added up")
    exp_avg_dtype: Moment | None = Field(None, description="Adam's first moment")
    exp_avg_sq_dtype: Moment | None = Field(None, description="Adam's second moment")
    loss_scale: float = Field(0.0, ge=0, description="a fixed loss scale for fp16; 0: dynamic")
    initial_scale_power: int = Field(16, ge=0, le=127, description="the dynamic scale begins at 2 to this power")
    loss_scale_window: int = Field(1000, ge=1, description="clean steps after which the scale doubles")
    hysteresis: int = Field(2, ge=1, description="overflows until the scale is halved")
    min_loss_scale: float = Field(1.0, gt=0, description="the scale is not halved below this")

    def make_precision(self) -> Precision | None:
        """The recipe; None if nothing is asked for. Raises InputError for settings that contradict each other."""
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

    def make_scaler(self) -> LossScaler | None:
        """The loss scale where the precision has fp16. Raises InputError if one is asked for and there is no fp16."""
        precision = self.make_precision()
        if precision is not None and precision.scales_loss:
            if not self.loss_scale and 2.0**self.initial_scale_power < self.min_loss_scale:
                raise InputError(
                    f"min_loss_scale is {self.min_loss_scale:g}, above the scale at the start, "
                    f"2**{self.initial_scale_power}; give a smaller min_loss_scale or a larger initial_scale_power"
                )
            return LossScaler(
                self.initial_scale_power, self.loss_scale_window, self.hysteresis, self.min_loss_scale,
                static=self.loss_scale or None,
            )  # fmt: skip
        for name in ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale"):
            if getattr(self, name) != PrecisionSettings.model_fields[name].default:
                raise InputError(f"{name} is {getattr(self, name)} but no state is fp16; leave it out, or choose fp16")
        return None


class OffloadSettings(BaseModel):
    """Where the states rest."""

    offload_optimizer: Place = Field("device", description="where main parameters and moments rest; step on the host")
    offload_param: Place = Field("device", description="stage 3: where the shards of the parameters rest")
    offload_path: Path | None = Field(None, description="folder for what rests on the disk (DeepSpeed: nvme_path)")
    buffer_count: int = Field(3, ge=1, description="host buffers between disk and step; with 3 all of it overlaps")
    buffer_size: int | None = Field(None, ge=1, description="elements of a host buffer for parameters on disk")
    sub_group_size: int | None = Field(
        None, ge=1, description="elements that the step updates at a time; none: 4 million, on GPUs 67 million"
    )
    max_in_cpu: int = Field(0, ge=0, description="elements of the parameters on disk that stay on the host")

    def make_offload(self) -> Offload:
        return Offload(
            TIER_OF.get(self.offload_optimizer, self.offload_optimizer),
            TIER_OF.get(self.offload_param, self.offload_param),
            path=self.offload_path,
            buffer_count=self.buffer_count,
            buffer_numel=self.buffer_size,
            sub_group_numel=self.sub_group_size,
            max_in_cpu=self.max_in_cpu,
        )


class GatheringSettings(BaseModel):
    """What stage 3 has whole, in elements."""

    param_persistence_threshold: int = Field(
        0, ge=0, description="stage 3: parameters of at most so many elements stay whole on every rank"
    )
    prefetch_bucket_size: int | None = Field(
        None, ge=0, description="stage 3: elements that may be gathered ahead; none: those of the next unit"
    )
    max_live_parameters: int | None = Field(
        None, ge=0, description="stage 3: gather ahead and keep units only while no more elements than these are here"
    )
    max_reuse_distance: int | None = Field(
        None,
        ge=0,
        description="stage 3: keep a unit that is used again before units of so many elements have run; none: 0, on "
        "GPUs 1",
    )

    def make_limits(self) -> Stage3Limits:
        return Stage3Limits(
            self.param_persistence_threshold,
            self.prefetch_bucket_size,
            self.max_live_parameters,
            self.max_reuse_distance,
        )


class SavingSettings(BaseModel):
    """Checkpoints: how often, where, and which one a run begins with."""

    save_folder: Path | None = Field(
        None, description="folder of this run's checkpoints; the end of the run, and SIGTERM, make one"
    )
    save_every: int | None = Field(
        None, ge=1, description="save after so many steps, again and again, while training goes on"
    )
    keep: int | None = Field(None, ge=1, description="checkpoints to keep, the newest; none: all")
    resume: Path | None = Field(
        None,
        description="go on from the newest checkpoint of a folder, or from the checkpoint that it is; --resume alone "
        "takes --save-folder and begins anew where there is none yet; --max-steps is the total; --lr, --weight-decay, "
        "--beta1, --beta2, --eps, --dropout, --batch-size and the schedule are the checkpoint's unless they are given",
    )

    zero3_save_16bit_model: bool = Field(
        False, description="at the end, write the whole weights in 16 bits into save-folder (model_16bit_stepN)"
    )

    def check_saving(self) -> None:
        """Raise an InputError for settings that need a folder where there is none."""
        for name in ("save_every", "keep", "zero3_save_16bit_model"):
            if self.save_folder is None and getattr(self, name):
                raise InputError(f"{name} is {getattr(self, name)} but there is no folder to save to; give save_folder")
        if self.save_folder is None:
            return
        folder = self.save_folder.expanduser()
        if folder.exists() and not folder.is_dir():
            raise InputError(f"save_folder is {str(self.save_folder)!r}, which is no folder; name one")


class DebugSettings(BaseModel):
    """What a run says of its sharding while it goes on; names as in texts on Megatron's flags."""

    zero_debug: bool = Field(False, description="say what each rank keeps, and calls and bytes of each collective")
    zero_debug_max_steps: int = Field(3, ge=0, description="say so of so many steps, the first of this run")
    zero_debug_max_params: int = Field(8, ge=0, description="map so many parameters onto the shards at the start")

    def check_debug(self) -> None:
        """Raise an InputError for limits of a log that is not written."""
        if not self.zero_debug:
            refuse_idle(self, ("zero_debug_max_steps", "zero_debug_max_params"), "nothing is logged; give --zero-debug")


class SimulationSettings(BaseModel):
    """Ranks in one process on a virtual clock, and a link that is slower than the machine's."""

    world: Literal["processes", "lockstep", "virtual"] = Field(
        "processes",
        description="lockstep: all ranks in one process, one at a time, on a virtual clock; virtual: rank 0 alone, of "
        "up to 65536, on tensors without values",
    )
    gflop_per_s: float = Field(50.0, gt=0, description="lockstep, virtual: billions of operations a second, a rank")
    gbyte_per_s: float = Field(
        10.0, gt=0, description="lockstep, virtual: billions of bytes that its operations read or write a second"
    )
    gbit_per_s: float | None = Field(None, gt=0, description="simulate a link of this bandwidth")
    latency_us: float = Field(0.0, ge=0, le=1e9, description="latency of the simulated link, microseconds a message")

    def check_simulation(self) -> None:
        """Raise an InputError for speeds of a clock, or of a link, that is not simulated."""
        if self.latency_us and self.gbit_per_s is None:
            raise InputError(f"latency_us is {self.latency_us} but there is no simulated link; give gbit_per_s too")
        if self.world == "processes":
            refuse_idle(
                self, ("gflop_per_s", "gbyte_per_s"), "processes take the time that they take; give --world lockstep"
            )
        elif is_torchrun():
            raise InputError(
                f"world is {self.world!r}, which has all ranks in one process, but torchrun has started several; leave "
                "one of the two out"
            )


class ReportSettings(BaseModel):
    """What a run leaves for its reader, and how long it may take."""

    timeout: float | None = Field(
        None, gt=0, le=1e6, description="seconds until a run that has not ended is reported and ended"
    )
    collective_timeout: float = Field(
        600.0, gt=0, le=1e6, description="seconds until a collective that has not ended is reported, and the run ended"
    )
    profile_json: Path | None = Field(None, description="write losses, times, memory and traffic to this file")
    trace: Path | None = Field(
        None, description="write what each rank did when to this file, for ui.perfetto.dev or chrome://tracing"
    )
    trace_steps: int = Field(5, ge=1, description="steps to trace, the first ones; memory is tracked in two")

    def check_reports(self) -> None:
        """Raise an InputError for settings of a trace that is not written."""
        if self.trace is None:
            refuse_idle(self, ("trace_steps",), "nothing is traced; give --trace FILE")


def refuse_idle(settings: BaseModel, names: Iterable[str], why: str) -> None:
    """Raise an InputError for the first of these settings that is not as it is by default, where it changes nothing."""
    for name in names:
        value = getattr(settings, name)
        if value != type(settings).model_fields[name].default:
            raise InputError(f"{name} is {value} but {why}, or leave it out")
