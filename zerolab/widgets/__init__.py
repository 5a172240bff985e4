"""Sliders on the pictures of `zerolab.viz`. The pictures know nothing of them."""

from zerolab.widgets.layouts import bucket_sliders, shard_sliders
from zerolab.widgets.living import Living
from zerolab.widgets.memory import memory_sliders
from zerolab.widgets.ring import ring_stepper
from zerolab.widgets.step import step_timeline

__all__ = ["Living", "bucket_sliders", "memory_sliders", "ring_stepper", "shard_sliders", "step_timeline"]
