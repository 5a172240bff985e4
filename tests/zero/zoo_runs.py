"""Three steps of a model that somebody brought: by engines on two ranks in lockstep, and by torch alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from model_zoo import Brought
from torch import Tensor, nn
from zero_cases import VARIANTS, digest, largest_difference, sgd

from zerolab.collectives import Collectives
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

RANKS, STEPS = 2, 3


@dataclass(frozen=True)
class Compared:
    """How many different bits there are over ranks and stages; how far losses and parameters are from those of one
    process, and how far the latter moved."""

    digests: int
    loss_away: float
    parameters_away: float
    moved: float


def part(batch: Any, rank: int) -> Any:
    """The rows of a rank. What is no tensor is for all."""
    if isinstance(batch, dict):
        return {name: part(value, rank) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(part(value, rank) for value in batch)
    return batch.chunk(RANKS)[rank].clone() if isinstance(batch, Tensor) else batch


def built(brought: Brought) -> nn.Module:
    torch.manual_seed(0)
    return brought.build()


def fit(comm: Collectives, brought: Brought, stage: int, **variant: Any) -> tuple[list[float], dict[str, Tensor]]:
    model = built(brought)
    engine = ZeroEngine(model, comm, stage, optimizer=sgd(), **variant)
    losses = []
    for step in range(STEPS):
        loss = brought.loss(engine, part(brought.batch(step), comm.rank))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    state = engine.consolidate()
    engine.close()
    return losses, {name: value for name, value in state.items() if name in dict(model.named_parameters())}


def fit_alone(brought: Brought) -> tuple[list[float], dict[str, Tensor]]:
    model = built(brought)
    optimizer = sgd()([parameter for parameter in model.parameters() if parameter.requires_grad])
    losses = []
    for step in range(STEPS):
        batch = brought.batch(step)
        parts = [part(batch, rank) for rank in range(RANKS)] if brought.by_parts else [batch]
        losses.append(0.0)
        for each in parts:
            loss = brought.loss(model, each) / len(parts)
            loss.backward()
            losses[-1] += loss.item()
        optimizer.step()
        optimizer.zero_grad()
    return losses, {name: parameter.detach() for name, parameter in model.named_parameters()}


def compare(brought: Brought) -> Compared:
    def all_stages(comm: Collectives) -> list[Any]:
        return [fit(comm, brought, stage, **variant) for stage, variant in VARIANTS]

    by_rank = launch(all_stages, ranks=RANKS, world="lockstep", timeout=100)
    losses, parameters = fit_alone(brought)
    start = {name: parameter.detach() for name, parameter in built(brought).named_parameters()}
    away = 0.0
    for runs in zip(*by_rank, strict=True):
        for at, expected in enumerate(losses):
            away = max(away, abs(sum(of_rank[at] for of_rank, _ in runs) / RANKS - expected))
    first = by_rank[0][0][1]
    return Compared(
        len({digest(state) for runs in by_rank for _, state in runs}),
        away,
        largest_difference(first, parameters),
        largest_difference(parameters, start),
    )
