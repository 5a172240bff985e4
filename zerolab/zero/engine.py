"""Training with ZeRO: one path for all stages.

    engine = ZeroEngine(model, comm, stage=2, lr=1e-3)
    loss = engine(tokens, targets)          # forward of the model, on this rank's part of the batch
    engine.backward(loss)                   # gradients, averaged over the ranks
    engine.step()                           # clip, update, hand the new parameters around

Every rank makes the same calls. The mean loss of equal parts makes N ranks on parts equal one process on the
whole batch; with the ring, stages 0 to 3 end with the same bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from zerolab.collectives import Collectives, phase
from zerolab.errors import InputError, StateError
from zerolab.flat import ALIGN, BucketPlan
from zerolab.flat.layout import round_up
from zerolab.flat.views import fill
from zerolab.gpu import door
from zerolab.memory.limits import ANY, Stage3Limits, check_limits
from zerolab.memory.predict import predict_rank
from zerolab.offload.formats import align_of, sub_group_limit
from zerolab.offload.places import NOWHERE, Offload, ledger
from zerolab.precision.fp8 import advance, fp8_layers, fp8_linears
from zerolab.precision.recipe import Precision, cast, find_precision
from zerolab.precision.scaler import LossScaler
from zerolab.ranks.pages import Pages
from zerolab.zero import optimizer as optimizers
from zerolab.zero.backward import check_together, reached, run_backward
from zerolab.zero.bucket import Bucket
from zerolab.zero.changing import all_hear, changing
from zerolab.zero.choose import (
    effective_stage,
    keeps_main,
    make_step,
    rows_of,
    step_device,
)
from zerolab.zero.clip import StepResult, check_norm, measure
from zerolab.zero.gestures import Gestures, members
from zerolab.zero.owned import HandedOut
from zerolab.zero.publishing import Publishing
from zerolab.zero.reducer import Reducer
from zerolab.zero.residency import Residency
from zerolab.zero.start.checks import (
    check_alike,
    check_disk,
    check_model,
    make_scaler,
    models_in_use,
)
from zerolab.zero.start.meta import Init, Materializer, find_init
from zerolab.zero.start.probe import probe
from zerolab.zero.table import STAGES
from zerolab.zero.tiers.tiers import make_tier
from zerolab.zero.units import GroupOf, Unit, find_units
from zerolab.zero.wrapped import Held, Wrapped, count_write
from zerolab.zero.wrapping import set_away, unwrap, wrap


class ZeroEngine(Gestures):
    """A model, its gradients and its optimizer, sharded as `stage` says.

    model         any nn.Module on `comm.device` or the meta device; its parameters become views of flat buffers
                  (all stages), and have no memory outside their unit's forward and backward (stage 3), though
                  their `shape`, `numel()` and `nbytes` stay those of the whole
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
    overlap_gather  let step() return before all new parameters have come (stages 1 and 2, and what stays at stage 3).
                  A unit waits for its own when it runs, and so does whoever reads or writes a parameter elsewhere; to
                  read by a view that you took before the step, call `synchronize()` first
    prefetch      stage 3: gather the next unit while this one computes
    limits        stage 3: which parameters stay, how much comes ahead and is kept (`memory.Stage3Limits`, with
                  DeepSpeed's names)
    units         the modules that are gathered as one; default: model.units(), or a guess (`units.py`)
    bucket_numel  cut units into buckets of at most so many elements
    align         slots and shards start at multiples of so many fp32 elements, or as many bytes of a narrower
                  dtype; with fewer than 16, some optimizers round differently at the ends of shards
    replicate     hold the same shards as the other ranks of this group, and average gradients over it after `comm`
                  (hybrid sharding): shard within a machine, say, and replicate across machines
    init          for a model on the meta device: init(module) writes first values, after the module's own
                  reset_parameters; default: model.init_module, if there is one (`start/meta.py`)

    A parameter that a backward does not reach counts as one whose gradient is zero. At stage 3 all ranks must run
    the same units in the same order, since they gather them together. What else one does with a model, its parameters
    and its optimizer works as in plain torch or is refused by name: docs/gestures.md has the list.
    """

    def __init__(
        self,
        model: nn.Module,
        comm: Collectives,
        stage: int,
        lr: float | None = None,
        *,
        optimizer: optimizers.Factory | None = None,
        clip_norm: float | None = None,
        norm_type: float = 2.0,
        groups: GroupOf | None = None,
        reduction: str = "reduce_scatter",
        precision: Precision | str | None = None,
        scaler: LossScaler | None = None,
        offload: Offload = NOWHERE,
        overlap: bool = True,
        overlap_gather: bool = False,
        prefetch: bool = True,
        limits: Stage3Limits = ANY,
        units: Sequence[nn.Module] | None = None,
        bucket_numel: int | None = None,
        align: int = ALIGN,
        init: Init | None = None,
        replicate: Collectives | None = None,
    ) -> None:
        if (lr is None) == (optimizer is None):
            raise InputError(f"lr is {lr!r} and optimizer is {optimizer!r}; give exactly one of the two")
        if clip_norm is not None:
            check_norm(clip_norm, norm_type)
        self.precision = find_precision(precision)
        check_model(model, comm.device, comm.size, self.precision)
        self.model, self.comm, self.replicate, self._given = model, comm, replicate, units
        self.clip_norm, self.norm_type = clip_norm, norm_type
        self.overlap_gather = overlap_gather
        init = find_init(model, init)
        self.offload = offload = offload.on(door.drives(comm.device))
        self.scaler = make_scaler(self.precision, scaler)
        self.stage = effective_stage(stage, comm, reduction, self.precision, offload)
        self.shards_parameters = bool(STAGES[self.stage][0])
        factory = optimizer if lr is None else optimizers.default_factory(lr)
        assert factory is not None
        in_parts = sub_group_limit(self.precision, offload) is not None
        self.state_size, description = probe(factory, step_device(comm.device, offload), in_parts)
        align = round_up(align, align_of(self.precision))
        limits = check_limits(limits).on(door.drives(comm.device))
        stays = limits.persistence_numel
        self.units = find_units(model, comm.size, units, groups, bucket_numel, align, self.precision, stays)
        self.buckets = [bucket for unit in self.units for bucket in unit.buckets]
        options = dict(stage=stage, reduction=reduction, precision=self.precision, loss_scale=self.loss_scale)
        options |= dict(clip_norm=clip_norm, norm_type=norm_type, overlap=overlap, overlap_gather=overlap_gather)
        options |= dict(prefetch=prefetch, limits=limits, offload=(offload.optimizer, offload.parameters))
        check_alike(comm, replicate, self.units, options | description)
        book = predict_rank(self.plans, stage, comm.rank, self.state_size, self.precision, offload)
        check_disk(self.plans, offload, book)
        if self._computes_in_fp8 and not fp8_layers(model):
            fp8_linears(model)
        models_in_use.add(model)
        with phase("setup"), torch.no_grad():
            self._place(reduction)
            materializer = Materializer(model, self.units, comm, init)
            for unit in self.units:
                flats = materializer.bring(unit)
                for bucket in unit.buckets:
                    # Nobody else holds the values: what `overwrite` frees is gone at once.
                    bucket.overwrite(self._first_values(bucket, flats.pop(bucket, None)))
            materializer.bring_rest()
            for buffer in model.buffers():
                buffer.copy_(self._of_rank_0(buffer))
        self.optimizer_step = make_step(self.tier, offload, self.buckets, factory, self.precision, self.state_size)
        self.handed_out = HandedOut(self.optimizer_step)
        self.optimizer = optimizers.guarded(self.optimizer_step.optimizer, weakref.ref(self))
        self.publishing = Publishing(self.units)
        settle = self.publishing.settle
        begins = partial(reached, weakref.ref(self))
        self.residency = Residency(
            model, self.units, self.shards_parameters, prefetch, limits, settle, self._fill, begins
        )
        taken = self.residency.taken if self.shards_parameters else None
        self.reducer = Reducer(comm, replicate, self.units, overlap, begins, taken)
        self._failed = self.stepping = self.closed = False
        self.toggled: set[str] = set()  # parameters whose requires_grad is another one than when they were wrapped
        self.broken: str | None = None  # why all is refused but a load of a checkpoint (`changing.py`)
        self._wrap()

    @property
    def plans(self) -> list[BucketPlan]:
        """The geometry of all buckets, from which memory and traffic are predicted."""
        return [bucket.plan for bucket in self.buckets]

    @property
    def owner(self) -> int | None:
        """The rank whose shard of each bucket this rank updates, and saves: its own; None: it updates all."""
        return self.comm.rank if STAGES[self.stage][2] else None

    @property
    def loss_scale(self) -> float:
        """What the next loss is multiplied by."""
        return 1.0 if self.scaler is None else self.scaler.scale

    @property
    def _computes_in_fp8(self) -> bool:
        return self.precision is not None and self.precision.fp8

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward. A precision casts arguments to the dtype of its parameters, as FSDP2 does."""
        self._check_whole()
        self._refuse_strangers()
        self._refuse_lost()
        self._refuse_unpublished()
        if self.precision is not None:
            args, kwargs = cast((args, kwargs), self.precision.dtype("params"))
        with phase("forward"):
            output = self.model(*args, **kwargs)
            self._agree()
            return output

    def backward(self, loss: torch.Tensor, reduce: bool | None = None, also: Sequence[ZeroEngine] = ()) -> None:
        """Add the gradients of `loss` (a scalar) to those of this step.

        With `reduce`, as outside `no_sync`, they (and those of earlier calls with reduce=False) are averaged over the
        ranks. Without, they stay on this rank, whole at every stage, until a later call reduces them: less traffic
        over several micro-batches, more memory at stages 2 and 3.

        `also` names the other engines whose models the loss went through: they take gradients, too, and each steps, or
        forgets them by `zero_grad()`, by itself.
        """
        run_backward(check_together(self, also), loss, reduce)

    @torch.no_grad()
    def step(self) -> StepResult:
        """Update the parameters with the gradients of this step, and forget those. Every rank calls it. Raises
        StateError where gradients are missing, are not reduced, or come from a backward that failed, and OffloadError,
        on every rank, where a disk fails."""
        trainable = self.reducer.order
        self._check_whole()
        if self._failed:
            raise StateError("a backward failed half-way; call zero_grad() and repeat the whole step")
        if any(bucket.gradients.waits for bucket in trainable):
            raise StateError("gradients were not reduced; make the last backward of a step with reduce=True")
        if not all(bucket.gradients.summed for bucket in trainable):
            raise StateError("there are no gradients to step with; call backward(loss) first")
        self._refuse_lost()
        if self.residency.is_summoned:
            raise StateError(
                "step() was called inside summon_full_params, whose parameters it would not reach; leave first"
            )
        self._agree()
        result, factor = measure(self.comm, trainable, self.clip_norm, self.norm_type, self.scaler)
        if not result.skipped:
            self._update(factor)
        self._forget()
        if self._computes_in_fp8:
            # Each rank scales by what it has seen itself, so nothing travels.
            advance(self.model)
        if self.scaler is not None:
            self.scaler.update(result.skipped)
        return result

    def zero_grad(self) -> None:
        """Forget the gradients of this step, and let go what a failed forward or backward left here."""
        self._check_whole()
        self._forget()

    def synchronize(self) -> None:
        """Return once all parameters that a step published have come."""
        self.publishing.settle_all()

    def close(self) -> None:
        """Take the engine's hooks off the model. At stages 0 to 2 it keeps its parameters and may go into another
        engine; at stage 3 it keeps none, so `consolidate` first."""
        if self.closed:
            return
        self.synchronize()
        self._forget()
        self.closed = True
        if not self.shards_parameters:
            models_in_use.discard(self.model)
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    unwrap(parameter)
        self.residency.remove()
        self.reducer.remove()
        self.optimizer_step.close()
        self.tier.close()

    def disk_bytes(self) -> dict[str, int]:
        """Bytes of states in this rank's files, as the file system has them, under the names of `memory.predict`."""
        found = {"parameters": self.tier.disk_bytes(), "optimizer_states": self.optimizer_step.disk_bytes()}
        return {ledger("disk", kind): nbytes for kind, nbytes in found.items() if nbytes}

    # Parts of a step.

    def _agree(self) -> None:
        """See that all ranks gathered the same units. Where none are gathered a rank may run forwards alone."""
        if self.shards_parameters:
            self.comm.agree()

    def _check_whole(self) -> None:
        if self.broken is not None:
            raise StateError(self.broken)

    def _forget(self) -> None:
        self.reducer.reset()
        self.residency.let_go()
        self._failed = False

    @torch.no_grad()
    def _of_rank_0(self, buffer: torch.Tensor) -> torch.Tensor:
        tensor = buffer.clone(memory_format=torch.contiguous_format)
        for group in (self.comm, self.replicate):
            if group is not None:
                group.broadcast(tensor)
        return tensor

    def _place(self, reduction: str) -> None:
        """Give each bucket its table, and the tier where it is stored."""
        self.tier = make_tier(self.comm, self.offload)
        memory = Pages(self.comm.device)
        for bucket in self.buckets:
            bucket.rows = rows_of(bucket, self.stage, reduction, self.offload, self.comm, self.replicate)
            bucket.comm, bucket.tier, bucket.memory = self.comm, self.tier, memory
        for unit in self.units:
            unit.place()
        self.tier.prepare([bucket for unit in self.units for bucket in unit.gathered])

    def _first_values(self, bucket: Bucket, values: torch.Tensor | None) -> torch.Tensor:
        """Rank 0's values of a bucket's parameters, in one flat buffer: `values`, if they lie there already."""
        if values is None:
            values = self.comm.allocate(bucket.layout.numel, bucket.dtypes.main)
            fill(values, bucket.layout, bucket.parameters)
        for group in (self.comm, self.replicate):
            if group is not None:
                group.broadcast(values)
        return values

    def _update(self, factor: float) -> None:
        self.stepping = True
        try:
            self.handed_out.take_back()
            with changing(self, "a step"), all_hear(self):
                self.optimizer_step.step(factor)
        finally:
            self.stepping = False
        # What the step before published has come: its collectives ended before this step's reductions.
        self._hand_around()

    def _hand_around(self) -> None:
        """Hand the new parameters around."""
        self.forget_views()
        with phase("publish"):
            self.publishing.publish()
        if self.overlap_gather:
            self.publishing.mark()
        else:
            self.publishing.settle_all()

    def forget_views(self) -> None:
        """Parameters have new values, by a step or from a checkpoint: views that somebody still has of them, in Python
        or in a graph, are of the old ones."""
        self.handed_out.note()
        self.residency.forget_values()
        count_write(self._trained, self._watched)

    def _wrap(self) -> None:
        """Guard the parameters, which are the engine's from here on."""
        self._apart, self._known = [], set()
        self._parts = list(self.model.modules())
        self._members = members(self._parts)
        sharded = self.shards_parameters
        for unit in self.units:
            for bucket in unit.buckets:
                apart = keeps_main(bucket, self.offload, self.precision, self.state_size)
                self._apart += bucket.parameters if apart else []
                self._known |= set(map(id, bucket.parameters))
                refs = weakref.ref(self), weakref.ref(unit), weakref.ref(bucket)
                away = sharded and not bucket.persistent
                for slot, parameter in zip(bucket.layout.slots, bucket.parameters, strict=True):
                    wrap(parameter, Held(slot.name, torch.Size(slot.shape), *refs, apart or away))
                set_away(bucket.parameters, away)
        self._trained = [parameter for bucket in self.reducer.order for parameter in bucket.parameters]
        self._watched = [its._held for its in self._trained if isinstance(its, Wrapped) and its._held.watched]

    def _fill(self, unit: Unit) -> None:
        """A unit gets no more gradients in this backward."""
        if self._failed:
            self.reducer.fill(unit)
