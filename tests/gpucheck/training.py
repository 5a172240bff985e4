"""Rank functions: one small model and its batches, trained by our engine and by torch's own DDP and FSDP2."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from gpucheck.streams import late
from zerolab.collectives import Collectives, build
from zerolab.collectives.transport import Transport
from zerolab.memory import Tracker, predict
from zerolab.models import Llama, LlamaConfig
from zerolab.run import RunSpec
from zerolab.train.loop import TrainingLoop
from zerolab.train.progress import Steps, Stop
from zerolab.train.trace import Recorder
from zerolab.zero import ZeroEngine
from zerolab.zero.zero_engine import engine_labels

Parameters = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """Of the model and its batches; `rows` sequences a step, over all ranks."""

    width: int = 256
    layers: int = 4
    length: int = 64
    rows: int = 16
    steps: int = 6

    def model(self, checkpoint: bool = False) -> nn.Module:
        torch.manual_seed(0)
        heads = max(2, self.width // 64)
        shape = LlamaConfig(
            256, max_seq_len=self.length, dim=self.width, layers=self.layers, heads=heads, kv_heads=heads,
            ffn_dim=2 * self.width,
        )  # fmt: skip
        return Llama(shape, checkpoint=checkpoint)

    def batches(self, rank: int, ranks: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What a rank sees, step by step; all ranks together see the same rows, however many they are."""
        generator = torch.Generator().manual_seed(1)
        for _ in range(self.steps):
            rows = torch.randint(256, (self.rows, self.length + 1), generator=generator)
            own = rows.chunk(ranks)[rank].to(device)
            yield own[:, :-1], own[:, 1:]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """Its steps are as far apart as the gradients are. AdamW's may differ as much as they are long where a gradient is
    next to nothing, and so do not tell rounding from a mistake."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own: on the CPU `cpu()` would be the tensor itself, which training goes on to change."""
    return tensor.detach().to("cpu", copy=True)


def first_values(size: Size) -> Parameters:
    return {name: on_host(value) for name, value in size.model().named_parameters()}


def ours(
    transport: Transport, size: Size, impl: str, stages: tuple[int, ...], slow: str | None = None, exact: bool = False,
    by: Callable[..., torch.optim.Optimizer] = sgd, micro_batches: int = 1, checkpoint: bool = False, **settings: Any,
) -> list[Parameters]:  # fmt: skip
    """The parameters that each of these stages ends with. `slow` names the stream that is late; `exact` has torch
    take kernels that give the same bits each time; `settings` are the engine's."""
    torch.use_deterministic_algorithms(exact)
    comm = build(transport, impl)
    found = []
    for stage in stages:
        with late(slow) if slow else nullcontext():
            engine = ZeroEngine(size.model(checkpoint).to(comm.device), comm, stage, optimizer=by, **settings)
            for inputs, targets in size.batches(comm.rank, comm.size, comm.device):
                for part in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
                    engine.backward(engine(*part) / micro_batches)
                engine.step()
            engine.synchronize()
        found.append({name: on_host(value) for name, value in engine.consolidate().items()})
        engine.close()
    comm.close()
    return found


def kind(comm: Collectives, size: Size) -> str:
    """Which collectives a rank was given."""
    return type(comm).__name__


def ddp(model: nn.Module, device: torch.device) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)


def fsdp2(model: nn.Module, device: torch.device, ranks: int, reshard: bool, bf16: bool) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (ranks,))
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if bf16 else {}
    # The embedding and the head share a weight, which FSDP2 wants with the root.
    for block in model.get_submodule("blocks").children():
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, **policy)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard, **policy)


PEERS = ("DDP", "FSDP2, no reshard", "FSDP2", "FSDP2, bf16")


def wrapped(name: str, model: nn.Module, device: torch.device, ranks: int) -> nn.Module:
    """The model as torch's own engine of this name has it."""
    model = model.to(device)
    if name == "DDP":
        return ddp(model, device)
    return fsdp2(model, device, ranks, name != "FSDP2, no reshard", name == "FSDP2, bf16")


def peers(transport: Transport, size: Size, names: tuple[str, ...]) -> dict[str, Parameters]:
    """The parameters that each of torch's own engines ends with."""
    return {name: peer(transport, size, name) for name in names}


def peer(transport: Transport, size: Size, name: str) -> Parameters:
    torch.use_deterministic_algorithms(False)
    device = transport.device
    model = wrapped(name, size.model(), device, transport.size)
    optimizer = sgd(model.parameters())
    for inputs, targets in size.batches(transport.rank, transport.size, device):
        model(inputs, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = {}
    for key, value in model.named_parameters():
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[key.removeprefix("module.")] = on_host(whole)
    return found


# How often the host waits for the GPU.


@dataclass(frozen=True)
class Given:
    """A rank's batches as the loop of `zerolab train` asks for them: on the host."""

    size: Size
    rank: int
    ranks: int

    def step(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        generator = torch.Generator().manual_seed(step)
        rows = torch.randint(256, (self.size.rows, self.size.length + 1), generator=generator).chunk(self.ranks)
        return [(part[:, :-1], part[:, 1:]) for part in rows[self.rank].chunk(2)]


def waits(
    transport: Transport, size: Size, impl: str, settings: tuple[dict[str, Any], ...], counts: Callable[[], Any]
) -> list[Counter[str]]:
    """For each of these settings of an engine, the host's waits in one step of the loop of `zerolab train`, counted by
    `counts` after two others."""
    comm = build(transport, impl)
    found = []
    for given in settings:
        engine = ZeroEngine(size.model().to(comm.device), comm, **{"lr": 1e-3, **given})
        batches = Given(size, comm.rank, comm.size)
        config = RunSpec(batch_size=size.rows, grad_accum_steps=2, ranks=comm.size, max_steps=3)
        recorder = Recorder(comm, engine, 0)
        loop = TrainingLoop(comm, engine, batches, config, Steps(None), Stop(), recorder)  # type: ignore[arg-type]
        loop.step(0)
        loop.step(1)
        with counts() as seen:
            loop.step(2)
        found.append(seen)
        loop.settle()
        engine.close()
    comm.close()
    return found


# Memory, which only a GPU's allocator tells.


def held(step: Callable[[], None], before: int) -> dict[str, int]:
    """Bytes that torch's allocator has beyond `before`: between steps, and at the peak of one."""
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return {"kept": kept, "peak": torch.cuda.max_memory_allocated() - before}


def empty() -> int:
    """Bytes that the allocator has when all is gone that can go."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def our_memory(transport: Transport, size: Size, impl: str, stages: tuple[int, ...]) -> list[dict[str, int]]:
    """By stage: what the allocator has, what the layout says is kept on the device, and the peak of our ledger."""
    comm = build(transport, impl)
    found = []
    # The first is forgotten: with it come the workspaces of libraries, which stay.
    for stage in (stages[0], *stages):
        before = empty()
        engine = ZeroEngine(size.model().to(comm.device), comm, stage, optimizer=adamw)
        inputs, targets = next(size.batches(comm.rank, comm.size, comm.device))
        of_stage = held(partial(step_of, engine, inputs, targets), before)
        with Tracker(engine_labels(engine)) as tracker:
            step_of(engine, inputs, targets)
            engine.synchronize()
        books = predict(engine.plans, engine.stage, engine.state_size)
        of_stage["ledger"] = sum(tracker.peak.values())
        of_stage["predicted"] = sum(by_rank[comm.rank] for by_rank in books.values())
        of_stage["buffers"] = sum(buffer.nbytes for buffer in engine.model.buffers())
        found.append(of_stage)
        engine.close()
        del engine, tracker, inputs, targets
    comm.close()
    return found[1:]


def step_of(engine: ZeroEngine, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    engine.backward(engine(inputs, targets))
    engine.step()


def peers_memory(transport: Transport, size: Size, names: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """The same of torch's own engines."""
    return {name: peer_memory(transport, size, name) for name in names}


def peer_memory(transport: Transport, size: Size, name: str) -> dict[str, int]:
    found = {}
    for _ in range(2):
        before = empty()
        model = wrapped(name, size.model(), transport.device, transport.size)
        optimizer = adamw(model.parameters())
        inputs, targets = next(size.batches(transport.rank, transport.size, transport.device))

        found = held(partial(peer_step, model, optimizer, inputs, targets), before)
        del model, optimizer, inputs, targets
    return found


def peer_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    model(inputs, targets).backward()
    optimizer.step()
    optimizer.zero_grad()
