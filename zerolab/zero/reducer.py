"""Gradients, from the parameter where backward leaves them to their reduction.

Backward brings gradients one parameter at a time. Each is copied to its slot in the bucket's local buffer and
dropped; when a bucket is complete its reduction starts, while backward goes on with the units before it.

Invariant: all ranks start reductions in the same order, last bucket first, however their backward ran. A bucket
that is complete early waits for those before it in that order; a bucket with a parameter that got no gradient
here is completed with zeros when backward has ended. So a rank that skipped a layer cannot make the others hang.
"""

from __future__ import annotations

from collections import deque

import torch

from zerolab.collectives import Handle
from zerolab.errors import StateError
from zerolab.flat.views import view
from zerolab.zero.stage import Stage
from zerolab.zero.units import Bucket
from zerolab.zero.wrapped import drop_gradients, take_gradient

IN_FLIGHT = 2
"""Where reduction frees a buffer (gradients are sharded, or added to those of earlier micro-batches), at most so many
buckets are under reduction at once: the next one waits, so that whole gradients do not pile up when the network is
slower than backward."""


class Reducer:
    """Takes gradients during one backward after the other."""

    def __init__(self, stage: Stage, buckets: list[Bucket], overlap: bool) -> None:
        self.stage = stage
        self.order = [bucket for bucket in reversed(buckets) if bucket.trainable]
        self._place = {bucket: place for place, bucket in enumerate(self.order)}
        self.overlap = overlap
        self._next = 0
        self._reducing = False
        self._in_flight: deque[tuple[Bucket, Handle]] = deque()

    def begin(self, reduce: bool) -> None:
        """Before a backward; `reduce` says whether its gradients are reduced or wait for a later backward's."""
        self._next = 0
        self._reducing = reduce
        for bucket in self.order:
            bucket.arrived.clear()

    @torch.no_grad()
    def take(self, bucket: Bucket, parameter: torch.Tensor) -> None:
        """Move `parameter.grad` to its slot."""
        if self._reducing and self._place[bucket] < self._next:
            raise StateError(
                f"{bucket.slots[id(parameter)].name} got a second gradient after its bucket was reduced; "
                "use activation checkpointing with use_reentrant=False"
            )
        if bucket.local is None:
            bucket.local = self.stage.open_local(bucket)
        gradient = take_gradient(parameter)
        assert gradient is not None
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        place = view(bucket.local, bucket.slots[id(parameter)])
        if bucket.has_local or id(parameter) in bucket.arrived:
            place.add_(gradient)
        else:
            place.copy_(gradient)
        bucket.arrived.add(id(parameter))
        if self._reducing:
            self._start_complete()

    def finish(self) -> None:
        """After a backward: complete every bucket, and wait for all reductions."""
        for bucket in self.order[self._next :]:
            self._fill_missing(bucket)
        if self._reducing:
            while self._next < len(self.order):
                self._start(self.order[self._next])
            while self._in_flight:
                self._collect()
        else:
            for bucket in self.order:
                bucket.has_local = True

    def reset(self) -> None:
        """Forget the gradients of this step."""
        while self._in_flight:
            self._in_flight.popleft()[1].wait()
        for bucket in self.order:
            bucket.local = None
            bucket.has_local = bucket.has_reduced = False
            bucket.arrived.clear()
        # A backward that failed may have left some behind; the next would add to them.
        drop_gradients(parameter for bucket in self.order for parameter in bucket.parameters)

    def _start_complete(self) -> None:
        while self._next < len(self.order) and self._complete(self.order[self._next]):
            self._start(self.order[self._next])

    def _complete(self, bucket: Bucket) -> bool:
        return len(bucket.arrived) == len(bucket.parameters)

    def _start(self, bucket: Bucket) -> None:
        frees = bucket.local is not bucket.reduced
        if frees and len(self._in_flight) >= IN_FLIGHT:
            self._collect()
        self._in_flight.append((bucket, self.stage.reduce(bucket, self.overlap)))
        self._next += 1

    def _collect(self) -> None:
        bucket, handle = self._in_flight.popleft()
        with torch.no_grad():
            self.stage.collect(bucket, handle)
        bucket.has_reduced, bucket.has_local = True, False

    @torch.no_grad()
    def _fill_missing(self, bucket: Bucket) -> None:
        if bucket.local is None:
            bucket.local = self.stage.open_local(bucket)
        if not bucket.has_local:
            for parameter in bucket.parameters:
                if id(parameter) not in bucket.arrived:
                    view(bucket.local, bucket.slots[id(parameter)]).zero_()
