"""Sliders on the bucket explorer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ipywidgets import Checkbox, Layout, SelectionSlider

from zerolab.collectives import Link
from zerolab.course.viz.buckets import SIZES, bucket_explorer
from zerolab.course.viz.picture import Picture
from zerolab.course.widgets.living import Living

WIDE = {"style": {"description_width": "165px"}, "layout": Layout(width="340px")}
Shapes = Mapping[str, Sequence[int]]


def bucket_sliders(shapes: Shapes, ranks: int = 4, gbit_per_s: float = 10.0, latency_us: float = 50.0) -> Living:
    """The bucket explorer for gradients of these shapes, on any link."""

    def draw(ranks: int, gbit_per_s: float, latency_us: float, bucket_numel: int, overlapped: bool) -> Picture:
        return bucket_explorer(shapes, ranks, Link(gbit_per_s, latency_us), bucket_numel, 3 if overlapped else 1)

    return Living(
        draw,
        ranks=SelectionSlider(options=[2, 4, 8, 16, 32, 64], value=ranks, description="ranks", **WIDE),
        gbit_per_s=SelectionSlider(
            options=[0.1, 1.0, 10.0, 25.0, 100.0, 400.0], value=gbit_per_s, description="gigabits a second", **WIDE
        ),
        latency_us=SelectionSlider(
            options=[0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0], value=latency_us, description="latency, µs", **WIDE
        ),
        bucket_numel=SelectionSlider(options=list(SIZES), value=SIZES[4], description="elements of a bucket", **WIDE),
        overlapped=Checkbox(value=True, description="three buckets at once", **WIDE),
    )
