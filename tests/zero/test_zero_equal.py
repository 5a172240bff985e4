"""Stages 0 to 3 are one training run: the same bits as each other, and one process's parameters to a few ulps."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cover import NIGHTLY, covering, pairs
from torch import nn
from zero_cases import (
    VARIANTS,
    Case,
    Trained,
    adamw,
    batches,
    decay_matrices,
    gpt2,
    largest_difference,
    part_of,
    sgd,
    train,
    train_alone,
)

from zerolab.collectives import Collectives, LocalCollectives, build
from zerolab.collectives.transport import Transport
from zerolab.ranks import launch

pytestmark = [pytest.mark.timeout(240), pytest.mark.ranks]

CLIP = 0.2
STEPS = 10 if NIGHTLY else 3
# On 2, 3 and 4 ranks, with no feature and with all of them.
EVERYWHERE = {
    "adamw": Case(steps=STEPS),
    "all at once": Case(
        steps=STEPS,
        micro_batches=2, reduce_each=False, clip_norm=CLIP, checkpoint=True, groups=decay_matrices,
        engine={"bucket_numel": 500, "overlap_gather": True},
    ),
}  # fmt: skip
# On 3 ranks: sums of three depend on their order, and 3 divides nothing.
ON_THREE = {
    "sgd": Case(sgd(), steps=STEPS),
    "sgd, clipped": Case(sgd(), clip_norm=CLIP, steps=STEPS),
    "accumulated": Case(micro_batches=2, steps=STEPS),
    "sgd, accumulated and reduced once": Case(sgd(), micro_batches=2, reduce_each=False, steps=STEPS),
    "clipped by the largest": Case(clip_norm=0.01, engine={"norm_type": float("inf")}, steps=STEPS),
    "checkpointed": Case(checkpoint=True, steps=STEPS),
    "without overlap": Case(engine={"overlap": False, "prefetch": False}, steps=STEPS),
    "with overlapped gathers": Case(engine={"overlap_gather": True}, steps=STEPS),
    "in small buckets": Case(engine={"bucket_numel": 250}, steps=STEPS),
    "unaligned": Case(adamw(fused=False), engine={"align": 1}, steps=STEPS),
    "gpt2": Case(model=gpt2, steps=STEPS),
}
SAME_BITS = ("checkpointed", "without overlap", "with overlapped gathers")
ALL = {**EVERYWHERE, **ON_THREE}
RANKS = [2, 3, 4]
PLACES = [(name, ranks) for ranks in RANKS for name in (ALL if ranks == 3 else EVERYWHERE)]

BY_THE_RING = covering(
    [(name, ranks, way) for name in EVERYWHERE for ranks in RANKS for way in range(len(VARIANTS))],
    shows=lambda run: pairs(*run),
    cost=lambda run: run[1],
)
"""Beside shared memory: each of these cases with each N and in each way, each N in each way."""

ByRank = list[dict[str, list[Trained]]]


def ways_of(name: str) -> list[tuple[int, dict[str, Any]]]:
    """Stages of a case: those of EVERYWHERE have all, the others by day stage 3 and two that take turns."""
    if NIGHTLY or name in EVERYWHERE:
        return list(VARIANTS)
    at = list(ON_THREE).index(name)
    return [VARIANTS[place] for place in sorted({at % 4, (at + 1) % 4, 4})]


def runs_of(name: str, ranks: int) -> list[tuple[str, int, dict[str, Any]]]:
    """Collectives, stage and engine options of each run of a case."""
    return [("shared", *way) for way in ways_of(name)] + [
        ("ring", *way) for number, way in enumerate(VARIANTS) if (name, ranks, number) in BY_THE_RING
    ]


def train_all(transport: Transport, names: list[str]) -> dict[str, list[Trained]]:
    """Each case at every stage. Parameters travel once a case; digests stand for the others."""
    comms = {impl: build(transport, impl) for impl in ("shared", "ring")}
    trained: dict[str, list[Trained]] = {}
    for name in names:
        first, *others = [
            train(comms[impl], ALL[name], stage, **variant) for impl, stage, variant in runs_of(name, transport.size)
        ]
        trained[name] = [first, *(replace(other, parameters={}) for other in others)]
    for comm in comms.values():
        comm.close()
    return trained


@pytest.fixture(scope="module")
def trained() -> dict[int, ByRank]:
    """What every rank ended with, by the number of ranks."""

    def of(ranks: int) -> ByRank:
        names = [name for name, at in PLACES if at == ranks]
        return list(launch(train_all, names, ranks=ranks, collectives="transport", device="cpu", timeout=180))

    return {ranks: of(ranks) for ranks in RANKS}


def tolerance(case: Case) -> float:
    return 1e-6 if case.optimizer.func is torch.optim.SGD else 2e-5


@pytest.mark.parametrize(("name", "ranks"), PLACES)
def test_all_stages_end_with_the_same_bits_on_every_rank(trained: dict[int, ByRank], name: str, ranks: int) -> None:
    """And by the ring as in shared memory."""
    digests = [one.digest for of_rank in trained[ranks] for one in of_rank[name]]
    assert len(digests) == ranks * len(runs_of(name, ranks)) and len(set(digests)) == 1


@pytest.mark.parametrize(("name", "ranks"), PLACES)
def test_ranks_on_parts_end_where_one_process_on_the_whole_batch_does(
    trained: dict[int, ByRank], name: str, ranks: int
) -> None:
    expected = train_alone(ALL[name])
    assert largest_difference(trained[ranks][0][name][0].parameters, expected) < tolerance(ALL[name])


@pytest.mark.parametrize("name", ALL)
def test_one_rank_is_plain_torch_at_every_stage(name: str) -> None:
    trained = [train(LocalCollectives(), ALL[name], stage, **variant) for stage, variant in ways_of(name)]
    assert len({one.digest for one in trained}) == 1
    assert largest_difference(trained[0].parameters, train_alone(ALL[name])) < tolerance(ALL[name])


def test_how_work_is_scheduled_changes_no_bit(trained: dict[int, ByRank]) -> None:
    on_three = trained[3][0]
    for name in SAME_BITS:
        assert on_three[name][0].digest == on_three["adamw"][0].digest


@pytest.mark.parametrize(("name", "ranks"), [("sgd, clipped", 3), *(("all at once", ranks) for ranks in RANKS)])
def test_clipping_scales_at_every_step_and_all_ranks_see_the_same_norm(
    trained: dict[int, ByRank], name: str, ranks: int
) -> None:
    norms = {tuple(step.norm for step in one.steps) for of_rank in trained[ranks] for one in of_rank[name]}
    assert len(norms) == 1
    assert all(norm is not None and norm > CLIP for norm in norms.pop())
    assert all(step.norm is None and not step.skipped for step in trained[ranks][0]["adamw"][0].steps)


def test_training_learns_something(trained: dict[int, ByRank]) -> None:
    """Equal bits would prove little if the parameters stood still."""
    for ranks in RANKS:
        losses = [of_rank["adamw"][4].losses for of_rank in trained[ranks]]
        assert sum(loss[-1] for loss in losses) < sum(loss[0] for loss in losses)


# Torch's own data parallelism


def train_wrapped(comm: Collectives, case: Case, wrap: Any) -> dict[str, torch.Tensor]:
    """The same run with a wrapper of torch's around the model."""
    model = wrap(case.build())
    optimizer = case.optimizer(model.parameters())
    for micro_batches in batches(case.steps):
        own = part_of(torch.cat(micro_batches), comm)
        model(own[:, :-1], own[:, 1:]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), case.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    state = {name.removeprefix("module."): p.detach() for name, p in model.named_parameters()}
    return {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in state.items()}


def shard_fully(model: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize(("ranks", "by"), [(2, ("torch", "shared")), (3, ("ring", "shared"))])
def test_every_stage_ends_where_ddp_and_fully_shard_do(ranks: int, by: tuple[str, str]) -> None:
    """In one launch for both collectives: torch's own sharding is imported for a second by each rank."""
    case = Case(adamw(fused=False, foreach=False), clip_norm=CLIP, steps=STEPS)
    wrappers = {"ddp": nn.parallel.DistributedDataParallel, "fully_shard": shard_fully}

    def differences(transport: Transport) -> dict[tuple[str, str, int], float]:
        comms = {impl: build(transport, impl) for impl in by}
        peers = {name: train_wrapped(comms[by[0]], case, wrap) for name, wrap in wrappers.items()}
        found = {}
        for impl, stage in product(by, range(4)):
            ours = train(comms[impl], case, stage).parameters
            found |= {(name, impl, stage): largest_difference(peer, ours) for name, peer in peers.items()}
        for comm in comms.values():
            comm.close()
        return found

    for found in launch(differences, ranks=ranks, collectives="transport", device="cpu", timeout=180):
        assert len(found) == 16 and max(found.values()) < 2e-6
