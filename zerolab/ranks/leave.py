"""How a rank ends at once, and what it takes away with it even then.

A rank that failed, or whose peers did, does not take its interpreter apart: threads may wait for messages that nobody
sends. `os._exit` skips all clean-up, so what would stay in the world outside (a file) is named here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn
from weakref import WeakSet

farewells: WeakSet[Callable[[], object]] = WeakSet()
"""Called before a rank ends at once. They take no time, wait for nobody, and leave memory and descriptors as they are:
other threads may be using them. Whoever adds one holds it for as long as it is needed."""


def leave(code: int) -> NoReturn:
    """End this process now."""
    for farewell in list(farewells):
        with suppress(Exception):
            farewell()
    os._exit(code)
