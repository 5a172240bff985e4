"""Those who train: each builds its model on one rank and then makes steps. All use AdamW, fused, with torch's
defaults, and reduce while backward runs where they can."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.peers.workload import LEARNING_RATE, Workload
from zerolab.collectives import build
from zerolab.collectives.transport import Transport
from zerolab.offload import Offload
from zerolab.zero import ZeroEngine

SWAP = "ZEROLAB_BENCHMARK_SWAP"
"""The environment's word for the folder of swap files."""

Step = Callable[[torch.Tensor, torch.Tensor], float]
"""A whole training step on one rank's batch; returns that rank's loss."""

Contender = Callable[[Workload, Transport], Step]


def adamw(parameters: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, fused=True)


def on_device(work: Workload, transport: Transport) -> nn.Module:
    """The model where the rank computes."""
    return work.model().to(transport.device)


def zerolab(stage: int, collectives: str, work: Workload, transport: Transport) -> Step:
    if transport.device.type == "cuda" and collectives == "shared":
        # What "auto" stands for there: torch's where NCCL joins the ranks, the ring where they share a GPU.
        collectives = "torch" if transport.queues else "ring"
    return driven(ZeroEngine(on_device(work, transport), build(transport, collectives), stage, optimizer=adamw))


def offloaded(stage: int, optimizer: str, parameters: str, work: Workload, transport: Transport) -> Step:
    offload = Offload(optimizer, parameters, path=swap_folder(), sub_group_numel=1 << 20)
    return driven(
        ZeroEngine(on_device(work, transport), build(transport, "shared"), stage, optimizer=adamw, offload=offload)
    )


def swap_folder() -> str:
    return os.environ.get(SWAP, tempfile.gettempdir())


def driven(engine: ZeroEngine) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """The usual five lines."""

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def ddp(bucket_views: bool, work: Workload, transport: Transport) -> Step:
    model = nn.parallel.DistributedDataParallel(on_device(work, transport), gradient_as_bucket_view=bucket_views)
    return plain(model, adamw(model.parameters()))


def zero_redundancy(work: Workload, transport: Transport) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(on_device(work, transport))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=LEARNING_RATE, fused=True
    )
    return plain(model, optimizer)


def fsdp2(reshard: bool, work: Workload, transport: Transport) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(transport.device.type, (transport.size,))
    model = on_device(work, transport)
    for unit in work.units(model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    return plain(model, adamw(model.parameters()))


def deepspeed(
    stage: int, work: Workload, transport: Transport, optimizer: str = "none", parameters: str = "none"
) -> Step:
    # It looks for the world in the environment even where it is there already.
    os.environ.update(
        RANK=str(transport.rank),
        LOCAL_RANK=str(transport.rank),
        WORLD_SIZE=str(transport.size),
        LOCAL_SIZE=str(transport.size),
    )
    import deepspeed as ds

    backend = "nccl" if transport.device.type == "cuda" else "gloo"
    ds.init_distributed(dist_backend=backend, dist_init_required=False, verbose=False)
    model = on_device(work, transport)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": True,
            **{
                f"offload_{what}": {"device": tier, **({"nvme_path": swap_folder()} if tier == "nvme" else {})}
                for what, tier in (("optimizer", optimizer), ("param", parameters))
                if tier != "none"
            },
        },
        "zero_allow_untested_optimizer": True,
        # Torch's own fused AdamW steps on the host, as ours does.
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }
    engine, *_ = ds.initialize(
        model=model, model_parameters=model.parameters(), optimizer=adamw(model.parameters()), config=config
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        return loss.item()

    return step


def compute(work: Workload, transport: Transport) -> Step:
    """Forward and backward, and nothing else: what no engine can avoid."""
    model = on_device(work, transport)

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = model(x, y)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None
        return loss.item()

    return step


def update(shards: Callable[[int], int], work: Workload, transport: Transport) -> Step:
    """Fused AdamW on one flat tensor: all parameters, or a rank's share of them."""
    numel = sum(parameter.numel() for parameter in work.model().parameters()) // shards(transport.size)
    flat = torch.zeros(numel, requires_grad=True, device=transport.device)
    flat.grad = torch.zeros_like(flat)
    optimizer = adamw([flat])

    def step(*_: torch.Tensor) -> float:
        optimizer.step()
        return 0.0

    return step


def copy(work: Workload, transport: Transport) -> Step:
    """A copy of all parameters from one flat tensor to another: the bandwidth of memory with all ranks at it."""
    numel = sum(parameter.numel() for parameter in work.model().parameters())
    source, target = torch.zeros(2, numel, device=transport.device)

    def step(*_: torch.Tensor) -> float:
        target.copy_(source)
        return 0.0

    return step


STAGES = (0, 1, 2, 3)
OURS: dict[str, Contender] = {f"zerolab {stage}": partial(zerolab, stage, "shared") for stage in STAGES}
RINGS: dict[str, Contender] = {f"zerolab {stage}, ring": partial(zerolab, stage, "ring") for stage in STAGES}
PEERS: dict[str, Contender] = {
    "DDP": partial(ddp, False),
    "DDP, bucket views": partial(ddp, True),
    "ZeroRedundancyOptimizer": zero_redundancy,
    "FSDP2, no reshard": partial(fsdp2, False),
    "FSDP2": partial(fsdp2, True),
    "DeepSpeed 1": partial(deepspeed, 1),
    "DeepSpeed 2": partial(deepspeed, 2),
    "DeepSpeed 3": partial(deepspeed, 3),
}
OFFLOADED: dict[str, Contender] = {
    "zerolab 2, host": partial(offloaded, 2, "host", "device"),
    "zerolab 2, disk": partial(offloaded, 2, "disk", "device"),
    "zerolab 3, host": partial(offloaded, 3, "host", "device"),
    "zerolab 3, all on the host": partial(offloaded, 3, "host", "host"),
    "zerolab 3, disk": partial(offloaded, 3, "disk", "device"),
    "zerolab 3, all on the disk": partial(offloaded, 3, "disk", "disk"),
    "DeepSpeed 2, host": partial(deepspeed, 2, optimizer="cpu"),
    "DeepSpeed 3, host": partial(deepspeed, 3, optimizer="cpu"),
    "DeepSpeed 3, all on the host": partial(deepspeed, 3, optimizer="cpu", parameters="cpu"),
    "DeepSpeed 3, disk": partial(deepspeed, 3, optimizer="nvme"),
    "DeepSpeed 3, all on the disk": partial(deepspeed, 3, optimizer="nvme", parameters="nvme"),
}
"""States off the device; of the optimizer alone, or all of them."""
PARTS: dict[str, Contender] = {
    "compute": compute,
    "update, whole": partial(update, lambda ranks: 1),
    "update, share": partial(update, lambda ranks: ranks),
    "copy": copy,
}
CONTENDERS = {**OURS, **RINGS, **PEERS, **OFFLOADED, **PARTS}

RIVALS = {
    "zerolab 0": ["DDP", "DDP, bucket views"],
    "zerolab 1": ["DDP", "ZeroRedundancyOptimizer", "DeepSpeed 1"],
    "zerolab 2": ["DDP", "FSDP2, no reshard", "DeepSpeed 2"],
    "zerolab 3": ["DDP", "FSDP2", "DeepSpeed 3"],
}
"""Whose step ours is compared with: DDP, and those who shard the same."""


def is_installed(name: str) -> bool:
    """DeepSpeed is in an extra, and it compiles its access to disks against libaio, which is the system's."""
    if not name.startswith("DeepSpeed"):
        return True
    headers = any(Path(root, "libaio.h").exists() for root in ("/usr/include", "/usr/local/include"))
    return importlib.util.find_spec("deepspeed") is not None and (headers or "disk" not in name)
