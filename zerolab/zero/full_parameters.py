"""Parameters whole: read, saved, loaded, or for a moment there for everybody. What people do to a model by habit.

All of this gathers, so every rank calls it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass
from torch.nn.modules.module import _IncompatibleKeys

from zerolab.collectives import Collectives, phase
from zerolab.errors import InputError, StateError
from zerolab.flat.views import shard_of, view
from zerolab.zero.bucket import Bucket
from zerolab.zero.changing import all_hear, changing
from zerolab.zero.clip import check_norm, clip_factor, gradient_norm
from zerolab.zero.engine import Engine
from zerolab.zero.guards import ParameterGuard
from zerolab.zero.guards.parameters import written
from zerolab.zero.overwrite import overwrite_by
from zerolab.zero.tiers.stored_step import StoredStep
from zerolab.zero.tiers.tiers import Tier
from zerolab.zero.units import Unit, settle_all


class FullParameters(Engine):
    """The part of `ZeroEngine` that reads and writes whole parameters."""

    _given: Sequence[nn.Module] | None
    optimizer_step: StoredStep
    tier: Tier

    def train(self, mode: bool = True) -> Any:
        """`model.train(mode)`; returns the engine."""
        self.model.train(mode)
        return self

    def eval(self) -> Any:
        """`model.eval()`; returns the engine."""
        return self.train(False)

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """`model.parameters()`. At stage 3 they tell shape, dtype and device; their values are read inside
        `summon_full_params`."""
        return self.model.parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """`model.named_parameters()`, with the names that the model gives."""
        return self.model.named_parameters(*args, **kwargs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say where a name is that the engine lacks and the model has, such as transformers' `generate`, or the
            optimizer."""
            if name == "param_groups":
                raise AttributeError(
                    "an engine is no optimizer: take engine.optimizer.param_groups; in place of torch's GradScaler say "
                    'ZeroEngine(precision="fp16")'
                )
            if not hasattr(self.__dict__.get("model"), name):
                raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
            raise AttributeError(
                f"{name} is the model's, so take engine.model.{name}; at stage 3 what reads parameters outside a "
                "forward stands inside `with engine.summon_full_params():`, which every rank enters"
            )

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the gradients of this step down to a global norm of `max_norm`, before `step()`; returns the norm that
        they had, over all ranks and parameters. One that is not finite leaves them as they are. `max_norm=inf` only
        measures. A collective: every rank calls it."""
        check_norm(max_norm, norm_type)
        self.check_whole()
        buckets = self.reducer.order
        if not all(bucket.gradients.ready for bucket in buckets):
            raise StateError("there are no reduced gradients to clip; call clip_grad_norm_ after backward(loss)")
        scale = self.loss_scale
        norm = gradient_norm(self.comm, buckets, norm_type) / scale
        factor = clip_factor(norm, max_norm)
        if factor != 1.0 and norm < float("inf"):
            for bucket in buckets:
                bucket.for_step().mul_(factor)
        return norm

    @contextmanager
    def summon_full_params(self) -> Iterator[None]:
        """Within, all parameters are here with their elements, to be read or, on all ranks alike, written. At stage 3
        that takes the memory of the whole model, and what is read later must be a copy (`clone()`). Refused where what
        is written would be lost: with a precision or an offload that keeps main parameters apart. A collective: every
        rank enters."""
        self.check_whole()
        self.guards.tell("before_read")
        before = {bucket: versions(bucket.parameters) for bucket in self.buckets}
        with self._summoned():
            try:
                yield
            except BaseException:
                # As at the other stages, what was written until then stays.
                self._keep_written(before)
                raise
            self.guards.tell("before_step")
            self._keep_written(before)

    def parameters_of(self, unit: Unit, to: int | None = None) -> dict[str, torch.Tensor]:
        """Copies of a unit's parameters by name, whole, on the CPU: on every rank, or on rank `to` alone, where the
        others get nothing. A collective: every rank calls it."""
        self.check_whole()
        self.guards.tell("before_read")
        self.arrive(unit)
        with phase("consolidate"):
            unit.gather()
        slots = [(slot, bucket) for bucket in unit.buckets for slot in bucket.layout.slots]
        mine = to is None or to == self.comm.rank
        copies = {slot.name: view(bucket.whole, slot).cpu().clone() for slot, bucket in slots} if mine else {}
        self.schedule.release_unused(unit)
        return copies

    def consolidate(self, to: int | None = None) -> dict[str, torch.Tensor]:
        """The whole model's parameters and rank 0's buffers by name, on the CPU of every rank, or of rank `to` alone:
        then the others get nothing, and no memory is taken there but that of a unit. A tied parameter stands under its
        first name. One unit is gathered at a time. A collective: every rank calls it, with the same `to`."""
        self.check_whole()
        self.guards.tell("before_read")
        check_rank(to, self.comm.size)
        with phase("consolidate"):
            state = {name: self.of_rank_0(buffer).cpu() for name, buffer in self.model.named_buffers()}
        for unit in self.units:
            state.update(self.parameters_of(unit, to))
        settle_all(self.units)
        return state if to in (None, self.comm.rank) else {}

    def state_dict(self, to: int | None = None, *, main: bool = False) -> dict[str, torch.Tensor]:
        """The model's state_dict, whole, on the CPU of every rank, tied parameters and buffers included; or of rank
        `to` alone, as `consolidate` gives it. In the dtypes in which the model computes, so rounded under bf16; with
        `main`, in those in which the optimizer updates parameters (fp32). A collective: every rank calls it."""
        whole = self.consolidate(to)
        if main:
            whole |= gather_main(self.comm, self.buckets, self.optimizer_step, to)
        if to not in (None, self.comm.rank):
            return {}
        # A tied parameter or buffer stands in `whole` under its first name only.
        values = {id(tensor): whole[name] for name, tensor in self.model.named_parameters()}
        values |= {id(tensor): whole[name] for name, tensor in self.model.named_buffers()}
        return {name: values.get(id(value), value) for name, value in self.model.state_dict(keep_vars=True).items()}

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor], strict: bool = True) -> _IncompatibleKeys:
        """Overwrite parameters and buffers by those of a model's state_dict, whole tensors by name; main parameters,
        too. Each rank takes its own elements, and tensors may be anything that indexes as a dict does, such as one that
        reads them when they are asked for. The optimizer's states stay (`zerolab.checkpoint` has them).

        A collective: every rank calls it, between steps. Raises a RuntimeError for names, as torch does, or an
        InputError for another shape, while the model is as it was.
        """
        self.check_between_steps("load_state_dict")
        return overwrite_by(self, state_dict, strict)

    @torch.no_grad()
    def publish(self) -> None:
        """Hand around what was written to the optimizer's own tensors, those of `engine.optimizer.param_groups`: each
        rank's shard to all others and to what the model computes with. Schedule-free optimizers write to them in
        `eval()` and `train()`. A collective: every rank calls it, between steps."""
        if not self.optimizer_step.stays:
            self.guards.tell("before_read")
        self.check_between_steps("publish", publishes=True)
        self.synchronize()
        with changing(self, "publish"), all_hear(self):
            for segment in self.optimizer_step.segments:
                self.optimizer_step.write_back(segment)
            self.tier.flush()
        self.hand_around()

    def explain(self) -> str:
        """A text: the tables of the buckets, equal ones once; the units, and who named them; and which parameters were
        asked for outside the forward of their unit so far, and how often."""
        axes = [f"{self.comm.size} ranks", *([] if self.replicate is None else [f"{self.replicate.size} replicas"])]
        tables = [
            f"buckets: {count}\n{table.explain(axes)}\n"
            for table, count in Counter(bucket.rows for bucket in self.buckets).items()
        ]
        own = callable(getattr(self.model, "units", None))
        source = "as given" if self._given is not None else "as model.units() says" if own else "guessed"
        lines = [*tables, f"stage {self.stage}, units: {len(self.units)}, {source}"]
        for unit in self.units:
            numel = sum(parameter.numel() for bucket in unit.buckets for parameter in bucket.parameters)
            kinds = ", ".join(type(module).__name__ for module in unit.modules)
            lines.append(f"  {unit.name}: {kinds}, {numel:,} parameters, buckets: {len(unit.buckets)}")
            kept = sum(
                parameter.numel() for bucket in unit.buckets if bucket.persistent for parameter in bucket.parameters
            )
            if kept and self.shards_parameters:
                lines.append(f"    {kept:,} of its parameters stay whole on every rank")
            lines += [
                f"    {title} was asked for outside the forward of its unit, which was gathered for it (times: {times})"
                for title, times in self.uses_outside.items()
                if title.endswith(f"(unit {unit.name})")
            ]
        return "\n".join(lines)

    @contextmanager
    def _summoned(self) -> Iterator[None]:
        """All units gathered, their parameters for everybody to use."""
        schedule = self.schedule
        if schedule.is_summoned or schedule.in_backward or schedule.in_forward:
            raise StateError("summon_full_params was entered inside a forward, a backward or itself; enter it between")
        try:
            for unit in self.units:
                self.arrive(unit)
                unit.gather()
                schedule.lend(unit, True)
            schedule.is_summoned = True
            yield
        finally:
            schedule.is_summoned = False
            for unit in self.units:
                schedule.lend(unit, False)
            schedule.release_all()

    @property
    def uses_outside(self) -> Mapping[str, int]:
        """How often each parameter was asked for outside the forward of its unit, by name and unit."""
        guards = [guard for guard in self.guards.guards if isinstance(guard, ParameterGuard)]
        return guards[0].counts if guards else {}

    def check_between_steps(self, what: str, mends: bool = False, publishes: bool = False) -> None:
        """Raise a StateError unless the engine is between two steps. `what` is the name of the call that asks; one that
        `mends` a broken engine may come after a step that ended half-way, and one that `publishes` what was written to
        the optimizer's tensors, after such a write."""
        if self.closed:
            raise StateError(f"{what} of an engine that is closed; call it before close()")
        if not mends:
            self.check_whole()
        if not (mends or publishes):
            self.guards.tell("before_read")
        self.guards.tell("before_step")
        if self.failed or any(bucket.gradients.any for bucket in self.reducer.order):
            raise StateError(
                f"{what} in the middle of a step, whose gradients no checkpoint keeps; call step() or zero_grad() first"
            )
        if self.schedule.is_summoned or self.schedule.in_forward:
            raise StateError(f"{what} inside a forward or summon_full_params; call it between steps")

    def _keep_written(self, before: Mapping[Bucket, list[int]]) -> None:
        """Take what was written to gathered parameters into the shards."""
        if not self.shards_parameters:
            return
        buckets = [bucket for bucket in self.buckets if versions(bucket.parameters) != before[bucket]]
        for bucket in buckets:
            written(bucket.parameters)
        with changing(self, "a write in summon_full_params"):
            for bucket in buckets:
                new = shard_of(bucket.whole, bucket.layout, self.comm.rank)
                self.tier.open(bucket).copy_(new)
            self.tier.flush()


def check_rank(to: int | None, ranks: int) -> None:
    """Refuse a rank that does not exist, before any rank waits for others."""
    if to is not None and (type(to) is not int or not 0 <= to < ranks):
        raise InputError(f"to is {to!r}; name a rank from 0 to {ranks - 1}, or leave it out for all")


def versions(parameters: Iterable[nn.Parameter]) -> list[int]:
    """Torch's counts of writes in place."""
    with DisableTorchFunctionSubclass():
        return [parameter._version for parameter in parameters]


def gather_main(comm: Collectives, buckets: Sequence[Bucket], step: StoredStep, to: int | None) -> dict[str, Tensor]:
    """The main parameters by name, on the CPU of every rank, or of rank `to` alone; none of a bucket whose parameters
    are updated in the dtype in which forward uses them. A collective."""
    found: dict[str, Tensor] = {}
    mine = to in (None, comm.rank)
    for bucket, own in own_main(buckets, step).items():
        with phase("consolidate"):
            whole = own if own.numel() == bucket.layout.numel else comm.all_gather(own.to(comm.device))
        if mine:
            found |= {slot.name: view(whole, slot).cpu().clone() for slot in bucket.layout.slots}
    return found


def own_main(buckets: Sequence[Bucket], step: StoredStep) -> dict[Bucket, Tensor]:
    """What this rank updates of each bucket, in the dtype in which it does, on the CPU."""
    found = {}
    for bucket in buckets:
        if bucket.trainable and bucket.dtypes.main != bucket.dtype:
            begin, end = bucket.owned
            found[bucket] = torch.zeros(end - begin, dtype=bucket.dtypes.main)
            if bucket.dtypes.shard == bucket.dtypes.main:
                # Stage 3 keeps its shards as main parameters.
                found[bucket].copy_(bucket.tier.fetch(bucket, torch.empty_like(found[bucket])))
    for states in step.stored():
        for segment, name, codec, raw in states:
            if name == "main" and segment.bucket in found:
                start = segment.start
                values = codec.view(raw, segment.numel)
                found[segment.bucket][start : start + segment.numel].copy_(values)
    return found
