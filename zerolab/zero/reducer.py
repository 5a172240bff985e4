"""Gradients of one step, from the parameter where backward leaves them to the average that the optimizer uses.

    parameter.grad  --on_gradient-->  local  --bucket.reduce-->  reduced  -->  the optimizer step
    one parameter's                   of this rank alone         averaged over the ranks

When a bucket is complete its reduction starts, while backward goes on with the units before it.

Invariant: all ranks start reductions in the same order, last bucket first, however their backward ran. A bucket with a
parameter that got no gradient here is completed with zeros when backward has ended, at stage 3 before the next unit is
gathered (`schedule.py`). So a rank that skipped a layer cannot make the others hang.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from weakref import ref

import torch

from zerolab.collectives.call import phase
from zerolab.collectives.contract import Collectives
from zerolab.collectives.handle import Handle
from zerolab.errors import StateError
from zerolab.flat.layout import Layout
from zerolab.flat.views import drop_gradients, take_gradient, view
from zerolab.gpu import door
from zerolab.zero.bucket import Bucket
from zerolab.zero.units import Unit

Tensor = torch.Tensor

IN_FLIGHT = 2
"""Buckets under reduction at once while the next one fills, where gradients are sharded: the second lets backward go on
while a large one, such as a head's, is reduced."""
SMALL = 1 << 16
"""Elements. On a GPU a gradient of at most so many waits, to be copied to its slot together with others."""


class Reducer:
    """Takes the gradients that backward brings, and reduces bucket after bucket.

    replicate  ranks that hold the same shards, over which averages are averaged once more
    units      in forward order
    overlap    reduce while backward goes on
    reached    told of a gradient that comes outside a backward; begins one, or raises
    """

    def __init__(
        self,
        comm: Collectives,
        replicate: Collectives | None,
        units: Sequence[Unit],
        overlap: bool,
        reached: Callable[[], None],
    ) -> None:
        self.overlap, self.replicate, self._reached = overlap, replicate, reached
        self.order = [bucket for unit in reversed(units) for bucket in reversed(unit.trainable)]
        self._places = {
            key: (place, bucket, slot) for place, bucket in enumerate(self.order) for key, slot in bucket.slots.items()
        }
        # Slots, and the small gradients that wait for their copy: on a GPU a kernel for each costs more than its bytes.
        self._small: list[tuple[Tensor, Tensor]] | None = [] if door.drives(comm.device) else None
        self._in_backward = self._reducing = False
        self._next = 0
        # Reductions over the ranks, each with those over replicas that are queued right behind it.
        self._in_flight: deque[tuple[Bucket, Handle, list[Handle]]] = deque()
        self._stream: torch.cuda.Stream | None = None
        # Weak: Python's collector does not see what hooks hold; a strong reference would keep a forgotten engine alive.
        self_ = ref(self)

        def hook(parameter: Tensor) -> None:
            if reducer := self_():
                reducer.on_gradient(parameter)

        self._hooks = [
            parameter.register_post_accumulate_grad_hook(hook)
            for bucket in self.order
            for parameter in bucket.parameters
        ]

    def begin(self, reduce: bool) -> None:
        self._in_backward, self._reducing, self._next = True, reduce, 0
        for bucket in self.order:
            bucket.gradients.arrived.clear()

    def on_gradient(self, parameter: Tensor) -> None:
        """Move `parameter.grad` to its slot, as soon as backward has it. (Inside backward autograd records nothing.)"""
        if not self._in_backward:
            try:
                self._reached()
            except BaseException:
                drop_gradients([parameter])
                raise
        key = id(parameter)
        place, bucket, slot = self._places[key]
        gradients = bucket.gradients
        if self._reducing and place < self._next:
            raise StateError(
                f"{slot.name} got a second gradient after its bucket was reduced; checkpoint with use_reentrant=False"
            )
        gradient = take_gradient(parameter)
        if gradient is None:
            raise StateError(
                f"a hook of {slot.name} took its gradient before the engine could: let it set no gradient to None"
            )
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        into = view(bucket.local_gradients(), slot)
        if gradients.filled or key in gradients.arrived:
            self._copy_small()
            into.add_(gradient)
        elif self._small is not None and gradient.numel() <= SMALL:
            self._small.append((into, gradient))
        else:
            into.copy_(gradient)
        gradients.arrived.add(key)
        if bucket.complete:
            self._copy_small()
            if self._reducing:
                with phase("backward"):
                    self._start_complete()

    @torch.no_grad()
    def fill(self, unit: Unit) -> None:
        """In backward: a unit gets no more gradients, so write zeros for those that have not come. (Persistent buckets
        may be used from anywhere: theirs come at the end.)"""
        if not self._in_backward:
            return
        self._copy_small()
        for bucket in unit.trainable:
            if not bucket.persistent and not bucket.complete:
                bucket.fill_missing()
                bucket.gradients.arrived.update(bucket.slots)
        if self._reducing:
            self._start_complete()

    def finish(self) -> None:
        """After a backward: complete every bucket, and wait for all reductions."""
        self._copy_small()
        for bucket in self.order[self._next :]:
            bucket.fill_missing()
        if self._reducing:
            while self._next < len(self.order):
                self._start(self.order[self._next])
            while self._in_flight:
                self._collect()

    def end(self) -> None:
        """After a backward: gradients that come now are strays."""
        self._in_backward = False
        if self._small:
            self._small.clear()
        for bucket in self.order[:1]:
            bucket.tier.await_gradients()

    def reset(self) -> None:
        self._in_backward = False
        while self._in_flight:
            _, handle, behind = self._in_flight.popleft()
            for call in (*behind, handle):
                call.wait()
        for bucket in self.order:
            bucket.gradients.forget()
        # A backward that failed may have left some behind; the next would add to them.
        drop_gradients(parameter for bucket in self.order for parameter in bucket.parameters)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _copy_small(self) -> None:
        if self._small:
            slots, small = zip(*self._small, strict=True)
            torch._foreach_copy_(slots, small)
            self._small.clear()

    def _start_complete(self) -> None:
        while self._next < len(self.order) and self.order[self._next].complete:
            self._start(self.order[self._next])

    def _start(self, bucket: Bucket) -> None:
        gradients = bucket.gradients
        frees = gradients.local is not gradients.reduced
        if frees and len(self._in_flight) >= IN_FLIGHT:
            self._collect()
        handle = bucket.reduce(self.overlap)
        self._in_flight.append((bucket, handle, self._start_replicas(bucket, handle)))
        self._next += 1

    def _collect(self) -> None:
        bucket, handle, behind = self._in_flight.popleft()
        with torch.no_grad():
            for call in behind:
                call.wait()
            average: Tensor = handle.wait()
            if self.replicate is not None and not behind:
                for part in cut_shards(average, bucket.layout):
                    self.replicate.all_reduce(part, average=True)
            bucket.collect(average)

    def _start_replicas(self, bucket: Bucket, handle: Handle) -> list[Handle]:
        """On a GPU average over replicas right behind the reduction: nobody waits."""
        if self.replicate is None or not handle.queued:
            return []
        self._stream = self._stream or door.stream(self.replicate.device)
        average = handle.behind(self._stream)
        with door.on(self._stream):
            parts = cut_shards(average, bucket.layout)
            return [self.replicate.all_reduce_async(part, average=True) for part in parts]


def cut_shards(average: Tensor, layout: Layout) -> tuple[Tensor, ...]:
    """The shards in an average as long as the bucket, else the one that it is. Each is averaged over replicas by
    itself, so that additions have one order, however many a rank has."""
    if not average.numel():
        return ()
    count = layout.numel // layout.shard_numel if average.numel() == layout.numel else 1
    return average.split(average.numel() // count)
