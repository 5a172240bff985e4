"""Training with ZeRO: one path for all stages.

    engine = Engine(model, comm, Sharding(stage=2), optimizer)
    loss = engine(tokens, targets)          # forward of the model, on this rank's part of the batch
    engine.backward(loss)                   # gradients, averaged over the ranks
    engine.step()                           # clip, update, hand the new parameters around

Every rank makes the same calls, on parts of equal size. With the ring, stages 0 to 3 end with the same bits.
`ZeroEngine` (`zero_engine.py`) is this engine with all that one wants around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from zerolab.collectives.call import backward_phase, phase
from zerolab.collectives.contract import Collectives
from zerolab.errors import StateError
from zerolab.flat.layout import BucketPlan
from zerolab.flat.views import fill
from zerolab.zero.bucket import Bucket, DeviceTier
from zerolab.zero.reducer import Reducer
from zerolab.zero.schedule import GatherSchedule, Guards
from zerolab.zero.step import OptimizerStep, StepResult, measure
from zerolab.zero.table import STAGES, Sharding
from zerolab.zero.units import GroupOf, find_units, settle_all

Factory = Callable[..., torch.optim.Optimizer]
FAILED = "an earlier backward failed half-way; call zero_grad() and repeat the whole step"


class Engine:
    """A model, its gradients and its optimizer, sharded as `sharding` says.

    model      any nn.Module on `comm.device`; its parameters become views of flat buffers
    optimizer  takes a list of parameter groups and returns an elementwise torch optimizer
    units      the modules that are gathered as one; default: model.units(), or a guess (`units.py`)
    groups     optimizer options per parameter: groups(name, parameter) -> {"weight_decay": 0.0, ...}
    replicate  ranks that hold the same shards, over which gradients are averaged once more
    guards     what is attached from outside (`Guards`)

    A parameter that a backward does not reach counts as one whose gradient is zero.
    """

    broken: str | None = None
    """Why all is refused but a load of a checkpoint (`full_parameters.py`)."""
    limits: Any = None
    """How much stage 3 gathers ahead, and keeps (`limits.py`)."""
    scaler: Any = None
    """What scales losses (`precision/scaler.py`), and hears of each step whether it was skipped."""

    def __init__(
        self,
        model: nn.Module,
        comm: Collectives,
        sharding: Sharding,
        optimizer: Factory,
        *,
        units: Sequence[nn.Module] | None = None,
        groups: GroupOf | None = None,
        replicate: Collectives | None = None,
        guards: Sequence[Callable[[], Any]] = (),
    ) -> None:
        self.model, self.comm, self.replicate, self.sharding = model, comm, replicate, sharding
        self.stage = sharding.stage
        self.shards_parameters = bool(STAGES[self.stage][0])
        replicas = None if replicate is None else replicate.size
        self.units = find_units(model, self.comm_of, units, groups, sharding, replicas)
        self.buckets = [bucket for unit in self.units for bucket in unit.buckets]
        self.guards = Guards([make() for make in guards])
        self.tier = self.make_tier()
        for bucket in self.buckets:
            bucket.comm, bucket.tier = self.comm_of(bucket.parameters[0]), self.tier
        self.before_setup()
        with phase("setup"), torch.no_grad():
            self.tier.prepare([bucket for unit in self.units for bucket in unit.gathered])
            self.fill_buckets()
            for buffer in model.buffers():
                buffer.copy_(self.of_rank_0(buffer.clone(memory_format=torch.contiguous_format)))
        self.optimizer_step = self.make_step(optimizer)
        self.optimizer = self.optimizer_step.optimizer
        self.reducer = Reducer(comm, replicate, self.units, sharding.overlap, self.reached)
        settings = self.units, self.shards_parameters, sharding.prefetch, self.limits, self.guards
        self.schedule = GatherSchedule(model, *settings, self.reducer.fill, self.reached)
        self.reduces, self.failed, self.closed = True, False, False
        self.guards.tell("attach", self)

    # What others put something else in the place of.

    def comm_of(self, parameter: nn.Parameter) -> Collectives:
        """The ranks over which a parameter's states are sharded."""
        return self.comm

    def make_tier(self) -> DeviceTier:
        """Where parameters and gradients are stored."""
        return DeviceTier(self.comm)

    def make_step(self, factory: Factory) -> OptimizerStep:
        """What updates this rank's part of the parameters."""
        return OptimizerStep(self.tier, self.buckets, factory)

    def before_setup(self) -> None:
        """Units and tables are there; the model is as it was."""

    def fill_buckets(self) -> None:
        for bucket in self.buckets:
            bucket.overwrite(self.first_values(bucket))

    # Training.

    @property
    def loss_scale(self) -> float:
        """What the next loss is multiplied by."""
        return 1.0 if self.scaler is None else self.scaler.scale

    @property
    def plans(self) -> list[BucketPlan]:
        """The geometry of all buckets, from which memory and traffic are predicted."""
        return [bucket.plan for bucket in self.buckets]

    @property
    def owner(self) -> int | None:
        """The rank whose shard of each bucket this rank updates, and saves: its own; None: it updates all."""
        return self.comm.rank if STAGES[self.stage][2] else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.check_whole()
        self.guards.tell("before_call")
        with phase("forward"):
            output = self.model(*args, **kwargs)
            self._agree()
            return output

    def backward(self, loss: torch.Tensor, reduce: bool | None = None) -> None:
        """Add the gradients of `loss` (a scalar) to those of this step.

        With `reduce`, as outside `no_sync`, they (and those of earlier calls with reduce=False) are averaged over the
        ranks. Without, they stay on this rank, whole at every stage: less traffic, more memory at stages 2 and 3.
        """
        self.check_ready()
        with backward_phase("backward"):
            self.begin_backward(reduce)
            with self.taking_gradients():
                (loss if self.loss_scale == 1.0 else loss.float() * self.loss_scale).backward()

    def begin_backward(self, reduce: bool | None = None) -> None:
        """From here on a backward may bring gradients."""
        self.failed = True
        self.schedule.in_backward = True
        self.reducer.begin(self.reduces if reduce is None else reduce)

    @contextmanager
    def taking_gradients(self) -> Iterator[None]:
        """Within, a backward brings gradients; at the end all are here."""
        try:
            yield
            self.schedule.release_all()
            self.reducer.finish()
        finally:
            self.reducer.end()
            self.schedule.in_loss = False
            self.schedule.let_go()
        # From here on others may write to the shards.
        settle_all(self.units)
        self.failed = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, a backward is one with reduce=False. The last of a step stands outside."""
        before, self.reduces = self.reduces, False
        try:
            yield
        finally:
            self.reduces = before

    @torch.no_grad()
    def step(self) -> StepResult:
        """Update the parameters with the gradients of this step, and forget those. Raises StateError where gradients
        are missing, not reduced, or of a backward that failed, and OffloadError, on every rank, where a disk fails."""
        trainable = self.reducer.order
        self.check_whole()
        if self.failed:
            raise StateError(FAILED)
        if any(bucket.gradients.filled for bucket in trainable):
            raise StateError("gradients were not reduced; make the last backward of a step with reduce=True")
        if not all(bucket.gradients.summed for bucket in trainable):
            raise StateError("there are no gradients to step with; call backward(loss) first")
        self.guards.tell("before_step")
        if self.schedule.is_summoned:
            raise StateError("step() was called inside summon_full_params; leave it first")
        self._agree()
        result, factor = self.measure()
        if not result.skipped:
            self.guards.tell("before_update")
            self.update(factor)
            # What the step before published has come: its collectives ended before this step's reductions.
            self.hand_around()
        self.forget()
        if self.scaler is not None:
            self.scaler.update(result.skipped)
        return result

    def zero_grad(self) -> None:
        """Forget the gradients of this step, and let go what a failed forward or backward left here."""
        self.check_whole()
        self.forget()

    def close(self) -> None:
        """Take the engine's hooks off the model, which keeps its parameters at stages 0 to 2."""
        if self.closed:
            return
        self.forget()
        self.closed = True
        self.guards.tell("detach", self)
        self.schedule.remove()
        self.reducer.remove()

    # Parts of a step.

    def measure(self) -> tuple[StepResult, float]:
        """Whether to step, and the factor that unscales and clips the gradients."""
        scale = None if self.scaler is None else self.scaler.scale
        clip_norm, norm_type = self.sharding.clip_norm, self.sharding.norm_type
        return measure(self.everybody, self.reducer.order, clip_norm, norm_type, scale)

    @property
    def everybody(self) -> Collectives:
        """The ranks over which the norm is added up."""
        return self.comm

    def check_whole(self) -> None:
        """Raise a StateError if a step, a load or a write has ended half-way."""
        if self.broken is not None:
            raise StateError(self.broken)

    def forget(self) -> None:
        self.reducer.reset()
        self.schedule.let_go()
        self.failed = False

    def _agree(self) -> None:
        """See that all ranks gathered the same units."""
        if self.shards_parameters:
            self.comm.agree()

    def check_ready(self) -> None:
        if self.closed:
            raise StateError("this engine was closed and takes no gradients; wrap the model again in a new one")
        if self.failed:
            raise StateError(FAILED)
        self.check_whole()
        self.guards.tell("before_backward")

    def reached(self) -> None:
        """Autograd has come to what the model gave, or to one of its parameters."""
        if not self.schedule.in_backward:
            raise StateError("gradients came outside of engine.backward(loss), which says when all are here; call it")

    def update(self, factor: float) -> None:
        """Step the optimizer over what this rank owns, once no rank reads its shards any more."""
        settle_all(self.units)
        self.optimizer_step.step(factor)

    def hand_around(self) -> None:
        """All-gather the new parameters up to where they are stored."""
        self.new_values()
        with phase("publish"):
            for unit in self.units:
                unit.publish()
        if not self.sharding.overlap_gather:
            self.synchronize()
            return
        for unit in self.units:
            if unit.arriving:
                self.guards.tell("published", unit)

    def synchronize(self) -> None:
        """Return once all parameters that a step published have come."""
        # Calls run in order: once the last has ended, so have those before it.
        for unit in reversed(self.units):
            self.schedule.arrive(unit)

    def new_values(self) -> None:
        """Parameters have new values: views and graphs are of the old ones."""
        self.schedule.new_values()
        self.guards.tell("new_values")

    # Parameters into buckets.

    def first_values(self, bucket: Bucket, flat: torch.Tensor | None = None) -> torch.Tensor:
        """Rank 0's values of a bucket, flat, on every rank; in `flat`, if they lie there."""
        if flat is None:
            flat = self.comm.allocate(bucket.layout.numel, bucket.dtypes.main)
            fill(flat, bucket.layout, bucket.parameters)
        return self.of_rank_0(flat, bucket.comm)

    @torch.no_grad()
    def of_rank_0(self, tensor: torch.Tensor, comm: Collectives | None = None) -> torch.Tensor:
        """Overwrite a contiguous tensor with the first rank's values, on every rank; returns it."""
        for group in filter(None, (comm or self.comm, self.replicate)):
            group.broadcast(tensor)
        return tensor
