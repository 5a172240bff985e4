"""A file of a checkpoint has the same bytes however they come to the disk, and a save waits for no removal."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Run, Way

from zerolab.checkpoint import Checkpoints, tensors
from zerolab.checkpoint.tensors import AT_ONCE, FileReader, FileWriter
from zerolab.collectives import LocalCollectives

VALUES = {
    "scalar": torch.tensor(3.5),
    "long": torch.arange(AT_ONCE // 4 + 12_345, dtype=torch.float32),
    "empty": torch.empty(0, 3),
    "bytes": torch.arange(70_001).to(torch.uint8),
    "flags": torch.arange(131_073) % 3 == 0,
    "half": torch.linspace(-2, 2, 99_999).to(torch.bfloat16),
    "eighth": torch.linspace(-2, 2, 77).to(torch.float8_e4m3fn),
}


def write(path: Path, later: bool = False) -> FileWriter:
    """The last tensor first, each in two parts, the second ones after all first ones."""
    shapes = {name: (value.dtype, list(value.shape)) for name, value in VALUES.items()}
    writer = FileWriter(path, shapes, {"save": "0a0b0c0d"})
    take = writer.keep if later else writer.append
    for first in (True, False):
        for name, value in reversed(VALUES.items()):
            cut = value.numel() // 3
            take(name, value.view(-1)[:cut] if first else value.view(-1)[cut:])
    writer.finish()
    return writer


def short(descriptor: int, data: Any, at: int) -> int:
    """A write that stops in the middle."""
    return os.pwritev(descriptor, [data[: len(data) // 2 + 1]], at)


@pytest.mark.parametrize("way", ["at once", "later", "short"])
def test_a_file_has_the_same_bytes_however_it_is_written(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tensors, "has", lambda thing: False)
        write(tmp_path / "plain")
    if way == "short":
        monkeypatch.setattr(os, "pwrite", short)
    writer = write(tmp_path / "other", later=way == "later")
    monkeypatch.undo()
    expected = (tmp_path / "plain").read_bytes()
    assert writer.nbytes == len(expected)
    assert (tmp_path / "other").read_bytes() == expected
    reader = FileReader(tmp_path / "other")
    for name, value in VALUES.items():
        assert torch.equal(reader.read(name).view(torch.uint8), value.view(-1).view(torch.uint8)), name


@pytest.mark.parametrize("later", [True, False])
def test_a_file_has_all_its_bytes_before_it_is_synced(
    later: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def note(name: str, call: Any) -> Any:
        def noted(*arguments: Any) -> Any:
            calls.append(name)
            return call(*arguments)

        return noted

    for name in ("pwrite", "fsync"):
        monkeypatch.setattr(os, name, note(name, getattr(os, name)))
    write(tmp_path / "file", later)
    assert calls.count("fsync") == 1 and calls[-1] == "fsync" and "pwrite" in calls


@pytest.mark.parametrize("wait", [True, False])
def test_a_save_waits_for_no_removal_and_the_next_one_does(
    wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving = sys.modules["zerolab.checkpoint.save"]
    go_on, discard = threading.Event(), saving.discard

    def held_back(path: Path) -> None:
        assert go_on.wait(60)
        discard(path)

    def names() -> list[str]:
        return sorted(path.name.split("-0000")[0] for path in tmp_path.iterdir())

    run = Run(LocalCollectives(), Way(3))
    run.train(0, 1)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(run.engine, 1)
        monkeypatch.setattr(saving, "discard", held_back)
        checkpoints.save(run.engine, 2, wait=wait)
        while not wait and find(tmp_path, ".removed") is None:
            pass
        assert names() == [".lock", ".removed-step", "latest", "step"], "the one before is out of sight, not gone"
        threading.Timer(0.1, go_on.set).start()
        checkpoints.wait()
        assert names() == [".lock", "latest", "step"]


def find(path: Path, start: str) -> Path | None:
    return next((other for other in path.iterdir() if other.name.startswith(start)), None)
