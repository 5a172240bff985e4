"""Pictures of the course: pure functions from settings or traces to a figure and its numbers as text."""

from zerolab.viz.bars import bars
from zerolab.viz.picture import Picture, text_table
from zerolab.viz.ring import ring_steps, watch_ring
from zerolab.viz.source import Source
from zerolab.viz.timeline import timeline

__all__ = ["Picture", "Source", "bars", "ring_steps", "text_table", "timeline", "watch_ring"]
