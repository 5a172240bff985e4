"""Sliders on the pictures of `zerolab.course.viz`. The pictures know nothing of them."""

from zerolab.course.widgets.checkpoints import reshard_sliders, save_sliders
from zerolab.course.widgets.here import Here
from zerolab.course.widgets.layouts import bucket_sliders, shard_sliders
from zerolab.course.widgets.living import Living
from zerolab.course.widgets.memory import memory_sliders
from zerolab.course.widgets.numbers import number_sliders
from zerolab.course.widgets.pipeline import pipeline_sliders
from zerolab.course.widgets.ring import ring_stepper
from zerolab.course.widgets.scale import scale_sliders
from zerolab.course.widgets.stages import stage_stepper
from zerolab.course.widgets.step import step_timeline

__all__ = [
    "Here",
    "Living",
    "bucket_sliders",
    "memory_sliders",
    "number_sliders",
    "pipeline_sliders",
    "reshard_sliders",
    "ring_stepper",
    "save_sliders",
    "scale_sliders",
    "shard_sliders",
    "stage_stepper",
    "step_timeline",
]
