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
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import torch

from zerolab.errors import InputError
from zerolab.flat.views import values_here


def dumps(value: Any) -> bytes:
    """The value as bytes; `loads` reads them."""
    with io.BytesIO() as file:
        Pickler(file).dump(value)
        return file.getvalue()


def loads(packed: bytes) -> Any:
    """The value that `dumps` packed, all of it anew: cloudpickle would give ranks that share a process one class, and
    what one of them keeps in it would be everybody's."""
    known = cloudpickle.cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
    # By its items: a class that is collected meanwhile is left out, where its key would not be found.
    before = dict(known.items())
    known.clear()
    try:
        return pickle.loads(packed)
    finally:
        # What a rank returns names its class by the same number, and comes back as the caller's own.
        known.update(before)


def pack_function(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The function and its arguments, by value, or an InputError where they cannot travel."""
    try:
        return dumps((fn, args, dict(kwargs)))
    except Exception as error:
        held = {f"argument {place}": value for place, value in enumerate(args, 1)} | dict(kwargs)
        if inspect.isfunction(fn):
            cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
            used = {name: fn.__globals__[name] for name in fn.__code__.co_names if name in fn.__globals__}
            held |= {f"{name!r}, which the rank function uses,": value for name, value in (cells | used).items()}
        found = next((name for name, value in held.items() if not can_travel(value)), "the rank function")
        raise InputError(
            f"{found} cannot travel to the ranks ({' '.join(str(error).split())}); make it inside the rank function "
            "instead"
        ) from error


def can_travel(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


class Pickler(cloudpickle.Pickler):
    """A storage travels once and whole, and all its tensors lie in one there, too. Torch's own way gives each tensor a
    copy, and writes a file for each."""

    def reducer_override(self, obj: Any) -> Any:
        if new := MADE_ANEW.get(type(obj)):
            return new, ()
        if type(obj) is functools._lru_cache_wrapper and not cloudpickle.cloudpickle._lookup_module_and_qualname(obj):
            sizes = obj.cache_parameters()
            # It may call itself by its name, so it is made first, and told what it caches afterwards.
            return new_cached, (sizes["maxsize"], sizes["typed"]), (obj.__wrapped__, vars(obj)), None, None, fill_cached
        if type(obj) is types.ModuleType and obj.__name__ not in sys.modules:
            # One that only another one knows, as those of compiled libraries: cloudpickle would make it anew.
            outer, _, name = obj.__name__.rpartition(".")
            if getattr(sys.modules.get(outer), name, None) is obj:
                return getattr, (sys.modules[outer], name)
        if type(obj) is torch.Tensor and is_plain(obj):
            place = obj.dtype, obj.storage_offset(), obj.size(), obj.stride(), obj.requires_grad
            return new_tensor, (obj.untyped_storage(), *place)
        if type(obj) is torch.UntypedStorage and obj.device.type == "cpu":
            return new_storage, (bytes(view_memory(obj)),)
        return super().reducer_override(obj)


MADE_ANEW: dict[type, Any] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.local: threading.local,
    weakref.WeakKeyDictionary: weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary: weakref.WeakValueDictionary,
}
"""What a rank gets one of its own of, with nothing in it: what that holds lives in this process."""


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


def view_memory(untyped: torch.UntypedStorage) -> memoryview:
    """A storage's bytes where they lie. (`ctypes.string_at` takes its size as 32 bits.)"""
    nbytes = untyped.nbytes()
    return memoryview((ctypes.c_char * nbytes).from_address(untyped.data_ptr()) if nbytes else b"")


def new_storage(content: bytes) -> torch.UntypedStorage:
    if not values_here():
        return torch.UntypedStorage(len(content), device="meta")
    untyped = torch.UntypedStorage(len(content))
    ctypes.memmove(untyped.data_ptr(), content, len(content))
    return untyped


def new_tensor(storage: torch.UntypedStorage, dtype: torch.dtype, *place: Any) -> torch.Tensor:
    *where, requires_grad = place
    tensor = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *where)
    if storage.device.type == "meta":
        # In a virtual world, where it is taken to be on the CPU.
        tensor.fake_device = torch.device("cpu")  # type: ignore[attr-defined]
    return tensor.requires_grad_(requires_grad)
