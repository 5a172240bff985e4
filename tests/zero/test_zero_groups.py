"""Engines in groups of ranks: several train at once, or one whose shards several ranks hold."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from collective_cases import WORLDS
from torch import nn
from zero_cases import VARIANTS, Case, Trained, decay_matrices, gpt2, largest_difference, train, train_alone

from zerolab.collectives import Collectives, wire_bytes
from zerolab.errors import RankError
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

pytestmark = [pytest.mark.timeout(240), pytest.mark.ranks]

CASES = [
    Case(micro_batches=2, clip_norm=0.2, groups=decay_matrices, steps=3, engine={"bucket_numel": 500}),
    Case(model=gpt2, steps=3, engine={"overlap_gather": True}),
]


def every_variant(comm: Collectives, case: Case) -> list[str]:
    found = []
    for stage, variant in (VARIANTS[1], VARIANTS[3], VARIANTS[4]):
        # Only stages 1 and 2 let a step return before the new parameters have come.
        options = case.engine if stage in (1, 2) else {**case.engine, "overlap_gather": False}
        found.append(train(comm, replace(case, engine=options), stage, **variant).digest)
    return found


@pytest.mark.parametrize("world", [WORLDS[0], WORLDS[2]], ids="-".join)
def test_two_groups_train_two_models_at_once_with_the_bits_that_each_has_alone(world: tuple[str, str]) -> None:
    def side_by_side(comm: Collectives) -> list[str]:
        half = comm.split(comm.rank % 2, name=f"model {comm.rank % 2}")
        assert half is not None
        return every_variant(half, CASES[comm.rank % 2])

    options = {"world": world[0], "collectives": world[1], "timeout": 100}
    alone = [launch(every_variant, case, ranks=2, **options) for case in CASES]
    assert alone[0][0] != alone[1][0]
    assert launch(side_by_side, ranks=4, **options) == [alone[0][0], alone[1][0]] * 2


# The same shards on several ranks


def hybrid(comm: Collectives, shards: int) -> tuple[Collectives, Collectives]:
    """The group that this rank shards over, and the one that it replicates over."""
    shard, replicate = comm.split(comm.rank // shards, name="shard"), comm.split(comm.rank % shards, name="replicate")
    assert shard is not None and replicate is not None
    return shard, replicate


def every_variant_replicated(comm: Collectives, case: Case, shards: int) -> list[Trained]:
    shard, replicate = hybrid(comm, shards)
    return [train(shard, case, stage, comm, replicate=replicate, **variant) for stage, variant in VARIANTS]


@pytest.mark.parametrize(
    ("world", "ranks", "shards"),
    [(WORLDS[0], 6, 2), (WORLDS[0], 2, 1), (WORLDS[2], 4, 2)],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
def test_shards_that_are_replicated_train_as_one_process_with_the_same_bits_at_every_stage(
    world: tuple[str, str], ranks: int, shards: int
) -> None:
    case = Case(micro_batches=2, clip_norm=0.2, groups=decay_matrices, steps=3)
    found = launch(
        every_variant_replicated, case, shards, ranks=ranks, world=world[0], collectives=world[1], timeout=100
    )
    every = [trained for of_rank in found for trained in of_rank]
    assert len({trained.digest for trained in every}) == 1
    assert len({str(trained.steps) for trained in every}) == 1
    assert largest_difference(every[0].parameters, train_alone(case)) < 2e-6


def test_an_overflow_in_one_replica_is_skipped_by_all_and_first_values_are_rank_0_s() -> None:
    def overflow(comm: Collectives, stage: int) -> Any:
        shard, replicate = hybrid(comm, 2)
        torch.manual_seed(comm.rank)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model[1].running_mean.fill_(comm.rank)
        engine = ZeroEngine(model, shard, stage, lr=1e-3, clip_norm=1.0, replicate=replicate)
        first = [tensor.clone() for tensor in engine.state_dict().values()]
        engine.backward(engine(torch.ones(2, 4)).sum() * (float("inf") if comm.rank == 3 else 1.0))
        return first, engine.step().skipped

    for stage in (0, 3):
        found = launch(overflow, stage, ranks=4, world="lockstep", timeout=60)
        assert [skipped for _, skipped in found] == [True] * 4
        assert all(torch.equal(a, b) for first, _ in found for a, b in zip(first, found[0][0], strict=True))


def test_a_replica_sends_its_shard_of_gradients_and_nothing_else_of_a_step() -> None:
    def count(comm: Collectives, stage: int) -> tuple[int, dict[str, int]]:
        shard, replicate = hybrid(comm, 2)
        engine = ZeroEngine(nn.Linear(64, 64, bias=False), shard, stage, lr=1e-3, replicate=replicate)
        assert comm.meter is not None
        comm.meter.reset()
        engine.backward(engine(torch.ones(1, 64)).sum())
        engine.step()
        return engine.buckets[0].layout.numel, comm.meter.bytes_by_group()

    for stage in (2, 3):
        for numel, sent in launch(count, stage, ranks=4, world="lockstep", timeout=60):
            assert numel == 64 * 64
            assert sent == {
                "replicate": wire_bytes("all_reduce", numel // 2, 4, 2, 0),
                "shard": (2 if stage == 2 else 3) * wire_bytes("all_gather", numel, 4, 2, 0),
            }


def test_replicas_of_a_parameter_without_elements_train() -> None:
    def run(comm: Collectives, stage: int) -> tuple[int, float]:
        shard, replicate = hybrid(comm, 2)
        model = nn.ModuleDict({"none": nn.Linear(4, 0, bias=False), "some": nn.Linear(4, 2)})
        model.forward = lambda x: model["some"](x).sum() + model["none"](x).sum()  # type: ignore[method-assign]
        engine = ZeroEngine(model, shard, stage, lr=0.1, replicate=replicate, units=[model["none"], model["some"]])
        engine.backward(engine(torch.ones(3, 4)))
        engine.step()
        state = engine.consolidate()
        return state["none.weight"].numel(), state["some.bias"].sum().item()

    for stage in (0, 2, 3):
        ended = launch(run, stage, ranks=4, world="lockstep", timeout=60)
        assert len(set(ended)) == 1 and ended[0][0] == 0


def test_ranks_of_replicate_that_hold_different_shards_are_named() -> None:
    def wrong(comm: Collectives) -> None:
        shard, _ = hybrid(comm, 2)
        ZeroEngine(nn.Linear(4, 4), shard, 2, lr=1e-3, replicate=shard)

    with pytest.raises(RankError, match=r"\(rank [02] shard 0 of 2, rank [13] shard 1 of 2\); .*both groups"):
        launch(wrong, ranks=4, world="lockstep", timeout=60)
