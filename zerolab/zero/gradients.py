"""Gradients of one step, from the parameter where backward leaves them to the average that the optimizer uses.

    parameter.grad  --on_gradient-->  local  --stage.reduce-->  reduced  -->  the optimizer step
    one parameter's                   of this rank alone        averaged over the ranks

Backward brings gradients one parameter at a time. Each is copied to its slot in the bucket's local buffer and
dropped; when a bucket is complete its reduction starts, while backward goes on with the units before it.

Invariant: all ranks start reductions in the same order, last bucket first, however their backward ran. A bucket
that is complete early waits for those before it in that order; a bucket with a parameter that got no gradient
here is completed with zeros when backward has ended, at stage 3 before the next unit is gathered (`passes.py`). So a
rank that skipped a layer cannot make the others hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING
from weakref import ref

import torch

from zerolab.collectives import Collectives, Handle, phase
from zerolab.errors import StateError
from zerolab.flat import Layout
from zerolab.flat.values import address
from zerolab.flat.views import shard_of, view, zero_gaps
from zerolab.gpu import door
from zerolab.memory.predict import IN_FLIGHT
from zerolab.offload.copies import Copies
from zerolab.zero.across import Across
from zerolab.zero.wrapped import drop_gradients, take_gradient

if TYPE_CHECKING:
    from zerolab.zero.stage import Stage
    from zerolab.zero.units import Bucket, Unit

Tensor = torch.Tensor

SMALL = 1 << 16
"""Elements. On a GPU a gradient of at most so many waits, to be copied to its slot together with others."""


class Local(Enum):
    """What a bucket has of gradients of this rank alone:

          first gradient        backward ended        the next backward adds to them
    NONE ----------------> PARTIAL ------------> WHOLE ------------------------------> WHOLE
      ^                       | the last one came  |
      |                       v                    v  the order's turn
      +------ collected --- TRAVELLING <-----------+

    Forgotten (`zero_grad`, or a step that is done), it is NONE from any state.
    """

    NONE = "no buffer"
    PARTIAL = "slots of the parameters in `arrived` are written; the others hold what memory held before"
    WHOLE = "every slot is written, with zeros where no gradient came"
    TRAVELLING = "a reduction reads the buffer"


class GradientBuffer:
    """The gradients of one bucket in this step.

    state     of the local gradients, see `Local`
    local     their buffer, as long as the bucket, until they are reduced; None in the state NONE
    arrived   id of each parameter whose gradient this backward has brought
    reduced   gradients averaged over the ranks: as long as the bucket at stages 0 and 1, as a shard at 2 and 3. The
              memory stays from step to step
    summed    whether `reduced` holds gradients of this step, to which those of later micro-batches are added
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.state = Local.NONE
        self.local: Tensor | None = None
        self.arrived: set[int] = set()
        self.reduced: Tensor | None = None
        self.summed = False

    @property
    def complete(self) -> bool:
        """Whether this backward has brought the gradient of every parameter."""
        return len(self.arrived) == len(self.layout.slots)

    @property
    def any(self) -> bool:
        """Whether there are gradients of this step, in whatever state."""
        return self.summed or self.state is not Local.NONE

    @property
    def waits(self) -> bool:
        """Whether a backward has left local gradients for a later one to reduce."""
        return self.state is Local.WHOLE

    @property
    def ready(self) -> bool:
        """Whether all gradients of this step are reduced."""
        return self.summed and not self.waits

    def for_step(self, rank: int | None) -> Tensor:
        """The reduced gradients of the shard of `rank`, or all of them."""
        assert self.reduced is not None
        if rank is None or self.reduced.numel() == self.layout.shard_numel:
            return self.reduced
        return shard_of(self.reduced, self.layout, rank)

    def whole_buffer(self, comm: Collectives, dtype: torch.dtype) -> Tensor:
        """Memory as long as the bucket, its padding zero."""
        buffer = comm.allocate(self.layout.numel, dtype)
        zero_gaps(buffer, self.layout)
        return buffer

    def cast_local(self, comm: Collectives, dtype: torch.dtype) -> Tensor:
        """`local` in the dtype in which it travels and is added up; the buffer of another one is let go."""
        assert self.local is not None
        if self.local.dtype != dtype:
            self.local = comm.allocate(self.layout.numel, dtype).copy_(self.local)
        return self.local

    def collect(self, handle: Handle, rank: int | None, copies: Copies | None = None) -> None:
        """Once reduced: add the average to `reduced`, unless it was written there, and let `local` go. An average
        as long as a shard is that of the shard of `rank`. `copies` bring it from a GPU to the host, to rest there."""
        average = handle.wait()
        if average is not self.reduced:
            total = self.for_step(None if average.numel() == self.layout.numel else rank)
            if copies is not None:
                copies.bring(total, average, self.summed)
            elif address(total) != address(average):
                add(total, average, self.summed)
        self.local, self.state, self.summed = None, Local.NONE, True

    def forget(self) -> None:
        """Drop the gradients of this step; the memory of `reduced` stays."""
        self.local, self.state, self.summed = None, Local.NONE, False
        self.arrived.clear()


class Reducer:
    """Takes the gradients that backward brings, and reduces bucket after bucket.

    units     in forward order
    overlap   reduce while backward goes on
    reached   told of a gradient that comes outside a backward; begins one, or raises
    taken     told of a unit when one of its gradients has been taken
    """

    def __init__(
        self,
        stage: Stage,
        units: Sequence[Unit],
        overlap: bool,
        reached: Callable[[], None],
        taken: Callable[[Unit], None] | None = None,
    ) -> None:
        self.stage = stage
        self.overlap = overlap
        self.order = [bucket for unit in reversed(units) for bucket in reversed(unit.trainable)]
        self._position = {bucket: position for position, bucket in enumerate(self.order)}
        self._reached = reached
        self._taken = taken
        # What copies gradients to the host, where they rest there and this rank computes on a GPU.
        self._copies = stage.store.copies if stage.shards_gradients and stage.offload.optimizer != "device" else None
        # Slots, and the small gradients that wait for their copy: on a GPU a kernel for each costs more than its bytes.
        self._small: list[tuple[Tensor, Tensor]] | None = [] if door.drives(stage.comm.device) else None
        self._in_backward = self._reducing = False
        # How many buckets of `order` this backward has begun to reduce.
        self._next = 0
        # A bucket's reduction, and those of its average across the groups that shard.
        self._in_flight: deque[tuple[Bucket, Handle, list[Handle]]] = deque()
        self._across = Across(stage.replicate)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(unit, bucket))
            for unit in units
            for bucket in unit.trainable
            for parameter in bucket.parameters
        ]

    def begin(self, reduce: bool) -> None:
        """Before a backward; `reduce` says whether its gradients are reduced or wait for a later backward's."""
        self._in_backward, self._reducing, self._next = True, reduce, 0
        for bucket in self.order:
            bucket.gradients.arrived.clear()

    def on_gradient(self, bucket: Bucket, parameter: Tensor) -> None:
        """Move `parameter.grad` to its slot, as soon as backward has it. (Inside backward autograd records nothing.)"""
        gradients, key = bucket.gradients, id(parameter)
        slot = bucket.slots[key]
        if self._reducing and self._position[bucket] < self._next:
            raise StateError(
                f"{slot.name} got a second gradient after its bucket was reduced; "
                "use activation checkpointing with use_reentrant=False"
            )
        local = gradients.local if gradients.local is not None else self._open(bucket)
        gradient = take_gradient(parameter)
        if gradient is None:
            raise StateError(
                f"a hook of {slot.name} took its gradient before the engine could: set no gradient to None in a "
                "register_post_accumulate_grad_hook, and step by engine.step()"
            )
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        if gradients.state is Local.WHOLE or key in gradients.arrived:
            if self._small:
                self._copy_small()
            view(local, slot).add_(gradient)
        elif self._small is not None and gradient.numel() <= SMALL:
            self._small.append((view(local, slot), gradient))
        else:
            view(local, slot).copy_(gradient)
        gradients.arrived.add(key)
        if self._small and gradients.complete:
            self._copy_small()
        if self._reducing and gradients.complete:
            with phase("backward"):
                self._start_complete()

    @torch.no_grad()
    def fill(self, unit: Unit) -> None:
        """In backward: a unit gets no more gradients, so write zeros for those that have not come. (Persistent buckets
        of stage 3 may be used from anywhere: theirs are written when backward has ended.)"""
        if self._small:
            self._copy_small()
        for bucket in unit.trainable:
            if not bucket.persistent and not bucket.gradients.complete:
                self._fill_missing(bucket)
                bucket.gradients.arrived.update(bucket.slots)
        if self._reducing:
            self._start_complete()

    def finish(self) -> None:
        """After a backward: complete every bucket, and wait for all reductions."""
        if self._small:
            self._copy_small()
        for bucket in self.order[self._next :]:
            self._fill_missing(bucket)
        if self._reducing:
            while self._next < len(self.order):
                self._start(self.order[self._next])
            while self._in_flight:
                self._collect()

    def end(self) -> None:
        """After a backward that finished or failed: gradients that come now are strays, and those on their way to the
        host are there."""
        self._in_backward = False
        if self._small:
            self._small.clear()
        if self._copies is not None:
            self._copies.finish()

    def reset(self) -> None:
        """Forget the gradients of this step."""
        self._in_backward = False
        while self._in_flight:
            _, handle, more = self._in_flight.popleft()
            for one in (*more, handle):
                one.wait()
        for bucket in self.order:
            bucket.gradients.forget()
        # A backward that failed may have left some behind; the next would add to them.
        drop_gradients(parameter for bucket in self.order for parameter in bucket.parameters)

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, unit: Unit, bucket: Bucket) -> Callable[[Tensor], None]:
        # Weak: Python's collector does not see what hooks hold; strong references would keep a forgotten engine alive.
        self_, unit_, bucket_ = ref(self), ref(unit), ref(bucket)

        def hook(parameter: Tensor) -> None:
            self, unit, bucket = self_(), unit_(), bucket_()
            assert self is not None and unit is not None and bucket is not None
            if not self._in_backward:
                try:
                    self._reached()
                except BaseException:
                    drop_gradients([parameter])
                    raise
            self.on_gradient(bucket, parameter)
            if self._taken is not None:
                self._taken(unit)

        return hook

    def _open(self, bucket: Bucket) -> Tensor:
        bucket.gradients.local = local = self.stage.local_buffer(bucket)
        bucket.gradients.state = Local.PARTIAL
        return local

    def _copy_small(self) -> None:
        """Copy all small gradients that wait to their slots, at once."""
        assert self._small is not None
        slots, small = zip(*self._small, strict=True)
        torch._foreach_copy_(slots, small)
        self._small.clear()

    def _start_complete(self) -> None:
        while self._next < len(self.order) and self.order[self._next].gradients.complete:
            self._start(self.order[self._next])

    def _start(self, bucket: Bucket) -> None:
        gradients = bucket.gradients
        frees = gradients.local is not gradients.reduced
        if frees and len(self._in_flight) >= IN_FLIGHT:
            self._collect()
        gradients.state = Local.TRAVELLING
        handle = self.stage.reduce(bucket, self.overlap)
        self._in_flight.append((bucket, handle, self._across.start(handle, bucket.layout)))
        self._next += 1

    def _collect(self) -> None:
        bucket, handle, more = self._in_flight.popleft()
        with torch.no_grad():
            self._across.finish(more, handle, bucket.layout)
            bucket.gradients.collect(handle, self.stage.shard_rank, self._copies)

    @torch.no_grad()
    def _fill_missing(self, bucket: Bucket) -> None:
        gradients = bucket.gradients
        local = gradients.local if gradients.local is not None else self._open(bucket)
        if gradients.state is Local.PARTIAL:
            for parameter in bucket.parameters:
                if id(parameter) not in gradients.arrived:
                    view(local, bucket.slots[id(parameter)]).zero_()
        gradients.state = Local.WHOLE


def add(total: Tensor, more: Tensor, begun: bool) -> None:
    """Add to a sum of gradients, wherever it lies and whatever its dtype; or begin it."""
    more = more.to(total.device)
    if begun:
        total.add_(more)
    else:
        total.copy_(more)
