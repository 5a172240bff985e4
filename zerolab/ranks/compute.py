"""How long computing takes on the virtual clock: each operation by the roofline of a device of given speed.

    with SimulatedCompute(comm, gflop_per_s=50, gbyte_per_s=10) as pace:
        pace.label = "forward"
        loss = engine(tokens, targets)
    pace.spans      # when this rank computed what

An operation takes as long as its arithmetic or its reading and writing, whichever is longer (Williams, Waterman and
Patterson, 2009). Torch's own formulas count the arithmetic of matrix products; everything else costs its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from zerolab.collectives import Collectives, Span
from zerolab.errors import InputError
from zerolab.ranks.lockstep.world import spend

CPU_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
FREE = {"_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
UNREAD = {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "trunc_normal_"}
"""Operations that write a tensor in place without reading it."""
PICKING = {"embedding", "gather", "index", "index_select", "nll_loss_forward"}
"""Operations that read of their first tensor only what they are asked for, as much as they make."""


class Counted(NamedTuple):
    """What an operation has to do; `itemsize` is of what it makes."""

    flop: int
    nbytes: int
    itemsize: int


def count_work(func: Any, args: Any, kwargs: Any, result: Any) -> Counted | None:
    """What an operation of torch's dispatcher has to do; None for a view, and for memory that nobody writes yet."""
    packet = func._overloadpacket
    if func.is_view or packet.__name__ in FREE or func.namespace in ("prim", "profiler"):
        # Of a fake tensor it is also asked on which device it is (prim::device).
        return None
    flop = flop_registry[packet](*args, **kwargs, out_val=result) if packet in flop_registry else 0
    if packet.__name__.startswith(CPU_FLASH):
        flop = count_attention_flop(packet.__name__.endswith("backward"), args, kwargs)
    made = next(find_tensors((result, *args)), None)
    return Counted(flop, count_bytes(func, args, kwargs, result), 4 if made is None else made.element_size())


@cache
def read_access(func: Any) -> tuple[list[int | str], list[int | str], bool]:
    """By an operation's schema: which arguments it writes (a position or a name), which of these it does not read, and
    whether what it gives back is new."""
    name, schema = func._overloadpacket.__name__, func._schema
    arguments = {it.name if it.kwarg_only else place: it for place, it in enumerate(schema.arguments)}
    written = {where: it for where, it in arguments.items() if it.alias_info is not None and it.alias_info.is_write}
    # A fused optimizer may unscale gradients, and says so of all.
    writes = [where for where in written if not (where == 1 and "_fused_" in name)]
    unread = [where for where in writes if written[where].is_out or name in UNREAD]
    return writes, unread, all(one.alias_info is None for one in schema.returns)


def count_bytes(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Bytes that an operation reads and writes; what it changes in place counts as both."""
    writes, unread, makes = read_access(func)
    given = dict[int | str, Any]([*enumerate(args), *kwargs.items()])
    sizes = {where: sum(tensor.nbytes for tensor in find_tensors(value)) for where, value in given.items()}
    written = sum(tensor.nbytes for tensor in find_tensors(result)) if makes else 0
    if func._overloadpacket.__name__ in PICKING:
        sizes[0] = min(sizes.get(0, 0), written)
    read = sum(nbytes for where, nbytes in sizes.items() if where not in unread)
    return read + written + sum(sizes.get(where, 0) for where in writes)


def count_attention_flop(backward: bool, args: Any, kwargs: Any) -> int:
    """Operations of attention by the CPU's kernel that stores no scores: two matrix products forward, five backward. A
    causal mask leaves out half of each."""
    at = 1 if backward else 0
    query, key = args[at : at + 2]
    causal = next((value for value in args[at + 3 :] if isinstance(value, bool)), kwargs.get("is_causal", False))
    whole = 2 * query.numel() * key.shape[-2] * (5 if backward else 2)
    return whole // 2 if causal else whole


class SimulatedCompute(TorchDispatchMode):
    """Lets operations take virtual time in lockstep and in a virtual world (in others the rank sleeps). Enter it before
    a tracker, which then sees when operations begin and end.

    gflop_per_s  billions of floating-point operations a second
    gbyte_per_s  billions of bytes a second, read and written

    What a collective adds up on a communication lane takes the lane's time, and has no span.
    """

    def __init__(self, comm: Collectives, gflop_per_s: float, gbyte_per_s: float) -> None:
        super().__init__()
        if not (gflop_per_s > 0 and gbyte_per_s > 0):
            raise InputError(f"gflop_per_s is {gflop_per_s}, gbyte_per_s {gbyte_per_s}; give speeds above 0")
        self._comm = comm
        self._flop_per_s, self._byte_per_s = 1e9 * gflop_per_s, 1e9 * gbyte_per_s
        self._thread = threading.get_ident()
        self.label = "compute"
        self.spans: list[Span] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if seconds := self.seconds(func, args, kwargs, result):
            start = self._comm.transport.now()
            spend(seconds)
            if threading.get_ident() == self._thread:
                self._record(start, self._comm.transport.now())
        return result

    def seconds(self, func: Any, args: Any, kwargs: Any, result: Any) -> float:
        """How long an operation takes, as torch's dispatcher sees it: `func` is such as aten.mm.default."""
        found = count_work(func, args, kwargs, result)
        return 0.0 if found is None else max(found.flop / self._flop_per_s, found.nbytes / self._byte_per_s)

    def _record(self, start: float, stop: float) -> None:
        """Operations of one label, one right after the other, are one span."""
        last = self.spans[-1] if self.spans else None
        if last is not None and last.name == self.label and last.stop == start:
            start = self.spans.pop().start
        self.spans.append(Span(self._comm.rank, "compute", self.label, start, stop))


def find_tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in an argument or in a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from find_tensors(part)
