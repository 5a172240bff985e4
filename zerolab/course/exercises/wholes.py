"""Counts what is whole and alive at once, in lessons 04 and 05: whole gradients, whole layers.

A limit on bytes would also judge what nobody asks about: who clones a shard, or keeps a row of activations. So here
only what is large counts, by how often a whole one would fit into it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Tensor = torch.Tensor


class Wholes(TorchDispatchMode):
    """Counts tensors of about `whole` bytes that torch makes in its time: `now`, and `most` at once. One of half as
    many bytes counts as one, one of twice as many as two. What is `given` does not count, nor does anything if `whole`
    is 0."""

    def __init__(self, given: Iterable[Tensor], whole: int) -> None:
        super().__init__()
        self.whole, self.most = whole, 0
        self.given = {tensor.untyped_storage()._cdata for tensor in given}
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.whole:
            for tensor in tensors_of(result):
                storage = tensor.untyped_storage()
                if self.count(storage) and storage._cdata not in self.given:
                    self.known[storage._cdata] = weakref.ref(storage)
            self.most = max(self.most, self.now())
        return result

    def count(self, storage: torch.UntypedStorage | None) -> int:
        """How many whole ones a storage is."""
        return 0 if storage is None else (2 * storage.nbytes() + self.whole) // (2 * self.whole)

    def now(self) -> int:
        return sum(self.count(known()) for known in self.known.values())


def tensors_of(result: Any) -> Iterator[Tensor]:
    """The tensors in what an operation returned; meta tensors hold no memory."""
    if isinstance(result, Tensor):
        if result.device.type != "meta":
            yield result
    elif isinstance(result, list | tuple):
        for part in result:
            yield from tensors_of(part)
