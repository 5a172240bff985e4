"""A model sharded over tp trains as one process does, at every stage, on LLaMA and GPT-2, with and without sequence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from cover import covering, pairs
from grid_cases import BATCH, OPTIMIZERS, SEQ, State, Trained, batch, perturbed, same, train_alone, train_on

from zerolab import checkpoint
from zerolab.collectives import Collectives
from zerolab.errors import RankError
from zerolab.models import GPT2Config, LlamaConfig, build_model
from zerolab.models.common import LanguageModel
from zerolab.parallel import Grid, GridEngine, Mesh, shard_model
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

# A vocabulary that no number of ranks divides, and one table for both ends.
LLAMA = LlamaConfig(37, 16, 2, 4, 4, 24, 16, qkv_bias=True, qk_norm=True)
MODELS = {
    "llama": LLAMA,
    "llama, grouped, two tables": replace(LLAMA, kv_heads=2, tied_head=False, qk_norm=False),
    "gpt2": GPT2Config(37, 16, 2, 4, 16, bias=True),
}


def model_of(name: str) -> LanguageModel:
    torch.manual_seed(1)
    return perturbed(build_model(MODELS[name]))


@cache
def alone(name: str, optimizer: str, clip: float | None) -> Trained:
    return train_alone(model_of(name), optimizer, clip)


RUNS = covering(
    [
        (name, Grid(dp_replicate=outer, dp_shard=inner, tp=tp), stage, optimizer, clip, sequence)
        for name in MODELS
        for outer, inner, tp in [(1, 1, 2), (1, 2, 2), (1, 1, 4), (2, 1, 2), (2, 2, 2)]
        for stage in range(4)
        for optimizer in OPTIMIZERS
        for clip in (None, 0.1)
        for sequence in (False, True)
        if MODELS[name].__dict__.get("kv_heads", 4) % tp == 0
    ],
    shows=lambda run: pairs(*run),
    cost=lambda run: run[1].world,
)


@pytest.mark.ranks
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "grid", "stage", "optimizer", "clip", "sequence"), RUNS, ids=str)
def test_every_grid_ends_where_one_process_does(
    name: str, grid: Grid, stage: int, optimizer: str, clip: float | None, sequence: bool
) -> None:
    run = partial(model_of, name), grid, stage, optimizer, clip, sequence
    same([*launch(train_on, *run, ranks=grid.world, world="lockstep")], alone(name, optimizer, clip))


def refused(comm: Collectives, make: Any, grid: Grid) -> None:
    make(Mesh(comm, grid))


GPT2 = GPT2Config(37, 12, 1, 3, 16)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda mesh: shard_model(build_model(GPT2), mesh), "tp 2 does not divide heads 3"),
        (lambda mesh: shard_model(build_model(replace(LLAMA, kv_heads=1)), mesh), "tp 2 does not divide kv_heads 1"),
        (lambda mesh: shard_model(build_model(replace(LLAMA, ffn_dim=25)), mesh), "tp 2 does not divide dim 0 of"),
        (lambda mesh: shard_model(torch.nn.Linear(2, 2), mesh), "Linear is no LLaMA or GPT-2"),
        (lambda mesh: shard_model(build_model(replace(GPT2, heads=4), dropout=0.1), mesh), "dropout is 0.1"),
        (lambda mesh: shard_model(shard_model(build_model(LLAMA), mesh), mesh), "was sharded before"),
        (lambda mesh: shard_model(build_model(LLAMA).to("meta"), mesh), "on the meta device"),
        (lambda mesh: GridEngine(build_model(LLAMA), mesh, 1, 0.1), r"call shard_model\(model, mesh\) before"),
        (
            lambda mesh: GridEngine(shard_model(build_model(LLAMA), mesh), mesh, 1, 0.1)(*batch(mesh.world.rank)),
            "ranks that share their matrices got different batches",
        ),
        (lambda mesh: ZeroEngine(shard_model(build_model(LLAMA), mesh), mesh.comms["dp"], 1, 0.1), "GridEngine"),
    ],
)
def test_what_cannot_be_sharded_is_refused_in_a_sentence(make: Any, said: str) -> None:
    with pytest.raises(RankError, match=said):
        launch(refused, make, Grid(tp=2), ranks=2, world="lockstep")


def test_logits_without_targets_are_those_of_one_process() -> None:
    def logits(comm: Collectives) -> torch.Tensor:
        mesh = Mesh(comm, Grid(tp=2))
        return shard_model(model_of("llama"), mesh, sequence=True)(batch(0)[0]).detach()

    due = model_of("llama")(batch(0)[0]).detach()
    for found in launch(logits, ranks=2, world="lockstep"):
        torch.testing.assert_close(found, due, rtol=0, atol=1e-5)


def test_a_layer_sends_one_sum_forward_and_one_backward_for_each_region_and_the_stream_is_cut_by_sequence() -> None:
    def sent(comm: Collectives, layers: int, sequence: bool) -> int:
        mesh = Mesh(comm, Grid(tp=2))
        model = shard_model(build_model(replace(LLAMA, layers=layers, qk_norm=False, qkv_bias=False)), mesh, sequence)
        mesh.world.meter.reset()
        model(*batch(0)).backward()
        return int(mesh.world.meter.bytes_by_group()["tp"])

    hidden, vector = BATCH * SEQ * 16 * 4, 16 * 4
    for sequence in (False, True):
        one, two = (launch(sent, layers, sequence, ranks=2, world="lockstep")[0] for layers in (1, 2))
        # Each of four sums sends what hidden states have; with `sequence` two norms add up their gradient.
        assert two - one == 4 * hidden + (2 * vector if sequence else 0)


def test_a_state_dict_is_the_whole_models_and_goes_back_into_any_grid() -> None:
    def through(comm: Collectives, grid: Grid, given: State | None) -> State:
        mesh = Mesh(comm, grid)
        engine = GridEngine(shard_model(build_model(MODELS["gpt2"]), mesh), mesh, 3, lr=0.1)
        if given is not None:
            engine.load_state_dict(given)
        return engine.state_dict()

    due = model_of("gpt2").state_dict()
    grids = [Grid(dp_shard=2, tp=2), Grid(tp=4), Grid(dp_replicate=2, dp_shard=2)]
    for grid in grids:
        for found in launch(through, grid, due, ranks=4, world="lockstep"):
            assert found.keys() == due.keys() and all(torch.equal(found[name], due[name]) for name in due)


def test_a_checkpoint_of_a_sharded_model_is_refused_with_what_to_take_instead(tmp_path: Path) -> None:
    def saved(comm: Collectives) -> None:
        mesh = Mesh(comm, Grid(tp=2))
        checkpoint.save(tmp_path, GridEngine(shard_model(build_model(LLAMA), mesh), mesh, 1, lr=0.1), 1)

    with pytest.raises(RankError, match=r"save knows no model that is sharded over tp 2 yet; take state_dict\(\)"):
        launch(saved, ranks=2, world="lockstep")
    assert not list(tmp_path.glob("step-*"))


def test_an_engine_of_a_mesh_that_shares_no_matrix_leaves_a_model_to_the_next_engine() -> None:
    def rewrapped(comm: Collectives) -> int:
        model = build_model(LLAMA)
        for _ in range(2):
            mesh = Mesh(comm, Grid(dp_shard=2))
            GridEngine(model, mesh, 1, lr=0.1).close()
        return ZeroEngine(model, comm, 1, lr=0.1).stage

    assert list(launch(rewrapped, ranks=2, world="lockstep")) == [1, 1]
