"""Pictures of the course: pure functions from settings or traces to a figure and its numbers as text."""

from zerolab.viz.bars import bars
from zerolab.viz.buckets import bucket_explorer
from zerolab.viz.calculator import memory_calculator
from zerolab.viz.circle import step_circle
from zerolab.viz.course import memory_course
from zerolab.viz.curve import curve
from zerolab.viz.gradients import gradient_windows
from zerolab.viz.moment import ring_moment
from zerolab.viz.numbers import number_line
from zerolab.viz.owners import owners
from zerolab.viz.picture import Picture, text_table
from zerolab.viz.pipeline import compared_pipelines, offload_pipeline, recorded_pipeline
from zerolab.viz.ring import ring_steps, watch_ring
from zerolab.viz.scale import ScaleCourse, loss_scale
from zerolab.viz.shards import shard_map
from zerolab.viz.skyline import draw_step, step_skyline
from zerolab.viz.source import Source
from zerolab.viz.step import StepRun, watch_step
from zerolab.viz.timeline import timeline
from zerolab.viz.timelines import timelines

__all__ = [
    "Picture",
    "ScaleCourse",
    "Source",
    "StepRun",
    "bars",
    "bucket_explorer",
    "compared_pipelines",
    "curve",
    "draw_step",
    "gradient_windows",
    "loss_scale",
    "memory_calculator",
    "memory_course",
    "number_line",
    "offload_pipeline",
    "owners",
    "recorded_pipeline",
    "ring_moment",
    "ring_steps",
    "shard_map",
    "step_circle",
    "step_skyline",
    "text_table",
    "timeline",
    "timelines",
    "watch_ring",
    "watch_step",
]
