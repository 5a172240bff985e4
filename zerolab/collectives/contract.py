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

Each group keeps that order among its own calls, and no group waits for another. So who gives one group's result to
another waits for it first; and ordinary calls come in one order on all ranks that are in both groups.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import zip_longest
from operator import index
from typing import Any

import torch

from zerolab.collectives.call import Call, Group, current_group, phase_now
from zerolab.collectives.handle import Handle, Issuer, Order
from zerolab.collectives.transport import Request, RowOf, Transport, tag_in
from zerolab.errors import InputError, MismatchError
from zerolab.flat.layout import check_count, chunk_bound
from zerolab.flat.views import address, same_device
from zerolab.gpu import door

Tensor = torch.Tensor
Number = int | None | Callable[[int], int | None]
"""A colour or a key of `split`: this rank's, or a function from any rank's number."""


class Collectives(ABC):
    """What rank `rank` of `size` says to the others."""

    nominal = False
    """Whether messages are hidden inside a library, so that traffic is stated, not counted."""

    def __init__(self, transport: Transport, within: Group | None = None) -> None:
        self.transport, self.device = transport, transport.device
        self.within = within
        """The group that these are the collectives of; None: all ranks of the world."""
        self.ranks = tuple(range(transport.size)) if within is None else within.ranks
        """The world's numbers of these ranks, in order: `ranks[rank]` is this rank's own."""
        self.rank, self.size = self.ranks.index(transport.rank), len(self.ranks)
        self._groups: list[Collectives] = []
        self._splits = 0
        self._issuer: Order = Issuer(transport)
        self._issued = 0
        self._labels: list[str] = []
        # Where messages carry no label, ranks that call with different ones would take each other's tensors unnoticed.
        self._hides_labels = self.size > 1 and (self.nominal or transport.queues)
        self.meter: Any = None
        self.tracer: Any = None
        """Those of `observe.py`, where they are attached."""

    # What an implementation brings. Arguments are checked, `out` is there, and calls come one at a time.

    @abstractmethod
    def _all_reduce(self, tensor: Tensor, average: bool) -> None:
        """Sum in place, or take the mean."""

    @abstractmethod
    def _reduce_scatter(self, tensor: Tensor, out: Tensor, average: bool) -> None:
        """Write this rank's chunk of the sum, or of the mean, to `out`; leave the rest of `tensor` as it is."""

    @abstractmethod
    def _all_gather(self, shard: Tensor, out: Tensor) -> None:
        """Write all shards to `out`."""

    @abstractmethod
    def _broadcast(self, tensor: Tensor, src: int) -> None:
        """Overwrite `tensor` with rank src's."""

    @abstractmethod
    def _barrier(self) -> None:
        """Return once every rank has called it."""

    def _in_group(self, group: Group) -> Collectives:
        return type(self)(self.transport, group)

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
        if src not in range(self.size):
            raise InputError(f"broadcast from rank {src!r}: there are ranks 0 to {self.size - 1}; name one of them")
        run = partial(self._broadcast, tensor, src)
        return self._issue("broadcast", run, [tensor], tensor, src=src).wait()

    def barrier(self) -> None:
        """Return once every rank has called it."""

        def run() -> None:
            self._barrier()
            if door.drives(self.device):
                # Within the call, so that a barrier that hangs is named.
                door.drain(self.device)

        self._issue("barrier", run).wait()

    def all_reduce_async(self, tensor: Tensor, average: bool = False, *, now: bool = False) -> Handle:
        """`all_reduce` that returns at once; the tensor belongs to the call until `Handle.wait`."""
        check_tensor("all_reduce", tensor, self.device)
        check_sum("all_reduce", tensor, average)
        run = partial(self._all_reduce, tensor, average)
        return self._issue("all_reduce", run, [tensor], tensor, now, average=average)

    def reduce_scatter_async(
        self, tensor: Tensor, average: bool = False, out: Tensor | None = None, *, now: bool = False
    ) -> Handle:
        """`reduce_scatter` that returns at once; both tensors belong to the call until `Handle.wait`."""
        check_tensor("reduce_scatter", tensor, self.device, flat=True)
        check_sum("reduce_scatter", tensor, average)
        start, stop = chunk_bound(tensor.numel(), self.size, self.rank)
        chunk = make_out("reduce_scatter", out, stop - start, tensor)
        check_place("reduce_scatter", chunk, tensor, start)
        run = partial(self._reduce_scatter, tensor, chunk, average)
        return self._issue("reduce_scatter", run, [tensor, chunk], tensor, now, average=average)

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
        start, stop = chunk_bound(numel, self.size, self.rank)
        if shard.numel() != stop - start:
            raise InputError(
                f"all_gather of {numel} elements over {self.size} ranks: rank {self.rank} gave a shard of "
                f"{shard.numel()} where {stop - start} are due; cut with torch.tensor_split and pass numel"
            )
        whole = make_out("all_gather", out, numel, shard)
        check_place("all_gather", shard, whole, start)
        if label and self._hides_labels:
            self._labels.append(label)
        run = partial(self._all_gather, shard, whole)
        return self._issue("all_gather", run, [shard, whole], whole, now, label=label)

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
        token = current_group.set(self.within)
        try:
            return self.transport.isend(tensor, self._peer(dst), tag_in(self.within, 0))
        finally:
            current_group.reset(token)

    def irecv(self, tensor: Tensor, src: int) -> Request:
        """`recv` that returns at once; do not read the tensor until `wait()`, without which no rank may return."""
        check_tensor("recv", tensor, self.device)
        return self.transport.irecv(tensor, self._peer(src), tag_in(self.within, 0))

    def _peer(self, rank: int) -> int:
        """The world's number of another rank, which the transport checks."""
        if self.within is not None and rank not in range(self.size):
            raise InputError(f"there is no rank {rank!r}; name a rank from 0 to {self.size - 1}")
        return rank if self.within is None else self.ranks[rank]

    # Groups.

    @property
    def name(self) -> str:
        """What the group was called when it was made; "" for the world, and where nothing was said."""
        return "" if self.within is None else self.within.name

    def split(self, color: Number, key: Number = None, name: str = "") -> Collectives | None:
        """The collectives of all ranks that give the same `color` as this one; every rank calls it. One that gives None
        gets None. A colour may be a function of a rank's number here, as `lambda rank: rank // 8`, which a virtual
        world needs. Ranks of a group are numbered from 0 in the order of `key`, and of ranks where keys are equal.
        `name` is what reports, meter and tracer call the group, which ends with this one."""

        def row_of(rank: int) -> list[int]:
            its, place = (number(rank) if callable(number) else number for number in (color, key))
            place = rank if place is None else place
            return [its is not None, index(its or 0), index(place), zlib.crc32(name.encode())]

        tells = callable(color) and (key is None or callable(key))
        rows = self.all_gather_ints(row_of(self.rank), "split", row_of if tells else None)
        # All ranks count alike.
        self._splits += 1
        own = rows[self.rank]
        if not own[0]:
            return None
        places = [place for place in range(self.size) if rows[place][:2] == own[:2]]
        if any(rows[place][3] != own[3] for place in places):
            raise MismatchError(f"the ranks of colour {own[1]} gave their group other names than {name!r}; give one")
        ranks = tuple(self.ranks[place] for place in sorted(places, key=lambda place: rows[place][2]))
        comm = self._in_group(Group(name, ranks, f"{self.within.path if self.within else ''}/{self._splits}"))
        comm.meter, comm.tracer = self.meter, self.tracer
        self._groups.append(comm)
        return comm

    def subgroup(self, ranks: Sequence[int], name: str = "") -> Collectives | None:
        """The collectives of `ranks` alone, numbered from 0 in that order; None on the others. Every rank calls it,
        with the same ranks and name. See `split`."""
        ranks = list(ranks)
        if not ranks or len({*ranks}) < len(ranks) or not {*ranks} <= {*range(self.size)}:
            raise InputError(f"a group of ranks {ranks}; name some of ranks 0 to {self.size - 1}, each of them once")
        self.compare_lines(
            [f"{name!r} {ranks}"],
            "the ranks named different groups ({listed}); call subgroup with the same ranks and name on every rank",
            "subgroup",
        )
        place = {rank: place for place, rank in enumerate(ranks)}
        return self.split(lambda rank: 0 if rank in place else None, lambda rank: place.get(rank, 0), name)

    # What ranks compare.

    def all_gather_ints(
        self, numbers: Sequence[int], name: str = "agree", row_of: RowOf | None = None
    ) -> list[list[int]]:
        """Every rank's numbers, as many from each, in rank order, between hosts (`Transport.all_gather_ints`)."""
        rows: list[list[int]] = []
        self._issue(name, lambda: rows.extend(self.transport.all_gather_ints(numbers, row_of, self.within))).wait()
        return rows

    def all_gather_text(self, text: str, name: str = "agree") -> list[str]:
        """Every rank's text, in rank order; see `all_gather_ints`."""
        texts: list[str] = []
        self._issue(name, lambda: texts.extend(self.transport.all_gather_text(text, self.within))).wait()
        return texts

    def compare_lines(self, lines: Sequence[str], differ: str, name: str = "agree") -> None:
        """Raise a MismatchError, on every rank, if the ranks' lines differ: `differ`, with what each rank has at the
        first that does (`listed`) and its `number`. One number per rank travels if none does."""
        text = "\n".join(lines)
        sums = self.all_gather_ints([zlib.crc32(text.encode())], name)
        if all(row == sums[0] for row in sums):
            return
        texts = self.all_gather_text(text, name)
        every = list(zip_longest(*(text.split("\n") for text in texts), fillvalue="nothing"))
        at = next(at for at, said in enumerate(every) if len({*said}) > 1)
        listed = ", ".join(f"rank {rank} {said}" for rank, said in zip(self.ranks, every[at], strict=True))
        raise MismatchError(differ.format(listed=listed, number=at + 1))

    def agree(self) -> None:
        """Raise a MismatchError, on every rank, if labels differed since the last `agree`. A collective, of 8 bytes a
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
        """A 1-D tensor where collectives read and write best, with arbitrary content."""
        return torch.empty(numel, dtype=dtype, device=self.device)

    def close(self) -> None:
        """End the lanes once all calls have ended. Raises the error of one that nobody has heard."""
        with ExitStack() as ending:
            ending.callback(self._issuer.close)
            for group in reversed(self._groups):
                ending.callback(group.close)

    def _issue(
        self,
        name: str,
        run: Callable[[], None],
        tensors: Sequence[Tensor] = (),
        whole: Tensor | None = None,
        now: bool = True,
        **about: Any,
    ) -> Handle:
        """Name the call by its `whole` tensor and what else there is to say `about` it, then run it or put it in line.
        `tensors` are those that it reads and writes; the last is its result."""
        size: tuple[int, str, int] = 0, "", 0
        if whole is not None:
            size = whole.numel(), str(whole.dtype).removeprefix("torch."), whole.element_size()
        self._issued += 1
        call = Call(name, *size, self._issued, phase_now(), nominal=self.nominal, group=self.within, **about)
        tensors = list(tensors)
        if any(tensor.is_inference() for tensor in tensors):
            run = torch.inference_mode()(run)
        result = tensors[-1] if tensors else None
        if self.tracer is None:
            return self._issuer.issue(call, run, tensors, result, now)
        return self.tracer.watched(partial(self._issuer.issue, call, run, tensors, result, now), name, now)


# What a call may be given: what would corrupt values is refused on the rank that gave it, before any waits.


def check_tensor(name: str, tensor: Tensor, device: torch.device, flat: bool = False) -> None:
    """Refuse what is no plain memory on `device`, or, if `flat`, no 1-D tensor."""
    if not same_device(tensor.device, device):
        raise InputError(f"{name} runs on {device}, but the tensor is on {tensor.device}; move it with .to()")
    dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
    if not dense or tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        raise InputError(
            f"{name} reads memory as it lies, and this tensor is sparse, nested, quantized, not contiguous or a lazy "
            "conjugate; call .to_dense(), .contiguous() or .resolve_conj() first"
        )
    if flat and tensor.dim() != 1:
        raise InputError(f"{name} takes a 1-D tensor, not shape {tuple(tensor.shape)}; flatten it with .view(-1)")


def check_sum(name: str, tensor: Tensor, average: bool) -> None:
    """Refuse an `average` that only looks true (a `ReduceOp`), sums of bools, and means of whole numbers."""
    if not isinstance(average, bool):
        raise InputError(f"{name} takes average=True for the mean or False for the sum, not a {type(average).__name__}")
    if tensor.dtype == torch.bool or (average and not (tensor.is_floating_point() or tensor.is_complex())):
        what = "has no average in" if average else "cannot add"
        raise InputError(f"{name} {what} {tensor.dtype}; convert the tensor with .float(), or sum it as .int()")


def make_out(name: str, out: Tensor | None, numel: int, like: Tensor) -> Tensor:
    """`out`, checked, or a new tensor of `numel` elements beside `like`."""
    if out is None:
        return torch.empty(numel, dtype=like.dtype, device=like.device)
    check_tensor(name, out, like.device, flat=True)
    if out.dtype != like.dtype or out.numel() != numel:
        has = f"{out.numel()} of {out.dtype}"
        raise InputError(f"{name} writes {numel} {like.dtype} elements, but out has {has}; leave it out or make it fit")
    return out


def check_place(name: str, part: Tensor, whole: Tensor, start: int) -> None:
    """A rank's part may be its own chunk of `whole`, or lie apart from it; else one write destroys the other."""
    at = address(part) - address(whole)
    apart = at >= whole.nbytes or -at >= part.nbytes
    if not apart and at != start * whole.element_size():
        raise InputError(
            f"{name}: the shard overlaps the whole tensor from element {at // whole.element_size()} on, but its own "
            f"chunk begins at {start}; give that chunk, or separate memory"
        )
