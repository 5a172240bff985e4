"""The engine with all around it: precision, a loss scaler, offloading, models from the meta device, checks and guards.

engine = ZeroEngine(model, comm, stage=2, lr=1e-3)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C import DisableTorchFunctionSubclass, _will_engine_execute_node
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge

from zerolab.collectives import Collectives, phase
from zerolab.collectives.call import current_phase, phase_now
from zerolab.errors import InputError, StateError
from zerolab.flat import ALIGN
from zerolab.flat.layout import round_up
from zerolab.flat.views import numbers, values_here
from zerolab.gpu import door
from zerolab.offload.formats import align_of, format_of, sub_group_limit
from zerolab.offload.places import NO_OFFLOAD, Offload, check_folder, check_places, ledger
from zerolab.precision.codec import cast
from zerolab.precision.fp8 import fp8_layers, fp8_linears, update_amax_history
from zerolab.precision.recipe import Precision, find_precision
from zerolab.precision.scaler import LossScaler, find_scaler
from zerolab.zero.bucket import Bucket
from zerolab.zero.full_parameters import FullParameters
from zerolab.zero.guards import DEFAULT
from zerolab.zero.limits import NO_LIMITS, Stage3Limits
from zerolab.zero.start import (
    REDUCTIONS,
    Init,
    check_alike,
    check_model,
    check_norm,
    check_stage,
    default_factory,
    find_init,
    materialize,
    models_in_use,
    probe,
)
from zerolab.zero.step import Factory, StepResult, measure
from zerolab.zero.stored_step import DiskStep, StoredStep
from zerolab.zero.table import STAGES, Dtypes, Sharding
from zerolab.zero.tiers import TIERS, Tier, all_hear, changing
from zerolab.zero.units import GroupOf, settle_all


class ZeroEngine(FullParameters):
    """A model, its gradients and its optimizer, sharded as `stage` says.

    model         any nn.Module on `comm.device` or the meta device; its parameters become views of flat buffers, and at
                  stage 3 have no memory outside their unit's forward and backward
    stage         0 nothing sharded · 1 optimizer states · 2 and gradients · 3 and parameters
    lr            learning rate of the default optimizer, fused AdamW; or give `optimizer`, which takes a list of
                  parameter groups and returns an elementwise torch optimizer
    clip_norm     scale gradients down to this global norm (of type `norm_type`); a norm that is not finite makes
                  all ranks skip the step
    groups        optimizer options per parameter: groups(name, parameter) -> {"weight_decay": 0.0, ...}
    reduction     stage 1 only: "reduce_scatter" (2Ψ on the wire) or "all_reduce" (3Ψ, as most texts have it)
    precision     dtypes of the states, by name or as a Precision (`zerolab.precision`); None: as the model has them
    scaler        how losses are scaled where the precision has fp16; default: LossScaler()
    offload       where the states rest (`zerolab.offload`); default: all on the device
    overlap       reduce gradients while backward runs on
    overlap_gather  let step() return before all new parameters have come (stages 1 and 2, and what stays at stage 3);
                  to read by a view that you took before the step, call `synchronize()` first
    prefetch      stage 3: gather the next unit while this one computes
    limits        stage 3: which parameters stay, how much comes ahead and is kept (`memory.Stage3Limits`)
    units         the modules that are gathered as one; default: model.units(), or a guess (`units.py`)
    bucket_numel  cut units into buckets of at most so many elements
    align         slots and shards start at multiples of so many fp32 elements, or as many bytes of a narrower
                  dtype; with fewer than 16, some optimizers round differently at the ends of shards
    replicate     hold the same shards as the other ranks of this group, and average gradients over it after `comm`
                  (hybrid sharding): shard within a machine, say, and replicate across machines
    init          for a model on the meta device: init(module) writes first values, after the module's own
                  reset_parameters; default: model.init_module, if there is one (`start.py`)
    guards        what is attached from outside (`guards.py`); () for models that use weights inside their unit only

    A parameter that a backward does not reach counts as one whose gradient is zero. At stage 3 all ranks must run the
    same units in the same order. docs/gestures.md says what else works as in plain torch.
    """

    mesh: Any = None
    """Along whose other axes the model is sharded (`parallel/`)."""

    def __init__(
        self,
        model: nn.Module,
        comm: Collectives,
        stage: int,
        lr: float | None = None,
        *,
        optimizer: Factory | None = None,
        clip_norm: float | None = None,
        norm_type: float = 2.0,
        groups: GroupOf | None = None,
        reduction: str = "reduce_scatter",
        precision: Precision | str | None = None,
        scaler: LossScaler | None = None,
        offload: Offload = NO_OFFLOAD,
        overlap: bool = True,
        overlap_gather: bool = False,
        prefetch: bool = True,
        limits: Stage3Limits = NO_LIMITS,
        units: Sequence[nn.Module] | None = None,
        bucket_numel: int | None = None,
        align: int = ALIGN,
        init: Init | None = None,
        replicate: Collectives | None = None,
        guards: Sequence[Callable[[], Any]] = DEFAULT,
    ) -> None:
        if (lr is None) == (optimizer is None):
            raise InputError(f"lr is {lr!r} and optimizer is {optimizer!r}; give exactly one of the two")
        if getattr(model, "mesh", self.mesh) is not self.mesh:
            raise InputError("the model is sharded over a mesh; wrap it by GridEngine(model, mesh, ...), of that mesh")
        if clip_norm is not None:
            check_norm(clip_norm, norm_type)
        self.precision = find_precision(precision)
        check_model(model, comm.device, comm.size, self.precision)
        self._given, self.init = units, find_init(model, init)
        self.weights: list[float | None] = []
        self._mean_weight: float | None = None
        self.limits = limits.on(door.drives(comm.device))
        self.offload = offload.on(door.drives(comm.device))
        self.scaler = find_scaler(self.precision, scaler)
        factory = optimizer if lr is None else default_factory(lr)
        assert factory is not None
        in_parts = sub_group_limit(self.precision, self.offload) is not None
        self.state_size, self._optimizer = probe(factory, self.offload.step_device(comm.device), in_parts)
        sharding = Sharding(
            self._effective(stage, comm, reduction),
            reduction,
            dtypes_from(self.precision),
            (self.offload.parameters, self.offload.optimizer),
            clip_norm,
            norm_type,
            overlap,
            overlap_gather,
            prefetch,
            self.limits.persistence_numel,
            bucket_numel,
            round_up(align, align_of(self.precision)),
        )
        super().__init__(model, comm, sharding, factory, units=units, groups=groups, replicate=replicate, guards=guards)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward. A precision casts arguments to the dtype of its parameters, as FSDP2 does."""
        if self.precision is not None:
            args, kwargs = cast((args, kwargs), self.precision.dtype("params"))
        return super().__call__(*args, **kwargs)

    def reached(self) -> None:
        """Autograd has come to what the model gave, or to one of its parameters. Outside `engine.backward` it is
        `loss.backward()` that runs: a backward begins, and ends by autograd's own callback."""
        if self.schedule.in_backward:
            return
        if (phase_now() if door.drives(self.comm.device) else current_phase.get()) == "backward":
            # Within engine.backward of another one. (Ranks that take turns have no GPU, whose threads have no context.)
            raise StateError(
                f"a backward of one engine went on into {type(self.model).__name__}, which is in another: call "
                "loss.backward(), which brings both their gradients, or detach() the tensor between the two"
            )
        # Autograd calls what is queued when the pass that runs now has ended well.
        at_end_of_pass = Variable._execution_engine.queue_callback
        if not self._takes_gradients():
            # As torch.autograd.grad(loss, inputs): the pass only gathers units.
            self.schedule.in_backward = True
            at_end_of_pass(self.schedule.let_go)
            at_end_of_pass(partial(settle_all, self.units))
            return
        if self.loss_scale != 1.0:
            raise StateError(
                f"fp16 scales losses by {self.loss_scale:g}, which loss.backward() does not; call engine.backward(loss)"
            )
        self.check_ready()
        self._weigh(None)
        self.begin_backward()

        def finish() -> None:
            with phase("backward"), self.taking_gradients():
                """All gradients are here."""

        at_end_of_pass(finish)

    def _takes_gradients(self) -> bool:
        try:
            with DisableTorchFunctionSubclass():
                trained = [its for bucket in self.reducer.order for its in bucket.parameters if its.requires_grad]
                return any(_will_engine_execute_node(get_gradient_edge(parameter).node) for parameter in trained)
        except (RuntimeError, AttributeError):
            # torch.autograd.grad and transforms of torch.func, which hand gradients to their caller.
            return False

    def backward(self, loss: torch.Tensor, reduce: bool | None = None, weight: float | None = None) -> None:
        """Add the gradients of `loss` to those of this step, as `Engine.backward` does.

        With a `weight`, such as the number of tokens that the loss is the mean of, gradients are those of the weighted
        mean of all losses of the step, over micro-batches and ranks: exact where these have different numbers. A step's
        losses all have one; it scales the loss, so under fp16 divide by what a loss usually has.
        """
        if weight is not None and not (isinstance(weight, int | float) and 0 <= weight < float("inf")):
            raise InputError(f"weight is {weight!r}; give a number of at least 0, such as a number of tokens")
        self.check_ready()
        self._weigh(weight)
        super().backward(loss if weight is None else loss * weight, reduce)

    def _weigh(self, weight: float | None) -> None:
        if self.weights and (weight is None) != (None in self.weights):
            raise StateError("some losses of this step have a weight and some have none; give one to all, or to none")
        self.weights.append(weight)
        self._mean_weight = None

    def mean_weight(self) -> float:
        """The mean over the ranks of what their losses of this step count; 1 where they have no weights. A collective
        where they have some."""
        if not self.weights or None in self.weights:
            return 1.0
        if self._mean_weight is None:
            mean = torch.tensor([sum(filter(None, self.weights))], dtype=torch.float64, device=self.comm.device)
            with phase("norm"):
                for group in filter(None, (self.comm, self.replicate)):
                    mean = group.all_reduce(mean, average=True)
            (self._mean_weight,) = numbers(mean, instead=[1.0])
            if not self._mean_weight:
                raise StateError("the weights of this step's losses are all 0; there is nothing to take a mean of")
        return self._mean_weight

    def measure(self) -> tuple[StepResult, float]:
        if (mean := self.mean_weight()) == 1.0:
            return super().measure()
        clip_norm, norm_type = self.sharding.clip_norm, self.sharding.norm_type
        if clip_norm is None and self.scaler is None:
            return StepResult(), 1 / mean
        found = measure(self.everybody, self.reducer.order, clip_norm, norm_type, self.loss_scale * mean)
        return replace(found[0], loss_scale=self.loss_scale), found[1]

    def forget(self) -> None:
        super().forget()
        self.weights.clear()

    def step(self) -> StepResult:
        result = super().step()
        if self.precision is not None and self.precision.fp8:
            update_amax_history(self.model)
        return result

    def close(self) -> None:
        if self.closed:
            return
        self.synchronize()
        if not self.shards_parameters:
            models_in_use.discard(self.model)
        super().close()
        for lane in (*self.optimizer_step.lanes, *self.tier.lanes):
            lane.close()

    def disk_bytes(self) -> dict[str, int]:
        """Bytes of states in this rank's files, as the file system has them, under the names of `memory.predict`."""
        lanes = {"parameters": self.tier.lanes, "optimizer_states": self.optimizer_step.lanes}
        found = {kind: sum(file.measure() for lane in of for file in lane.files) for kind, of in lanes.items()}
        return {ledger("disk", kind): nbytes for kind, nbytes in found.items() if nbytes}

    # In the place of the engine's own.

    def update(self, factor: float) -> None:
        with changing(self, "a step"), all_hear(self):
            self.optimizer_step.step(factor)

    def make_tier(self) -> Tier:
        return TIERS[self.offload.parameters](self.comm, self.offload)

    def make_step(self, factory: Factory) -> StoredStep:
        kind = DiskStep if self.offload.optimizer == "disk" else StoredStep
        return kind(self.tier, self.offload, self.buckets, factory, self.precision, self.state_size)

    def before_setup(self) -> None:
        asked = dict(limits=self.limits, precision=self.precision, loss_scale=self.loss_scale)
        check_alike(self.comm, self.replicate, self.units, vars(self.sharding) | asked | self._optimizer)
        if self.offload.on_disk and values_here():
            check_folder(self.offload.folder, sum(map(self._bytes_on_disk, self.buckets)))

    def fill_buckets(self) -> None:
        models_in_use.add(self.model)
        if self.precision is not None and self.precision.fp8 and not fp8_layers(self.model):
            fp8_linears(self.model)
        flats: dict[Bucket, torch.Tensor] = {}
        for bucket in materialize(self.model, self.units, self.comm, self.init, flats):
            bucket.overwrite(self.first_values(bucket, flats.pop(bucket, None)))

    def _bytes_on_disk(self, bucket: Bucket) -> int:
        form = format_of(bucket.dtype, self.precision, self.offload, self.state_size.names, bucket.persistent)
        stored = bucket.rows.nbytes(bucket.layout.numel, form.nbytes)
        return sum(nbytes for kind, nbytes in stored.items() if kind.startswith("disk:"))

    def _effective(self, stage: int, comm: Collectives, reduction: str) -> int:
        check_stage(stage)
        check_places(stage, self.precision, self.offload)
        if reduction not in REDUCTIONS:
            raise InputError(f"reduction is {reduction!r}; choose one of {', '.join(REDUCTIONS)}")
        sharded_main = self.precision is not None and self.precision.sharded_main
        # One rank owns every shard. What the stages do beyond stage 0 would cost copies and save nothing.
        return 0 if comm.size == 1 and not (self.offload.moves or sharded_main) else stage


def dtypes_from(precision: Precision | None) -> Dtypes | None:
    if precision is None:
        return None
    of = precision.dtype
    shard = of("main_params") if precision.sharded_main else of("params")
    return Dtypes(of("params"), of("main_params"), of("grads"), of("reduce"), of("main_grads"), shard)


def engine_labels(engine: ZeroEngine) -> Callable[[], dict[str, list[torch.Tensor | None]]]:
    """Labels for a tracker; of two tensors in one storage what stays stands first."""
    offload, step = engine.offload, engine.optimizer_step
    memory = "device" if offload.optimizer == "device" else "host"
    parameters = "device" if offload.parameters == "device" else "host"
    gradients = memory if STAGES[engine.stage][1] else "device"

    def labels() -> dict[str, list[torch.Tensor | None]]:
        buckets = engine.buckets
        kept: dict[str, list[torch.Tensor | None]] = {"parameters": [], ledger(parameters, "parameters"): []}
        for bucket in buckets:
            kept["parameters" if bucket.persistent else ledger(parameters, "parameters")].append(bucket.shard)
        return {
            **kept,
            ledger(gradients, "gradients"): [bucket.gradients.reduced for bucket in buckets],
            ledger(memory, "optimizer_states"): [*step.resting()],
            ledger(memory, "step_buffers"): step.transient(),
            "host:swap_buffers": [*engine.tier.buffers],
            "gathered_units": [bucket.whole for bucket in buckets],
            "gradient_buffers": [bucket.gradients.local for bucket in buckets],
        }

    return labels
