"""What a launch is, what each rank of it gets, what a rank reports at its end, and what the caller gets."""

from __future__ import annotations

import linecache
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zerolab.errors import InputError
from zerolab.system import has

# What the variables of the environment that say what "auto" shall stand for may say.
COLLECTIVES = ("auto", "ring", "torch", "shared")
DEVICES = ("auto", "cpu", "cuda")
MAX_RANKS, MAX_VIRTUAL_RANKS = 128, 65536


def find_cell_sources() -> dict[str, Any]:
    """Code that lives in no file, such as a notebook's cells, so that ranks' tracebacks can quote it."""
    return {name: entry for name, entry in list(linecache.cache.items()) if len(entry) == 4 and entry[1] is None}


@dataclass(frozen=True)
class Job:
    """What ranks of a launch need to know, apart from the function. Times are in seconds."""

    ranks: int
    timeout: float
    collectives: str
    devices: tuple[str, ...]  # by rank: "cpu", "cuda:0"
    backend: str  # torch's name, such as "gloo" or "cpu:gloo,cuda:nccl"
    threads: int
    collective_timeout: float = math.inf
    max_result_bytes: float = math.inf
    link: Any = None
    trace: bool = False
    check: bool = False
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    prints: str = "quiet"
    directory: Path = Path()  # the launch's own, private and temporary
    working_directory: str = ""
    sources: dict[str, Any] = field(default_factory=find_cell_sources)
    start: float = field(default_factory=time.perf_counter)

    @property
    def call_seconds(self) -> float:
        """Seconds that one call may take, as a number that torch takes, too."""
        return min(self.timeout, self.collective_timeout, 1e7)

    def file(self, what: str, rank: int | None = None) -> Path:
        """A file of the launch: "function", "board" or "store"; or a rank's: "printed" or "stderr"."""
        return self.directory / (what if rank is None else f"{what}-{rank}")


RAISED, DIED, LOST = 0, 1, 2
"""What a failed rank did: the last only since it lost another one."""


@dataclass(frozen=True)
class Outcome:
    """How a rank ended. `result` is pickled; `error` is the name of an exception's type, empty when all went well.

    `when` is in seconds of the machine's monotonic clock, the same for all its processes. Of several failures those
    with the least `blame` are reported."""

    result: bytes = b""
    error: str = ""
    message: str = ""
    traceback: str = ""
    when: float = 0.0
    blame: int = RAISED
    events: Any = None


class Results(list[Any]):
    """The ranks' return values, in rank order: a list, with what else is known of the launch.

    `printed`  what each rank printed, a text by rank
    `seconds`  how long the launch took: virtual seconds in lockstep, else real ones
    `trace`    with trace=True: in lockstep a list of `Event`, else each rank's list of `Span`
    """

    def __init__(
        self, job: Job, values: Iterable[Any], printed: list[str], trace: Iterable[Any], seconds: float | None = None
    ) -> None:
        super().__init__(values)
        self.printed = printed
        self.seconds = time.perf_counter() - job.start if seconds is None else seconds
        self.trace = [*trace] if job.trace else None


def is_torchrun() -> bool:
    """Whether this process is a rank that torchrun has started."""
    return all(os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def count_gpus() -> int:
    """GPUs that torch sees here."""
    import torch

    return torch.cuda.device_count()


def choose_devices(device: str, ranks: int, world: str = "processes") -> tuple[tuple[str, ...], str]:
    """The device of each rank, and torch's name of the backend that joins them.

    A GPU each if there are enough, over NCCL; fewer are shared in turn, over gloo, since two ranks of NCCL cannot share
    one. "auto" stands for what the environment's ZEROLAB_DEVICE says, if it is set.
    """
    if world != "processes":
        if device == "cuda":
            raise InputError(
                f'device="cuda": ranks of world="{world}" take turns in one process, and a GPU works on after its '
                'rank\'s turn; use device="cpu", or world="processes"'
            )
        device = "cpu"
    device = read_word("ZEROLAB_DEVICE", DEVICES) if device == "auto" else device
    gpus = count_gpus() if device != "cpu" else 0
    if device == "cuda" and gpus == 0:
        raise InputError('device="cuda": torch sees no GPU here; use device="cpu" or "auto"')
    devices = tuple(f"cuda:{rank % gpus}" if gpus else "cpu" for rank in range(ranks))
    return devices, "cpu:gloo,cuda:nccl" if gpus >= ranks else "gloo"


def check_timed(device: object, link: object, trace: bool) -> None:
    """Refuse a simulated link and a trace on GPUs: both go by when the host begins and ends a call."""
    name = "link" if link is not None else "trace" if trace else None
    if name is not None and str(device).startswith("cuda"):
        raise InputError(
            f"{name} is given and the ranks are on {device}, whose work goes on after the host's call has returned; "
            f'leave {name} out (torch.profiler times a GPU), or give device="cpu"'
        )


def choose_collectives(asked: str, devices: Sequence[str], one_machine: bool, linked: bool, nccl: bool) -> str:
    """What "auto" stands for: torch's collectives for several ranks that NCCL joins, shared memory for several on one
    machine's CPU, else our rings; these on a simulated link, too, which prices messages.

    NCCL chooses its algorithm, and with it the order of addition, by the size of a call: reduce-scatter and all-reduce
    of one tensor may differ in the last bit, and with them ZeRO's stages. To compare bits on GPUs ask for "ring".
    """
    if asked != "auto":
        return asked
    if linked or len(devices) == 1:
        return "ring"
    if nccl:
        return "torch"
    return "shared" if one_machine and {*devices} == {"cpu"} and has("memfd") else "ring"


def read_collectives(asked: str, linked: bool) -> str:
    """The same word, or in place of "auto" what `zerolab launch --collectives` asks of the ranks that it starts."""
    return read_word("ZEROLAB_COLLECTIVES", COLLECTIVES) if asked == "auto" and not linked else asked


def read_word(variable: str, words: Sequence[str]) -> str:
    """The word that a variable of the environment says."""
    name = os.environ.get(variable, "auto")
    if name not in words:
        raise InputError(f"{variable} is {name!r}; set one of {', '.join(words)}, or nothing")
    return name


def threads_per_rank(ranks: int) -> int:
    """Cores that this process may use, shared out among the ranks; at least one each."""
    cores = len(os.sched_getaffinity(0)) if has("affinity") else os.cpu_count() or 1
    return max(1, cores // ranks)
