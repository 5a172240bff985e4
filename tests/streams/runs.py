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
from streams.device import FakeDoor, Site, comm_of_one_rank
from zerolab.zero import ZeroEngine

WIDTH, ROWS, CLASSES = 8, 4, 5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks, of which the last two are left out in odd passes: what was gathered ahead for them comes for nothing."""

    def __init__(self, checkpoints: bool = False, skips: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)
        self.checkpoints, self.skips, self.passes = checkpoints, skips, 0

    def units(self) -> list[nn.Module]:
        return [*self.blocks, self.head]

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        for number, block in enumerate(self.blocks):
            if self.skips and self.passes % 2 and number > 1:
                continue
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(x).square().mean()


@dataclass(frozen=True)
class Case:
    """How the net is trained, and the engine's settings."""

    stage: int
    micro_batches: int = 1
    reduce_each: bool = True
    checkpoints: bool = False
    skips: bool = False
    steps: int = 2
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Seen:
    """What a checker saw of a run: races, sites that were called, and waits of the host in each step."""

    races: list[str]
    sites: Counter[Site]
    waits: list[Counter[str]]
    parameters: dict[str, torch.Tensor]


def run(case: Case, without: Site | None = None) -> Seen:
    """Train on the pretended GPU, as one of two ranks."""
    with pytest.MonkeyPatch.context() as patch, Checker() as checker:
        fake = FakeDoor(checker, without)
        fake.put_in(patch)
        waits, parameters = train(case, checker)
        # What nobody waits for tells the allocator so when it goes.
        gc.collect()
        return Seen(list(checker.races), fake.sites, waits, parameters)


def train(case: Case, checker: Checker) -> tuple[list[Counter[str]], dict[str, Tensor]]:
    torch.manual_seed(0)
    model = Net(case.checkpoints, case.skips).to(GPU)
    engine = ZeroEngine(model, comm_of_one_rank(), case.stage, lr=1e-2, **case.settings)
    waits: list[Counter[str]] = []
    for _ in range(case.steps):
        # The batch is on the device; how it came there is the loop's business.
        inputs = torch.rand(case.micro_batches, ROWS, WIDTH).to(GPU)
        checker.waits.clear()
        for at, rows in enumerate(inputs, start=1):
            loss = engine(rows)
            engine.backward(loss / case.micro_batches, reduce=case.reduce_each or at == case.micro_batches)
        engine.step()
        waits.append(Counter(checker.waits))
    parameters = engine.consolidate()
    engine.close()
    return waits, parameters
