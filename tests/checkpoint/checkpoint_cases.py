"""A small model with all that a checkpoint must keep, and runs of it that save and go on."""

from __future__ import annotations

import copy
import fcntl
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from zerolab.checkpoint import Checkpoints, Loaded, find_latest
from zerolab.checkpoint.reader import CheckpointReader
from zerolab.checkpoint.tensors import FileWriter
from zerolab.collectives import Collectives
from zerolab.zero import ZeroEngine

STEPS, SAVED = 5, 3


class Net(nn.Module):
    """Tied weights, a frozen layer, dropout, an empty and a 0-dim parameter, a buffer that differs from rank to rank,
    one that is not kept; sizes that no number of ranks divides."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 10)
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Dropout(dropout)) for _ in range(2)]
        )
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.norm = nn.LayerNorm(10)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.head = nn.Linear(10, 13, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("passing", torch.ones(2), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += tokens.sum()
        h = self.embed(tokens)
        for layer in self.layers:
            h = h + layer(h)
        return self.head(self.norm(self.frozen(h)) * self.scale) + self.nothing.sum()


def decay(name: str, parameter: nn.Parameter) -> dict[str, float]:
    return {"weight_decay": 0.1 if parameter.dim() > 1 else 0.0}


def rows(step: int, comm: Collectives) -> torch.Tensor:
    """This rank's part of a step's batch, which is the same for every N."""
    drawn = torch.randint(0, 13, (12, 6), generator=torch.Generator().manual_seed(step))
    return drawn.chunk(comm.size)[comm.rank]


@dataclass(frozen=True)
class Way:
    """How a run is sharded and stored."""

    stage: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    dropout: float = 0.2

    def build(self, comm: Collectives) -> ZeroEngine:
        torch.manual_seed(0)
        model = Net(self.dropout)
        # Each rank draws its own dropout.
        torch.manual_seed(comm.rank + 1)
        # A run has a loss scaler of its own.
        options = {"lr": 1e-2, "groups": decay, "clip_norm": 1.0, **copy.deepcopy(dict(self.options))}
        return ZeroEngine(model, comm, self.stage, **options)


@dataclass
class Run:
    """One rank's run, step by step."""

    comm: Collectives
    way: Way

    def __post_init__(self) -> None:
        self.engine = self.way.build(self.comm)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.engine.optimizer, [2, 4])
        self.losses: list[float] = []

    def train(self, start: int, stop: int) -> None:
        for step in range(start, stop):
            tokens = rows(step, self.comm)
            out = self.engine(tokens)
            loss = nn.functional.cross_entropy(out.flatten(0, 1).float(), tokens.flatten())
            self.engine.backward(loss)
            self.engine.step()
            self.scheduler.step()
            self.losses.append(self.comm.all_reduce(loss.detach().clone(), average=True).item())

    def end(self) -> tuple[list[float], dict[str, torch.Tensor], float]:
        """Losses, parameters and buffers, learning rate."""
        state = self.engine.consolidate() | {"own seen": self.engine.model.seen.clone()}
        return self.losses, state, self.engine.optimizer.param_groups[0]["lr"]


def save_at(comm: Collectives, way: Way, folder: Path, stop: int = SAVED, wait: bool = True) -> Path:
    """Train to `stop` and save."""
    run = Run(comm, way)
    run.train(0, stop)
    with Checkpoints(folder) as checkpoints:
        path = checkpoints.save(run.engine, stop, scheduler=run.scheduler, data={"step": stop}, wait=wait)
        return path if wait else checkpoints.wait()


def load_at(comm: Collectives, way: Way, folder: Path) -> tuple[Run, Loaded]:
    """A new run that has loaded the newest checkpoint of a folder."""
    run = Run(comm, way)
    # What is not loaded would show.
    torch.manual_seed(77)
    with Checkpoints(folder) as checkpoints:
        return run, checkpoints.load(run.engine, scheduler=run.scheduler)


STEPPED, _finish = threading.Event(), FileWriter.finish


def finish_later(writer: FileWriter) -> None:
    """`FileWriter.finish` that is held back until somebody says that steps were done."""
    assert STEPPED.wait(60)
    _finish(writer)


def values_of(path: Path) -> dict[str, torch.Tensor]:
    """All states of all parameters in a checkpoint, whole, as they are stored: {"exp_avg/name": elements}."""
    reader, found = CheckpointReader(path), {}
    manifest = reader.manifest
    for name, saved in manifest.parameters.items():
        parts = reader.plan(name, 0, saved.numel)
        states = ["model"] + [*manifest.states, *(["main"] if manifest.main else [])] * saved.trains
        for state in states if parts else []:
            found[f"{state}/{name}"] = torch.cat([reader.codes(state, name, part) for part in parts])
            if manifest.states.get(state, {}).get("scaled"):
                scales = [reader.scales(state, name, part) for part in parts]
                found[f"{state}.scale/{name}"] = torch.cat(scales)
    return found


def differing(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """The names under which two sets of tensors have other bits, or that only one has."""
    return sorted(
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or bits(one[name]) != bits(other[name])
    )


def bits(tensor: torch.Tensor) -> tuple[str, bytes]:
    return str(tensor.dtype), tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


# Kills.


class Calls:
    """Notes the calls to the system that write, make, rename or remove, and kills this process at the `kill_at`-th."""

    def __init__(self, kill_at: int) -> None:
        self.kill_at, self.noted = kill_at, []
        self.active = True
        pwrite, fsync = os.pwrite, os.fsync

        def noted_pwrite(descriptor: int, data: Any, at: int) -> int:
            self.note("pwrite")
            # A kill may come in the middle of a write, too; direct I/O moves whole pages.
            half = len(data) // 2 if len(data) > 1024 else len(data)
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                half = max(half // 4096 * 4096, 4096)
            return pwrite(descriptor, data[:half], at)

        def noted_fsync(descriptor: int) -> None:
            self.note("fsync")
            fsync(descriptor)

        os.pwrite, os.fsync = noted_pwrite, noted_fsync
        sys.addaudithook(self.heard)

    def heard(self, event: str, arguments: Any) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if self.active and (writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir")):
            self.note(event)

    def note(self, what: str) -> None:
        if self.active:
            self.noted.append(what)
            if len(self.noted) == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def launch_saving(
    comm: Collectives, folder: Path, stop: int, victims: tuple[int, ...], kill_at: int, wait: bool
) -> list[str]:
    """Go on from the newest checkpoint, if there is one, to step `stop`, with a save after each step; ranks among
    `victims` are killed at a call of the first save."""
    run = Run(comm, Way(3))
    start = 0
    with Checkpoints(folder, keep=2) as checkpoints:
        latest = comm.broadcast(torch.tensor([find_latest(folder) is not None])).item()
        if latest:
            start = checkpoints.load(run.engine, scheduler=run.scheduler).step
        calls = Calls(kill_at if comm.rank in victims else -1)
        for step in range(start + 1, stop + 1):
            run.train(step - 1, step)
            checkpoints.save(run.engine, step, scheduler=run.scheduler, wait=wait)
        checkpoints.wait()
        calls.active = False
    return calls.noted


def killed_at(comm: Collectives, folder: Path) -> list[str]:
    """The calls of one save."""
    return launch_saving(comm, folder, 1, (), 0, True)
