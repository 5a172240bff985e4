"""What the tests of grids share: batches, one process, and the same model trained on a grid."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from zerolab.collectives import Collectives
from zerolab.models.common import LanguageModel
from zerolab.parallel import Grid, GridEngine, Mesh, shard_model, unshard

STEPS, BATCH, SEQ = 5, 8, 8
OPTIMIZERS = {"sgd": partial(torch.optim.SGD, lr=0.1), "adamw": partial(torch.optim.AdamW, lr=1e-2, eps=1e-3)}
State = dict[str, torch.Tensor]
Trained = tuple[State, list[float], list[float | None]]
"""Whole parameters, and the losses and norms of the steps."""


def batch(step: int, start: int = 0, stop: int = BATCH) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randint(37, (BATCH, SEQ + 1), generator=torch.Generator().manual_seed(step))[start:stop]
    return drawn[:, :-1], drawn[:, 1:]


@torch.no_grad()
def perturbed(model: LanguageModel) -> LanguageModel:
    """Biases of 0 would hide what adds them twice, and norms of embeddings near 0 would blow rounding up."""
    for name, parameter in model.named_parameters():
        parameter.add_(torch.randn(parameter.shape) * (1.0 if "embedding" in name else 0.1))
    return model


def train_alone(model: LanguageModel, optimizer: str, clip: float | None) -> Trained:
    """In one process, on whole batches."""
    losses, norms = [], []
    stepper = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        loss = model(*batch(step))
        loss.backward()
        norms.append(None if clip is None else float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        stepper.step()
        stepper.zero_grad()
        losses.append(loss.item())
    return {key: value.detach().clone() for key, value in model.named_parameters()}, losses, norms


def train_on(
    comm: Collectives,
    build: Callable[[], Any],
    grid: Grid,
    stage: int,
    optimizer: str,
    clip: float | None,
    sequence: bool,
) -> Trained:
    """On a grid of data, tensor and expert parallelism."""
    mesh = Mesh(comm, grid)
    model = shard_model(build(), mesh, sequence)
    engine = GridEngine(model, mesh, stage, optimizer=OPTIMIZERS[optimizer], clip_norm=clip)
    each = BATCH // mesh.sizes["dp"]
    losses, norms = [], []
    for step in range(STEPS):
        loss = engine(*batch(step, each * mesh.at["dp"], each * (mesh.at["dp"] + 1)))
        engine.backward(loss)
        norms.append(engine.step().norm)
        losses.append(float(mesh.comms["dp"].all_reduce(loss.detach().clone(), average=True)))
    with engine.summon_full_params():
        whole = {key: unshard(value.detach().clone(), value, mesh) for key, value in model.named_parameters()}
    return whole, losses, norms


def same(found: list[Trained], due: Trained) -> None:
    """Every rank of a grid ended where one process did, and all norms have the same bits."""
    assert len({tuple(norms) for _, _, norms in found}) == 1
    assert {key for whole, _, _ in found for key in whole} == due[0].keys()
    for whole, losses, norms in found:
        for key, value in whole.items():
            torch.testing.assert_close(
                value, due[0][key], rtol=0, atol=1e-5, msg=lambda said, key=key: f"{key}: {said}"
            )
        assert losses == pytest.approx(due[1], abs=1e-5)
        assert norms == due[2] if due[2][0] is None else norms == pytest.approx(due[2], rel=1e-5)
