"""How functions and values travel to ranks: by value, as cloudpickle has it, and some things that it refuses.

What a notebook or an answer may well hold is made anew in each rank: a cached function with an empty cache, a lock that
nobody has, a thread's own data with nothing in it, a weak reference to the same thing of that rank. What stands for a
place in a program, such as a generator or a thread, does not travel, in no world: ranks in lockstep would share it.
"""

from __future__ import annotations

import contextvars
import ctypes
import functools
import inspect
import io
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import cloudpickle
import torch

Reduced = tuple[Any, ...]


def dumps(value: Any) -> bytes:
    """The value as bytes; `loads` reads them."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def loads(packed: bytes, unpickler: type[pickle.Unpickler] = pickle.Unpickler) -> Any:
    """The value that `dumps` packed, all of it anew, by an `unpickler` that may make something else of parts. Where
    ranks share a process, cloudpickle would give each of them the class that the process has already, and what one of
    them keeps in it would be everybody's."""
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    # By its items: a class that is collected meanwhile is left out, where its key would not be found.
    before = dict(known.items())
    known.clear()
    try:
        return unpickler(io.BytesIO(packed)).load()
    finally:
        # What a rank returns names its class by the same number, and comes back as the caller's own.
        known.update(before)


class Pickler(cloudpickle.Pickler):
    """Asks for our own way first.

    A storage travels once, however many tensors lie in it, and they lie in one there, too. All of it travels, also
    with a small part: strides, offsets and what else may be read of it stay as they are.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Torch may make a new object at each look at a storage; of each the first one stands for all, so that pickle
        # knows it again.
        self._storages: dict[int, torch.UntypedStorage] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, threading.Thread):
            raise TypeError("cannot pickle a thread")
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            first = self._storages.setdefault(obj._cdata, obj)
            if first is not obj:
                return same, (first,)
        way = WAYS.get(type(obj))
        reduced = way(obj) if way else None
        return super().reducer_override(obj) if reduced is None else reduced


def cached_function(cached: Any) -> Reduced | None:
    """A function under `functools.cache` or `lru_cache`. It may call itself by its name, so it is made first, and told
    what it caches afterwards."""
    if is_importable(cached):
        return None
    sizes = cached.cache_parameters()
    return new_cached, (sizes["maxsize"], sizes["typed"]), (cached.__wrapped__, vars(cached)), None, None, fill_cached


def new_cached(maxsize: int | None, typed: bool) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return forward.target(*args, **kwargs)  # type: ignore[attr-defined]

    return functools.lru_cache(maxsize, typed)(forward)


def fill_cached(cached: Any, state: tuple[Callable[..., Any], dict[str, Any]]) -> None:
    function, attributes = state
    cached.__wrapped__.target = function
    functools.update_wrapper(cached, function)
    vars(cached).update(attributes)


def inner_module(module: types.ModuleType) -> Reduced | None:
    """A module that only another one knows, as those of compiled libraries: `torch._C._functions`."""
    if module.__name__ in sys.modules:
        return None
    outer, _, name = module.__name__.rpartition(".")
    known = sys.modules.get(outer)
    return (getattr, (known, name)) if known is not None and getattr(known, name, None) is module else None


def weak_reference(reference: weakref.ref[Any]) -> Reduced:
    target = reference()
    return (dead_reference, ()) if target is None else (weakref.ref, (target, reference.__callback__))


def weak_method(reference: weakref.WeakMethod[Any]) -> Reduced:
    method = reference()
    return (dead_reference, ()) if method is None else (weakref.WeakMethod, (method,))


def dead_reference() -> weakref.ref[Any]:
    return weakref.ref(set())


def context_variable(variable: contextvars.ContextVar[Any]) -> Reduced:
    """That of a library is the library's own; one of the caller's begins anew, with its default."""
    own = sys.modules.get("__main__")
    for module in list(sys.modules.values()):
        # The caller's module may stand there under a second name, which multiprocessing gives it.
        if module is not own and (held := next((n for n, v in _held(module) if v is variable), None)):
            return getattr, (module, held)
    try:
        return new_variable, (variable.name, contextvars.Context().run(variable.get))
    except LookupError:
        return contextvars.ContextVar, (variable.name,)


def new_variable(name: str, default: Any) -> contextvars.ContextVar[Any]:
    return contextvars.ContextVar(name, default=default)


def operation(op: torch._ops.OpOverload) -> Reduced:
    return getattr, (op.overloadpacket, op._overloadname)


def operations(packet: torch._ops.OpOverloadPacket) -> Reduced:
    return named_operations, (packet._qualified_op_name,)


def named_operations(name: str) -> Any:
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op)


def cpu_storage(storage: torch.storage.TypedStorage) -> Reduced | None:
    """A tensor's memory. Torch's own way writes a file for each tensor, which takes many times as long for small
    ones."""
    untyped = storage._untyped_storage
    return (new_storage, (untyped, storage.dtype)) if untyped.device.type == "cpu" else None


def untyped_storage(untyped: torch.UntypedStorage) -> Reduced | None:
    if untyped.device.type != "cpu":
        return None
    return new_untyped, (bytes(memory_of(untyped)),)


def memory_of(untyped: torch.UntypedStorage) -> memoryview:
    """A storage's bytes where they lie. (`ctypes.string_at` takes its size as 32 bits.)"""
    nbytes = untyped.nbytes()
    return memoryview((ctypes.c_char * nbytes).from_address(untyped.data_ptr()) if nbytes else b"")


def newer_tensor(tensor: torch.Tensor) -> Reduced | None:
    """A tensor of one of torch's newer dtypes, such as 8-bit floats: torch packs its untyped storage, and asks for a
    typed one to read it back."""
    if tensor.dtype not in NEWER:
        return None
    rebuild, (storage, *rest) = tensor.__reduce_ex__(2)[:2]
    return (new_tensor, (storage, *rest)) if rebuild is torch._utils._rebuild_tensor_v3 else None


def new_tensor(storage: torch.UntypedStorage, *rest: Any) -> torch.Tensor:
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
    rebuilt: torch.Tensor = torch._utils._rebuild_tensor_v3(typed, *rest)
    return rebuilt


def new_storage(untyped: torch.UntypedStorage, dtype: torch.dtype) -> torch.storage.TypedStorage:
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def same(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def new_untyped(content: bytes) -> torch.UntypedStorage:
    untyped = torch.UntypedStorage(len(content))
    ctypes.memmove(untyped.data_ptr(), content, len(content))
    return untyped


NEWER = frozenset(torch.storage._new_dtypes())

WAYS: dict[type, Callable[[Any], Reduced | None]] = {
    functools._lru_cache_wrapper: cached_function,
    types.ModuleType: inner_module,
    type(threading.Lock()): lambda lock: (threading.Lock, ()),
    type(threading.RLock()): lambda lock: (threading.RLock, ()),
    threading.local: lambda local: (threading.local, ()),
    contextvars.ContextVar: context_variable,
    weakref.ref: weak_reference,
    weakref.WeakMethod: weak_method,
    weakref.WeakKeyDictionary: lambda held: (weakref.WeakKeyDictionary, (dict(held),)),
    weakref.WeakValueDictionary: lambda held: (weakref.WeakValueDictionary, (dict(held),)),
    torch.storage.TypedStorage: cpu_storage,
    torch.UntypedStorage: untyped_storage,
    torch.Tensor: newer_tensor,
    torch._ops.OpOverload: operation,
    torch._ops.OpOverloadPacket: operations,
}


def is_importable(thing: Any) -> bool:
    """Whether a rank finds the same thing under its name. (A rank's `__main__` is another one.)"""
    module = getattr(thing, "__module__", None)
    found = sys.modules.get(module or "")
    if module == "__main__" or found is None:
        return False
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing


def _held(module: Any) -> list[tuple[str, Any]]:
    return list(vars(module).items()) if isinstance(module, types.ModuleType) else []


# What does not travel, and where it is.


def culprit(named: dict[str, Any]) -> tuple[str, Any, Exception] | None:
    """Of values by what to call them: the innermost part that does not travel, as what to call it, the part and why."""
    return _search(named, set())


def is_too_deep(error: Exception) -> bool:
    """Whether a value does not travel because it is nested deeper than Python follows."""
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def _search(named: dict[str, Any], seen: set[int]) -> tuple[str, Any, Exception] | None:
    for name, value in named.items():
        if id(value) in seen:
            continue
        try:
            dumps(value)
        except Exception as error:
            if is_too_deep(error):
                # What it holds is nearly as deep: the search would end no sooner than this did.
                return name, value, error
            seen.add(id(value))
            return _search(dict(_parts(name, value)), seen) or (name, value, error)
    return None


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, by what to call it."""
    if isinstance(value, functools._lru_cache_wrapper | staticmethod | classmethod):
        value = value.__wrapped__
    if inspect.ismethod(value):
        yield f"what {name} belongs to", value.__self__
    elif inspect.isfunction(value):
        who = name if value.__name__ == "<lambda>" else value.__name__
        yield from ((f"{key!r}, which {who} uses", held) for key, held in _used(value))
    elif isinstance(value, type):
        yield from ((f"{key!r} of class {value.__name__}", held) for key, held in vars(value).items())
    elif isinstance(value, dict):
        yield from ((f"item {key!r} of {name}", held) for key, held in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index} of {name}", held) for index, held in enumerate(value))
    elif not is_importable(type(value)):
        # Nobody knows the inside of a library's object.
        yield from ((f"attribute {key!r} of {name}", held) for key, held in getattr(value, "__dict__", {}).items())


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function finds outside by name."""
    code = function.__code__
    yield from ((name, function.__globals__[name]) for name in code.co_names if name in function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        # One that nothing was assigned to is empty.
        with suppress(ValueError):
            yield name, cell.cell_contents
