"""Parameters whole: read, saved, loaded, or for a moment there for everybody.

An engine holds a parameter up to three times: as main parameters, as the shard that is stored, and as forward uses it.
A write goes to all, each rounded once from the value that is given; each rank takes its own elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunctionSubclass
from torch.nn.modules.module import _IncompatibleKeys

from zerolab.collectives import phase
from zerolab.errors import InputError, StateError
from zerolab.flat import Layout
from zerolab.flat.layout import Slot
from zerolab.flat.views import shard_of, view
from zerolab.zero.bucket import Bucket
from zerolab.zero.engine import Engine
from zerolab.zero.guards import ParameterGuard, take_written
from zerolab.zero.start import check_norm
from zerolab.zero.step import clip_factor, gradient_norm
from zerolab.zero.stored_step import StoredState, StoredStep
from zerolab.zero.tiers import Tier, all_hear, changing
from zerolab.zero.units import Unit, settle_all

Read = Callable[[Bucket, str, int, Tensor], None]
"""read(bucket, name, start, out) fills `out` (1-D) with the elements of a parameter from `start` on."""


class Overlap(NamedTuple):
    """Elements `[start, stop)` of a parameter, which are `[first, last)` of a run."""

    slot: Slot
    start: int
    stop: int
    first: int
    last: int


def overlaps(layout: Layout, begin: int, end: int) -> Iterator[Overlap]:
    """Which parameters' elements lie in `[begin, end)` of a bucket."""
    for slot in layout.slots:
        low, high = max(slot.start, begin), min(slot.stop, end)
        if low < high:
            yield Overlap(slot, low - slot.start, high - slot.start, low - begin, high - begin)


def write_parameters(engine: Engine, read: Read, stays: Callable[[str], bool] = lambda name: False) -> None:
    """Overwrite this rank's part of the stored parameters, but for those whose name `stays`."""
    for bucket in engine.buckets:
        if bucket.rows.parameters.tier == "disk" and any(stays(slot.name) for slot in bucket.layout.slots):
            # What a disk hands out to be written is empty.
            room = torch.empty(bucket.layout.shard_numel, dtype=bucket.dtypes.shard, device="cpu")
            before = engine.tier.fetch(bucket, room)
            engine.tier.open(bucket).copy_(before)
        fill(bucket, bucket.owned[0], engine.tier.open(bucket), read)
    engine.tier.flush()


def gather_parameters(engine: Engine) -> None:
    """Bring what ranks have written to all of them. A collective: none has failed."""
    for bucket in engine.buckets:
        if bucket.rows.owned > bucket.rows.parameters.depth:
            bucket.comm.all_gather(bucket.shard, out=bucket.whole)


def fill(bucket: Bucket, begin: int, run: Tensor, read: Read) -> None:
    for lap in overlaps(bucket.layout, begin, begin + run.numel()):
        read(bucket, lap.slot.name, lap.start, run[lap.first : lap.last])


def write_main(state: StoredState, read: Read) -> None:
    segment, _, codec, raw = state
    fill(segment.bucket, segment.begin, codec.view(raw, segment.numel), read)


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
        """`model.parameters()`. At stage 3 their values are read inside `summon_full_params`."""
        return self.model.parameters(recurse)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """`model.named_parameters()`."""
        return self.model.named_parameters(*args, **kwargs)

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the gradients of this step down to a global norm of `max_norm`; returns the one that they had. If
        that is not finite they stay as they are; `max_norm=inf` only measures. A collective."""
        check_norm(max_norm, norm_type)
        self.check_whole()
        buckets = self.reducer.order
        if not all(bucket.gradients.summed and not bucket.gradients.filled for bucket in buckets):
            raise StateError("there are no reduced gradients to clip; call clip_grad_norm_ after backward(loss)")
        scale = self.loss_scale
        norm = gradient_norm(self.everybody, buckets, norm_type) / (scale * self.mean_weight())
        factor = clip_factor(norm, max_norm)
        if factor != 1.0 and norm < float("inf"):
            for bucket in buckets:
                bucket.for_step().mul_(factor)
        return norm

    @contextmanager
    def summon_full_params(self) -> Iterator[None]:
        """Within, all parameters are here with their elements, to be read or, on all ranks alike, written: what is read
        later must be a copy (`clone()`). Writes are refused where main parameters are kept apart. A collective."""
        self.check_whole()
        self.guards.tell("before_read")
        schedule = self.schedule
        if schedule.is_summoned or schedule.in_backward or schedule.in_forward:
            raise StateError("summon_full_params was entered inside a forward, a backward or itself; enter it between")
        before = {bucket: read_versions(bucket.parameters) for unit in self.units for bucket in unit.gathered}
        try:
            for unit in self.units:
                schedule.arrive(unit)
                unit.gather()
                schedule.lend(unit, True)
            schedule.is_summoned = True
            try:
                yield
                self.guards.tell("before_step")
            finally:
                # After an error, too: as at the other stages, what was written until then stays.
                new = [bucket for bucket, counts in before.items() if read_versions(bucket.parameters) != counts]
                for bucket in new:
                    take_written(bucket.parameters)
                with changing(self, "a write in summon_full_params"):
                    for bucket in new:
                        self.tier.open(bucket).copy_(shard_of(bucket.whole, bucket.layout, bucket.comm.rank))
                    self.tier.flush()
        finally:
            schedule.is_summoned = False
            for unit in self.units:
                schedule.lend(unit, False)
            schedule.release_all()

    def mean_weight(self) -> float:
        """The mean over the ranks of what their losses of this step count."""
        return 1.0

    def parameters_of(self, unit: Unit, to: int | None = None) -> dict[str, Tensor]:
        """Copies of a unit's parameters, on the CPU of all, or of rank `to`. A collective."""
        self.check_whole()
        self.guards.tell("before_read")
        self.schedule.arrive(unit)
        with phase("consolidate"):
            unit.gather()
        found: dict[str, Tensor] = {}
        for bucket in unit.buckets if to in (None, self.comm.rank) else []:
            found |= copy_slots(bucket, bucket.whole)
        self.schedule.release_unused(unit)
        return found

    def consolidate(self, to: int | None = None) -> dict[str, Tensor]:
        """The whole model's parameters and rank 0's buffers by name, on the CPU of all ranks, or of rank `to` alone. A
        tied parameter stands under its first name. A collective, a unit at a time."""
        if to not in (None, *range(self.comm.size)):
            raise InputError(f"to is {to!r}; name a rank from 0 to {self.comm.size - 1}, or leave it out for all")
        with phase("consolidate"):
            buffers = self.model.named_buffers()
            copies = ((name, buffer.clone(memory_format=torch.contiguous_format)) for name, buffer in buffers)
            state = {name: self.of_rank_0(copy).cpu() for name, copy in copies}
        for unit in self.units:
            state.update(self.parameters_of(unit, to))
        settle_all(self.units)
        return state if to in (None, self.comm.rank) else {}

    def state_dict(self, to: int | None = None, *, main: bool = False) -> dict[str, Tensor]:
        """The model's state_dict, whole, on the CPU of every rank, or of rank `to` alone. In the dtypes in which the
        model computes, so rounded under bf16; with `main`, in those of the optimizer's parameters. A collective."""
        whole = self.consolidate(to)
        if main:
            whole |= self._main(to)
        if to not in (None, self.comm.rank):
            return {}
        # A tied parameter or buffer stands in `whole` under its first name only.
        values = {id(tensor): whole[name] for name, tensor in self.model.named_parameters()}
        values |= {id(tensor): whole[name] for name, tensor in self.model.named_buffers()}
        return {name: values.get(id(value), value) for name, value in self.model.state_dict(keep_vars=True).items()}

    def _main(self, to: int | None) -> dict[str, Tensor]:
        """The main parameters of buckets whose parameters forward uses in another dtype."""
        own: dict[Bucket, Tensor] = {}
        for bucket in self.buckets:
            if bucket.trainable and bucket.dtypes.main != bucket.dtype:
                begin, end = bucket.owned
                own[bucket] = torch.zeros(end - begin, dtype=bucket.dtypes.main)
                if bucket.dtypes.shard == bucket.dtypes.main:
                    own[bucket].copy_(self.tier.fetch(bucket, torch.empty_like(own[bucket])))
        for segment, name, codec, raw in chain.from_iterable(self.optimizer_step.stored()):
            if name == "main" and segment.bucket in own:
                segment.part(own[segment.bucket]).copy_(codec.view(raw, segment.numel))
        found: dict[str, Tensor] = {}
        for bucket, flat in own.items():
            if bucket.rows.owned:
                with phase("consolidate"):
                    flat = bucket.comm.all_gather(flat.to(self.comm.device))
            if to in (None, self.comm.rank):
                found |= copy_slots(bucket, flat)
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> _IncompatibleKeys:
        """Overwrite parameters, main ones, too, and buffers by those of a model's state_dict, which may read tensors
        when they are asked for. The optimizer's states stay. A collective. Raises a RuntimeError for names, as torch
        does, or an InputError for another shape, while the model is as it was."""
        self.check_between_steps("load_state_dict")
        wanted = self.model.state_dict(keep_vars=True)
        missing = [name for name in wanted if name not in state_dict]
        unexpected = [name for name in state_dict if name not in wanted]
        if strict and (missing or unexpected):
            has = f"has no {', '.join(missing)}" if missing else f"has {', '.join(unexpected)}, which the model has not"
            raise RuntimeError(f"the state_dict {has}; give that of the same model, or say strict=False")
        given = {id(tensor): name for name, tensor in reversed(wanted.items()) if name in state_dict}
        name_of = {name: given.get(id(parameter)) for name, parameter in self.model.named_parameters()}
        buffers = [(buffer, given[id(buffer)]) for buffer in self.model.buffers() if id(buffer) in given]
        shapes = [(name_of[slot.name], slot.shape) for bucket in self.buckets for slot in bucket.layout.slots]
        shapes += [(name, tuple(buffer.shape)) for buffer, name in buffers]
        for name, shape in shapes:
            if name is not None and (other := tuple(state_dict[name].shape)) != shape:
                raise InputError(
                    f"{name} has shape {other} in the state_dict and {shape} in the model; mend one of them"
                )

        def read(bucket: Bucket, name: str, start: int, out: Tensor) -> None:
            if (own := name_of[name]) is not None:
                out.copy_(state_dict[own].detach().reshape(-1)[start : start + out.numel()])

        self.synchronize()
        with changing(self, "load_state_dict"):
            with all_hear(self):
                write_parameters(self, read, lambda name: name_of[name] is None)
                for stored in chain.from_iterable(self.optimizer_step.stored(writing=True)):
                    if stored.name == "main":
                        write_main(stored, read)
            gather_parameters(self)
        for buffer, name in buffers:
            buffer.copy_(state_dict[name])
        self.new_values()
        return _IncompatibleKeys(missing, unexpected)

    @torch.no_grad()
    def publish(self) -> None:
        """Between steps: hand around what was written to the optimizer's own tensors, as schedule-free optimizers do,
        to all ranks and to what the model computes with. A collective."""
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
        """The tables of the buckets, the units, and what was asked for outside them."""
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
        lines += [
            f"    {title} was asked for outside the forward of its unit, which was gathered for it (times: {times})"
            for guard in self.guards.guards
            if isinstance(guard, ParameterGuard)
            for title, times in guard.counts.items()
        ]
        return "\n".join(lines)

    def check_between_steps(self, what: str, mends: bool = False, publishes: bool = False) -> None:
        """Raise a StateError unless the engine is between two steps, or broken and `what` a call that mends it."""
        if not mends:
            self.check_whole()
        if not (mends or publishes):
            self.guards.tell("before_read")
        self.guards.tell("before_step")
        halfway = self.failed or any(bucket.gradients.any for bucket in self.reducer.order)
        inside = self.schedule.is_summoned or self.schedule.in_forward
        refused = {
            "of an engine that is closed; call it before close()": self.closed,
            "in the middle of a step, whose gradients no checkpoint keeps; call step() or zero_grad() first": halfway,
            "inside a forward or summon_full_params; call it between steps": inside,
        }
        for why in filter(refused.get, refused):
            raise StateError(f"{what} {why}")


def copy_slots(bucket: Bucket, whole: Tensor) -> dict[str, Tensor]:
    return {slot.name: view(whole, slot).cpu().clone() for slot in bucket.layout.slots}


def read_versions(parameters: Iterable[nn.Parameter]) -> list[int]:
    with DisableTorchFunctionSubclass():
        return [parameter._version for parameter in parameters]
