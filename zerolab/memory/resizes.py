"""Hears of every storage that changes its size.

`storage.resize_` empties and fills a storage without an operation of torch's: no dispatch mode sees it. So the method
itself tells, as long as somebody listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

Listener = Callable[[torch.UntypedStorage], None]

# Of several trackers in several threads each hears all; it knows which storages are its own.
_listeners: list[Listener] = []
_changing = threading.Lock()


def listen(listener: Listener) -> None:
    """Call `listener(storage)` after each change, in the thread that made it, until `ignore(listener)`."""
    with _changing:
        _listeners.append(listener)
        # Every kind of storage inherits the method from here, so one place is enough.
        torch.UntypedStorage.resize_ = _resize_and_tell  # type: ignore[assignment, method-assign]


def ignore(listener: Listener) -> None:
    """Undo one `listen`."""
    with _changing:
        _listeners.remove(listener)
        if not _listeners and vars(torch.UntypedStorage).get("resize_") is _resize_and_tell:
            del torch.UntypedStorage.resize_


def _resize_and_tell(storage: torch.UntypedStorage, *size: Any, **named: Any) -> Any:
    result = super(torch.UntypedStorage, storage).resize_(*size, **named)
    for listener in tuple(_listeners):
        listener(storage)
    return result
