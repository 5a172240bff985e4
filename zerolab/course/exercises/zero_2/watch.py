"""What lesson 04's exercises look at while backward runs: reductions that have begun, and gradients that are whole."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from zerolab.collectives import Collectives, Handle
from zerolab.course.judge.case import Observation
from zerolab.course.judge.claims import most

Tensor = torch.Tensor


class Reductions:
    """The rank's collectives, with a count of the reductions that have begun, and weak references to what each
    reduce_scatter gave."""

    def __init__(self, comm: Collectives) -> None:
        self.comm = comm
        self.begun = 0
        self.known: list[weakref.ref[Tensor]] = []

    def __getattr__(self, name: str) -> Any:
        # Whoever reduces in another way is told of that elsewhere.
        self.begun += name in ("all_reduce", "all_reduce_async")
        return getattr(self.comm, name)

    def reduce_scatter(self, *args: Any, **kwargs: Any) -> Tensor:
        self.begun += 1
        return self.gave(self.comm.reduce_scatter(*args, **kwargs))

    def reduce_scatter_async(self, *args: Any, **kwargs: Any) -> Waited:
        self.begun += 1
        return Waited(self.comm.reduce_scatter_async(*args, **kwargs), self.gave)

    def gave(self, result: Tensor) -> Tensor:
        self.known.append(weakref.ref(result))
        return result


class Waited:
    """A handle that passes on what it gives."""

    def __init__(self, handle: Handle, gave: Callable[[Any], Any]) -> None:
        self.handle, self.gave = handle, gave

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def wait(self) -> Any:
        return self.gave(self.handle.wait())


class Watched:
    """The rank's collectives, with a `look` before and after each call of one."""

    def __init__(self, comm: Collectives, look: Callable[[], None]) -> None:
        self.comm, self.look = comm, look

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.comm, name)
        if not callable(found):
            return found

        def called(*args: Any, **kwargs: Any) -> Any:
            self.look()
            result = found(*args, **kwargs)
            self.look()
            return Waited(result, self.gave) if isinstance(result, Handle) else result

        return called

    def gave(self, result: Any) -> Any:
        self.look()
        return result


# The line of the scoreboard on whole gradients.


most_wholes = most("wholes")


def who_knows(case: Any, seen: Observation) -> str:
    """Where a second whole gradient may come from."""
    if any(record.value["views"] for record in seen.records):
        return "a shard that is a view of something whole keeps all of its memory: clone() the part"
    built = max(record.value.get("built", 0) for record in seen.records)
    if built:
        return f"{built} of them were made before any backward, and stay: a buffer for each parameter is as large as it"
    if most_wholes(case, seen) >= len(list(case.args[0][0].parameters())):
        return "all are there when backward has ended: who knows them, parameter.grad, a list? When could the first go?"
    between = max(record.value["between"] for record in seen.records)
    if between:
        return (
            f"when backward goes on to the next layer, {between} still there: which name, attribute, list or handle "
            "knows a gradient that has been reduced?"
        )
    return "while one is reduced there is a second one: what makes a copy of it, a clone, a cast, a division?"


def views_of(shards: Any, whole: int) -> int:
    """How many shards lie in a whole gradient's memory, or in more."""
    parts = shards if whole and isinstance(shards, list) else []
    return sum(isinstance(part, Tensor) and part.untyped_storage().nbytes() >= whole for part in parts)


def storage(tensor: Tensor | None) -> int | None:
    """Where a tensor's bytes lie: a view of it has the same."""
    return None if tensor is None else tensor.untyped_storage().data_ptr()


def still_known(results: Sequence[Callable[[], Tensor | None]], apart_from: set[int | None]) -> list[Any]:
    """Of these results those that lie elsewhere."""
    return [result for result in results if storage(result()) not in apart_from]
