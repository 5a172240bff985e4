"""Where a stage becomes slower than the one before: the bandwidth, and the batch, below which communication binds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from zerolab.apps.cost import Machine, Network
from zerolab.apps.plan.needs import at_stage
from zerolab.apps.plan.timing import StepTime, predict_step
from zerolab.collectives import Link
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec

SLOWER = 1.01
"""A step is slower than another if it takes one per cent longer."""
LEAST_GBIT, MOST_GBIT = 0.01, 10_000.0
BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class Crossing:
    """When a stage is slower than the one before.

    gbit_per_s  below so many gigabits a second of a link (between nodes, or inside the only one); None: at none from
                `LEAST_GBIT` to `MOST_GBIT`
    batch       with less than so many sequences in a micro-batch; 1: with none, None: with all of `BATCHES`
    """

    stage: int
    before: int
    gbit_per_s: float | None
    batch: int | None


def with_bandwidth(network: Network, gbit_per_s: float) -> Network:
    """The same network with other links between nodes, or inside the only one."""
    if network.between is None:
        return replace(network, inside=Link(gbit_per_s, network.inside.latency_us))
    return replace(network, between=Link(gbit_per_s, network.between.latency_us))


def crossings(run: RunSpec, machine: Machine, network: Network) -> Iterator[Crossing]:
    """For each stage that the run's precision allows, from the second on."""
    stages = (run.dtypes or Precision()).stages
    for before, stage in pairwise(stages):

        def slower(gbit: float, one: int = before, other: int = stage) -> bool:
            net = with_bandwidth(network, gbit)
            return is_slower(lambda s: predict_step(at_stage(run, s), machine, net), one, other)

        def slower_with(batch: int, one: int = before, other: int = stage) -> bool:
            more = run.but(micro_batch_size=batch)
            return is_slower(lambda s: predict_step(at_stage(more, s), machine, network), one, other)

        yield Crossing(stage, before, highest(slower), next((b for b in BATCHES if not slower_with(b)), None))


def is_slower(step: Callable[[int], StepTime], before: int, stage: int) -> bool:
    return step(stage).seconds > SLOWER * step(before).seconds


def highest(slower: Callable[[float], bool]) -> float | None:
    """The highest bandwidth at which a stage is slower, to 2 %: by steps down, then by halving."""
    above, gbit = MOST_GBIT, MOST_GBIT
    while not slower(gbit):
        above, gbit = gbit, gbit / 4
        if gbit < LEAST_GBIT:
            return None
    if gbit == MOST_GBIT:
        return gbit
    low = gbit
    while above / low > 1.02:
        middle = (above * low) ** 0.5
        low, above = (middle, above) if slower(middle) else (low, middle)
    return low
