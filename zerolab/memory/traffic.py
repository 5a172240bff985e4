"""Bytes on the wire from a layout: what each rank sends in one training step, collective by collective."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from zerolab.collectives import wire_bytes
from zerolab.errors import InputError
from zerolab.flat import BucketPlan
from zerolab.flat.layout import check_count
from zerolab.memory.predict import check_plans
from zerolab.offload.places import NO_OFFLOAD, Offload
from zerolab.precision.recipe import Precision, find_precision
from zerolab.zero.limits import NO_LIMITS, Stage3Limits
from zerolab.zero.start import REDUCTIONS


def check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise InputError(f"reduction is {reduction!r}; choose one of {', '.join(REDUCTIONS)}")


@dataclass(frozen=True)
class TrafficSettings:
    """What of a training step, beside its layout and stage, decides what is sent.

    micro_batches  of a rank in the step
    reduction      stage 1 only: "reduce_scatter" or "all_reduce"
    reduce_each    gradients are reduced in every micro-batch, not only in the last
    clip           the step clips by the global norm: N numbers of 8 bytes are gathered, as they are for a scaled loss
    precision      gradients travel in its `reduce`, else in their parameters' dtype
    offload        with states on disk ranks tell each other whether theirs failed: 8 bytes each
    skipped        a step that an overflow ends before the optimizer
    limits         stage 3: units that are kept for backward are not gathered again
    resident       units by name that run once more at the end of the forward, as an embedding tied to the head does
    """

    micro_batches: int = 1
    reduction: str = "reduce_scatter"
    reduce_each: bool = True
    clip: bool = False
    precision: Precision | str | None = None
    offload: Offload = NO_OFFLOAD
    skipped: bool = False
    limits: Stage3Limits = NO_LIMITS
    resident: Collection[str] = ()

    def __post_init__(self) -> None:
        check_count("micro_batches", self.micro_batches)
        check_reduction(self.reduction)
        find_precision(self.precision)


DEFAULT = TrafficSettings()


def predict_traffic(
    plans: Sequence[BucketPlan], stage: int, ranks: int, settings: TrafficSettings = DEFAULT
) -> dict[str, list[int]]:
    """Bytes that each rank sends in one step with ring collectives: {collective: [bytes by rank]}.

    Exact for a model that runs each unit once a forward, in the order of the plans.
    """
    check_plans(plans, stage)
    made_for = plans[0].layout.ranks
    if ranks != made_for:
        raise InputError(f"ranks is {ranks!r}, but the plans are cut for {made_for}; lay the model out for {ranks!r}")
    sent: dict[str, list[int]] = {}
    for rank in range(ranks):
        for calls in predict_phases(plans, stage, rank, settings).values():
            for name, nbytes in calls.items():
                sent.setdefault(name, [0] * ranks)[rank] += nbytes
    return sent


def predict_phases(
    plans: Sequence[BucketPlan], stage: int, rank: int, settings: TrafficSettings = DEFAULT
) -> dict[str, dict[str, int]]:
    """What `predict_traffic` says of one rank, by the phase of the step in which it is sent: {phase: {collective:
    bytes}}. Phases are those of the engine: forward, backward, norm, and publish for new parameters."""
    check_plans(plans, stage)
    precision, skipped = find_precision(settings.precision), settings.skipped
    ranks = plans[0].layout.ranks
    reduced = settings.micro_batches if settings.reduce_each else 1
    name = "all_reduce" if stage == 0 or (stage == 1 and settings.reduction == "all_reduce") else "reduce_scatter"
    width = None if precision is None else precision.itemsize("reduce")
    calls = [
        ("backward", (name, plan.layout.numel, width or plan.itemsize), reduced) for plan in plans if plan.trainable
    ]
    if stage == 3:
        calls += [
            (phase, ("all_gather", plan.layout.numel, plan.itemsize), settings.micro_batches)
            for phase, unit in gather_order(plans, settings.resident, settings.limits)
            for plan in unit
            if not plan.persistent
        ]
    if stage > 0 and not skipped:
        published = (plan for plan in plans if plan.trainable and (plan.persistent or stage < 3))
        calls += [("publish", ("all_gather", plan.layout.numel, plan.itemsize), 1) for plan in published]
    if settings.clip or (precision is not None and precision.scales_loss):
        calls.append(("norm", ("all_gather", ranks, 8), 1))
    if settings.offload.on_disk and not skipped:
        calls.append(("norm", ("all_gather", ranks, 8), 1))
    sent: dict[str, dict[str, int]] = {}
    for phase, (name, numel, itemsize), times in calls:
        of_phase = sent.setdefault(phase, {})
        of_phase[name] = of_phase.get(name, 0) + times * wire_bytes(name, numel, itemsize, ranks, rank)
    return sent


def gather_order(
    plans: Sequence[BucketPlan], resident: Collection[str] = (), limits: Stage3Limits = NO_LIMITS
) -> Iterator[tuple[str, list[BucketPlan]]]:
    """Stage 3, one micro-batch of units that run in order: the phase and the unit of each gathering. Backward reaches
    the first that trains, since no gradient passes through frozen ones before it."""
    units = [list(unit) for _, unit in groupby(plans, key=lambda plan: plan.unit)]
    numels = [sum(plan.layout.numel for plan in unit if not plan.persistent) for unit in units]
    first = next((at for at, unit in enumerate(units) if any(plan.trainable for plan in unit)), len(units))
    forward = [*range(len(units)), *(at for at, unit in enumerate(units) if unit[0].unit in resident)]
    gathered: set[int] = set()
    for phase, order in (("forward", forward), ("backward", [at for at in reversed(forward) if at >= first])):
        for turn, at in enumerate(order):
            coming = order[turn + 1 :]
            here = gathered | {at}
            sizes = [(numels[other], other in here) for other in coming]
            ahead = limits.ahead(sizes, sum(numels[other] for other in here))
            for other in (at, *coming[:ahead]):
                if other not in gathered:
                    gathered.add(other)
                    yield phase, units[other]
            stays = phase == "forward" and at >= first and limits.keeps(at, coming, numels.__getitem__)
            if at not in coming and not stays:
                gathered.discard(at)
