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

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from zerolab.collectives.call import Call, Group, phase_now
from zerolab.collectives.handle import Handle, Issuer, Order
from zerolab.collectives.operands import (
    Number,
    check_out,
    check_place,
    check_ranks,
    check_summable,
    check_tensor,
    color_row,
)
from zerolab.collectives.transport import Grouped, Request, RowOf, Transport
from zerolab.errors import InputError, MismatchError
from zerolab.flat.layout import check_count, chunk_sizes
from zerolab.gpu import door

Tensor = torch.Tensor
SHOWN_BYTES = 96
"""Bytes of a line that an error shows."""


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
        self._issued = 0
        self._labels: list[str] = []
        # Ranks that call with different labels would take each other's tensors unnoticed, since no message carries the
        # label: messages are hidden inside a library, or run on a transport that knows no tags.
        self._hides_labels = self.size > 1 and (self.nominal or transport.queues)
        self.meter: Any = None
        self.tracer: Any = None
        """Those of `observe/`, where they are attached."""

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
        return self._issue("broadcast", lambda: self._broadcast(tensor, src), tensor, [tensor], src=src).wait()

    def barrier(self) -> None:
        """Return once every rank has called it."""

        def run() -> None:
            self._barrier()
            if door.drives(self.device):
                # A GPU's collectives return to the host before they have run. The rank waits within the call, so that
                # a barrier that hangs is named.
                door.drain(self.device)

        self._issue("barrier", run).wait()

    def all_reduce_async(self, tensor: Tensor, average: bool = False, *, now: bool = False) -> Handle:
        """`all_reduce` that returns at once; the tensor belongs to the call until `Handle.wait`."""
        check_tensor("all_reduce", tensor, self.device)
        check_summable("all_reduce", tensor, average)
        run = self._all_reduce_mean if average else self._all_reduce
        return self._issue("all_reduce", lambda: run(tensor), tensor, [tensor], now, average=average)

    def reduce_scatter_async(
        self, tensor: Tensor, average: bool = False, out: Tensor | None = None, *, now: bool = False
    ) -> Handle:
        """`reduce_scatter` that returns at once; both tensors belong to the call until `Handle.wait`."""
        check_tensor("reduce_scatter", tensor, self.device, flat=True)
        check_summable("reduce_scatter", tensor, average)
        mine = chunk_sizes(tensor.numel(), self.size)[self.rank]
        chunk = check_out("reduce_scatter", out, mine, tensor)
        check_place("reduce_scatter", chunk, tensor, self.rank, self.size)
        run = self._reduce_scatter_mean if average else self._reduce_scatter
        return self._issue("reduce_scatter", lambda: run(tensor, chunk), tensor, [tensor, chunk], now, average=average)

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
        expected = chunk_sizes(numel, self.size)[self.rank]
        if shard.numel() != expected:
            raise InputError(
                f"all_gather of {numel} elements over {self.size} ranks: rank {self.rank} gave a shard of "
                f"{shard.numel()} where {expected} are due; cut with torch.tensor_split and pass numel"
            )
        whole = check_out("all_gather", out, numel, shard)
        check_place("all_gather", shard, whole, self.rank, self.size)
        if label and self._hides_labels:
            self._labels.append(label)
        return self._issue("all_gather", lambda: self._all_gather(shard, whole), whole, [shard, whole], now, label)

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

    # Groups.

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
        `name` is what reports, meter and tracer call the group, the same on all ranks of a colour. The group has
        memory, meter, tracer and link in common with this one, can be split again, and ends with it.
        """
        tells = callable(color) and (key is None or callable(key))
        row_of = partial(color_row, color=color, key=key, name=name)
        rows = self.all_gather_ints(row_of(self.rank), "split", row_of if tells else None)
        own = rows[self.rank]
        ranks = [rank for rank in range(self.size) if rows[rank][:2] == own[:2]]
        if len({(*row[:2], row[3]) for row in rows}) > len({(*row[:2],) for row in rows}):
            names = self._all_gather_text(name, "split")
            if any(names[rank] != name for rank in ranks):
                listed = ", ".join(f"rank {self.ranks[rank]} {names[rank]!r}" for rank in ranks)
                raise MismatchError(
                    f"the ranks of colour {own[1]} gave their group different names ({listed}); give one"
                )
        return self._found(sorted(ranks, key=lambda rank: (rows[rank][2], rank)), name) if own[0] else None

    def subgroup(self, ranks: Sequence[int], name: str = "") -> Collectives | None:
        """The collectives of `ranks` alone, which are numbered from 0 in that order; None on a rank that is not among
        them. Every rank calls it, as it calls `barrier`, with the same ranks and name. See `split`."""
        ranks = check_ranks(ranks, self.size)
        self.compare_lines(
            [f"{name!r} {ranks}" if name else str(ranks)],
            "the ranks named different groups ({listed}); call subgroup with the same ranks, in the same order, and "
            "the same name on every rank",
            "subgroup",
        )
        return self._found(ranks, name) if self.rank in ranks else None

    def _found(self, places: Sequence[int], name: str) -> Collectives:
        members = tuple(self.ranks[place] for place in places)
        self._founded[name, members] += 1
        path = f"{self.within.path if self.within else ''}/{self.within or ''}{self._founded[name, members]}"
        comm = self._in_group(Grouped(self.transport, Group(name, members, path)))
        comm.meter, comm.tracer = self.meter, self.tracer
        self._groups.append(comm)
        return comm

    # What ranks compare.

    def all_gather_ints(
        self, numbers: Sequence[int], name: str = "agree", row_of: RowOf | None = None
    ) -> list[list[int]]:
        """Every rank's numbers, as many from each, in rank order, in a call that reports call `name`. They travel in
        messages between hosts: no GPU is waited for, and a rank that is in another call is named, where gloo's own
        collective would end the process over a tensor of another size. See `Transport.all_gather_ints`."""
        rows: list[list[int]] = []
        self._issue(name, lambda: rows.extend(self.transport.all_gather_ints(numbers, row_of))).wait()
        return rows

    def compare_lines(self, lines: Sequence[str], differ: str, name: str = "agree") -> None:
        """Raise a MismatchError, on every rank, if the ranks' lines differ: `differ`, with what each rank has at the
        first that does (`listed`) and its `number`. Two numbers per rank travel if none does."""
        sums = [zlib.crc32(line.encode()) for line in lines]
        seen = self.all_gather_ints([zlib.crc32(repr(sums).encode()), len(sums)], name)
        if all(row == seen[0] for row in seen):
            return
        longest = max(count for _, count in seen)
        rows = self.all_gather_ints([*sums, *[-1] * (longest - len(sums))], name)
        at = next(at for at in range(longest) if len({row[at] for row in rows}) > 1)
        texts = self._all_gather_text(lines[at] if at < len(lines) else "nothing", name)
        listed = ", ".join(f"rank {rank} {text}" for rank, text in zip(self.ranks, texts, strict=True))
        raise MismatchError(differ.format(listed=listed, number=at + 1))

    def _all_gather_text(self, text: str, name: str) -> list[str]:
        rows = self.all_gather_ints([*text.encode()[:SHOWN_BYTES].ljust(SHOWN_BYTES, b"\0")], name)
        return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]

    def agree(self) -> None:
        """Raise a MismatchError, on every rank, if labels differed since the last `agree`. A collective, of 16 bytes a
        rank; where calls cannot meet under other labels it does nothing."""
        if self._hides_labels:
            labels, self._labels = self._labels, []
            self.compare_lines(
                labels,
                "the ranks gathered other units ({listed}: number {number} since they last agreed) and took each "
                "other's values for their own; run the same units in the same order on every rank",
            )

    # Memory, and how a call runs.

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

    def _issue(
        self,
        name: str,
        run: Callable[[], None],
        whole: Tensor | None = None,
        tensors: list[Tensor] | None = None,
        now: bool = True,
        label: str = "",
        src: int = 0,
        average: bool = False,
    ) -> Handle:
        """Name the call by its whole tensor, then run it or put it in line. `tensors` are those that it reads and
        writes; the last is its result."""
        numel, dtype, itemsize = 0, "", 0
        if whole is not None:
            numel, itemsize, dtype = whole.numel(), whole.element_size(), str(whole.dtype).removeprefix("torch.")
        self._issued += 1
        number, phase = self._issued, phase_now()
        call = Call(name, numel, dtype, itemsize, number, phase, label, src, self.nominal, self.within, average)
        tensors = tensors or []
        if any(tensor.is_inference() for tensor in tensors):
            # Nowhere else may they be written.
            run = torch.inference_mode()(run)
        result = tensors[-1] if tensors else None
        if self.tracer is None:
            return self._issuer.issue(call, run, tensors, result, now)
        return self.tracer.watched(lambda: self._issuer.issue(call, run, tensors, result, now), name, now)
