"""A mixture of experts on any grid trains as in one process: dropless, with the auxiliary loss, over ep, tp and dp."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from cover import covering, pairs
from test_tensor import BATCH, LLAMA, OPTIMIZERS, STEPS, State, batch, perturbed

from zerolab.collectives import Collectives
from zerolab.parallel import ExpertLayer, Grid, GridEngine, Mesh, MixtureOfExperts, shard_model, unshard
from zerolab.ranks import launch

# A share of 0.3 of the loss, so that a wrong auxiliary gradient shows.
KINDS = {"one of four": (4, 1), "two of four": (4, 2)}


def model_of(kind: str) -> MixtureOfExperts:
    torch.manual_seed(2)
    model = MixtureOfExperts(LLAMA, *KINDS[kind], coefficient=0.3)
    perturbed(model)
    return model


@cache
def alone(kind: str, optimizer: str, clip: float | None) -> tuple[State, tuple[float, ...], tuple[float | None, ...]]:
    model, losses, norms = model_of(kind), [], []
    stepper = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        loss = model(*batch(step))
        loss.backward()
        norms.append(None if clip is None else float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        stepper.step()
        stepper.zero_grad()
        losses.append(loss.item())
    return {key: value.detach().clone() for key, value in model.named_parameters()}, tuple(losses), tuple(norms)


def trained(
    comm: Collectives, kind: str, grid: Grid, stage: int, optimizer: str, clip: float | None, sequence: bool
) -> tuple[State, list[float], list[float | None]]:
    mesh = Mesh(comm, grid)
    model = shard_model(model_of(kind), mesh, sequence)
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
    due, due_losses, due_norms = alone(kind, optimizer, clip)
    found = launch(trained, kind, grid, stage, optimizer, clip, sequence, ranks=grid.world, world="lockstep")
    assert len({tuple(norms) for _, _, norms in found}) == 1
    for whole, losses, norms in found:
        for key, value in whole.items():
            torch.testing.assert_close(value, due[key], rtol=0, atol=1e-5, msg=lambda said, key=key: f"{key}: {said}")
        assert losses == pytest.approx(due_losses, abs=1e-5)
        assert norms == [None] * STEPS if clip is None else norms == pytest.approx(due_norms, rel=1e-5)


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
