"""The layout that an engine would build for a run, without the model: three layers on the meta device stand for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from zerolab.apps.plan.mixture import build_model
from zerolab.apps.plan.trace import TRACED_LAYERS
from zerolab.flat import ALIGN, BucketPlan
from zerolab.flat.layout import round_up
from zerolab.models import Config
from zerolab.offload.formats import align_of
from zerolab.precision.recipe import Precision
from zerolab.zero.table import Sharding
from zerolab.zero.units import find_units
from zerolab.zero.zero_engine import dtypes_from


@dataclass(frozen=True)
class RunLayout:
    """Units of a model, and where its modules' parameters are in them.

    units  of each unit, in forward order, the plans of its buckets
    owner  of each module (the embedding, the layers, the head) the number of its unit: a tied head's is that of the
           embedding
    slots  of each module the bucket of its unit in which each of its parameters lies
    """

    units: tuple[tuple[BucketPlan, ...], ...]
    owner: tuple[int, ...]
    slots: tuple[tuple[int, ...], ...]

    @property
    def plans(self) -> list[BucketPlan]:
        return [plan for unit in self.units for plan in unit]


def decay_of(_name: str, parameter: nn.Parameter) -> dict[str, Any]:
    """Groups as `zerolab train` has them: matrices decay, vectors do not."""
    return {"decays": parameter.dim() >= 2}


@lru_cache(maxsize=256)
def lay_out_model(
    config: Config,
    ranks: int,
    precision: Precision | None = None,
    bucket_numel: int | None = None,
    persistence_numel: int = 0,
) -> RunLayout:
    """What `find_units` makes of the whole model."""
    traced = min(config.layers, TRACED_LAYERS)
    with torch.device("meta"):
        model = build_model(replace(config, layers=traced))
    modules = model.units()
    sharding = Sharding(
        dtypes=dtypes_from(precision),
        persistence_numel=persistence_numel,
        bucket_numel=bucket_numel,
        align=round_up(ALIGN, align_of(precision)),
    )
    units = find_units(model, ranks, None, decay_of, sharding)
    owner = {id(module): number for number, unit in enumerate(units) for module in unit.modules}
    owners = [owner[id(module)] for module in modules]
    slots = [
        tuple(
            next(at for at, bucket in enumerate(units[number].buckets) if id(parameter) in bucket.slots)
            for parameter in module.parameters()
        )
        for module, number in zip(modules, owners, strict=True)
    ]
    plans = [tuple(bucket.plan for bucket in unit.buckets) for unit in units]
    more = config.layers - traced
    if not more:
        return RunLayout(tuple(plans), tuple(owners), tuple(slots))
    # The second layer stands for those between the first and the last; it is module 2, as the embedding is module 0.
    middle, last = owners[2], owners[2] + 1
    names = [name for name, module in model.named_modules() if any(module is unit for unit in modules[2:4])]
    stem = names[0].removesuffix("1")
    between = [named(plans[middle], names[0], f"{stem}{number}") for number in range(1, traced + more - 1)]
    tail = [named(plans[last], names[1], f"{stem}{config.layers - 1}"), *plans[last + 1 :]]
    return RunLayout(
        (*plans[:middle], *between, *tail),
        (*owners[:2], *range(middle, middle + more + 1), *(at if at <= middle else at + more for at in owners[3:])),
        (*slots[:2], *[slots[2]] * (more + 1), *slots[3:]),
    )


def named(plans: Sequence[BucketPlan], old: str, new: str) -> tuple[BucketPlan, ...]:
    """The plans of a unit under the name of another, which is laid out alike."""
    found = []
    for plan in plans:
        slots = tuple(replace(slot, name=new + slot.name.removeprefix(old)) for slot in plan.layout.slots)
        found.append(replace(plan, unit=new, layout=replace(plan.layout, slots=slots)))
    return tuple(found)
