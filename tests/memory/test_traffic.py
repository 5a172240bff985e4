"""Predicted traffic is the meter's, to the byte: every stage, 1 to 4 real ranks, sizes that do not divide."""

import math

import pytest
import torch
from memory_cases import TRAFFIC_CASES, Measured, by_day, measure_all

from zerolab.collectives import Transport, build
from zerolab.errors import InputError
from zerolab.flat import BucketPlan, lay_out
from zerolab.memory import TrafficSettings, predict_traffic
from zerolab.ranks import launch

pytestmark = pytest.mark.timeout(110)


RANKS = (1, 2, 3, 4)
CASES = by_day(TRAFFIC_CASES, RANKS, whole=lambda name, _: name == "once")


@pytest.fixture(scope="module", params=RANKS)
def by_rank(request: pytest.FixtureRequest) -> list[dict[tuple[str, int], Measured]]:
    return list(launch(measure_all, CASES[request.param], ranks=request.param, threads=1, timeout=90))


def plans(*numels: int, ranks: int = 4, frozen: tuple[int, ...] = ()) -> list[BucketPlan]:
    layouts = [lay_out({"weight": (numel,)}, ranks, align=1) for numel in numels]
    return [BucketPlan(f"unit {at}", lay, 4, at not in frozen, (None,)) for at, lay in enumerate(layouts)]


# Real ranks


@pytest.mark.ranks
def test_predicted_traffic_is_the_meters(by_rank: list[dict[tuple[str, int], Measured]]) -> None:
    checked = 0
    for rank, measured in enumerate(by_rank):
        for case, one in measured.items():
            sent = {name: one.traffic.get(name, 0) for name in one.traffic_predicted}
            assert sent == one.traffic_predicted, (rank, case)
            assert set(one.traffic) <= set(sent), (rank, case)
            assert len(by_rank) == 1 or sum(sent.values()) > 0
            checked += 1
    assert checked == len(by_rank) * sum(len(case.stages) for case in CASES[len(by_rank)].values())


@pytest.mark.ranks
def test_ranks_send_as_much_as_the_formulas_say(by_rank: list[dict[tuple[str, int], Measured]]) -> None:
    """2Ψ, 2Ψ, 2Ψ, 3Ψ elements times (N-1)/N in one micro-batch, Ψ with its padding, on average over the ranks."""
    ranks = len(by_rank)
    whole = by_rank[0]["once", 0].predicted["parameters"]
    for stage, times in enumerate((2, 2, 2, 3)):
        sent = sum(sum(measured["once", stage].traffic.values()) for measured in by_rank)
        assert sent == times * whole * (ranks - 1)


def elements_by_call(transport: Transport) -> dict[str, int]:
    """What one step of DDP with torch's ZeroRedundancyOptimizer hands to each kind of collective, in elements."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    comm = build(transport, "torch")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)

    def step() -> None:
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    with torch.profiler.profile(record_shapes=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    found: dict[str, int] = {}
    for event in profile.events():
        # DDP settles its buckets in the second step; what is shorter than a layer is no gradient and no parameter.
        if event.name.startswith("gloo:") and (numel := math.prod(event.input_shapes[0])) >= 64 * 64:
            found[event.name] = found.get(event.name, 0) + numel
    comm.close()
    return found


@pytest.mark.ranks
def test_torchs_own_stage_1_all_reduces_all_gradients_and_broadcasts_all_parameters() -> None:
    """Two for the all-reduce and one for the broadcasts: the 3Ψ that lesson 04 says of ZeroRedundancyOptimizer."""
    for found in launch(elements_by_call, ranks=2, collectives="transport", device="cpu", timeout=100):
        assert found == {"gloo:all_reduce": 8 * 64 * 64, "gloo:broadcast": 8 * 64 * 64}


# Integers


def test_traffic_of_micro_batches_follows_the_table() -> None:
    """Elements sent times (N-1)/N, for m = 3: 2mΨ, (m+1)Ψ, (m+1)Ψ, 3mΨ; deferred 2Ψ, 2Ψ, 2Ψ, (2m+1)Ψ."""
    psi = 4 * (40 + 80)
    for reduce_each, expected in ((True, (6, 4, 4, 9)), (False, (2, 2, 2, 7))):
        for stage, times in enumerate(expected):
            sent = predict_traffic(plans(40, 80), stage, 4, TrafficSettings(3, reduce_each=reduce_each))
            assert sum(by_rank[0] for by_rank in sent.values()) == times * psi * 3 // 4


def test_stage1_by_all_reduce_sends_half_as_much_again() -> None:
    once = predict_traffic(plans(40), 1, 4, TrafficSettings(reduction="all_reduce"))
    assert once == {"all_reduce": [2 * 30 * 4] * 4, "all_gather": [30 * 4] * 4}


def test_a_frozen_bucket_travels_only_to_be_used() -> None:
    frozen_first = plans(40, 80, frozen=(0,))
    assert predict_traffic(frozen_first, 2, 4) == {"reduce_scatter": [60 * 4] * 4, "all_gather": [60 * 4] * 4}
    # Gathered forward, but no gradient comes back to it.
    assert predict_traffic(frozen_first, 3, 4)["all_gather"] == [(30 + 60 + 60) * 4] * 4
    frozen_last = plans(40, 80, frozen=(1,))
    assert predict_traffic(frozen_last, 3, 4)["all_gather"] == [2 * (30 + 60) * 4] * 4


def test_clipping_gathers_one_double_from_each_rank() -> None:
    plain, clipped = (
        predict_traffic(plans(40), 2, 4, TrafficSettings(clip=clip))["all_gather"] for clip in (False, True)
    )
    assert [b - a for a, b in zip(plain, clipped, strict=True)] == [3 * 8] * 4


def test_one_rank_sends_nothing() -> None:
    for stage in range(4):
        assert all(
            not any(sent) for sent in predict_traffic(plans(40, ranks=1), stage, 1, TrafficSettings(clip=True)).values()
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((plans(40), 4, 4), "no ZeRO stage 4"),
        ((plans(40), 2, 3), "cut for 4"),
        (([], 2, 3), "no bucket plans"),
    ],
)
def test_what_cannot_be_predicted_is_refused(arguments: tuple, says: str) -> None:
    with pytest.raises(InputError, match=says):
        predict_traffic(*arguments)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"reduction": "ring"}, "reduction is 'ring'"),
        ({"precision": "int4"}, "there is no precision 'int4'"),
    ],
)
def test_a_step_that_cannot_be_is_refused_where_it_is_described(settings: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        TrafficSettings(**settings)
