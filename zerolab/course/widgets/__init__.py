"""Sliders on the pictures of `zerolab.course.viz`. The pictures know nothing of them."""

from zerolab.course.widgets.buckets import bucket_sliders
from zerolab.course.widgets.here import Here
from zerolab.course.widgets.living import Living
from zerolab.course.widgets.numbers import number_sliders
from zerolab.course.widgets.pipeline import pipeline_sliders
from zerolab.course.widgets.saving import save_sliders
from zerolab.course.widgets.scale import scale_sliders
from zerolab.course.widgets.scenes import (
    memory_sliders,
    reshard_sliders,
    ring_stepper,
    shard_sliders,
    stage_stepper,
    step_timeline,
)

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
