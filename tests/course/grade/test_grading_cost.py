"""What the exercises of lesson 09 hold answers to is what the library does on the lockstep clock."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from zerolab.collectives import Collectives, Link
from zerolab.course.exercises.cost_and_scale.fit_link import measured
from zerolab.course.exercises.cost_and_scale.step_seconds import step_seconds
from zerolab.ranks import launch
from zerolab.zero import ZeroEngine

LINK = Link(gbit_per_s=1, latency_us=10)


class Scale(nn.Module):
    """A unit of `numel` parameters and one operation."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(numel))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight.mean()


def call(comm: Collectives, name: str, numel: int) -> None:
    getattr(comm, name)(torch.zeros(numel // comm.size if name == "all_gather" else numel))


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_reduce"])
def test_a_sample_of_fit_link_is_what_the_clock_says(name: str) -> None:
    for ranks in (1, 2, 3):
        ran = launch(call, name, 300, ranks=ranks, world="lockstep", device="cpu", collectives="ring", link=LINK)
        assert measured(LINK, name, ranks, 300) == (name, ranks, 1200, pytest.approx(ran.seconds, rel=1e-12))


def step_of_all_stages(comm: Collectives, units: list[int], precision: str | None) -> list[float]:
    taken = []
    for stage in range(4):
        model = nn.Sequential(*map(Scale, units))
        align = {"align": 1} if precision is None else {}
        engine = ZeroEngine(
            model, comm, stage, lr=1e-3, units=list(model), overlap=False, prefetch=False, precision=precision, **align
        )
        begin = comm.transport.now()
        for _ in range(2):
            engine.backward(engine(torch.ones(1)).sum())
        engine.step()
        taken.append(comm.transport.now() - begin)
        engine.close()
    return taken


@pytest.mark.parametrize(
    ("units", "precision", "sizes"),
    [
        ([10, 7, 33], None, (4, 4)),  # which the ranks do not divide
        ([192, 576], "bf16", (2, 2)),
        ([192, 576], "bf16_fp32_grads", (2, 4)),
    ],
)
def test_step_seconds_is_what_the_engine_takes_at_every_stage(
    units: list[int], precision: str | None, sizes: tuple[int, int]
) -> None:
    for ranks in (1, 2, 3):
        on = {"ranks": ranks, "world": "lockstep", "device": "cpu", "collectives": "ring", "link": LINK}
        (taken, *_) = launch(step_of_all_stages, units, precision, **on)
        due = [step_seconds(stage, units, ranks, 2, *sizes, 10e-6, 1e9 / 8) for stage in range(4)]
        assert taken == pytest.approx(due, rel=1e-12), f"on {ranks} ranks"
