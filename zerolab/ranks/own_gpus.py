"""Whether each rank of a world has a GPU of its own, as NCCL wants it.

A rank sees the GPUs that it was given, and these have numbers that begin at 0 for each: where a launcher gives every
process one (`srun --gpus-per-task=1`), all call theirs cuda:0. So ranks tell each other what their GPUs are really
called, by the store where they meet, before they choose who carries their tensors.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

VERDICT = "verdict"


def name_of(device: torch.device) -> str:
    """What tells a GPU from all others; nothing for the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def each_has_its_own(store: dist.Store, rank: int, size: int, gpu: str) -> bool:
    """Whether all ranks have GPUs (`gpu` is this one's name, as `name_of` says it), and no two of them the same. A call
    of all ranks, with a store that is new to it; all hear the same. Rank 0 says on stderr who shares one."""
    store.set(str(rank), gpu)
    if rank == 0:
        # Without a GPU it need not wait for the others.
        gpus = [gpu, *(store.get(str(other)).decode() for other in range(1, size))] if gpu else [""]
        said = trouble(gpus)
        store.set(VERDICT, said)
        if said and gpu:
            sys.stderr.write(f"zerolab: {said}\n")
    return bool(gpu) and not store.get(VERDICT)


def trouble(gpus: list[str]) -> str:
    """Why NCCL cannot join ranks on these GPUs, in a sentence; nothing if it can."""
    first: dict[str, int] = {}
    for rank, gpu in enumerate(gpus):
        before = first.setdefault(gpu, rank)
        if gpu and before == rank:
            continue
        who = f"ranks {before} and {rank} share a GPU" if gpu else f"rank {rank} has no GPU"
        return f"{who}, so NCCL cannot join the ranks and messages go by the host; give each rank a GPU of its own"
    return ""
