"""Which device and how many threads each rank gets."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch

from zerolab.collectives.shared.peers import is_possible
from zerolab.errors import InputError
from zerolab.system import has

# What the variables of the environment that say what "auto" shall stand for may say.
COLLECTIVES = ("auto", "ring", "torch", "shared")
DEVICES = ("auto", "cpu", "cuda")


def choose_devices(device: str, ranks: int, world: str = "processes") -> tuple[tuple[str, ...], str]:
    """The device of each rank, and torch's name of the backend that joins them.

    A GPU each if there are enough, over NCCL. Fewer GPUs than ranks are shared in turn, over gloo, since two ranks
    of NCCL cannot share one. No GPU, or ranks that take turns in one process: the CPU. "auto" stands for what the
    variable ZEROLAB_DEVICE of the environment says, if it is set.
    """
    if world != "processes":
        if device == "cuda":
            raise InputError(
                f'device="cuda": ranks of world="{world}" take turns in one process, and a GPU works on after its '
                'rank\'s turn; use device="cpu", or world="processes"'
            )
        return ("cpu",) * ranks, "gloo"
    device = _named("ZEROLAB_DEVICE", DEVICES, os.environ) if device == "auto" else device
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and gpus == 0:
        raise InputError('device="cuda": torch sees no GPU here; use device="cpu" or "auto"')
    if gpus == 0:
        return ("cpu",) * ranks, "gloo"
    devices = tuple(f"cuda:{rank % gpus}" for rank in range(ranks))
    return devices, "cpu:gloo,cuda:nccl" if gpus >= ranks else "gloo"


def check_timed(device: torch.device | str, link: object, trace: bool) -> None:
    """Refuse a simulated link and a trace where ranks have GPUs: both go by when the host begins and ends a call, and a
    GPU runs what it is given later than that."""
    name = "link" if link is not None else "trace" if trace else None
    if name is not None and str(device).startswith("cuda"):
        raise InputError(
            f"{name} is given and the ranks are on {device}, whose work goes on after the host's call has returned; "
            f'leave {name} out (torch.profiler times a GPU), or give device="cpu"'
        )


def device_of_rank(devices: Sequence[str], joined: Mapping[str, str]) -> torch.device:
    """The device of this process, a rank of a world that somebody else has started. Each rank of a machine takes the
    GPU of its number there, in turn if there are fewer.

    Raises InputError where there are several GPUs and nothing says which of the machine's ranks this one is: all would
    take the first.
    """
    if not devices[0].startswith("cuda"):
        return torch.device("cpu")
    gpus, said = torch.cuda.device_count(), joined.get("LOCAL_RANK")
    if said is None and gpus > 1:
        raise InputError(
            f"rank {joined['RANK']} of {joined['WORLD_SIZE']} sees {gpus} GPUs, and LOCAL_RANK is not set, so it "
            "does not know which is its own; set LOCAL_RANK to its number on this machine, as torchrun does"
        )
    return torch.device("cuda", int(said or 0) % gpus)


def choose_collectives(
    collectives: str,
    world: str,
    devices: Sequence[str],
    joined: Mapping[str, str] | None,
    linked: bool = False,
    nccl: bool = False,
) -> str:
    """What "auto" stands for: shared memory for several ranks on the CPU of one machine, torch's collectives for
    several ranks that NCCL joins (`nccl`), else our rings. On a simulated link (`linked`) always our rings: a link
    prices messages, which travel while a rank computes. `joined` is the environment of a world that somebody else has
    started, or None.

    NCCL chooses its algorithm, and with it the order of addition, by the size of a call. All ranks get the same bits,
    but reduce-scatter and all-reduce of one tensor may differ in the last, and with them ZeRO's stages. Who compares
    bits on GPUs asks for "ring".
    """
    if world == "virtual":
        return "virtual"
    if collectives == "auto" and joined is not None and not linked:
        collectives = wanted(joined)
    if collectives != "auto":
        return collectives
    if nccl and not linked and world == "processes" and len(devices) > 1:
        return "torch"
    one_machine = joined is None or joined.get("LOCAL_WORLD_SIZE") == joined["WORLD_SIZE"]
    cpu = all(device == "cpu" for device in devices)
    shared = not linked and world == "processes" and len(devices) > 1 and cpu and one_machine and is_possible()
    return "shared" if shared else "ring"


def wanted(environment: Mapping[str, str]) -> str:
    """What `zerolab launch --collectives` asks of the ranks that it starts. Raises InputError for what there is not."""
    return _named("ZEROLAB_COLLECTIVES", COLLECTIVES, environment)


def _named(variable: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    name = environment.get(variable, "auto")
    if name not in words:
        raise InputError(f"{variable} is {name!r}; set one of {', '.join(words)}, or nothing")
    return name


def threads_per_rank(ranks: int) -> int:
    """Cores that this process may use, shared out among the ranks; at least one each."""
    cores = len(os.sched_getaffinity(0)) if has("affinity") else os.cpu_count() or 1
    return max(1, cores // ranks)
