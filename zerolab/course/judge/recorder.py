"""What becomes of each call of a rank's collectives: when it begins, when somebody first waits for it, when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle

CALLS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


@dataclass
class Recorded:
    """A call; times are the rank's clock's. `asked` is when somebody first waited, `ended` when that returned, both
    those of the return for a call that is no `_async`. `given` are its tensors, and as they were when it began."""

    name: str
    begun: float
    given: list[tuple[torch.Tensor, torch.Tensor]]
    asked: float | None = None
    ended: float | None = None
    gave: Any = None
    changed: bool = False
    """Whether somebody wrote to a tensor that it was given before it had ended."""

    @property
    def under_way(self) -> bool:
        return self.ended is None


@dataclass
class CallLog:
    """The rank's collectives, whose `calls` are noted in order; `look(what, call)` is called as one "begins", is first
    asked for ("asked"), and "ends"."""

    comm: Collectives
    look: Callable[[str, Recorded], None] = lambda what, call: None
    calls: list[Recorded] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.comm, name)
        if name.removesuffix("_async") not in CALLS:
            return found

        def called(*args: Any, **named: Any) -> Any:
            given = [one for one in args if isinstance(one, torch.Tensor)]
            call = Recorded(name, self.comm.transport.now(), [(one, one.clone()) for one in given])
            self.calls.append(call)
            self.look("begins", call)
            result = found(*args, **named)
            if isinstance(result, Handle):
                return Waited(result, self, call)
            return self.ended(call, result)

        return called

    @property
    def under_way(self) -> list[Recorded]:
        return [call for call in self.calls if call.under_way]

    def asked(self, call: Recorded) -> None:
        if call.asked is None:
            call.asked = self.comm.transport.now()
            call.changed = any(not same(now, before) for now, before in call.given)
            self.look("asked", call)

    def ended(self, call: Recorded, result: Any) -> Any:
        if call.under_way:
            call.ended = self.comm.transport.now()
            call.asked, call.gave = call.ended if call.asked is None else call.asked, result
            self.look("ends", call)
        return result


class Waited:
    """A handle that says when it is waited for."""

    def __init__(self, handle: Handle, recorder: CallLog, call: Recorded) -> None:
        self.handle, self.recorder, self.call = handle, recorder, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def wait(self) -> Any:
        self.recorder.asked(self.call)
        return self.recorder.ended(self.call, self.handle.wait())


def same(now: torch.Tensor, before: torch.Tensor) -> bool:
    return torch.allclose(now, before, 0, 0, equal_nan=True)
