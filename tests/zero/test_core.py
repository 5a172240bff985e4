"""The core trains by itself: the files of docs/reading.md, copied into an empty package."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READING = ROOT / "docs" / "reading.md"
BESIDE = ("zerolab/errors.py", "zerolab/gpu.py")
"""What every room may import, and nobody counts."""
MOST = 3_360
"""Lines of the core: what it has. It is to have 3,000."""

TRAIN = """
import torch
from torch import nn

from zerolab.collectives.threads import launch_threads
from zerolab.zero.engine import Engine
from zerolab.zero.table import Sharding


def train(comm, stage):
    # Threads share torch's own generator.
    generator = torch.Generator().manual_seed(comm.rank)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    sharding = Sharding(stage=stage, clip_norm=0.5)
    engine = Engine(model, comm, sharding, lambda groups: torch.optim.AdamW(groups, lr=1e-2))
    for step in range(4):
        for micro_batch in range(2):
            engine.backward(engine(torch.randn(8, 16, generator=generator)).square().mean() / 2)
        engine.step()
    for unit in engine.units:
        unit.gather()
    return torch.cat([parameter.detach().reshape(-1).clone() for parameter in model.parameters()])


for ranks in (1, 2, 3):
    ended = [rank for stage in range(4) for rank in launch_threads(ranks, train, stage)]
    assert all(torch.equal(values, ended[0]) for values in ended), ranks
    print(ranks, "ranks: four stages, the same bits")
"""


def core() -> list[str]:
    """The files that docs/reading.md walks through, in its order."""
    return list(dict.fromkeys(re.findall(r"\]\(\.\./(zerolab/[\w/]+\.py)\)", READING.read_text(encoding="utf-8"))))


@pytest.mark.timeout(200)
def test_the_core_trains_alone_with_four_stages_to_the_same_bits(tmp_path: Path) -> None:
    for name in (*core(), *BESIDE):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in list(target.relative_to(tmp_path).parents)[:-1]:
            (tmp_path / folder / "__init__.py").touch()
        shutil.copy(ROOT / name, target)
    run = subprocess.run(
        [sys.executable, "-c", TRAIN], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("the same bits") == 3


def test_the_core_is_small() -> None:
    lines = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in core()}
    assert sum(lines.values()) <= MOST, lines
