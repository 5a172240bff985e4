"""Sliders on pictures that are drawn anew for each setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipywidgets import Checkbox, FloatText, IntSlider, Layout, SelectionSlider

from zerolab.collectives import Link
from zerolab.course.formats import FORMATS
from zerolab.course.viz.curve import SIZES, bucket_explorer
from zerolab.course.viz.numbers import number_line
from zerolab.course.viz.picture import Picture
from zerolab.course.viz.pipeline import offload_pipeline, save_timeline
from zerolab.course.viz.scale import COURSES, gradient_course, loss_scale, simulated
from zerolab.course.widgets.living import Living
from zerolab.errors import InputError
from zerolab.precision.scaler import LossScaler

WIDE = {"style": {"description_width": "205px"}, "layout": Layout(width="400px")}
COARSEST = "the coarsest of these"
TIMES = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]
LONG_TIMES = [1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 40.0, 80.0]


def choice(label: str, values: Sequence[Any], value: Any) -> SelectionSlider:
    if value not in values:
        raise InputError(f"{label} is {value!r}; choose one of {', '.join(map(str, values))}")
    return SelectionSlider(options=[*values], value=value, description=label, **WIDE)


def whole(label: str, least: int, most: int, value: int) -> IntSlider:
    if value not in range(least, most + 1):
        raise InputError(f"{label} is {value!r}; take {least} to {most}")
    return IntSlider(value=value, min=least, max=most, description=label, **WIDE)


def tick(label: str, value: bool) -> Checkbox:
    return Checkbox(value=value, description=label, indent=False)


def bucket_sliders(shapes: Mapping[str, Sequence[int]], ranks: int = 4) -> Living:
    """The bucket explorer for gradients of these shapes, on any link."""

    def draw(ranks: int, gbit_per_s: float, latency_us: float, bucket_numel: int, overlapped: bool) -> Picture:
        return bucket_explorer(shapes, ranks, Link(gbit_per_s, latency_us), bucket_numel, 3 if overlapped else 1)

    return Living(
        draw,
        ranks=choice("ranks", [2, 4, 8, 16, 32, 64], ranks),
        gbit_per_s=choice("gigabits a second", [0.1, 1.0, 10.0, 25.0, 100.0, 400.0], 10.0),
        latency_us=choice("latency, µs", [0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0], 50.0),
        bucket_numel=choice("elements of a bucket", SIZES, SIZES[4]),
        overlapped=tick("three buckets at once", True),
    )


def number_sliders(value: float = 3.14159265) -> Living:
    """The number line around a value: type one, or double and halve it with the slider."""

    def draw(value: float, power: int, zoom: str) -> Picture:
        return number_line(value * 2.0**power, None if zoom == COARSEST else zoom)

    return Living(
        draw,
        value=FloatText(value=value, description="value", **WIDE),
        power=whole("times two to the power of", -150, 130, 0),
        zoom=choice("room for neighbours in", [COARSEST, *FORMATS], COARSEST),
    )


def pipeline_sliders(
    groups: int = 6, buffers: int = 2, read: float = 2.0, compute: float = 2.0, write: float = 2.0
) -> Living:
    """The timeline of a step whose states pass through buffers, for any times of its three parts."""
    return Living(
        offload_pipeline,
        buffers=whole("buffers", 1, 4, buffers),
        groups=whole("groups", 1, 12, groups),
        read=choice("read one group, ms", TIMES, read),
        compute=choice("compute on it, ms", TIMES, compute),
        write=choice("write it, ms", TIMES, write),
    )


def save_sliders(every: int = 3, step: float = 10.0, copy: float = 3.0, write: float = 20.0) -> Living:
    """Twelve steps with checkpoints, waited for or not, for any times in milliseconds."""
    return Living(
        save_timeline,
        every=whole("steps to a checkpoint", 1, 6, every),
        step=choice("a step, ms", LONG_TIMES, step),
        copy=choice("copying shards, ms", [0.0, *LONG_TIMES], copy),
        write=choice("writing them, ms", [0.0, *LONG_TIMES], write),
    )


def scale_sliders(initial_power: int = 16, window: int = 10, course: str = "steady") -> Living:
    """The scale over a run of 120 steps, whose largest gradients take one of COURSES around a power of two."""

    def draw(course: str, gradient_power: int, forgives: bool, **settings: int) -> Picture:
        gradients = gradient_course(course, gradient_power)
        scaler = LossScaler(**settings, consecutive_hysteresis=forgives)
        return loss_scale(simulated(gradients, scaler), gradients)

    return Living(
        draw,
        course=choice("course of the largest gradient", [*COURSES], course),
        gradient_power=whole("around: two to", -24, 16, 0),
        initial_power=whole("first scale: two to", 0, 32, initial_power),
        window=choice("window: clean steps to double", [1, 2, 5, 10, 20, 50, 100, 1000], window),
        hysteresis=choice("hysteresis: overflows to halve", [1, 2, 3, 4], 2),
        forgives=tick("a clean step forgives what was before", False),
    )
