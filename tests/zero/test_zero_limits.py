"""Row 23: which parameters stay at stage 3, how many come ahead, how many are kept. What each limit does is measured
by the tracker and the meter, and predicted to the byte."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_cases import STATES, Case, Measured, measure_all, partly_frozen, ten_blocks
from test_zero_residency import Watched
from torch import nn
from zero_cases import adamw, digest

from zerolab.checkpoint import load, save
from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.flat import BucketPlan, lay_out
from zerolab.memory import Stage3Limits
from zerolab.memory.traffic import gather_order
from zerolab.models import build
from zerolab.offload import Offload
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine
from zerolab.zero.units import Presence

pytestmark = pytest.mark.timeout(120)

UNIT = 2928
"""Elements of one of the ten blocks for three ranks, padding included."""
BIASES, ALL = 40, 10_000
"""Thresholds: every bias is smaller than the first, every parameter than the second."""


def ten(micro_batches: int = 1, **limits: int) -> Case:
    return Case(engine={"limits": Stage3Limits(**limits)}, stages=(3,), micro_batches=micro_batches)


CASES = {
    "nothing": Case(stages=(3,)),
    "biases stay": ten(persistence_numel=BIASES),
    "all stay": ten(persistence_numel=ALL),
    "none ahead": ten(prefetch_numel=0),
    "three ahead": ten(prefetch_numel=3 * UNIT),
    "three ahead within two": ten(prefetch_numel=3 * UNIT, live_numel=2 * UNIT),
    "the last is kept": ten(reuse_numel=1, prefetch_numel=0),
    "five are kept": ten(reuse_numel=8 * UNIT + 1, micro_batches=2),
    "five are too many": ten(reuse_numel=8 * UNIT + 1, live_numel=3 * UNIT),
    "all at once": ten(persistence_numel=BIASES, prefetch_numel=4 * UNIT, live_numel=5 * UNIT, reuse_numel=6 * UNIT),
    "frozen ones are not kept": Case(
        partly_frozen, 7, {"limits": Stage3Limits(reuse_numel=10**9, persistence_numel=8)}, stages=(3,)
    ),
    "gpt2, tied": Case(
        partial(build, "gpt2", "nano", vocab_size=64), 0, {"limits": Stage3Limits(reuse_numel=40_000)}, stages=(3,)
    ),
}  # fmt: skip


All = dict[str, list[Measured]]


def states_and_traffic_are_predicted_to_the_byte_and_peaks_are_bounded(measured: All) -> None:
    for name, of_ranks in measured.items():
        for one in of_ranks:
            assert one.states == {kind: one.predicted[kind] for kind in STATES}, name
            assert one.traffic == one.traffic_predicted, name
            assert one.peak_of["gathered_units"] == one.bounds["gathered_units"], name
            assert one.left["gathered_units"] == 0, name


def row_23_a_larger_persistence_threshold_keeps_more_and_gathers_less(measured: All) -> None:
    nothing, biases, whole = (measured[name][0] for name in ("nothing", "biases stay", "all stay"))
    kept = [one.states["parameters"] for one in (nothing, biases, whole)]
    sent = [one.traffic["all_gather"] for one in (nothing, biases, whole)]
    assert kept == sorted(kept) and sent == sorted(sent, reverse=True) and len({*kept}) == len({*sent}) == 3
    assert [one.calls.get("all_gather", 0) for one in (nothing, biases, whole)] == [20, 20, 0]
    assert whole.peak_of["gathered_units"] == 0 < biases.peak_of["gathered_units"] < nothing.peak_of["gathered_units"]
    # Gradients and optimizer states stay sharded: a rank has its third of them, and padding.
    assert whole.states["gradients"] < kept[2] / 2.5


def row_23_so_many_units_come_ahead_as_fit_and_no_more_than_may_live(measured: All) -> None:
    units = {name: of[0].peak_of["gathered_units"] / (4 * UNIT) for name, of in measured.items()}
    said = {"none ahead": 1, "nothing": 2, "three ahead": 4, "three ahead within two": 2}
    assert {name: units[name] for name in said} == said
    assert {measured[name][0].calls["all_gather"] for name in said} == {20}


def row_23_a_unit_that_is_used_again_soon_is_not_gathered_again(measured: All) -> None:
    gathers = {name: of[0].calls["all_gather"] for name, of in measured.items() if "kept" in name or "many" in name}
    assert gathers == {
        "the last is kept": 19,
        "five are kept": 2 * 15,
        "five are too many": 17,
        "frozen ones are not kept": 9,
    }
    assert measured["five are kept"][0].peak_of["gathered_units"] == 4 * 5 * UNIT
    assert measured["five are too many"][0].peak_of["gathered_units"] == 4 * 3 * UNIT


def test_row_23_each_limit_does_what_is_predicted() -> None:
    by_rank = launch(measure_all, CASES, ranks=3, world="lockstep", timeout=90)
    measured = {name: [of[name, 3] for of in by_rank] for name in CASES}
    states_and_traffic_are_predicted_to_the_byte_and_peaks_are_bounded(measured)
    row_23_a_larger_persistence_threshold_keeps_more_and_gathers_less(measured)
    row_23_so_many_units_come_ahead_as_fit_and_no_more_than_may_live(measured)
    row_23_a_unit_that_is_used_again_soon_is_not_gathered_again(measured)


# The same bits

TIERS = {
    "device": (None, "device", "device"),
    "disk": (None, "disk", "disk"),
    "bf16": ("bf16", "device", "host"),
    "bf16 on the host": ("bf16", "host", "host"),
    "fsdp2": ("fsdp2", "device", "device"),
}
"""Precision, and the places of optimizer states and parameters."""


def trained(comm: Collectives, steps: int, stage: int, options: dict[str, Any]) -> str:
    torch.manual_seed(0)
    engine = ZeroEngine(ten_blocks(9), comm, stage, optimizer=adamw(), **options)
    for step in range(steps):
        batch = torch.randn(2, 9, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        engine.backward(engine(batch).float().square().mean())
        engine.step()
    state = engine.consolidate()
    engine.close()
    return digest({name: value.float() for name, value in state.items()})


def test_stages_with_one_persistence_threshold_end_with_the_same_bits() -> None:
    limits = Stage3Limits(persistence_numel=10, prefetch_numel=500, reuse_numel=700, live_numel=1000)

    def run(comm: Collectives) -> list[str]:
        return [trained(comm, 2, stage, {"limits": limits}) for stage in range(4)]

    assert len({digest for of in launch(run, ranks=3, world="lockstep", timeout=60) for digest in of}) == 1


def test_a_parameter_that_stays_is_the_same_to_the_bit_in_every_tier_and_dtype(tmp_path: Path) -> None:
    def run(comm: Collectives) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for tier, (precision, *places) in TIERS.items():
            options = {"precision": precision, "offload": Offload(*places, path=tmp_path, sub_group_numel=700)}
            for threshold in (0, 10, ALL):
                limits = Stage3Limits(persistence_numel=threshold, reuse_numel=threshold)
                found.setdefault(tier, set()).add(trained(comm, 2, 3, {"limits": limits, **options}))
        return found

    # A sum of two summands does not depend on their order, so that other buckets change no bit.
    for of in launch(run, ranks=2, world="lockstep", timeout=90):
        assert {tier: len(digests) for tier, digests in of.items()} == dict.fromkeys(TIERS, 1)
        assert of["device"] == of["disk"] and of["bf16"] == of["bf16 on the host"] != of["fsdp2"]


def test_a_checkpoint_is_read_with_another_threshold(tmp_path: Path) -> None:
    def engine(comm: Collectives, threshold: int) -> ZeroEngine:
        torch.manual_seed(0)
        offload = Offload("host", "host")
        limits = Stage3Limits(persistence_numel=threshold, reuse_numel=threshold)
        return ZeroEngine(ten_blocks(9), comm, 3, optimizer=adamw(), limits=limits, offload=offload, precision="bf16")

    def steps(engine: ZeroEngine, start: int, stop: int) -> str:
        for step in range(start, stop):
            batch = torch.randn(2, 9, generator=torch.Generator().manual_seed(10 * step + engine.comm.rank))
            engine.backward(engine(batch).float().square().mean())
            engine.step()
        return digest({name: value.float() for name, value in engine.consolidate().items()})

    def run(comm: Collectives) -> list[str]:
        ended = []
        for first in (0, 10):
            before, after, kept = engine(comm, first), engine(comm, 10 - first), tmp_path / str(first)
            steps(before, 0, 2)
            save(kept, before, 2)
            load(kept, after)
            ended += [steps(before, 2, 4), steps(after, 2, 4)]
        return ended

    assert len({digest for of in launch(run, ranks=2, world="lockstep", timeout=60) for digest in of}) == 1


# What else may happen to what is kept

KEEPING = Stage3Limits(reuse_numel=10**9, persistence_numel=10)


def test_what_is_kept_is_forgotten_when_its_values_change() -> None:
    def run(comm: Collectives) -> list[bool]:
        torch.manual_seed(0)
        engine = ZeroEngine(ten_blocks(9), comm, 3, optimizer=adamw(), limits=KEEPING)
        x = torch.ones(2, 9)
        engine(x)
        doubled = {name: 2 * value for name, value in engine.state_dict().items()}
        engine.load_state_dict(doubled)
        alone = ten_blocks(9)
        alone.load_state_dict(doubled)
        found = [torch.equal(engine(x), alone(x))]
        # Without gradients nothing is kept, since no backward comes.
        with torch.no_grad():
            found.append(torch.equal(engine(x), alone(x)))
        return [*found, not any(unit.presence is Presence.GATHERED for unit in engine.units)]

    assert launch(run, ranks=2, world="lockstep", timeout=60) == [[True] * 3] * 2


def test_a_second_forward_makes_room_and_both_backwards_are_right() -> None:
    limits = Stage3Limits(reuse_numel=10**9, live_numel=3 * 128)

    def run(comm: Collectives) -> tuple[str, int]:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(9, 9) for _ in range(6)))
        engine = ZeroEngine(model, comm, 3, optimizer=adamw(), limits=limits)
        watched = Watched(engine)
        for _ in range(2):
            losses = [engine(torch.full((2, 9), float(at))).square().mean() for at in (1, 2)]
            for loss in losses:
                engine.backward(loss)
            engine.step()
        return digest(engine.consolidate()), watched.most

    def alone() -> str:
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(9, 9) for _ in range(6)))
        optimizer = adamw()(model.parameters())
        for _ in range(2):
            for at in (1, 2):
                model(torch.full((2, 9), float(at))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return digest(dict(model.named_parameters()))

    assert launch(run, ranks=2, world="lockstep", timeout=60) == [(alone(), 3)] * 2


def test_parameters_that_stay_may_be_used_from_outside_and_are_not_counted_as_gathered() -> None:
    def run(comm: Collectives) -> tuple[bool, int]:
        torch.manual_seed(0)
        engine = ZeroEngine(ten_blocks(9), comm, 3, optimizer=adamw(), limits=Stage3Limits(persistence_numel=ALL))
        first = next(engine.model.parameters())
        with torch.no_grad():
            before = first.sum().item()
            # A view of one may be kept, too.
            engine.model.register_forward_hook(lambda model, args, output: setattr(model, "seen", first[0]))
            engine(torch.ones(2, 9))
        stays = "buckets: 10\n               2 ranks    dtype     tier\nparameters     whole"
        assert engine.explain().startswith(stays)
        return before == engine.state_dict()["0.inside.weight"].sum().item(), sum(unit.numel for unit in engine.units)

    assert launch(run, ranks=2, world="lockstep", timeout=60) == [(True, 0)] * 2


# On paper


def test_the_nearest_units_come_ahead_as_far_as_they_fit() -> None:
    coming = [5, 3, 4, 1]
    sizes = [(numel, False) for numel in coming]
    ahead = [Stage3Limits(prefetch_numel=numel).ahead(sizes, live=0) for numel in (0, 4, 5, 8, 12, 100)]
    assert ahead == [0, 0, 1, 2, 3, 4]
    # What is on its way fills the bucket, too, but not the room.
    limits = Stage3Limits(prefetch_numel=9, live_numel=12)
    first = [(coming[0], True), *sizes[1:]]
    assert [limits.ahead(those, live) for those, live in ((sizes, 5), (first, 5), (first, 10))] == [1, 2, 1]
    assert Stage3Limits().ahead([(10**9, False)], 10**9) == 1 and Stage3Limits().ahead([], 0) == 0


def test_each_unit_is_gathered_twice_unless_it_is_kept() -> None:
    def order(limits: Stage3Limits, first: int = 0, resident: Sequence[str] = ()) -> list[int]:
        plans = [
            BucketPlan(f"{size}", lay_out({"weight": (size,)}, 1, align=1), 4, at >= first, (None,))
            for at, size in enumerate((10, 20, 30))
        ]
        return [int(unit[0].unit) // 10 - 1 for _, unit in gather_order(plans, resident, limits)]

    assert order(Stage3Limits()) == [0, 1, 2, 2, 1, 0]
    assert order(Stage3Limits(reuse_numel=61)) == [0, 1, 2, 0]
    assert order(Stage3Limits(reuse_numel=60)) == [0, 1, 2, 1, 0]
    assert order(Stage3Limits(prefetch_numel=0), first=1) == [0, 1, 2, 2, 1]
    # A tied one runs at the end, too, and backward begins with it.
    assert order(Stage3Limits(prefetch_numel=0, reuse_numel=1), resident=["10"]) == [0, 1, 2, 2, 1]


@pytest.mark.parametrize("what", ["persistence_numel", "prefetch_numel", "live_numel", "reuse_numel"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "5e8"])
def test_a_limit_that_is_no_count_is_refused(what: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{what} is {value!r}; give a whole number of at least 0"):
        Stage3Limits(**{what: value})
