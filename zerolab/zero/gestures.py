"""What users of torch do to a model, an optimizer or a wrapper by habit, as an engine does it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

from zerolab.collectives import Collectives, phase
from zerolab.errors import InputError, StateError
from zerolab.flat.views import shard_of, view
from zerolab.zero.changing import all_hear, changing
from zerolab.zero.clip import check_norm, clip_factor, gradient_norm
from zerolab.zero.main_parameters import gather_main
from zerolab.zero.overwrite import overwrite_by
from zerolab.zero.units import settle_all
from zerolab.zero.wrapped import written

if TYPE_CHECKING:
    from zerolab.zero.engine import ZeroEngine
    from zerolab.zero.optimizer_step import OptimizerStep
    from zerolab.zero.owned import HandedOut
    from zerolab.zero.publishing import Publishing
    from zerolab.zero.reducer import Reducer
    from zerolab.zero.residency import Residency
    from zerolab.zero.tier import DeviceTier
    from zerolab.zero.units import Unit


class Gestures:
    """The part of `ZeroEngine` that is there for familiar calls."""

    model: nn.Module
    units: list[Unit]
    stage: int
    comm: Collectives
    tier: DeviceTier
    shards_parameters: bool
    residency: Residency
    publishing: Publishing
    reducer: Reducer
    optimizer_step: OptimizerStep
    handed_out: HandedOut
    closed: bool
    _failed: bool
    _given: Sequence[nn.Module] | None
    _apart: list[nn.Parameter]
    _known: set[int]
    _parts: list[nn.Module]
    _members: list[Any]
    _reduces: bool = True

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

    if TYPE_CHECKING:

        @property
        def loss_scale(self) -> float: ...

        def _of_rank_0(self, buffer: torch.Tensor) -> torch.Tensor: ...

        def _check_whole(self) -> None: ...

        def _hand_around(self) -> None: ...

    else:

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

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within, `backward(loss)` leaves gradients on this rank, as `backward(loss, reduce=False)` does. The last
        backward of a step stands outside."""
        before, self._reduces = self._reduces, False
        try:
            yield
        finally:
            self._reduces = before

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scale the gradients of this step down to a global norm of `max_norm`, before `step()`; returns the norm that
        they had, over all ranks and parameters. One that is not finite leaves them as they are. `max_norm=inf` only
        measures. A collective: every rank calls it."""
        check_norm(max_norm, norm_type)
        self._check_whole()
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
        self._check_whole()
        self._refuse_unpublished()
        with self.residency.summoned():
            try:
                yield
            except BaseException:
                # As at the other stages, what was written until then stays.
                self._keep_written()
                raise
            self._refuse_lost()
            self._keep_written()

    def parameters_of(self, unit: Unit, to: int | None = None) -> dict[str, torch.Tensor]:
        """Copies of a unit's parameters by name, whole, on the CPU: on every rank, or on rank `to` alone, where the
        others get nothing. A collective: every rank calls it."""
        self._check_whole()
        self._refuse_unpublished()
        self.publishing.settle(unit)
        with phase("consolidate"):
            unit.gather()
        slots = [(slot, bucket) for bucket in unit.buckets for slot in bucket.layout.slots]
        mine = to is None or to == self.comm.rank
        copies = {slot.name: view(bucket.whole, slot).cpu().clone() for slot, bucket in slots} if mine else {}
        self.residency.release_after_visit(unit)
        return copies

    def consolidate(self, to: int | None = None) -> dict[str, torch.Tensor]:
        """The whole model's parameters and rank 0's buffers by name, on the CPU of every rank, or of rank `to` alone:
        then the others get nothing, and no memory is taken there but that of a unit. A tied parameter stands under its
        first name. One unit is gathered at a time. A collective: every rank calls it, with the same `to`."""
        self._check_whole()
        self._refuse_unpublished()
        check_rank(to, self.comm.size)
        with phase("consolidate"):
            state = {name: self._of_rank_0(buffer).cpu() for name, buffer in self.model.named_buffers()}
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
            whole |= gather_main(cast("ZeroEngine", self), to)
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
            self._refuse_unpublished()
        self.check_between_steps("publish", publishes=True)
        self.publishing.settle_all()
        with changing(cast("ZeroEngine", self), "publish"), all_hear(cast("ZeroEngine", self)):
            self.handed_out.write_back()
        self._hand_around()

    def explain(self) -> str:
        """A text that lists the units, says who named them, and which parameters were asked for outside the forward of
        their unit so far, and how often."""
        own = callable(getattr(self.model, "units", None))
        source = "as given" if self._given is not None else "as model.units() says" if own else "guessed"
        lines = [f"stage {self.stage}, units: {len(self.units)}, {source}"]
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
                for title, times in self.residency.visits.counts.items()
                if title.endswith(f"(unit {unit.name})")
            ]
        return "\n".join(lines)

    def check_between_steps(self, what: str, mends: bool = False, publishes: bool = False) -> None:
        """Raise a StateError unless the engine is between two steps. `what` is the name of the call that asks; one that
        `mends` a broken engine may come after a step that ended half-way, and one that `publishes` what was written to
        the optimizer's tensors, after such a write."""
        if self.closed:
            raise StateError(f"{what} of an engine that is closed; call it before close()")
        if not mends:
            self._check_whole()
        if not (mends or publishes):
            self._refuse_unpublished()
        self._refuse_lost()
        if self._failed or any(bucket.gradients.any for bucket in self.reducer.order):
            raise StateError(
                f"{what} in the middle of a step, whose gradients no checkpoint keeps; call step() or zero_grad() first"
            )
        if self.residency.is_summoned or self.residency.in_forward:
            raise StateError(f"{what} inside a forward or summon_full_params; call it between steps")

    def _refuse_strangers(self) -> None:
        """Refuse a model that has got parameters which the engine does not know, or lost some."""
        found = members(self._parts)
        if len(found) == len(self._members) and all(map(is_, found, self._members)):
            return
        there = dict(self.model.named_parameters())
        new = [name for name, parameter in there.items() if id(parameter) not in self._known]
        if new or len(there) != len(self._known):
            said = f"{new[0]} came to the model" if new else "a parameter was taken out of the model"
            raise StateError(
                f"{said} after it went into a ZeroEngine, which trains those that it found: change the model before it "
                "is wrapped, or close() the engine and wrap it again"
            )

    def _keep_written(self) -> None:
        """Take what was written to gathered parameters into the shards."""
        if not self.shards_parameters:
            return
        buckets = [bucket for unit in self.units for bucket in unit.buckets if written(bucket.parameters)]
        with changing(cast("ZeroEngine", self), "a write in summon_full_params"):
            for bucket in buckets:
                new = shard_of(bucket.whole, bucket.layout, self.comm.rank)
                self.tier.open(bucket).copy_(new)
            self.tier.flush()

    def _refuse_unpublished(self) -> None:
        """Refuse writes to the optimizer's own tensors that the other ranks and the model do not have."""
        if not self.handed_out.written():
            return
        remedy = "call engine.publish() after it, on every rank"
        if not self.optimizer_step.stays:
            remedy = "leave out offload and dtypes of states, with which these tensors are empty between steps"
        raise StateError(
            f"the tensors of {type(self.optimizer_step.optimizer).__name__} were written to between steps, as its "
            f"eval() or train() may do, and the model does not have that on all ranks: {remedy}"
        )

    def _refuse_lost(self) -> None:
        """Refuse writes to parameters of which the engine updates copies, in another dtype or place: the next step
        would overwrite them."""
        for held in written(self._apart, note=False) if self._apart else []:
            raise StateError(
                f"{held.name} was written to after its model went into a ZeroEngine, which updates main parameters of "
                "its own and would overwrite this at the next step: load or initialize the model before it is wrapped"
            )


def check_rank(to: int | None, ranks: int) -> None:
    """Refuse a rank that does not exist, before any rank waits for others."""
    if to is not None and (type(to) is not int or not 0 <= to < ranks):
        raise InputError(f"to is {to!r}; name a rank from 0 to {ranks - 1}, or leave it out for all")


def members(modules: Iterable[nn.Module]) -> list[Any]:
    """The parameters and modules that modules hold. It is asked at every forward, and costs less than
    `named_parameters()`."""
    found: list[Any] = []
    for module in modules:
        found += module._parameters.values()
        found += module._modules.values()
    return found
