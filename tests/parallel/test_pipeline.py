"""A pipeline on any grid, by any schedule, trains as one process does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from collective_cases import WORLDS
from cover import covering, pairs
from grid_cases import BATCH, OPTIMIZERS, STEPS, State, Trained, batch, perturbed, same
from test_tensor import LLAMA

from zerolab import checkpoint
from zerolab.collectives import Collectives
from zerolab.errors import RankError
from zerolab.models import GPT2Config, build_model
from zerolab.parallel import Grid, GridEngine, Mesh, MixtureOfExperts, Pipeline, cut_stages, shard_model, unshard
from zerolab.parallel.actions import Schedule, gpipe, interleaved, one_forward_one_backward, zero_bubble
from zerolab.ranks import launch

MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: build_model(replace(LLAMA, layers=4, tied_head=False)),
    "gpt2": lambda: build_model(GPT2Config(37, 16, 5, 4, 16, bias=True, tied_head=False)),
    "mixture": lambda: MixtureOfExperts(replace(LLAMA, layers=4, tied_head=False), 4, 2, coefficient=0.3),
}
SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": lambda ranks, micros: interleaved(ranks, micros, 2),
    "zero bubble": zero_bubble,
}


def model_of(name: str) -> Any:
    torch.manual_seed(3)
    return perturbed(MODELS[name]())


@cache
def alone(name: str, optimizer: str, clip: float | None, micros: int, parts: int) -> Trained:
    """One process with the same micro-batches: in each what all data-parallel ranks have in theirs."""
    model, losses, norms = model_of(name), [], []
    stepper = OPTIMIZERS[optimizer](model.parameters())
    for step in range(STEPS):
        total = 0.0
        shared = [
            whole.reshape(parts, micros, -1, whole.shape[1]).transpose(0, 1).flatten(1, 2) for whole in batch(step)
        ]
        for tokens, targets in zip(*shared, strict=True):
            loss = model(tokens, targets) / micros
            loss.backward()
            total += loss.item()
        norms.append(None if clip is None else float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        stepper.step()
        stepper.zero_grad()
        losses.append(total)
    return {key: value.detach().clone() for key, value in model.named_parameters()}, losses, norms


def trained(
    comm: Collectives,
    name: str,
    grid: Grid,
    stage: int,
    schedule: str,
    micros: int,
    optimizer: str,
    clip: float | None,
    sequence: bool,
    reduce: str,
) -> Trained:
    mesh = Mesh(comm, grid)
    chunks = 2 if schedule == "interleaved" else 1
    model = cut_stages(shard_model(model_of(name), mesh, sequence), mesh, chunks)
    engine = GridEngine(model, mesh, stage, optimizer=OPTIMIZERS[optimizer], clip_norm=clip)
    pipeline = Pipeline(engine, SCHEDULES[schedule](grid.pp, micros), reduce)
    each = BATCH // mesh.sizes["dp"]
    losses, norms = [], []
    for step in range(STEPS):
        loss = pipeline.run(*batch(step, each * mesh.at["dp"], each * (mesh.at["dp"] + 1)))
        norms.append(engine.step().norm)
        losses.append(float(mesh.comms["dp"].all_reduce(loss, average=True)))
    with engine.summon_full_params():
        whole = {key: unshard(value.detach().clone(), value, mesh) for key, value in model.named_parameters()}
    return whole, losses, norms


RUNS = covering(
    [
        (name, Grid(pp, outer, inner, tp, ep), stage, schedule, micros, optimizer, clip, sequence, reduce)
        for name in MODELS
        for pp, outer, inner, tp, ep in [(2, 1, 1, 1, 1), (4, 1, 1, 1, 1), (2, 1, 2, 1, 1), (2, 1, 1, 2, 1),
                                         (2, 1, 2, 1, 2), (2, 2, 2, 1, 1), (2, 1, 2, 2, 1), (2, 1, 4, 1, 2)]
        for stage in range(4)
        for schedule in SCHEDULES
        for micros in (2, 4)
        for optimizer in OPTIMIZERS
        for clip in (None, 0.1)
        for sequence in (False, True)
        for reduce in ("step", "micro-batch")
        if (tp > 1 or not sequence) and (ep == 1 or name == "mixture") and BATCH // (outer * inner) >= micros
        if schedule != "interleaved" or (pp == 2 and micros % pp == 0)
    ],
    shows=lambda run: pairs(*run),
    cost=lambda run: run[1].world,
)  # fmt: skip


@pytest.mark.ranks
@pytest.mark.timeout(60)
@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(map(str, run)))
def test_every_grid_and_schedule_ends_where_one_process_does(run: tuple[Any, ...]) -> None:
    name, grid, _, _, micros, optimizer, clip, _, _ = run
    due = alone(name, optimizer, clip, micros, grid.dp_replicate * grid.dp_shard)
    same([*launch(trained, *run, ranks=grid.world, world="lockstep")], due)


@pytest.mark.ranks
@pytest.mark.timeout(100)
@pytest.mark.parametrize("world", WORLDS[1:], ids="-".join)
@pytest.mark.parametrize(
    "run",
    [
        ("llama", Grid(pp=2, tp=2), 1, "1f1b", 4, "adamw", 0.1, True, "step"),
        ("mixture", Grid(pp=2, dp_shard=2, ep=2), 3, "1f1b", 2, "adamw", 0.1, False, "micro-batch"),
    ],
    ids=lambda run: str(run[1]),
)
def test_processes_end_with_the_bits_of_lockstep(run: tuple[Any, ...], world: tuple[str, str]) -> None:
    """Where the ring adds; torch's own order is another."""
    in_lockstep = launch(trained, *run, ranks=4, world="lockstep")
    in_processes = launch(trained, *run, ranks=4, world=world[0], collectives=world[1], timeout=80)
    for (here, losses, _), (there, found, _) in zip(in_lockstep, in_processes, strict=True):
        for name, value in here.items():
            close = 1e-5 if world[1] == "torch" else 0
            torch.testing.assert_close(there[name], value, rtol=0, atol=close)
        assert found == pytest.approx(losses, abs=1e-5)


def test_a_schedule_sends_the_messages_that_it_predicts() -> None:
    def sent(comm: Collectives, schedule: Schedule, chunks: int) -> int:
        mesh = Mesh(comm, Grid(pp=2))
        engine = GridEngine(cut_stages(model_of("llama"), mesh, chunks), mesh, 0, lr=0.1)
        comm.meter.reset()
        Pipeline(engine, schedule).run(*batch(0))
        return int(comm.meter.bytes_by_collective()["send"])

    for schedule, chunks in ((one_forward_one_backward(2, 4), 1), (interleaved(2, 4, 2), 2)):
        hidden = BATCH // 4 * 8 * 16 * 4
        found = list(launch(sent, schedule, chunks, ranks=2, world="lockstep"))
        assert found == [count * hidden for count in schedule.messages()]


def test_a_state_dict_has_all_stages_and_a_checkpoint_of_one_is_refused(tmp_path: Path) -> None:
    due = model_of("llama").state_dict()

    def through(comm: Collectives) -> State:
        mesh = Mesh(comm, Grid(pp=2, tp=2))
        engine = GridEngine(cut_stages(shard_model(MODELS["llama"](), mesh), mesh), mesh, 1, lr=0.1)
        engine.load_state_dict(due)
        return engine.state_dict()

    for found in launch(through, ranks=4, world="lockstep"):
        assert found.keys() == due.keys() and all(torch.equal(found[name], due[name]) for name in due)

    def saved(comm: Collectives) -> None:
        mesh = Mesh(comm, Grid(pp=2))
        checkpoint.save(tmp_path, GridEngine(cut_stages(model_of("llama"), mesh), mesh, 1, lr=0.1), 1)

    with pytest.raises(RankError, match="save knows no model that is sharded over pp 2"):
        launch(saved, ranks=2, world="lockstep")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda mesh: cut_stages(build_model(LLAMA), mesh), "the head is tied to the embedding"),
        (lambda mesh: GridEngine(model_of("mixture"), Mesh(mesh.world, Grid(dp_shard=2)), 0, 0.1), "call shard_model"),
        (lambda mesh: GridEngine(shard_model(model_of("llama"), mesh), mesh, 0, 0.1), "call cut_stages"),
        (lambda mesh: cut_stages(model_of("llama"), mesh, 3), "6 stages cannot share 4 layers"),
        (
            lambda mesh: Pipeline(GridEngine(cut_stages(model_of("llama"), mesh), mesh, 0, 0.1), gpipe(4, 2)),
            "the schedule has 4 stages on 4 ranks, and the model 2 on 2",
        ),
        (
            lambda mesh: Pipeline(GridEngine(cut_stages(model_of("llama"), mesh), mesh, 0, 0.1), gpipe(2, 2), "often"),
            "reduce is 'often'; choose step or micro-batch",
        ),
        (
            lambda mesh: Pipeline(GridEngine(cut_stages(model_of("llama"), mesh), mesh, 0, 0.1), gpipe(2, 3)).run(
                *batch(0)
            ),
            "3 micro-batches cannot share 8 sequences",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: Callable[[Mesh], object], said: str) -> None:
    def refused(comm: Collectives) -> None:
        make(Mesh(comm, Grid(pp=2)))

    with pytest.raises(RankError, match=said):
        launch(refused, ranks=2, world="lockstep")
