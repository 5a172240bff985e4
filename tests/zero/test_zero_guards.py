"""Guards attach from outside: without them every step has the same bits, and the core does not import them."""

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from zero_cases import adamw, digest

from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine
from zerolab.zero.guards import DEFAULT

ZERO = Path(__file__).resolve().parents[2] / "zerolab" / "zero"


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x.float().square().mean()


OPTIONS: list[dict[str, Any]] = [{}, {"precision": "bf16"}, {"overlap_gather": True, "clip_norm": 0.1}]


def after_each_step(comm: Collectives) -> list[list[str]]:
    """For each stage and each of the options: the parameters after each of three steps, with guards and without."""
    found = []
    for stage in range(4):
        for options in OPTIONS:
            for guards in (DEFAULT, ()):
                engine = ZeroEngine(Net(), comm, stage, optimizer=adamw(1e-2), guards=guards, **options)
                generator = torch.Generator().manual_seed(comm.rank)
                ended = []
                for _ in range(3):
                    engine.backward(engine(torch.randn(4, 16, generator=generator)))
                    engine.step()
                    ended.append(digest(engine.consolidate()))
                engine.close()
                found.append(ended)
    return found


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_guards_every_step_has_the_same_bits(ranks: int) -> None:
    for found in launch(after_each_step, ranks=ranks, world="lockstep"):
        assert found[::2] == found[1::2] and len({ended[-1] for ended in found}) > 1


def test_the_core_does_not_import_what_is_attached_to_it() -> None:
    for name in ("engine", "schedule", "reducer", "bucket", "units", "step", "table"):
        tree = ast.parse((ZERO / f"{name}.py").read_text(encoding="utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
        assert not {module for module in modules if module.startswith(("zerolab.zero.guards", "zerolab.zero.tiers"))}, (
            name
        )
