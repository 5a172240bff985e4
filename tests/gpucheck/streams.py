"""A GPU on which one stream is late, and how often the host waits for a GPU."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from zerolab.gpu import door

STREAMS = ("computing", "collectives")
CYCLES = 2_000_000
"""How long a stream is late each time, in cycles of the GPU's clock: about a millisecond."""


@contextmanager
def late(which: str, sleep: Callable[[int], None] | None = None) -> Iterator[None]:
    """Whenever the library goes to another stream, let that one sleep ("collectives"), or the one that it comes from
    ("computing"). What somebody reads without waiting for it is then not there yet, and memory that was given back too
    early has been written anew."""
    sleep = sleep or torch.cuda._sleep
    on = door.on

    @contextmanager
    def slowly(stream: Any) -> Iterator[None]:
        if which == "computing":
            sleep(CYCLES)
        with on(stream):
            if which == "collectives":
                sleep(CYCLES)
            yield

    with patch.object(door, "on", slowly):
        yield


SYNCHRONIZES = "synchronizing CUDA operation"
"""What torch's warning says (`torch.cuda.set_sync_debug_mode`)."""


@contextmanager
def host_waits(mode: Callable[[str], None] | None = None) -> Iterator[Counter[str]]:
    """Count how often the host waits for the GPU, by place: what torch warns of, and our own waits for an event or the
    device, which it does not see."""
    mode = mode or torch.cuda.set_sync_debug_mode
    waits: Counter[str] = Counter()

    def counted(name: str) -> Any:
        own = getattr(door, name)

        def wait(what: Any) -> None:
            # An event that has happened, such as the copy of the loss before, is not waited for.
            waits[f"door.{name}"] += name == "drain" or not door.happened(what)
            own(what)

        return patch.object(door, name, wait)

    with warnings.catch_warnings(record=True) as said, counted("finish"), counted("drain"):
        warnings.simplefilter("always")
        mode("warn")
        try:
            yield waits
        finally:
            mode("default")
            for warning in said:
                if SYNCHRONIZES in str(warning.message):
                    waits[f"{Path(warning.filename).name}:{warning.lineno}"] += 1
