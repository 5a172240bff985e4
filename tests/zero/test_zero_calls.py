"""What a step costs besides computing, counted: calls of Python and operations of torch, which no busy machine changes
much, and of which each is a microsecond or two on the way to the floor (`benchmarks.peers`)."""

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import zerolab
from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(150)]

BLOCKS = 6
HOME = os.path.dirname(zerolab.__file__)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Operations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def calls_of(step: Callable[[], None]) -> int:
    """Calls of the library's functions in Python."""
    count = 0

    def called(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(HOME)

    sys.setprofile(called)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def operations_of(step: Callable[[], None]) -> int:
    """Operations as torch's dispatcher sees them. (Those of a collective in shared memory are none of them.)"""
    with Operations() as operations:
        step()
    return operations.count


def counted(comm: Collectives, stage: int, overlap_gather: bool = False) -> tuple[int, int]:
    """For each block, what a step adds to that of the model alone: calls of the library's, operations of torch."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
    x = torch.randn(4, 16)
    alone = operations_of(lambda: F.mse_loss(model(x), x).backward())
    model.zero_grad()
    engine = ZeroEngine(model, comm, stage, lr=1e-3, overlap_gather=overlap_gather)

    def step() -> None:
        engine.backward(F.mse_loss(engine(x), x))
        engine.step()

    for _ in range(2):
        step()
    calls = []
    for _ in range(5):
        # How often a rank looks for the others depends on who is ahead; the fewest times are when they are abreast.
        comm.barrier()
        calls.append(calls_of(step))
    return min(calls) // BLOCKS, (operations_of(step) - alone) // BLOCKS


def test_a_step_makes_no_more_calls_and_operations_a_block_than_its_budget() -> None:
    def run(comm: Collectives) -> list[tuple[int, int]]:
        return [*(counted(comm, stage) for stage in range(4)), counted(comm, 2, overlap_gather=True)]

    by_rank = launch(run, ranks=2, timeout=100)
    fewest = [tuple(min(of_rank) for of_rank in zip(*of_stage, strict=True)) for of_stage in zip(*by_rank, strict=True)]
    budget = [(225, 24), (390, 28), (400, 27), (740, 30), (400, 27)]
    for stage, (found, allowed) in enumerate(zip(fewest, budget, strict=True)):
        assert found[0] <= allowed[0], (stage, fewest)
        assert found[1] <= allowed[1], (stage, fewest)
