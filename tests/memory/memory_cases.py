"""Models of every awkward shape, and one measured step of each: what the tests of memory and of traffic share."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import torch
from cover import covering, pairs
from torch import nn

from zerolab.flat import BucketPlan
from zerolab.memory import KINDS, Stage3Limits, Tracker, TrafficSettings, predict, predict_traffic
from zerolab.models import build
from zerolab.zero import STAGES, ZeroEngine
from zerolab.zero.zero_engine import engine_labels

STATES = ("parameters", "gradients", "optimizer_states")
TRANSIENT = ("gathered_units", "gradient_buffers", "communication_buffers")


class Block(nn.Module):
    """A residual block whose sizes no number of ranks divides."""

    def __init__(self, width: int, frozen: str = "") -> None:
        super().__init__()
        self.inside = nn.Linear(width, width + 1)
        self.outside = nn.Linear(width + 1, width)
        for name, part in self.named_children():
            part.requires_grad_(name not in frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outside(torch.tanh(self.inside(x)))


class Half(nn.Module):
    """A layer of which one half is bfloat16."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide = nn.Linear(width, 5)
        self.narrow = nn.Linear(5, width, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(x).bfloat16()).float()


def ten_blocks(width: int = 37) -> nn.Module:
    return nn.Sequential(*(Block(width) for _ in range(10)))


def uneven() -> nn.Module:
    return nn.Sequential(Block(3), nn.Linear(3, 1), nn.Linear(1, 3), Block(3))


def partly_frozen() -> nn.Module:
    both = "inside outside"
    return nn.Sequential(*(Block(7, frozen) for frozen in (both, both, "inside", "", both, "outside", "")))


def two_dtypes() -> nn.Module:
    return nn.Sequential(Half(3), Half(3))


def two_groups(name: str, parameter: nn.Parameter) -> dict[str, float]:
    return {"weight_decay": 0.1 if parameter.dim() > 1 else 0.0}


@dataclass(frozen=True)
class Case:
    """A model, its batch on one rank, what the engine is told, and how a step runs."""

    model: Callable[[], nn.Module] = ten_blocks
    width: int = 37
    engine: dict[str, Any] = field(default_factory=dict)
    micro_batches: int = 1
    reduce_each: bool = True
    stages: tuple[int, ...] = tuple(STAGES)

    def loss(self, engine: ZeroEngine, rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(rank)
        if self.width == 0:
            tokens = torch.randint(0, 64, (2, 9), generator=generator)
            return engine(tokens[:, :-1], tokens[:, 1:])
        return engine(torch.randn(2, self.width, generator=generator)).square().mean()

    def engine_on(self, comm: Any, stage: int) -> ZeroEngine:
        torch.manual_seed(0)
        options = self.engine if "optimizer" in self.engine else {"lr": 1e-3, **self.engine}
        return ZeroEngine(self.model(), comm, stage, **options)

    def backward(self, engine: ZeroEngine) -> None:
        for batch in range(self.micro_batches):
            last = batch == self.micro_batches - 1
            loss = self.loss(engine, engine.comm.rank) / self.micro_batches
            engine.backward(loss, reduce=self.reduce_each or last)


@dataclass
class Measured:
    """One step after the first, on one rank."""

    predicted: dict[str, int]
    bounds: dict[str, int]
    states: dict[str, int]
    peak: dict[str, int]
    peak_of: dict[str, int]
    left: dict[str, int]
    traffic: dict[str, int]
    calls: dict[str, int]
    traffic_predicted: dict[str, int]


def measure(comm: Any, case: Case, stage: int) -> Measured:
    engine = case.engine_on(comm, stage)
    case.backward(engine)
    engine.step()
    engine.synchronize()
    comm.meter.reset()
    with Tracker(engine_labels(engine)) as tracker:
        case.backward(engine)
        states = tracker.now()
        engine.step()
    engine.synchronize()
    options = case.engine
    clip, prefetch = "clip_norm" in options, options.get("prefetch", True)
    predicted = predict(engine.plans, stage, engine.state_size)
    tied = [unit.name for unit in engine.units if len(unit.modules) > 1]
    limits = options.get("limits", Stage3Limits())
    walked = gathered_peak(engine.plans, limits, prefetch, tied) if stage == 3 and comm.size > 1 else 0
    bounds = bounds_of(engine.plans, stage if comm.size > 1 else 0, case, clip)
    reduction = options.get("reduction", "reduce_scatter")
    sending = TrafficSettings(case.micro_batches, reduction, case.reduce_each, clip, limits=limits, resident=tied)
    traffic = predict_traffic(engine.plans, stage, comm.size, sending)
    engine.close()
    own = comm.rank
    return Measured(
        predicted={kind: by_rank[own] for kind, by_rank in predicted.items()},
        bounds={"gathered_units": walked, **bounds},
        states={kind: states[kind] for kind in STATES},
        peak=tracker.peak,
        peak_of={kind: tracker.peak_of(kind) for kind in KINDS},
        left=tracker.now(),
        traffic=comm.meter.bytes_by_collective(),
        calls=comm.meter.calls_by_collective("forward", "backward"),
        traffic_predicted={name: by_rank[own] for name, by_rank in traffic.items()},
    )


def gathered_peak(plans: Sequence[BucketPlan], limits: Stage3Limits, prefetch: bool, tied: Sequence[str]) -> int:
    """The most bytes of whole units at a moment of a forward and a backward; tied ones run once more in between."""
    units = [[*unit] for _, unit in groupby(plans, key=lambda plan: plan.unit)]
    numels = [sum(plan.layout.numel for plan in unit if not plan.persistent) for unit in units]
    sizes = [sum(plan.itemsize * plan.layout.numel for plan in unit if not plan.persistent) for unit in units]
    first = [any(plan.trainable for plan in unit) for unit in units].index(True)
    forward = [*range(len(units)), *(at for at, unit in enumerate(units) if unit[0].unit in tied)]
    here, peak = set[int](), 0
    for way, runs in enumerate((forward, [at for at in reversed(forward) if at >= first])):
        for turn, at in enumerate(runs):
            coming = runs[turn + 1 :]
            here.add(at)
            live = sum(numels[other] for other in here)
            here |= {*coming[: limits.ahead([(numels[other], other in here) for other in coming], live) * prefetch]}
            peak = max(peak, sum(sizes[other] for other in here))
            if at not in coming and (way or at < first or not limits.keeps(at, coming, numels.__getitem__)):
                here.remove(at)
    return peak


def bounds_of(plans: Sequence[BucketPlan], stage: int, case: Case, clip: bool) -> dict[str, int]:
    """The most bytes of gradients and of what a ring receives, at one moment of a step, on a rank."""
    trainable = [plan for plan in plans if plan.trainable]
    whole = [plan.itemsize * plan.layout.numel for plan in trainable]
    shards = [plan.itemsize * plan.layout.shard_numel for plan in trainable]
    several = case.micro_batches > 1
    if stage < 2 and not (several and case.reduce_each):
        local = 0
    elif stage >= 2 and several and not case.reduce_each:
        local = sum(whole)
    else:
        # Backward goes from the end: what it left before a unit, two buckets, is still under reduction.
        names = [plan.unit for plan in trainable]
        ends = {name: at for at, name in enumerate(names)}
        local = max(sum(whole[names.index(name) : end + 3]) for name, end in ends.items())
    # A ring receives into one chunk on two ranks, into two on more; sums of further micro-batches wait to be added.
    scratch = max(shards) * min(plans[0].layout.ranks - 1, 2)
    if several and case.reduce_each and stage >= 2:
        scratch += max(map(sum, zip(shards, [*shards[1:], 0], strict=True)))
    scratch = max(scratch, 8 * plans[0].layout.ranks * clip)
    return {"gradient_buffers": local, "communication_buffers": scratch}


def measure_all(comm: Any, cases: dict[str, Case]) -> dict[tuple[str, int], Measured]:
    """{(case, stage): measured} of one rank."""
    return {(name, stage): measure(comm, case, stage) for name, case in cases.items() for stage in case.stages}


Place = TypeVar("Place", bound=Hashable)


def by_day(
    cases: dict[str, Case], places: Sequence[Place], whole: Callable[[str, Place], bool]
) -> dict[Place, dict[str, Case]]:
    """The cases of each place, where any two of case, stage and place meet; a case that is `whole` in a place has all
    its stages there, and nightly all have."""
    runs = [(name, stage, place) for name, case in cases.items() for stage in case.stages for place in places]
    few = set(covering(runs, shows=lambda run: {*pairs(*run), *([run] if whole(run[0], run[2]) else [])}))
    return {
        place: {
            name: replace(case, stages=tuple(stage for stage in case.stages if (name, stage, place) in few))
            for name, case in cases.items()
        }
        for place in places
    }


MEMORY_CASES = {
    "ten blocks": Case(),
    "ten blocks in two micro-batches": Case(micro_batches=2),
    "uneven, reduced once": Case(uneven, 3, {"align": 1}, micro_batches=2, reduce_each=False),
    "nothing ahead": Case(uneven, 3, {"prefetch": False, "overlap": False, "clip_norm": 0.1}),
    "partly frozen": Case(partly_frozen, 7, {"bucket_numel": 70}),
    "two dtypes, momentum": Case(two_dtypes, 3, {"optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9)}),
    "llama, two groups": Case(partial(build, "llama", "nano", vocab_size=64), 0, {"groups": two_groups}),
    "gpt2, tied and recomputed": Case(partial(build, "gpt2", "nano", vocab_size=64, checkpoint=True), 0),
}
"""What the engine is, and how a step runs, in the tests of memory."""

TRAFFIC_CASES = {
    "once": Case(uneven, 3),
    "uneven": Case(uneven, 3, {"align": 1, "clip_norm": 1.0}),
    "twice": Case(uneven, 3, {"clip_norm": 0.1, "prefetch": False}, micro_batches=2),
    "three times, reduced once": Case(uneven, 3, micro_batches=3, reduce_each=False),
    "by all-reduce": Case(uneven, 3, {"reduction": "all_reduce", "clip_norm": 0.1}, micro_batches=2, stages=(1,)),
    "partly frozen": Case(partly_frozen, 7),
    "small buckets": Case(partly_frozen, 7, {"bucket_numel": 70, "overlap_gather": True}, micro_batches=2),
    "gpt2, tied and recomputed": Case(partial(build, "gpt2", "nano", vocab_size=64, checkpoint=True), 0),
}
