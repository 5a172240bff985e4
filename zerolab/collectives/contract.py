"""The contract that every implementation keeps, and that rank functions, lessons and ZeRO are written against.

    all_reduce(tensor, average=False)      every rank ends with the sum (or mean), in place
    reduce_scatter(tensor, average=False)  rank r ends with chunk r of the sum (or mean)
    all_gather(shard)                      every rank ends with all shards, end to end
    broadcast(tensor, src=0)               every rank ends with rank src's tensor, in place
    barrier()                              nobody leaves before everybody has entered
    send, recv, isend, irecv               messages between two ranks
    split(color), subgroup(ranks)          the same contract among some of the ranks

`reduce_scatter` and `all_gather` take 1-D tensors. Chunks follow `torch.tensor_split`: a length that N does not
divide gives the first ranks one element more. Each `*_async` form returns a `Handle`; asynchronous and ordinary
calls of a rank run one at a time in the order of issue, so all ranks that issue alike meet alike.

Each group keeps that order among its own calls. Asynchronous calls of two groups may be issued in one order here and in
another there: neither group waits for the other. So who gives one group's result to another waits for it first, or
lets a stream of the GPU wait (`Handle.behind`); and ordinary calls, which wait where they stand, come in one order on
all ranks that are in both groups.

An implementation defines `_all_reduce`, `_reduce_scatter`, `_all_gather`, `_broadcast` and `_barrier`. Checks,
ordering and handles live here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from zerolab.collectives.agree import compare_labels
from zerolab.collectives.call import Call, Group, phase_now
from zerolab.collectives.groups import Number, as_listed, by_colour
from zerolab.collectives.handle import Handle, Issuer, Order
from zerolab.collectives.operands import check_out, check_place, check_summable, check_tensor, in_inference_mode
from zerolab.collectives.transport import Grouped, Request, Transport
from zerolab.errors import InputError
from zerolab.flat.layout import check_count, chunk_size
from zerolab.gpu import door

if TYPE_CHECKING:
    from zerolab.collectives.meter import Meter
    from zerolab.collectives.tracer import Tracer

Tensor = torch.Tensor


class Collectives(ABC):
    """What rank `rank` of `size` says to the others."""

    nominal = False
    """Whether messages are hidden inside a library, so that traffic is stated, not counted."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.rank = transport.rank
        self.size = transport.size
        self.device = transport.device
        self.within = transport.within
        """The group that these are the collectives of; None: all ranks of the world."""
        self._groups: list[Collectives] = []
        self._founded: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._issuer: Order = Issuer(transport)
        self._labels: list[str] = []
        self.meter: Meter | None = None
        self.tracer: Tracer | None = None

    # What an implementation brings. Arguments are checked, `out` is there, and calls come one at a time.

    @abstractmethod
    def _all_reduce(self, tensor: Tensor) -> None:
        """Sum in place."""

    @abstractmethod
    def _reduce_scatter(self, tensor: Tensor, out: Tensor) -> None:
        """Write this rank's chunk of the sum to `out`; leave the rest of `tensor` as it is."""

    @abstractmethod
    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        """Write all shards to `out`."""

    @abstractmethod
    def _broadcast(self, tensor: Tensor, src: int) -> None:
        """Overwrite `tensor` with rank src's."""

    @abstractmethod
    def _barrier(self) -> None:
        """Return once every rank has called it."""

    def _in_group(self, transport: Transport) -> Collectives:
        """The same implementation among the ranks of a group, which `transport` knows."""
        return type(self)(transport)

    # An implementation that has a sum in the cache may divide it there.

    def _all_reduce_mean(self, tensor: Tensor) -> None:
        self._all_reduce(tensor)
        tensor.div_(self.size)

    def _reduce_scatter_mean(self, tensor: Tensor, out: Tensor) -> None:
        self._reduce_scatter(tensor, out)
        out.div_(self.size)

    # The contract.

    def all_reduce(self, tensor: Tensor, average: bool = False) -> Tensor:
        """Sum `tensor` (any shape, contiguous) over all ranks, in place, divided by N if `average`; returns it."""
        return self.all_reduce_async(tensor, average, now=True).wait()

    def reduce_scatter(self, tensor: Tensor, average: bool = False, out: Tensor | None = None) -> Tensor:
        """Sum `tensor` (1-D) over all ranks and return this rank's chunk. `out` may be that very part of `tensor`."""
        return self.reduce_scatter_async(tensor, average, out, now=True).wait()

    def all_gather(self, shard: Tensor, numel: int | None = None, out: Tensor | None = None) -> Tensor:
        """Return all ranks' shards (1-D) end to end. `numel` is the whole length; it is needed only where N does
        not divide it. `out` may be a tensor that already holds `shard` at its place."""
        return self.all_gather_async(shard, numel, out, now=True).wait()

    def broadcast(self, tensor: Tensor, src: int = 0) -> Tensor:
        """Overwrite `tensor` (any shape, contiguous) with rank src's, on every rank; returns it."""
        check_tensor("broadcast", tensor, self.device)
        if isinstance(src, bool) or not isinstance(src, int) or not 0 <= src < self.size:
            raise InputError(f"broadcast from rank {src!r}: there are ranks 0 to {self.size - 1}; name one of them")
        return self._issue(
            "broadcast", lambda: self._broadcast(tensor, src), tensor, tensor, tensor, True, src=src
        ).wait()

    def barrier(self) -> None:
        """Return once every rank has called it."""

        def run() -> None:
            self._barrier()
            if door.drives(self.device):
                # A GPU's collectives return to the host before they have run. The rank waits within the call, so that
                # a barrier that hangs is named.
                door.drain(self.device)

        self._issue("barrier", run, None, None, None, True).wait()

    def all_reduce_async(self, tensor: Tensor, average: bool = False, *, now: bool = False) -> Handle:
        """`all_reduce` that returns at once; the tensor belongs to the call until `Handle.wait`."""
        check_tensor("all_reduce", tensor, self.device)
        check_summable("all_reduce", tensor, average)

        def run() -> None:
            if average:
                self._all_reduce_mean(tensor)
            else:
                self._all_reduce(tensor)

        return self._issue("all_reduce", run, tensor, tensor, tensor, now, average=average)

    def reduce_scatter_async(
        self, tensor: Tensor, average: bool = False, out: Tensor | None = None, *, now: bool = False
    ) -> Handle:
        """`reduce_scatter` that returns at once; both tensors belong to the call until `Handle.wait`."""
        check_tensor("reduce_scatter", tensor, self.device, flat=True)
        check_summable("reduce_scatter", tensor, average)
        mine = chunk_size(tensor.numel(), self.size, self.rank)
        chunk = check_out("reduce_scatter", out, mine, tensor)
        check_place("reduce_scatter", chunk, tensor, self.rank, self.size)

        def run() -> None:
            if average:
                self._reduce_scatter_mean(tensor, chunk)
            else:
                self._reduce_scatter(tensor, chunk)

        return self._issue("reduce_scatter", run, tensor, tensor, chunk, now, average=average)

    def all_gather_async(
        self,
        shard: Tensor,
        numel: int | None = None,
        out: Tensor | None = None,
        *,
        now: bool = False,
        label: str = "",
    ) -> Handle:
        """`all_gather` that returns at once; both tensors belong to the call until `Handle.wait`. Ranks meet only
        under the same `label`; where messages carry none, `agree` finds out."""
        check_tensor("all_gather", shard, self.device, flat=True)
        if numel is None:
            numel = shard.numel() * self.size if out is None else out.numel()
        check_count("numel", numel, least=0)
        expected = chunk_size(numel, self.size, self.rank)
        if shard.numel() != expected:
            raise InputError(
                f"all_gather of {numel} elements over {self.size} ranks: rank {self.rank} gave a shard of "
                f"{shard.numel()} where {expected} are due; cut with torch.tensor_split and pass numel"
            )
        whole = check_out("all_gather", out, numel, shard)
        check_place("all_gather", shard, whole, self.rank, self.size)
        if label and self.hides_labels:
            self._labels.append(label)
        return self._issue("all_gather", lambda: self._all_gather(shard, whole), whole, shard, whole, now, label)

    @property
    def hides_labels(self) -> bool:
        """Whether ranks that call with different labels would take each other's tensors unnoticed, since no message
        carries the label: messages are hidden inside a library, or run on a transport that knows no tags."""
        return self.size > 1 and (self.nominal or not self.transport.heeds_tags)

    def agree(self) -> None:
        """Raise a MismatchError, on every rank, if labels differed since the last `agree`. A collective, of 16 bytes a
        rank; where calls cannot meet under other labels it does nothing."""
        if self.hides_labels:
            labels, self._labels = self._labels, []
            compare_labels(self, labels)

    def run(self, name: str, work: Callable[[], None]) -> None:
        """Do `work`, which sends messages of its own, as a call `name` among the others; every rank calls it."""
        self._issue(name, work, None, None, None, True).wait()

    def send(self, tensor: Tensor, dst: int) -> None:
        """Send a contiguous tensor to rank `dst`; returns when the receiver has taken it."""
        self.isend(tensor, dst).wait()

    def recv(self, tensor: Tensor, src: int) -> Tensor:
        """Fill `tensor` with a message of the same byte count from rank `src`; returns it."""
        self.irecv(tensor, src).wait()
        return tensor

    def isend(self, tensor: Tensor, dst: int) -> Request:
        """`send` that returns at once; do not write the tensor until `wait()`, without which no rank may return."""
        check_tensor("send", tensor, self.device)
        return self.transport.isend(tensor, dst)

    def irecv(self, tensor: Tensor, src: int) -> Request:
        """`recv` that returns at once; do not read the tensor until `wait()`, without which no rank may return."""
        check_tensor("recv", tensor, self.device)
        return self.transport.irecv(tensor, src)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The world's numbers of these ranks, in order: `ranks[rank]` is this rank's own."""
        return tuple(range(self.size)) if self.within is None else self.within.ranks

    @property
    def name(self) -> str:
        """What the group was called when it was made; "" for the world, and where nothing was said."""
        return "" if self.within is None else self.within.name

    def split(self, color: Number, key: Number = None, name: str = "") -> Collectives | None:
        """The collectives of this rank's group: of all ranks that give the same `color`, an integer. Every rank calls
        it, as it calls `barrier`; one that gives None belongs to no group and gets None. A colour may be a function of
        a rank's number here, as `lambda rank: rank // 8`, which a virtual world needs, where the others do not answer.

        Ranks of a group are numbered from 0 in the order of `key`, and of ranks where keys are equal or not given.
        `name` is what reports, meter and tracer call the group: at most 40 bytes, the same on all ranks of a colour.
        The group has memory, meter, tracer and link in common with this one, can be split again, and ends with it.
        """
        ranks = by_colour(self, color, key, name)
        return None if ranks is None else self._found(ranks, name)

    def subgroup(self, ranks: Sequence[int], name: str = "") -> Collectives | None:
        """The collectives of `ranks` alone, which are numbered from 0 in that order; None on a rank that is not among
        them. Every rank calls it, as it calls `barrier`, with the same ranks and name. See `split`."""
        ranks = as_listed(self, ranks, name)
        return self._found(ranks, name) if self.rank in ranks else None

    def _found(self, places: Sequence[int], name: str) -> Collectives:
        members = tuple(self.ranks[place] for place in places)
        self._founded[name, members] += 1
        path = f"{self.within.path if self.within else ''}/{self.within or ''}{self._founded[name, members]}"
        comm = self._in_group(Grouped(self.transport, Group(name, members, path)))
        comm.meter, comm.tracer = self.meter, self.tracer
        self._groups.append(comm)
        return comm

    def allocate(self, numel: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A 1-D tensor on this rank's device, placed where this transport reads and writes best. Its content is
        arbitrary, as that of torch.empty."""
        return torch.empty(numel, dtype=dtype, device=self.device)

    def close(self) -> None:
        """End the communication lanes, of groups, too, if any were started. The transport stays with whoever opened
        it. Raises the error of a call that nobody has waited for, when all have ended."""
        with ExitStack() as ending:
            ending.callback(self._issuer.close)
            for group in reversed(self._groups):
                ending.callback(group.close)

    # How a call runs.

    def _issue(
        self,
        name: str,
        run: Callable[[], None],
        counted: Tensor | None,
        source: Tensor | None,
        result: Tensor | None,
        now: bool,
        label: str = "",
        src: int = 0,
        average: bool = False,
    ) -> Handle:
        """Name the call by its whole tensor (`counted`), then run it or put it in line."""
        numel, dtype, itemsize = 0, "", 0
        if counted is not None:
            numel, itemsize, dtype = counted.numel(), counted.element_size(), str(counted.dtype).removeprefix("torch.")
        call = Call(name, numel, dtype, itemsize, 0, phase_now(), label, src, self.nominal, self.within, average)
        tensors = [tensor for tensor in (source, result) if tensor is not None]
        if any(tensor.is_inference() for tensor in tensors):
            run = in_inference_mode(run)
        if self.tracer is None:
            return self._issuer.issue(call, run, tensors, result, now)
        return self.tracer.watched(lambda: self._issuer.issue(call, run, tensors, result, now), name, now)
