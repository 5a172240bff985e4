"""The zoo of right answers, by lesson: whatever the style, a check may not refuse them."""

from __future__ import annotations

from zoo.right import (
    edges,
    flat,
    flat_more,
    flat_travel,
    mixed,
    offload,
    ring,
    start,
    zero1,
    zero1_again,
    zero1_more,
    zero1_step,
    zero2,
    zero2_again,
    zero3,
    zero3_again,
)
from zoo.right.answer import Right

RIGHT: dict[str, list[Right]] = {
    "00_start_here": [*start.RIGHT, *edges.START],
    "01_ring_collectives": [*ring.RIGHT, *edges.RING],
    "02_flat_buffers": [*flat.RIGHT, *flat_travel.RIGHT, *flat_more.RIGHT, *edges.FLAT],
    "03_zero_1": [*zero1.RIGHT, *zero1_step.RIGHT, *zero1_more.RIGHT, *zero1_again.RIGHT],
    "04_zero_2": [*zero2.RIGHT, *zero2_again.RIGHT],
    "05_zero_3": [*zero3.RIGHT, *zero3_again.RIGHT],
    "06_mixed_precision": mixed.RIGHT,
    "07_offloading": [right for right in offload.RIGHT if right.exercise != "best_place"],
    "07b_when_it_pays": [right for right in offload.RIGHT if right.exercise == "best_place"],
}

__all__ = ["RIGHT", "Right"]
