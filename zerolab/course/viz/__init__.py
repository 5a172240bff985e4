"""Pictures of the course: pure functions from settings or traces to a figure and its numbers as text."""

from zerolab.course.viz.bars import bars
from zerolab.course.viz.boxes import owners, ring_steps, sixteen_bytes, step_circle
from zerolab.course.viz.calculator import memory_calculator
from zerolab.course.viz.curve import bucket_explorer, curve, memory_course
from zerolab.course.viz.numbers import gradient_windows, number_line
from zerolab.course.viz.picture import Picture, text_table
from zerolab.course.viz.pipeline import compared_pipelines, offload_pipeline, save_timeline
from zerolab.course.viz.reshard import reshard_map
from zerolab.course.viz.scale import loss_scale
from zerolab.course.viz.shards import shard_map
from zerolab.course.viz.skyline import step_skyline
from zerolab.course.viz.source import Changes, Source
from zerolab.course.viz.step import StepRun, watch_step
from zerolab.course.viz.timelines import timeline, timelines

__all__ = [
    "Changes",
    "Picture",
    "Source",
    "StepRun",
    "bars",
    "bucket_explorer",
    "compared_pipelines",
    "curve",
    "gradient_windows",
    "loss_scale",
    "memory_calculator",
    "memory_course",
    "number_line",
    "offload_pipeline",
    "owners",
    "reshard_map",
    "ring_steps",
    "save_timeline",
    "shard_map",
    "sixteen_bytes",
    "step_circle",
    "step_skyline",
    "text_table",
    "timeline",
    "timelines",
    "watch_step",
]
