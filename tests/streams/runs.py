"""Training runs under the checker."""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from streams.clocks import GPU, Checker
from streams.device import SIZE, FakeDoor, Site, comm_of_one_rank
from zerolab.checkpoint.shards import Shards
from zerolab.gpu import door
from zerolab.precision.fp8 import fp8_linears
from zerolab.run import RunSpec
from zerolab.train.loop import TrainingLoop
from zerolab.train.progress import Steps, Stop
from zerolab.train.trace import Recorder
from zerolab.zero import ZeroEngine

WIDTH, ROWS, CLASSES = 8, 4, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + F.gelu(self.up(normed)) * self.gate(normed)


class Net(nn.Module):
    """Blocks and a head. With `skips` an odd pass leaves out the last of both: what was gathered ahead comes for
    nothing. `reads` names a parameter that is read before a module of its unit runs: one of a unit that never runs
    ("a list"), or of one that runs at the end ("the head")."""

    def __init__(self, checkpoints: bool = False, skips: bool = False, reads: str = "") -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.scales = nn.ParameterList([torch.ones(WIDTH)] if reads == "a list" else [])
        self.checkpoints, self.skips, self.reads, self.passes = checkpoints, skips, reads, 0

    def units(self) -> list[nn.Module]:
        return [*self.blocks, *([self.scales] if len(self.scales) else []), self.head]

    def forward(self, x: Tensor, targets: Tensor | float = 0.0) -> Tensor:
        self.passes += 1
        if self.reads == "a list":
            x = x * self.scales[0]
        elif self.reads == "the head":
            x = x + self.head.bias.sum()
        for number, block in enumerate(self.blocks):
            if self.skips and self.passes % 2 and number == 2:
                continue
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        if self.skips and self.passes % 2:
            return (x - 1).square().mean()
        return (self.head(x) - targets).square().mean()


@dataclass(frozen=True)
class Case:
    """How the net is trained, by the engine alone, the loop of `zerolab train` or not at all ("hand"), and the engine's
    settings. `reads`: see `Net`. `fails`: the first backward, near its end; it is forgotten. `looks`: a checkpoint
    reads the shards after each step. `replicate`: two groups hold the same shards."""

    stage: int
    micro_batches: int = 1
    reduce_each: bool = True
    checkpoints: bool = False
    skips: bool = False
    ring: bool = False
    fails: bool = False
    looks: bool = False
    replicate: bool = False
    reads: str = ""
    by: str = "engine"
    steps: int = 2
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """What a checker saw of a run: races, sites that were called, waits of the host in each step, page-locked memory
    that was not copied in training, and NCCL's calls on each stream; and what the run ended with, parameters or
    losses."""

    races: list[str]
    sites: Counter[Site]
    waits: list[Counter[str]]
    ended: dict[str, torch.Tensor]
    idle_pages: list[str]
    calls: Counter[tuple[str, str]]


Ended = tuple[list[Counter[str]], dict[str, Tensor], list[str]]
"""Waits in each step, what a run ended with, and idle pages."""


def run(case: Case, without: Site | None = None) -> Seen:
    """Train on the pretended GPU, as one of two ranks."""
    with pytest.MonkeyPatch.context() as patch, Checker() as checker:
        fake = FakeDoor(checker, without)
        fake.put_in(patch)
        torch.manual_seed(0)
        waits, ended, idle = {"engine": train, "loop": loop, "hand": by_hand}[case.by](case, fake)
        # What nobody waits for tells the allocator so when it goes.
        gc.collect()
        return Seen(list(checker.races), fake.sites, waits, ended, idle, fake.calls)


def on_gpu(model: nn.Module, case: Case) -> nn.Module:
    if case.settings.get("precision") == "fp8":
        # Layers make their buffers beside their weights, whose device is that of the CPU.
        fp8_linears(model)
    return model.to(GPU)


def make_engine(case: Case, fake: FakeDoor) -> ZeroEngine:
    model = on_gpu(Net(case.checkpoints, case.skips, case.reads), case)
    comm = comm_of_one_rank(fake, case.ring)
    replicate = comm_of_one_rank(fake, case.ring) if case.replicate else None
    return ZeroEngine(model, comm, case.stage, lr=1e-2, replicate=replicate, **case.settings)


def train(case: Case, fake: FakeDoor) -> Ended:
    engine = make_engine(case, fake)
    waits: list[Counter[str]] = []
    looked: dict[str, Tensor] = {}
    fake.begin_training()
    if case.fails:
        fail_once(engine)
    for _ in range(case.steps):
        # The batch is on the device; how it came there is the loop's business.
        inputs = torch.rand(case.micro_batches, ROWS, WIDTH).to(GPU)
        fake.checker.begin_step()
        for at, rows in enumerate(inputs, start=1):
            loss = engine(rows)
            engine.backward(loss / case.micro_batches, reduce=case.reduce_each or at == case.micro_batches)
        engine.step()
        waits.append(Counter(fake.checker.waits))
        if case.looks:
            looked = {name: part.clone() for name, part in Shards(engine, begun=True).model_parts()}
    idle = fake.idle_pages()
    parameters = engine.consolidate()
    engine.close()
    return waits, {**parameters, **looked}, idle


def fail_once(engine: ZeroEngine) -> None:
    def fail(_: Tensor) -> None:
        raise ArithmeticError

    hook = next(engine.model.parameters()).register_hook(fail)
    with pytest.raises(ArithmeticError):
        engine.backward(engine(torch.ones(ROWS, WIDTH).to(GPU)))
    hook.remove()
    engine.zero_grad()


def loop(case: Case, fake: FakeDoor) -> Ended:
    """By the loop of `zerolab train`, which feeds the device and reads losses."""
    engine = make_engine(case, fake)
    config = RunSpec(batch_size=2 * SIZE, grad_accum_steps=case.micro_batches, max_steps=case.steps)
    recorder = Recorder(engine.comm, engine, 0)
    steps = TrainingLoop(engine.comm, engine, Rows(case), config, Steps(None), Stop(), recorder)  # type: ignore[arg-type]
    waits: list[Counter[str]] = []
    for step in range(case.steps):
        fake.checker.begin_step()
        steps.step(step)
        waits.append(Counter(fake.checker.waits))
    steps.settle()
    return waits, {"loss": torch.tensor(steps.losses)}, fake.idle_pages()


def by_hand(case: Case, fake: FakeDoor) -> Ended:
    """Calls that somebody forgets, waits for on a stream of his own, and ends with a barrier."""
    comm = comm_of_one_rank(fake, case.ring)
    comm.all_reduce_async(torch.ones(8, device=GPU))
    gc.collect()
    comm.all_reduce(torch.ones(8, device=GPU)).mul_(2)
    handle = comm.all_reduce_async(torch.ones(8, device=GPU))
    with door.on(door.stream(GPU)):
        copied = door.locked(8, torch.float32).copy_(handle.wait(), non_blocking=True)
    del handle
    comm.barrier()
    result = {"read": torch.tensor(copied.tolist())}
    comm.close()
    return [], result, fake.idle_pages()


@dataclass
class Rows:
    """Micro-batches as the loop asks for them, on the host."""

    case: Case

    def step(self, step: int) -> list[tuple[Tensor, Tensor]]:
        return [(torch.rand(ROWS, WIDTH), torch.rand(ROWS, CLASSES)) for _ in range(self.case.micro_batches)]
