"""Who follows a gradient at stage 2, from backward's hook to the wire and into the step, opens few files."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import zerolab
from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

ROOT = Path(zerolab.__file__).parent
DESIGN = ROOT.parent / "docs" / "design.md"
MOST = 6
TRANSPORT = ("collectives/transport.py", "collectives/meter.py", "collectives/link.py", "ranks/")


def ours(frame: FrameType | None) -> Iterator[tuple[str, str]]:
    """(file, function) of the library's frames, from this one outward."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT):
            yield str(path.relative_to(ROOT)), frame.f_code.co_name
        frame = frame.f_back


def files_of_a_step(comm: Collectives, stage: int) -> tuple[list[str], list[str]]:
    """The files that hand the gradients of one bucket on, in the order of the way; and those that they ask besides."""
    model = nn.Linear(16, 16)
    engine = ZeroEngine(model, comm, stage, lr=1e-3, overlap=False)
    loss = engine(torch.ones(2, 16)).mean()
    way: list[str] = []
    run: list[str] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not (stack := list(ours(frame))):
            return
        files, names = zip(*stack, strict=True)
        if names[0] == "exchange" and "hook" in names:
            # All that stands between the hook and the wire.
            way.extend(reversed(files[: names.index("hook") + 1]))
        elif names[0] in ("collect", "for_step"):
            way.extend(reversed(files[:2]))
        if {"hook", "collect", "for_step"} & set(names):
            run.append(files[0])

    sys.setprofile(watch)
    try:
        engine.backward(loss)
        engine.step()
    finally:
        sys.setprofile(None)
    passed = [file for file in dict.fromkeys(way) if not file.startswith(TRANSPORT)]
    # Where two ranks meet, the transport does much else.
    asked = [file for file in dict.fromkeys(run) if not file.startswith(TRANSPORT)]
    return passed, [file for file in asked if file not in passed]


def told() -> tuple[list[str], list[str]]:
    """The same as docs/design.md tells it."""
    (section,) = re.findall(r"^### Following stage 2's reduce-scatter\n(.*?)^#", DESIGN.read_text(), re.M | re.S)
    steps, besides = section.split("\nBesides")
    return re.findall(r"^\d+\. `([\w/]+\.py)`", steps, re.M), re.findall(r"`([\w/]+\.py)`", besides)


def test_a_gradient_of_stage_2_passes_the_files_that_the_design_names_and_no_more() -> None:
    by_rank = launch(files_of_a_step, 2, ranks=2, world="lockstep", collectives="ring")
    way, besides = by_rank[0]
    assert len(way) <= MOST
    assert (way, sorted(besides)) == (told()[0], sorted(told()[1])) and by_rank[0] == by_rank[1]
