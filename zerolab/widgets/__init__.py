"""Sliders on the pictures of `zerolab.viz`. The pictures know nothing of them."""

from zerolab.widgets.living import Living
from zerolab.widgets.memory import memory_sliders

__all__ = ["Living", "memory_sliders"]
