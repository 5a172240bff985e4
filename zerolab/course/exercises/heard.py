"""Hears of a rank's calls, for exercises that ask when they begin, and when somebody waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zerolab.collectives.call import Call

Note = Callable[[str, int, list[torch.Tensor]], None]
"""It is told what happens, the call's place among the rank's, and, as it begins, the tensors that belong to it."""


class Heard:
    """A rank's order of calls. `note` hears "call" where one begins that is no `_async`, else "start"; "wait" and
    "arrived" where these are called; and "" after each of them."""

    def __init__(self, inner: Any, note: Note) -> None:
        self.inner, self.note, self.calls = inner, note, inner.calls

    def issue(self, call: Call, run: Any, tensors: list[torch.Tensor], result: Any, now: bool) -> Any:
        place = len(self.calls)
        self.note("call" if now else "start", place, tensors)
        handle = self.inner.issue(call, run, tensors, result, now)
        self.note("", place, [])
        # A handle that is kept must not keep whole tensors.
        return handle if now else HeardHandle(handle, lambda what: self.note(what, place, []))


class HeardHandle:
    """A handle that tells `note` what is asked of it."""

    def __init__(self, inner: Any, note: Callable[[str], None]) -> None:
        self.inner, self.note = inner, note

    def __repr__(self) -> str:
        return "a handle"

    def wait(self) -> Any:
        return self.asked("wait")

    def arrived(self) -> Any:
        return self.asked("arrived")

    def asked(self, name: str) -> Any:
        self.note(name)
        result = getattr(self.inner, name)()
        self.note("")
        return result


@contextmanager
def heard(comm: Any, note: Note) -> Iterator[list[Call]]:
    """The rank's calls; meanwhile `note` hears of them."""
    order = comm._issuer
    comm._issuer = Heard(order, note)
    try:
        yield order.calls
    finally:
        comm._issuer = order
