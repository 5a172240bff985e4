"""The pictures that move (`zerolab.course.living`) in a notebook, each set as a lesson asks for it."""

from __future__ import annotations

from typing import Any

from zerolab.course.living import scenes
from zerolab.course.living.scenes import Shapes
from zerolab.course.widgets.moving import Moving
from zerolab.errors import InputError
from zerolab.flat import ALIGN


def ring_stepper(collective: str = "reduce_scatter", ranks: int = 4, step: int = 0) -> Moving:
    """What each rank of a ring holds after so many steps, and what moves next; the step goes as far as the collective
    does."""
    return Moving(scenes.RING, collective=collective, ranks=ranks, step=step)


def stage_stepper(stage: int = 1, moment: int = 0) -> Moving:
    """A step of a small model on four ranks as it ran in lockstep: what each rank has of every unit at a moment, and
    rank 0's memory. A stage that was not shown before takes about a second to run."""
    return Moving(scenes.STEP, stage=stage, moment=moment)


def step_timeline(
    stage: int = 3, ranks: int = 4, gbit_per_s: float = 10.0, latency_us: float = 5.0, prefetch: bool = True,
    overlap: bool = True, offload: bool = False,
) -> Moving:  # fmt: skip
    """Timeline and memory of one step of a small model on a simulated link, in lockstep. A new setting is run, which
    takes about a second; after that it is remembered."""
    return Moving(
        scenes.TIMELINE, stage=stage, ranks=ranks, gbit_per_s=gbit_per_s, latency_us=latency_us, prefetch=prefetch,
        overlap=overlap, offload=offload,
    )  # fmt: skip


def shard_sliders(shapes: Shapes, ranks: int = 4, align: int = 16) -> Moving:
    """The shard map of parameters of these shapes, for any number of ranks and any alignment."""
    scene = scenes.shards(shapes)
    return Moving(scene, model=scenes.name_of(shapes, scene), ranks=ranks, align=align, picture=2)


def reshard_sliders(
    shapes: Shapes, saved_by: int = 4, loaded_by: int = 3, stage: int = 2, nbytes: int = 14, align: int = ALIGN
) -> Moving:
    """Which elements each rank reads from whose files, for any numbers of ranks before and after, and any stage."""
    scene = scenes.reshard(shapes, nbytes, align)
    model = scenes.name_of(shapes, scene)
    return Moving(scene, model=model, saved_by=saved_by, loaded_by=loaded_by, stage=stage, read=loaded_by)


def memory_sliders(**start: Any) -> Moving:
    """The memory calculator with a control for each setting; `start` sets some of them, such as ranks=64."""
    first = {
        "model": "GPT-3 6.7B", "gpu": "80 GB", "ranks": 8, "stage": 0, "precision": "bf16", "offload": "nothing",
        "micro_batch_size": 1, "seq_len": 2048, "checkpoint_activations": False,
    }  # fmt: skip
    if unknown := start.keys() - first.keys():
        raise InputError(f"there is no control {min(unknown)!r}; choose one of {', '.join(first)}")
    return Moving(scenes.CALCULATOR, **first | start)
