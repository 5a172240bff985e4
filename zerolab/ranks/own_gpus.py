"""Who carries the tensors of a world that somebody else has started: whether each of its ranks has a GPU of its own, as
NCCL wants it.

A rank sees the GPUs that it was given, and these have numbers that begin at 0 for each: where a launcher gives every
process one (`srun --gpus-per-task=1`), all call theirs cuda:0. So ranks tell each other what their GPUs are really
called, by the store where they meet, before they choose. What a rank sees by itself decides nothing: ranks that choose
differently wait for each other for ever.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from zerolab.errors import InputError

VERDICT = "verdict"
NCCL, HOST, REFUSED = "nccl", "host", "refused"
HEARD_SECONDS = 10.0
"""How long rank 0, whose end may be the store's, waits for others to hear a refusal."""


def name_of(device: torch.device) -> str:
    """What tells a GPU from all others; nothing for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def each_has_its_own(store: dist.Store, rank: int, size: int, gpu: str) -> bool:
    """Whether all ranks have GPUs (`gpu` is this one's name, as `name_of` says it), and no two of them the same. A call
    of all ranks, with a store that is new to it; all hear the same. Rank 0 says on stderr who shares one.

    Raises InputError, on all ranks alike, where some have a GPU and others compute on the CPU.
    """
    store.set(str(rank), gpu)
    if rank == 0:
        found, said = verdict([gpu, *(store.get(str(other)).decode() for other in range(1, size))])
        store.set(VERDICT, f"{found} {said}")
        if found == HOST and said:
            sys.stderr.write(f"zerolab: {said}\n")
    found, _, said = store.get(VERDICT).decode().partition(" ")
    if found == REFUSED:
        store.set(f"{rank} heard", "")
        if rank == 0:
            with suppress(RuntimeError):
                store.wait([f"{other} heard" for other in range(size)], timedelta(seconds=HEARD_SECONDS))
        raise InputError(said)
    return found == NCCL


def verdict(gpus: list[str]) -> tuple[str, str]:
    """What carries the tensors of ranks on these GPUs, and why it is not NCCL, in a sentence; the CPU needs none."""
    first: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        first.setdefault(gpu, rank)
    if "" in first and len(first) > 1:
        # The ring could join them, and all would go at the pace of the one on the CPU. Nobody asks for that: a GPU is
        # hidden from a rank by mistake, or broken, and who pays for the others wants to hear it before the run.
        other = next(at for gpu, at in first.items() if gpu)
        return REFUSED, (
            f"rank {first['']} is on the CPU, since it sees no GPU or was told so, and rank {other} is on a GPU; give "
            'each rank a GPU, or have all compute on the CPU (device="cpu", or ZEROLAB_DEVICE=cpu)'
        )
    for rank, gpu in enumerate(gpus):
        if gpu and first[gpu] != rank:
            return HOST, (
                f"ranks {first[gpu]} and {rank} share a GPU, so NCCL cannot join the ranks and messages go by the "
                "host; give each rank a GPU of its own"
            )
    return (NCCL if gpus[0] else HOST), ""
