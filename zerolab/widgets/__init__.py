"""Sliders on the pictures of `zerolab.viz`. The pictures know nothing of them."""

from zerolab.widgets.here import Here
from zerolab.widgets.layouts import bucket_sliders, shard_sliders
from zerolab.widgets.living import Living
from zerolab.widgets.memory import memory_sliders
from zerolab.widgets.numbers import number_sliders
from zerolab.widgets.pipeline import pipeline_sliders
from zerolab.widgets.ring import ring_stepper
from zerolab.widgets.scale import scale_sliders
from zerolab.widgets.step import step_timeline

__all__ = [
    "Here",
    "Living",
    "bucket_sliders",
    "memory_sliders",
    "number_sliders",
    "pipeline_sliders",
    "ring_stepper",
    "scale_sliders",
    "shard_sliders",
    "step_timeline",
]
