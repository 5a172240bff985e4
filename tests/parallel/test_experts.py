"""A mixture of experts on any grid trains as in one process: dropless, with the auxiliary loss, over ep, tp and dp."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from cover import covering, pairs
from grid_cases import OPTIMIZERS, Trained, batch, perturbed, same, train_alone, train_on
from test_tensor import LLAMA

from zerolab.collectives import Collectives
from zerolab.parallel import ExpertLayer, Grid, GridEngine, Mesh, MixtureOfExperts, shard_model
from zerolab.ranks import launch

# A share of 0.3 of the loss, so that a wrong auxiliary gradient shows.
KINDS = {"one of four": (4, 1), "two of four": (4, 2)}


def model_of(kind: str) -> MixtureOfExperts:
    torch.manual_seed(2)
    model = MixtureOfExperts(LLAMA, *KINDS[kind], coefficient=0.3)
    perturbed(model)
    return model


@cache
def alone(kind: str, optimizer: str, clip: float | None) -> Trained:
    return train_alone(model_of(kind), optimizer, clip)


RUNS = covering(
    [
        (kind, Grid(dp_replicate=outer, dp_shard=inner, tp=tp, ep=ep), stage, optimizer, clip, sequence)
        for kind in KINDS
        for outer, inner, tp, ep in [(1, 2, 1, 2), (1, 4, 1, 2), (1, 4, 1, 4), (2, 2, 1, 2), (1, 2, 2, 2), (1, 2, 2, 1)]
        for stage in range(4)
        for optimizer in OPTIMIZERS
        for clip in (None, 0.1)
        for sequence in (False, True)
        if tp > 1 or not sequence
    ],
    shows=lambda run: pairs(*run),
    cost=lambda run: run[1].world,
)


@pytest.mark.ranks
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("kind", "grid", "stage", "optimizer", "clip", "sequence"), RUNS, ids=str)
def test_every_grid_ends_where_one_process_does(
    kind: str, grid: Grid, stage: int, optimizer: str, clip: float | None, sequence: bool
) -> None:
    run = partial(model_of, kind), grid, stage, optimizer, clip, sequence
    same([*launch(train_on, *run, ranks=grid.world, world="lockstep")], alone(kind, optimizer, clip))


def test_an_expert_takes_what_it_has_room_for_and_the_rest_passes_by() -> None:
    torch.manual_seed(0)
    layer = ExpertLayer(8, 8, 4, capacity=0.5)
    layer.router.data[0] += 50  # all tokens of positive sum go to expert 0
    tokens = torch.rand(2, 8, 8)
    out = layer(tokens).flatten(0, 1)
    taken = out.abs().sum(-1) > 0
    assert taken.tolist() == [True] * 2 + [False] * 14, "16 tokens over 4 experts, half of the mean of 4 each"
    layer.capacity = None
    assert torch.allclose(layer(tokens).flatten(0, 1)[:2], out[:2]) and (layer(tokens).abs().sum(-1) > 0).all()
    assert layer.auxiliary.item() > 3.9, "all tokens at one of four experts are four times as many as there should be"


def test_tokens_travel_to_their_experts_and_back_and_nothing_else_does() -> None:
    def sent(comm: Collectives) -> int:
        mesh = Mesh(comm, Grid(dp_shard=2, ep=2))
        torch.manual_seed(0)
        layer = ExpertLayer(8, 8, 2)
        layer.router.data[1] += 50  # all go to rank 1
        layer.shard_over(mesh, False)
        comm.meter.reset()
        layer(torch.rand(2, 8, 8))
        return int(comm.meter.bytes_by_collective()["send"])

    rows = 16 * 8 * 4
    assert list(launch(sent, ranks=2, world="lockstep")) == [rows, rows]


def test_an_engine_that_was_closed_divides_no_gradients_any_more() -> None:
    def train(comm: Collectives, engines: int) -> torch.Tensor:
        mesh = Mesh(comm, Grid(dp_shard=2, ep=2))
        model = shard_model(model_of("one of four"), mesh)
        for _ in range(engines):
            engine = GridEngine(model, mesh, 1, optimizer=OPTIMIZERS["sgd"])
            engine.close()
        engine = GridEngine(model, mesh, 1, optimizer=OPTIMIZERS["sgd"])
        engine.backward(engine(*batch(0, 4 * comm.rank, 4 * comm.rank + 4)))
        engine.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    once, twice = (launch(train, engines, ranks=2, world="lockstep") for engines in (0, 2))
    assert all(map(torch.equal, once, twice))
