"""How functions and values travel to ranks: by value, as cloudpickle has it; also cached functions and CPU memory."""

from __future__ import annotations

import ctypes
import functools
import inspect
import io
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import cloudpickle
import torch


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
    """A storage travels once and whole, however many tensors lie in it, and they lie in one there, too. Torch's own way
    would give each tensor a copy, and write a file for each, which takes many times as long for small ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Torch may make a new object at each look at a storage; of each the first one stands for all, so that pickle
        # knows it again.
        self._storages: dict[int, torch.UntypedStorage] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, threading.Thread):
            raise TypeError("cannot pickle a thread")
        if new := MADE_ANEW.get(type(obj)):
            return new, ()
        if type(obj) is functools._lru_cache_wrapper and not is_importable(obj):
            sizes = obj.cache_parameters()
            state = obj.__wrapped__, vars(obj)
            # It may call itself by its name, so it is made first, and told what it caches afterwards.
            return new_cached, (sizes["maxsize"], sizes["typed"]), state, None, None, fill_cached
        if type(obj) is types.ModuleType and obj.__name__ not in sys.modules:
            # One that only another one knows, as those of compiled libraries: cloudpickle would make it anew.
            outer, _, name = obj.__name__.rpartition(".")
            if getattr(sys.modules.get(outer), name, None) is obj:
                return getattr, (sys.modules[outer], name)
        if type(obj) is torch.Tensor and is_plain(obj):
            untyped = obj.untyped_storage()
            place = obj.dtype, obj.storage_offset(), obj.size(), obj.stride(), obj.requires_grad
            return new_tensor, (self._storages.setdefault(untyped._cdata, untyped), *place)
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            first = self._storages.setdefault(obj._cdata, obj)
            return (new_storage, (bytes(memory_of(obj)),)) if first is obj else (same, (first,))
        return super().reducer_override(obj)


MADE_ANEW: dict[type, Any] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.local: threading.local,
}
"""What a rank gets one of its own of: a lock that nobody has, a thread's own data with nothing in it."""


def new_cached(maxsize: int | None, typed: bool) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return forward.target(*args, **kwargs)  # type: ignore[attr-defined]

    return functools.lru_cache(maxsize, typed)(forward)


def fill_cached(cached: Any, state: tuple[Callable[..., Any], dict[str, Any]]) -> None:
    function, attributes = state
    cached.__wrapped__.target = function
    functools.update_wrapper(cached, function)
    vars(cached).update(attributes)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a part of the CPU's memory and nothing more."""
    dense = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_quantized
    return dense and not (vars(tensor) or tensor.is_conj() or tensor.is_neg())


def memory_of(untyped: torch.UntypedStorage) -> memoryview:
    """A storage's bytes where they lie. (`ctypes.string_at` takes its size as 32 bits.)"""
    nbytes = untyped.nbytes()
    return memoryview((ctypes.c_char * nbytes).from_address(untyped.data_ptr()) if nbytes else b"")


def new_tensor(storage: torch.UntypedStorage, dtype: torch.dtype, *place: Any) -> torch.Tensor:
    offset, size, stride, requires_grad = place
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride).requires_grad_(requires_grad)


def new_storage(content: bytes) -> torch.UntypedStorage:
    untyped = torch.UntypedStorage(len(content))
    ctypes.memmove(untyped.data_ptr(), content, len(content))
    return untyped


def same(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    return storage


def is_importable(thing: Any) -> bool:
    """Whether a rank finds the same thing under its name. (A rank's `__main__` is another one.)"""
    module = getattr(thing, "__module__", None)
    found = sys.modules.get(module or "")
    if module == "__main__" or found is None:
        return False
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is thing


def is_too_deep(error: Exception) -> bool:
    """Whether a value does not travel because it is nested deeper than Python follows."""
    return isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError)


def culprit(named: dict[str, Any], seen: set[int] | None = None) -> tuple[str, Any, Exception] | None:
    """Of values by what to call them: the innermost part that does not travel, as what to call it, the part and why."""
    seen = set() if seen is None else seen
    for name, value in named.items():
        if id(value) in seen:
            continue
        try:
            dumps(value)
        except Exception as error:
            seen.add(id(value))
            # What is nested too deeply holds what is nearly as deep: the search would end no sooner than this did.
            inner = None if is_too_deep(error) else culprit(dict(_parts(name, value)), seen)
            return inner or (name, value, error)
    return None


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, by what to call it."""
    value = getattr(value, "__wrapped__", value)
    if inspect.ismethod(value):
        yield f"what {name} belongs to", value.__self__
    elif inspect.isfunction(value):
        who = name if value.__name__ == "<lambda>" else value.__name__
        held = {key: value.__globals__[key] for key in value.__code__.co_names if key in value.__globals__}
        for key, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            # One that nothing was assigned to is empty.
            with suppress(ValueError):
                held[key] = cell.cell_contents
        yield from ((f"{key!r}, which {who} uses", part) for key, part in held.items())
    elif isinstance(value, type):
        yield from ((f"{key!r} of class {value.__name__}", part) for key, part in vars(value).items())
    elif isinstance(value, dict):
        yield from ((f"item {key!r} of {name}", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"item {index} of {name}", part) for index, part in enumerate(value))
    elif not is_importable(type(value)) and not isinstance(value, types.ModuleType):
        # Nobody knows the inside of a library's object.
        yield from ((f"attribute {key!r} of {name}", part) for key, part in getattr(value, "__dict__", {}).items())
