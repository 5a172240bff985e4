"""Who follows a gradient at stage 2, or a forward at stage 3, opens so many files of the library and no more."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import zerolab
from zerolab.apps.cli import main
from zerolab.apps.cli import train as train_command
from zerolab.apps.dialects.keys import run_of
from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.train import parts
from zerolab.zero import ZeroEngine

ROOT = Path(zerolab.__file__).parent
MOST = {"a gradient of stage 2": 17, "a forward of stage 3": 14}
APART = ("collectives/transport.py", "collectives/observe.py", "ranks/")
"""Where two ranks meet the transport does much else."""


def entered(run: Callable[[], Any], since: str = "", until: str = "") -> list[str]:
    """Every file of the library of which `run` enters a function, from the call of `since` to the last of `until`."""
    found: list[str] = []
    kept = [0, not since]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(ROOT):
            return
        kept[1] = kept[1] or frame.f_code.co_name == since
        if kept[1]:
            found.append(str(path.relative_to(ROOT)))
        if frame.f_code.co_name == until:
            kept[0] = len(found)

    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(None)
    return [file for file in dict.fromkeys(found[: kept[0]] if until else found) if not file.startswith(APART)]


def warm(model: nn.Module, comm: Collectives, stage: int) -> ZeroEngine:
    engine = ZeroEngine(model, comm, stage, lr=1e-3, overlap=False)
    for _ in range(2):
        engine.backward(engine(torch.ones(2, 16)).mean())
        engine.step()
    return engine


def files(comm: Collectives) -> dict[str, list[str]]:
    engine = warm(nn.Linear(16, 16), comm, 2)
    loss = engine(torch.ones(2, 16)).mean()

    def step() -> None:
        engine.backward(loss)
        engine.step()

    gradient = entered(step, since="hook", until="write_back")
    engine = warm(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)), comm, 3)
    return {"a gradient of stage 2": gradient, "a forward of stage 3": entered(lambda: engine(torch.ones(2, 16)))}


def test_the_way_of_a_gradient_and_of_a_forward_leads_through_few_files() -> None:
    for found in launch(files, ranks=2, world="lockstep", collectives="ring"):
        for way, most in MOST.items():
            assert 5 < len(found[way]) <= most, (way, len(found[way]), found[way])


def callers(at: FrameType | None) -> list[str]:
    """The files of the library whose calls led here."""
    found = []
    while at is not None:
        path = Path(at.f_code.co_filename)
        if path.is_relative_to(ROOT):
            found.append(str(path.relative_to(ROOT)))
        at = at.f_back
    return found


def test_a_flag_comes_to_the_engine_through_few_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[str] = []

    class Seen(ZeroEngine):
        def __init__(self, model: nn.Module, comm: Collectives, stage: int, **settings: Any) -> None:
            found.extend(callers(sys._getframe()))
            assert stage == 3
            super().__init__(model, comm, stage, **settings)

    def described(settings: Any) -> Any:
        found.extend(callers(sys._getframe()))
        return run_of(settings)

    monkeypatch.setattr(parts, "ZeroEngine", Seen)
    monkeypatch.setattr(train_command, "run_of", described)
    flags = ["--zero-stage=3", "--world=lockstep", "--model-size=nano", "--seq-len=16", "--max-steps=1"]
    assert main(["train", *flags]) == 0, capsys.readouterr().err
    # Ranks have threads of their own, which train/run.py starts.
    through = {"run/spec.py", "train/run.py", "zero/zero_engine.py", *found}
    through = {file for file in through if not file.startswith(APART)}
    assert 5 < len(through) <= 8, sorted(through)
