"""What one rank needs for a training run, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

from zerolab.apps.plan.layout import layout_of
from zerolab.apps.plan.simulator import StepSimulator, sharding_stage
from zerolab.apps.plan.trace import dtype_of
from zerolab.memory.kinds import KINDS, OFFLOADED
from zerolab.memory.predict import predict_rank
from zerolab.memory.states import ADAM
from zerolab.offload.copies import AHEAD
from zerolab.offload.formats import StateSize, StorageFormat, format_of, sub_group_limit
from zerolab.precision.recipe import Precision
from zerolab.run import RunSpec
from zerolab.run.spec import AT_STAGE_3

DEVICE = KINDS
"""What a GPU holds, by kind, each in bytes of `predict_peak`."""
ADAMW = StateSize(2, 4, ADAM)
"""Torch's AdamW: two moments, and a step counter for each tensor that it updates."""


class StepMoment(NamedTuple):
    """The bytes of a moment by kind, and where in a step it is, such as "backward of layer 3"."""

    where: str
    bytes: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.bytes.values())


class MemoryFootprint(NamedTuple):
    """What one rank holds.

    states  bytes that it keeps from step to step, by kind; one off the device has its place before its name
    tops    the highest moment of each part of a step, in order, with the states
    """

    states: dict[str, int]
    tops: tuple[StepMoment, ...]

    @property
    def peak(self) -> StepMoment:
        """The moment of a step at which the device holds most."""
        return max(self.tops, key=lambda moment: moment.total)


def predict_peak(run: RunSpec) -> dict[str, float]:
    """Bytes of one rank at the peak of a step: on its GPU by kind, and on its "host" and "disk"."""
    found = predict_memory(run)
    elsewhere = {
        place.rstrip(":"): float(sum(size for kind, size in found.states.items() if kind.startswith(place)))
        for place in OFFLOADED
    }
    return {**{kind: float(found.peak.bytes.get(kind, 0)) for kind in DEVICE}, **elsewhere}


def gpu_bytes(run: RunSpec) -> float:
    """All that one GPU must hold at the peak of a step, without what CUDA, NCCL and the allocator take."""
    return predict_memory(run).peak.total


@lru_cache(maxsize=4096)
def predict_memory(run: RunSpec, rank: int = 0) -> MemoryFootprint:
    """The states of a rank, to the byte, and the moments of one of its first steps."""
    layout = layout_of(run)
    states = predict_rank(layout.plans, run.stage, rank % run.sharing, ADAMW, run.dtypes, run.places.on(run.on_gpus))
    # The micro-batches of a step lie ready: tokens and targets, whole numbers of 8 bytes.
    ready = 2 * 8 * run.micro_batches * run.micro_batch_size * run.seq_len
    live = {kind: size for kind, size in states.items() if not kind.startswith(OFFLOADED)} | {"other": ready}
    step = StepSimulator(run, live)
    step.run_micro_batches()
    step.part = "optimizer step"
    step.add("step_buffers", step_buffers(run, rank % run.sharing))
    return MemoryFootprint(states, tuple(StepMoment(part, bytes) for part, (_, bytes) in step.tops.items()))


def step_buffers(run: RunSpec, rank: int) -> int:
    """The most bytes that the optimizer's step brings to hand on the device."""
    layout, dtypes, places = layout_of(run), run.dtypes, run.places.on(run.on_gpus)
    if places.optimizer != "device":
        return 0
    own = rank if sharding_stage(run) >= 1 else None
    sizes = [segment.numel for plan in layout.plans for segment in plan.segments(own)]
    whole = largest = sum(sizes)
    if (limit := sub_group_limit(dtypes, places)) is not None:
        # Sub-groups are filled to the last aligned element.
        align = layout.plans[0].layout.align
        largest = min(largest, max(limit // align, 1) * align)
    if largest < whole:
        # Of many sub-groups, the one with the longest segment, or a part of it.
        longest = min(max(sizes), largest)
        sizes = [longest, largest - longest]
    form = format_of(dtype_of(run), dtypes, places, ADAM)
    recipe = dtypes or Precision()
    shard = recipe.dtype("main_params" if recipe.sharded_main else "params")
    at_hand = largest * form.step_dtype.itemsize * (recipe.dtype("main_grads") != form.step_dtype)
    main = shard if form.main is None else form.main.dtype
    if not form.is_plain or main != form.step_dtype:
        # In the first step torch makes all moments beside their record.
        decoded = largest * form.step_dtype.itemsize * (len(form.states) + (main != form.step_dtype))
        at_hand = max(at_hand + decoded, decoded + encoding_bytes(form, sizes))
    cast = {shard, main, *(codec.dtype for codec in form.states.values())} != {form.step_dtype}
    if run.on_gpus and places.parameters != "device" and cast:
        # Of one sub-group they are made while those before it are still on their way.
        at_hand += min((AHEAD + 1) * largest, whole) * shard.itemsize
    return at_hand


def encoding_bytes(form: StorageFormat, sizes: Sequence[int]) -> int:
    """The most bytes by which encoding a sub-group goes beyond what is at hand before it. The gradients are gone by
    then, and each moment is let go once it is encoded."""
    width, freed, most = form.step_dtype.itemsize, 0, 0
    moments = [(numel, codec) for numel in sizes for codec in form.states.values()]
    for numel, codec in sorted(moments, key=lambda moment: -moment[1].width):
        most = max(most, round(numel * codec.copies * width) - freed)
        freed += numel * width
    return most


def advice(run: RunSpec, limit: float) -> RunSpec | None:
    """The first of `changes` that fits into a GPU of `limit` bytes, which may be the run itself."""
    return next((changed for changed in changes(run) if gpu_bytes(changed) <= limit), None)


def at_stage(run: RunSpec, stage: int) -> RunSpec:
    """The same run at another stage, without what that stage does not heed."""
    changes: dict[str, Any] = {"stage": stage, "instances": run.instances if stage else 1}
    if stage > 1:
        changes["reduction"] = "reduce_scatter"
    if stage < 3:
        path = run.offload_path if run.places.optimizer == "disk" else None
        changes["offload"] = replace(run.places, parameters="device", max_in_cpu=0, path=path)
        changes |= {name: RunSpec.model_fields[name].default for name in AT_STAGE_3}
    return run.but(**changes)


def name_changes(run: RunSpec, found: RunSpec) -> list[str]:
    """What `advice` changed, in words."""
    said = {
        f"stage {found.stage}": found.stage != run.stage,
        "activation checkpointing": found.checkpoint_activations != run.checkpoint_activations,
        f"a batch of {found.micro_batch_size} a rank": found.micro_batch_size != run.micro_batch_size,
        "the optimizer on the host": found.places != run.places,
        "one instance": found.instances != run.instances and found.stage > 0,
        f"{found.ranks} ranks": found.ranks != run.ranks,
    }
    return [words for words, is_so in said.items() if is_so]


def changes(run: RunSpec) -> Iterator[RunSpec]:
    """Runs like this one, from the change that costs least to the one that costs most."""
    yield run
    options: dict[str, Iterable[Any]] = {
        "ranks": [run.ranks, *(2**power for power in range(1, 14) if 2**power > run.ranks)],
        "offload": [run.places] if run.places.moves else [run.places, "optimizer"],
        "micro_batch_size": dict.fromkeys((run.micro_batch_size, 1)),
        "instances": dict.fromkeys((run.instances, 1)),
        "checkpoint_activations": dict.fromkeys((run.checkpoint_activations, True)),
        "stage": [stage for stage in (run.dtypes or Precision()).stages if stage >= run.stage],
    }
    for chosen in product(*options.values()):
        change = dict(zip(options, chosen, strict=True))
        if change["ranks"] % change["instances"] == 0:
            yield at_stage(run, change.pop("stage")).but(**change)
