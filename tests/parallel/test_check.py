"""The checker says nothing of a right program on any mesh, and names the reduction that a wrong one has forgotten."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from test_pipeline import MODELS, SCHEDULES
from test_tensor import BATCH, OPTIMIZERS, batch, perturbed

from zerolab.parallel import GridEngine, Mesh, Pipeline, cut_stages, shard_model
from zerolab.parallel.check import check


def train(
    mesh: Mesh,
    name: str = "llama",
    stage: int = 1,
    sequence: bool = False,
    clip: float | None = None,
    optimizer: str = "sgd",
    steps: int = 1,
    share: Callable[[Mesh], int] = lambda mesh: mesh.at["dp"],
) -> None:
    """The program: a model on any mesh, by the engine."""
    torch.manual_seed(3)
    model: Any = shard_model(perturbed(MODELS[name]()), mesh, sequence)
    piped = mesh.sizes["pp"] > 1
    model = mesh.watch(cut_stages(model, mesh) if piped else model)
    engine = GridEngine(model, mesh, stage, optimizer=OPTIMIZERS[optimizer], clip_norm=clip)
    each = BATCH // mesh.sizes["dp"]
    for step in range(steps):
        tokens, targets = batch(step, each * share(mesh), each * (share(mesh) + 1))
        if piped:
            loss = Pipeline(engine, SCHEDULES["1f1b"](mesh.sizes["pp"], 1)).run(tokens, targets)
        else:
            loss = engine(tokens, targets)
            engine.backward(loss)
        norm = engine.step().norm
        whole = mesh.comms["dp"].all_reduce(loss.detach().clone(), average=True)
        mesh.end_step(loss=whole, norm=norm)


RIGHT = [
    ({"dp": 2}, {}),
    ({"tp": 2}, {"clip": 0.1}),
    ({"tp": 2, "dp": 2}, {"sequence": True, "stage": 2, "clip": 0.1}),
    ({"tp": 2, "dp": 2}, {"name": "gpt2", "stage": 0}),
    ({"dp_replicate": 2, "dp": 2}, {"stage": 2, "clip": 0.1}),
    ({"pp": 2, "dp": 2}, {"clip": 0.1}),
    ({"pp": 2, "tp": 2}, {"sequence": True}),
    ({"dp": 4, "ep": 2}, {"name": "mixture", "clip": 0.1}),
    ({"dp": 2, "ep": 2, "tp": 2}, {"name": "mixture", "sequence": True, "clip": 0.1}),
    ({"pp": 2, "dp": 2, "ep": 2}, {"name": "mixture", "optimizer": "adamw"}),
]


@pytest.mark.ranks
@pytest.mark.timeout(100)
@pytest.mark.parametrize(("sizes", "settings"), RIGHT, ids=str)
def test_a_right_program_raises_no_alarm(sizes: dict[str, int], settings: dict[str, Any]) -> None:
    assert check(partial(train, steps=2, **settings), steps=2, **sizes) == []
