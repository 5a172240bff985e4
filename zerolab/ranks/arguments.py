"""Checks of what `launch` is given, all before any rank starts."""

from __future__ import annotations

import inspect
import math
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from typing import Any

from zerolab.errors import InputError
from zerolab.ranks.devices import DEVICES
from zerolab.ranks.pickling import culprit, dumps, is_too_deep
from zerolab.ranks.printing import MODES

CHOICES = {
    "world": ("processes", "lockstep", "virtual"),
    "collectives": ("auto", "shared", "ring", "torch", "local", "transport"),
    "device": DEVICES,
    "prints": MODES,
}
MAX_RANKS = 128
MAX_VIRTUAL_RANKS = 65536


def check_arguments(fn: Any, args: Any, kwargs: Any, most_ranks: int, given: Mapping[str, Any]) -> None:
    """Raise an InputError for the first argument that cannot work; `given` are the others, by name."""
    _check_call(fn, args, kwargs)
    check_count("ranks", given["ranks"], most_ranks)
    for name, choices in CHOICES.items():
        if given[name] not in choices:
            raise InputError(f"{name} is {given[name]!r}; choose one of {', '.join(map(repr, choices))}")
    for name, unit in (("timeout", "seconds"), ("collective_timeout", "seconds"), ("max_result_mb", "megabytes")):
        value = given[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if (value is not None or name == "max_result_mb") and not (number and math.isfinite(value) and value > 0):
            raise InputError(f"{name} is {value!r}; give a positive, finite number of {unit}")
    if given["threads"] is not None:
        check_count("threads", given["threads"], 1024)
    world, collectives = given["world"], given["collectives"]
    if collectives == "local" and given["ranks"] != 1:
        raise InputError(f'collectives="local" serves one rank, not {given["ranks"]}; use "ring"')
    if world == "lockstep" and collectives in ("torch", "shared"):
        raise InputError(f'collectives="{collectives}" needs processes; use world="processes" or collectives="ring"')
    _check_virtual(world, given["ranks"], given["only"], collectives, given["device"])
    link, prices = given["link"], "ring_seconds" if world == "virtual" else "seconds"
    if link is not None and not callable(getattr(link, prices, None)):
        raise InputError(f"link is {link!r}; pass a zerolab.collectives.Link")
    _check_environment(given["env"])
    if world == "processes" and multiprocessing.current_process().daemon:
        raise InputError("a daemonic process may not start ranks; launch from its parent, or use lockstep")


def _check_environment(env: Any) -> None:
    if env is not None and not isinstance(env, Mapping):
        raise InputError(f"env is {env!r}; pass a dict of environment variables")
    for name, value in (env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InputError(f"env holds {name!r}: {value!r}; environment variables are texts")
        if not name or "=" in name or not (_is_settable(name) and _is_settable(value)):
            raise InputError(
                f"env holds {name!r}: {value!r}, which no system takes; give a name without '=', and no zero character "
                "in either"
            )


def _is_settable(text: str) -> bool:
    """Whether a text can be part of an environment."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _check_virtual(world: str, ranks: int, only: Any, collectives: str, device: str) -> None:
    """Raise an InputError for what a virtual world has not, or has alone."""
    if world != "virtual":
        if only is not None:
            raise InputError(
                f'only is {only!r}, and all ranks run with world={world!r}; leave it out, or say "virtual"'
            )
        return
    for name, value in (("collectives", collectives), ("device", device)):
        if value not in ("auto", "cpu" if name == "device" else "virtual"):
            raise InputError(
                f'{name}="{value}": the ranks of a virtual world have no messages and no device; leave it out'
            )
    if only is not None:
        named = isinstance(only, Sequence) and not isinstance(only, str) and len(set(only)) == len(only) > 0
        if not named or not all(type(rank) is int and 0 <= rank < ranks for rank in only):
            raise InputError(f"only is {only!r}; name the ranks to run, each once, from 0 to {ranks - 1}, as [0]")


def _check_call(fn: Any, args: tuple[Any, ...], kwargs: Any) -> None:
    if not callable(fn):
        raise InputError(f"fn is {fn!r}, which cannot be called; pass a function that takes comm first")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise InputError(f"kwargs is {kwargs!r}; pass a dict of arguments by name")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # some functions written in C have none
    try:
        signature.bind("comm", *args, **(kwargs or {}))
    except TypeError as error:
        raise InputError(
            f"fn cannot be called with comm and the arguments given ({error}); its signature is {signature}"
        ) from None


def check_count(name: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InputError(f"{name} is {value!r}; give a whole number from 1 to {most}")


def pack_function(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """The function and its arguments, by value, or an InputError that names what cannot travel."""
    try:
        return dumps((fn, args, dict(kwargs)))
    except Exception as error:
        parts = {"the rank function": fn}
        parts |= {f"argument {place}": value for place, value in enumerate(args, start=1)}
        parts |= {f"argument {name!r}": value for name, value in kwargs.items()}
        found = culprit(parts)
        what = f"{found[0]}, of type {type(found[1]).__name__}," if found else "the rank function with its arguments"
        why = found[2] if found else error
        reason = "it is nested too deeply" if is_too_deep(why) else " ".join(str(why).split())
        raise InputError(
            f"{what} cannot travel to the ranks ({reason}); make it inside the rank function instead"
        ) from None
