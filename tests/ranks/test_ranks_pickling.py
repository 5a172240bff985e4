"""What a notebook or an answer holds travels to ranks in every world, or is refused by its name before any starts."""

import gc
import linecache
import sys
from types import ModuleType
from typing import Any, ClassVar

import cloudpickle
import pytest
import torch

from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.ranks.pickling import dumps, loads, view_memory

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(60)]

# Each defines f(comm), which gives what stands behind the name.
TRAVELS = {
    ("a cached function that calls itself", 6765): """
import functools
@functools.cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def f(comm):
    return fib(20)
""",
    ("two cached functions that call each other", (True, "odd", 8, 4)): """
import functools
@functools.lru_cache(maxsize=8)
def even(n):
    return n == 0 or odd(n - 1)
@functools.lru_cache(maxsize=4)
def odd(n):
    return n != 0 and even(n - 1)
def f(comm):
    return even(10), odd.__name__, *(fn.cache_parameters()["maxsize"] for fn in (even, odd))
""",
    ("a cache starts empty", (0, 1)): """
import functools
@functools.cache
def square(n):
    return n * n
square(3)
def f(comm):
    before = square.cache_info().hits
    square(3)
    return before, square.cache_info().misses
""",
    ("what hangs on a cached function", ("metres", "Squared.")): """
import functools
@functools.cache
def square(n):
    "Squared."
    return n * n
square.unit = "metres"
def f(comm):
    return square.unit, square.__doc__
""",
    ("cached methods of all kinds", (2, 3, 4, 5)): """
import functools
class Sizes:
    @functools.cache
    def plain(self, n):
        return n + 1
    @staticmethod
    @functools.cache
    def static(n):
        return n + 2
    @classmethod
    @functools.cache
    def of_class(cls, n):
        return n + 3
    @functools.cached_property
    def once(self):
        return 5
def f(comm):
    sizes = Sizes()
    return sizes.plain(1), Sizes.static(1), Sizes.of_class(1), sizes.once
""",
    ("once_differentiable", 6.0): """
import torch
from torch.autograd.function import once_differentiable
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return 2 * ctx.saved_tensors[0] * gradient
def f(comm):
    x = torch.tensor(3.0, requires_grad=True)
    Square.apply(x).backward()
    return x.grad.item()
""",
    ("locks, and what is made of them", (True, 1, False)): """
import queue, threading
lock, waiting, event = threading.Lock(), queue.Queue(), threading.Event()
lock.acquire()
def f(comm):
    waiting.put(1)
    return lock.acquire(timeout=5), waiting.get(timeout=5), event.is_set()
""",
    ("a thread's own data", 3): """
import threading
own = threading.local()
def f(comm):
    own.x = 3
    return own.x
""",
    ("a weak dictionary, with nothing in it", 0): """
import weakref
class Key: pass
key = Key()
known = weakref.WeakKeyDictionary({key: 1})
def f(comm):
    return len(known)
""",
    ("a tracker made outside", 8): """
import torch
from zerolab.memory import Tracker
tracker = Tracker()
def f(comm):
    with tracker:
        kept = torch.ones(2)
        return sum(tracker.now().values())
""",
    ("plain things", (3, 3, 1.0, 2, 5, "b")): """
import enum, operator, random, re, typing
from collections import defaultdict
from dataclasses import dataclass
import torch
many, pattern, generator = defaultdict(lambda: 3), re.compile("a+"), torch.Generator().manual_seed(1)
class Kind(enum.Enum):
    ONE = 1
T = typing.TypeVar("T")
class Box(typing.Generic[T]):
    size = 2
@dataclass(slots=True, frozen=True)
class Place:
    x: int
second = operator.itemgetter(1)
def f(comm):
    torch.rand(1, generator=generator)
    return many["x"], pattern.match("aaa").end(), float(Kind.ONE.value), Box[int]().size, Place(5).x, second("ab")
""",
}


def made(source: str) -> Any:
    """The function f of a cell's source, in a namespace that no rank can import."""
    linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
    sys.modules.setdefault("cells", ModuleType("cells"))
    names: dict[str, Any] = {"__name__": "cells"}
    exec(compile(source, "<cell>", "exec"), names)
    return names["f"]


def call_all(comm: Any, functions: list[Any]) -> list[Any]:
    return [function(comm) for function in functions]


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_what_a_cell_may_hold_travels(world: str) -> None:
    functions = [made(source) for source in TRAVELS.values()]
    seen = launch(call_all, functions, ranks=2, world=world, collectives="ring", device="cpu", timeout=50)
    for rank in range(2):
        assert dict(zip([name for name, _ in TRAVELS], seen[rank], strict=True)) == dict(TRAVELS.keys())


def test_a_cached_function_of_a_library_travels_by_its_name() -> None:
    from zerolab.memory.track import written_arguments

    assert len(dumps(written_arguments)) < 200


def test_tensors_of_all_kinds_travel_with_their_memory_and_in_few_bytes() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    tensors = [torch.arange(-2, 4).to(dtype) for dtype in dtypes]
    tensors += [torch.zeros(0), torch.ones(2, 3).t(), torch.arange(9.0)[2:5], torch.nn.Parameter(torch.ones(2))]
    tensors += [torch.ones(3, device="meta")]
    for tensor in tensors:
        there = loads(dumps(tensor))
        assert (type(there), there.dtype, there.device) == (type(tensor), tensor.dtype, tensor.device)
        assert (there.stride(), there.requires_grad) == (tensor.stride(), tensor.requires_grad)
        assert there.is_meta or torch.equal(there, tensor)
        assert there.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
        assert there.is_meta or len(dumps(tensor)) < 350
    emptied = loads(dumps(tensors[0])).untyped_storage()
    emptied.resize_(0)
    emptied.resize_(24)


def test_parts_of_one_tensor_travel_with_its_memory_once_and_lie_in_it_there() -> None:
    rows = list(torch.arange(4000.0).view(2000, 2))
    packed = dumps(rows)
    assert len(packed) < 16_000 + 200 * len(rows)
    there = loads(packed)
    there[0].untyped_storage().fill_(0)
    assert all(torch.equal(row, torch.zeros(2)) for row in there)


def test_tensors_of_one_memory_keep_it_whatever_their_kind() -> None:
    whole, newer = torch.zeros(8), torch.zeros(4, dtype=torch.float8_e5m2)
    weight = torch.nn.Parameter(torch.zeros(2))
    groups = [
        [whole, whole[2:4], whole.view(torch.int32), whole.detach()],
        [weight, weight.data],
        [newer, newer[1:], newer.view(torch.uint8)],
    ]
    back = loads(dumps(groups))
    for group in back:
        assert len({tensor.untyped_storage().data_ptr() for tensor in group}) == 1
    assert len({group[0].data_ptr() for group in back}) == len(groups)


@pytest.mark.parametrize("world", ["processes", "lockstep"])
def test_a_part_of_an_argument_is_a_part_of_it_in_a_rank(world: str) -> None:
    def writes(comm: Collectives, whole: torch.Tensor, part: torch.Tensor) -> list[float]:
        part.fill_(comm.rank + 1.0)
        return whole.tolist()

    whole = torch.zeros(3)
    assert launch(writes, whole, whole[:2], ranks=2, world=world, timeout=30) == [[1.0, 1.0, 0.0], [2.0, 2.0, 0.0]]
    assert whole.tolist() == [0.0] * 3


def test_a_tensor_of_more_than_4_gib_travels_whole() -> None:
    # Its memory is asked for and never touched.
    nbytes = 2**32 + 4
    assert view_memory(torch.empty(nbytes, dtype=torch.uint8).untyped_storage()).nbytes == nbytes


def test_a_rank_may_return_a_cached_function() -> None:
    cached = launch(cache_of, made(TRAVELS["a cached function that calls itself", 6765]), ranks=1, timeout=50)[0]
    assert cached(10) == 55


def cache_of(comm: Any, function: Any) -> Any:
    return function.__globals__["fib"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("world", ["lockstep", "processes"])
def test_each_rank_has_a_class_of_its_own_and_its_results_are_of_the_callers(world: str) -> None:
    class Counter:
        seen: ClassVar[list[int]] = []
        total = 0

        def __init__(self, rank: int) -> None:
            self.rank = rank

    def count(comm: Collectives) -> tuple[Counter, list[int], int]:
        for step in range(2):
            Counter.seen.append(10 * comm.rank + step)
            Counter.total += 1
            comm.barrier()
        return Counter(comm.rank), Counter.seen, Counter.total

    results = launch(count, ranks=3, world=world, timeout=50)
    assert [seen for _, seen, _ in results] == [[0, 1], [10, 11], [20, 21]]
    assert [total for _, _, total in results] == [2, 2, 2]
    assert all(isinstance(counter, Counter) for counter, _, _ in results)


NEWER = (torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *NEWER], ids=str)
def test_tensors_of_all_dtypes_are_read_back(dtype: torch.dtype) -> None:
    whole = torch.arange(64, dtype=torch.uint8).view(dtype)
    for tensor in (whole, whole[3:7], torch.empty(0, dtype=dtype)):
        back = loads(dumps(tensor))
        assert back.dtype == dtype and back.tolist() == tensor.tolist()
        assert back.shape == tensor.shape and back.storage_offset() == tensor.storage_offset()


def test_a_class_that_is_collected_while_a_value_is_read_is_no_error() -> None:
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    dying: list[type] = [type("Dying", (), {})]

    class Number(str):
        """A key whose class is collected as soon as somebody looks for it."""

        looked_for = False

        def __hash__(self) -> int:
            if Number.looked_for:
                dying.clear()
                gc.collect()
            return super().__hash__()

    number = Number("a number that nobody else has")
    known[number] = dying[0]
    Number.looked_for = True
    try:
        assert loads(dumps([1])) == [1]
    finally:
        # Each later launch in this process would look for it, too.
        Number.looked_for = False
        known.pop(number, None)
