"""The layout that an engine would build for a run; three layers on the meta device stand for all."""

from __future__ import annotations

import re
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
from zerolab.run import RunSpec
from zerolab.zero.table import Sharding
from zerolab.zero.units import find_units
from zerolab.zero.zero_engine import dtypes_from


@dataclass(frozen=True)
class RunLayout:
    """Units of a model, and where its modules' parameters are in them.

    units  of each unit, in forward order, the plans of its buckets
    owner  of each module (the embedding, the layers, the head) the number of its unit; a tied head's is 0
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


def layout_of(run: RunSpec) -> RunLayout:
    return lay_out_model(run.architecture, run.sharing, run.dtypes, run.bucket_numel, run.limits.persistence_numel)


@lru_cache(maxsize=256)
def lay_out_model(
    config: Config,
    ranks: int,
    precision: Precision | None = None,
    bucket_numel: int | None = None,
    persistence_numel: int = 0,
) -> RunLayout:
    """What `find_units` makes of the whole model."""
    more = max(0, config.layers - TRACED_LAYERS)
    with torch.device("meta"):
        model = build_model(replace(config, layers=config.layers - more))
    sharding = Sharding(
        dtypes=dtypes_from(precision),
        persistence_numel=persistence_numel,
        bucket_numel=bucket_numel,
        align=round_up(ALIGN, align_of(precision)),
    )
    found = find_units(model, ranks, None, decay_of, sharding)
    units = [tuple(bucket.plan for bucket in unit.buckets) for unit in found]
    owner = [*range(config.layers + 1), 0 if config.tied_head else config.layers + 1]
    slots = []
    for module in model.units():
        buckets = next(unit.buckets for unit in found if any(module is one for one in unit.modules))
        places = {key: place for place, bucket in enumerate(buckets) for key in bucket.slots}
        slots.append(tuple(places[id(parameter)] for parameter in module.parameters()))
    if more:
        # The second layer, which is unit 2, stands for those between the first and the last.
        between = [tuple(rename_layer(plan, layer) for plan in units[2]) for layer in range(1, config.layers - 1)]
        units[2:4] = [*between, tuple(rename_layer(plan, config.layers - 1) for plan in units[3])]
        slots[2:3] = slots[2:3] * (more + 1)
    return RunLayout(tuple(units), tuple(owner), tuple(slots))


def rename_layer(plan: BucketPlan, layer: int) -> BucketPlan:
    """The plan of one layer as that of another, which is laid out alike."""
    unit = re.sub(r"\d+$", str(layer), plan.unit)
    slots = tuple(replace(slot, name=unit + slot.name.removeprefix(plan.unit)) for slot in plan.layout.slots)
    return replace(plan, unit=unit, layout=replace(plan.layout, slots=slots))
