"""One picture of each kind, as the lessons draw them."""

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from cover import NIGHTLY

from zerolab.apps.plan import SHAPES
from zerolab.collectives import Link, Span
from zerolab.course import viz
from zerolab.course.living import SCENES
from zerolab.course.viz import Picture
from zerolab.course.viz.pipeline import schedule
from zerolab.course.viz.scale import COURSES, gradient_course, simulated
from zerolab.flat import lay_out
from zerolab.memory import Sample
from zerolab.precision.scaler import LossScaler
from zerolab.ranks import launch
from zerolab.run import RunSpec

KINDS = ("parameters", "gradients", "optimizer_states")
WALK = [(part.kind, part.group, part.start / 1e3, part.stop / 1e3) for part in schedule(6, 3, 2, 1, 2)]
SIZES = [100, 37, 211, 64, 5, 300, 12, 80, 90, 44, 61]
RUNS = {
    "careless": [Sample(at, "", {"gradients": 10**6 * min(at, 12 - at)}) for at in range(1, 12)],
    "in time": [Sample(at, "", {"gradients": 10**6 * (1 + at // 4)}) for at in range(1, 16)],
}


def two_timelines() -> Picture:
    spans = [Span(0, "compute", "backward blocks.0", 0.0, 0.003), Span(0, "collective", "all_reduce", 0.001, 0.004)]
    return viz.timelines({"one bucket": spans, "ten buckets": spans[:1]})


def messages() -> Picture:
    ran = launch(lambda comm: comm.all_reduce(torch.ones(300)), ranks=3, world="lockstep", link=Link(1, 10), trace=True)
    return viz.timeline({"ring": ran.trace}, ranks=3)


def scale_of(course: str, power: int, scaler: LossScaler) -> Picture:
    gradients = gradient_course(course, power)
    return viz.loss_scale(simulated(gradients, scaler), gradients)


def windows_of(low: int, high: int) -> Picture:
    """Gradients of many sizes between two powers of two."""
    windows = [("fp16", 1.0), ("fp16", 2.0**16), ("bf16", 1.0), ("e5m2", 3.0), ("e4m3", 1.0)]
    return viz.gradient_windows(torch.exp2(torch.linspace(low, high, 4000).double()), windows)


EACH: Mapping[str, Callable[[], Picture]] = {
    "bars": lambda: viz.bars(
        [f"stage {stage}" for stage in range(4)], {kind: [1.28, 1.28, 0.32, 0.32] for kind in KINDS},
        {kind: [1.28] * 4 for kind in KINDS}, unit="MB on rank 0",
    ),
    "bucket_explorer": lambda: viz.bucket_explorer({"w": (400, 300), "v": (170_000,)}, 8, Link(10, 50), 65_536),
    "compared_pipelines": lambda: viz.compared_pipelines(WALK, 3),
    "curve": lambda: viz.curve([1, 10, 100], {"step": [3, 1, 2], "link": [2, 1, 1]}, "elements", "ms", log=True),
    "gradient_windows": lambda: windows_of(-36, -6),
    "loss_scale": lambda: scale_of("waves", 0, LossScaler(20, 5, 2)),
    "memory_calculator": lambda: viz.memory_calculator(RunSpec(SHAPES["GPT-3 175B"], ranks=8, stage=3, seq_len=2048)),
    "memory_course": lambda: viz.memory_course(RUNS),
    "number_line": lambda: viz.number_line(1.001),
    "offload_pipeline": lambda: viz.offload_pipeline(6, 2, 2.0, 2.0, 2.0),
    "owners": viz.owners,
    "reshard_map": lambda: viz.reshard_map({"w": (24, 40), "b": (40,), "v": (40, 8), "c": (8,)}, 4, 3),
    "ring": lambda: SCENES["ring"].picture(collective="all_reduce", ranks=8, step=5),
    "ring_steps": viz.ring_steps,
    "save_timeline": viz.save_timeline,
    "shard_map": lambda: viz.shard_map(lay_out({f"p{at}": (size,) for at, size in enumerate(SIZES)}, 3, 16)),
    "sixteen_bytes": lambda: viz.sixteen_bytes(4),
    "stages": lambda: SCENES["stages"].picture(stage=3, moment=12),
    "step_circle": lambda: viz.step_circle(["gradients", "optimizer"]),
    "step_skyline": lambda: viz.step_skyline(viz.StepRun(3, 2)),
    "timeline": messages,
    "timelines": two_timelines,
}  # fmt: skip

NUMBERS = [
    (math.pi, "fp16"), (math.pi, "fp32"), (-1 / 3, "bf16"), (0, None), (1e-5, None), (70000, None), (0.1, "e4m3"),
    (1e39, None), (-3.4028234e38, None), (65504, "fp16"), (2.0**-149, "fp32"), (-448, "e4m3"),
    (-1.00135803e-5, "bf16"), (-9.9999e-6, "fp32"), (-1.2345e-30, None), (123456789, "fp32"),
]  # fmt: skip
CROWDED: Mapping[str, Callable[[], Picture]] = {
    **{f"{value} {zoom}": partial(viz.number_line, value, zoom) for value, zoom in NUMBERS[:: 1 if NIGHTLY else 3]},
    **{f"windows {span}": partial(windows_of, *span) for span in [(-45, -4), (-3, 30), (-140, 120), (0, 1)]},
    **{f"scale {name}": partial(scale_of, name, -12, LossScaler(32, 5)) for name in COURSES},
    **{f"walk {sizes}": partial(viz.offload_pipeline, *sizes, 2, 0.5, 3) for sizes in [(1, 1), (12, 4), (40, 3)]},
    "eight ranks": partial(viz.ring_steps, "reduce_scatter", 8),
    "two ranks": partial(viz.ring_steps, "all_gather", 2),
    "eight owners": partial(viz.owners, 8),
}
"""More of them, whose texts have little room."""
