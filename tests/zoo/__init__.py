"""The zoo: wrong answers by lesson, each with a piece of the hint that it must get."""

from __future__ import annotations

from zoo import (
    edges,
    flat,
    kept,
    mixed,
    offload,
    ring,
    slips,
    start,
    zero1,
    zero2,
    zero2_hints,
    zero2_slips,
    zero2_traces,
    zero3,
    zero3_hints,
    zero3_slips,
)
from zoo.wrong import Wrong, changed

ZOO: dict[str, list[Wrong]] = {
    "00_start_here": [*start.ZOO, *kept.START, *slips.START, *edges.START],
    "01_ring_collectives": [*ring.ZOO, *kept.RING, *slips.RING, *edges.RING],
    "02_flat_buffers": [*flat.ZOO, *slips.FLAT, *edges.FLAT],
    "03_zero_1": [*zero1.ZOO, *slips.ZERO1],
    "04_zero_2": [*zero2.ZOO, *zero2_traces.ZOO, *zero2_slips.ZOO, *zero2_hints.ZOO, *kept.NORM],
    "05_zero_3": [*zero3.ZOO, *zero3_slips.ZOO, *zero3_hints.ZOO],
    "06_mixed_precision": mixed.ZOO,
    "07_offloading": [wrong for wrong in offload.ZOO if wrong.exercise != "best_place"],
    "07b_when_it_pays": [wrong for wrong in offload.ZOO if wrong.exercise == "best_place"],
}

__all__ = ["ZOO", "Wrong", "changed"]
