"""Sliders on the pictures of `zerolab.course.viz`. The pictures know nothing of them."""

from zerolab.course.widgets.living import Here, Living
from zerolab.course.widgets.scenes import (
    memory_sliders,
    reshard_sliders,
    ring_stepper,
    shard_sliders,
    stage_stepper,
    step_timeline,
)
from zerolab.course.widgets.sliders import (
    bucket_sliders,
    number_sliders,
    pipeline_sliders,
    save_sliders,
    scale_sliders,
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
