"""How a process ends at once, and what it takes away with it even then.

A rank that failed, or whose peers did, does not take its interpreter apart: threads may wait for messages that nobody
sends. Nor does a command that is interrupted, wherever it may be. `os._exit` skips all clean-up, so what would stay in
the world outside (a file, ranks of its own) is named here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn
from weakref import WeakSet

farewells: WeakSet[Callable[[], object]] = WeakSet()
"""Called before a process ends at once. They take no time, wait for nobody, and leave memory and descriptors that other
threads may be using as they are. Whoever adds one holds it for as long as it is needed."""


def leave(code: int) -> NoReturn:
    """End this process now."""
    say_farewell()
    os._exit(code)


def say_farewell() -> None:
    """Call all farewells, whatever becomes of one."""
    for farewell in list(farewells):
        with suppress(Exception):
            farewell()
