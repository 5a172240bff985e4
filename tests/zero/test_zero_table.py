"""The table says what a rank stores and sends: what both ledgers say, what the meter counts."""

from typing import Any

import pytest
import torch
from torch import nn

from zerolab.collectives import Collectives
from zerolab.errors import InputError
from zerolab.memory import TrafficSettings, predict, predict_traffic
from zerolab.offload import Offload
from zerolab.offload.formats import format_of
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine
from zerolab.zero.start import check_stage
from zerolab.zero.table import STAGES, Dtypes, StateTable, make_rows, order_of_cuts

F32 = Dtypes(*[torch.float32] * 6)


class Small(nn.Module):
    """Three units, of odd sizes; the last has a frozen bias, and a small parameter that may stay."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(13, 17), nn.Linear(17, 19), nn.Linear(19, 1)])
        self.layers[2].bias.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x.float().square().mean()


def stored(engine: ZeroEngine) -> dict[str, int]:
    """What all tables say this rank stores, step counters left out."""
    found = dict.fromkeys(("parameters", "gradients", "optimizer_states"), 0)
    for bucket in engine.buckets:
        form = format_of(bucket.dtype, engine.precision, engine.offload, engine.state_size.names, bucket.persistent)
        updated = sum(run.numel for run in bucket.plan.segments(bucket.owner))
        for kind, nbytes in bucket.rows.nbytes(bucket.layout.numel, form.nbytes, updated).items():
            found[kind] = found.get(kind, 0) + nbytes
    return found


def both(comm: Collectives) -> list[tuple[str, dict[str, int], dict[str, int]]]:
    """For each of the options and stages: what the table says, and what the ledger does."""
    return [(f"{options}, stage {stage}", *compared(comm, stage, options)) for options in OPTIONS for stage in STAGES]


def compared(comm: Collectives, stage: int, options: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    engine = ZeroEngine(Small(), comm, stage, lr=0.1, **options)
    books = predict(engine.plans, engine.stage, engine.state_size, engine.precision, engine.offload)
    expected = {kind: by_rank[comm.rank] for kind, by_rank in books.items()}
    counters = engine.state_size.bytes_per_tensor * len(engine.optimizer_step.segments)
    (states,) = [kind for kind in expected if kind.endswith("optimizer_states") and expected[kind]] or [None]
    if states is not None:
        expected[states] -= counters
    return {kind: n for kind, n in stored(engine).items() if n}, {kind: n for kind, n in expected.items() if n}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"precision": "bf16"},
    {"precision": "bf16_fp32_grads"},
    {"precision": "bf16_fp8_moments"},
    {"precision": "fp8"},
    {"offload": Offload("host")},
    {"offload": Offload("host"), "precision": "bf16"},
]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_table_stores_what_the_ledger_predicts(ranks: int) -> None:
    for of_rank in launch(both, ranks=ranks, world="lockstep"):
        for case, table, ledger in of_rank:
            assert table == ledger, case


def sent(comm: Collectives) -> list[tuple[int, int]]:
    return [sent_at(comm, stage) for stage in STAGES]


def sent_at(comm: Collectives, stage: int) -> tuple[int, int]:
    engine = ZeroEngine(Small(), comm, stage, lr=0.1)
    # Stage 3 gathers each unit for forward and for backward.
    table = sum(sum(bucket.rows.sent(bucket.layout.numel, uses=2)) for bucket in engine.buckets)
    ledger = predict_traffic(engine.plans, engine.stage, comm.size, TrafficSettings())
    return table, sum(by_rank[comm.rank] for by_rank in ledger.values())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_table_sends_what_the_ledger_predicts(ranks: int) -> None:
    for of_rank in launch(sent, ranks=ranks, world="lockstep"):
        assert all(table == ledger for table, ledger in of_rank), of_rank


def by_axis(comm: Collectives, stage: int) -> tuple[list[int], list[int]]:
    """Bytes along the inner and the outer axis in a step: by the table, and counted."""
    inner = comm.split(comm.rank // 2, name="inner")
    outer = comm.split(comm.rank % 2, name="outer")
    assert inner is not None and outer is not None and comm.meter is not None
    engine = ZeroEngine(Small(), inner, stage, lr=0.1, replicate=outer)
    torch.manual_seed(0)
    comm.meter.reset()
    engine.backward(engine(torch.ones(4, 13)))
    engine.step()
    counted = [comm.meter.bytes_by_group().get(name, 0) for name in ("inner", "outer")]
    table = [bucket.rows.sent(bucket.layout.numel, uses=2) for bucket in engine.buckets]
    return [sum(axis) for axis in zip(*table, strict=True)], counted


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_along_each_axis_of_a_grid_the_table_sends_what_is_counted(stage: int) -> None:
    for table, counted in launch(by_axis, stage, ranks=4, world="lockstep"):
        assert table == counted and all(counted)


def test_axes_are_cut_the_highest_stage_first_and_of_equals_the_innermost() -> None:
    assert order_of_cuts((0, 3)) == [1, 0] and order_of_cuts((3, 0)) == [0, 1] and order_of_cuts((2, 2)) == [1, 0]
    hybrid = make_rows((0, 3), (4, 2), F32)
    assert hybrid.sizes == (2, 4)
    assert [row.depth for row in (hybrid.parameters, hybrid.gradients, hybrid.optimizer)] == [1, 1, 1]
    hfsdp = make_rows((1, 3), (4, 2), F32)
    assert [row.depth for row in (hfsdp.parameters, hfsdp.gradients, hfsdp.optimizer)] == [1, 1, 2]
    assert hfsdp.nbytes(800, lambda numel: 8 * numel) == {
        "parameters": 4 * 400, "gradients": 4 * 400, "optimizer_states": 8 * 100,
    }  # fmt: skip


def test_main_parameters_are_a_view_where_dtype_and_tier_agree() -> None:
    half = Dtypes(torch.bfloat16, torch.float32, *[torch.bfloat16] * 4)
    sharded_main = Dtypes(torch.bfloat16, *[torch.float32] * 5)
    for dtypes, tiers, apart in (
        (F32, ("device", "device"), False),
        (F32, ("device", "host"), True),
        (F32, ("host", "host"), False),
        (F32, ("disk", "disk"), True),
        (half, ("device", "device"), True),
        (sharded_main, ("device", "device"), False),
    ):
        assert make_rows((3,), (2,), dtypes, tiers=tiers).keeps_main is apart, (dtypes, tiers)


def test_frozen_parameters_have_one_row_and_the_text_has_a_line_a_state() -> None:
    frozen = make_rows((3,), (2,), F32, trains=False)
    assert frozen.gradients is None and frozen.optimizer is None and not frozen.publishes
    assert len(frozen.explain(["ranks"]).splitlines()) == 2
    table: StateTable = make_rows((2,), (4,), F32)
    assert [line.split() for line in table.explain(["ranks"]).splitlines()] == [
        ["ranks", "dtype", "tier"],
        ["parameters", "whole", "float32", "device"],
        ["gradients", "shard", "float32", "device"],
        ["main,", "moments", "shard", "float32", "device"],
    ]


def test_a_stage_that_there_is_not_is_refused() -> None:
    for stage in (4, -1, True, "2"):
        with pytest.raises(InputError, match="no ZeRO stage"):
            check_stage(stage)  # type: ignore[arg-type]
