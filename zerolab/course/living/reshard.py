"""The scene of resharding: who reads which elements from whose files when other ranks load what some have saved."""

from __future__ import annotations

from typing import Any

from zerolab.course.living import shards
from zerolab.course.viz.looks import HATCHES, PALE
from zerolab.course.viz.reshard import MOST_RANKS, readings
from zerolab.flat import lay_out

ALIGN, BYTES = 32, 14
"""Of lesson 08: slots start at multiples of so many elements, and an element has so many bytes with its states."""


def models() -> dict[str, shards.Shapes]:
    """What is saved and loaded, by name; two parameters of nine elements would be in one file."""
    return {name: shapes for name, shapes in shards.models().items() if shapes is not shards.SMALL}


def name_of(shapes: shards.Shapes, nbytes: int, align: int) -> str:
    """What the scene calls parameters of these shapes; empty where it does not have them, or has them otherwise."""
    known = shards.name_of(shapes)
    return known if known in models() and (nbytes, align) == (BYTES, ALIGN) else ""


def record() -> dict[str, Any]:
    """By "MODEL SAVED LOADED" what each rank reads where each loads its own shard, and by "MODEL SAVED" what each reads
    at stage 0: the number of the parameter, elements of it, whose files, and where it lies in the flat buffer."""
    found = models()
    counts = range(1, MOST_RANKS + 1)
    whole, own = {}, {}
    for name, shapes in found.items():
        for saved_by in counts:
            before = lay_out(shapes, saved_by, ALIGN)
            order = {slot.name: number for number, slot in enumerate(before.slots)}
            for loaded_by in counts:
                after = lay_out(shapes, loaded_by, ALIGN)
                own[f"{name} {saved_by} {loaded_by}"] = [
                    [one.rank, order[one.parameter], *one[2:]] for one in readings(before, after, stage=2)
                ]
            alone = readings(before, lay_out(shapes, 1, ALIGN), stage=0)
            whole[f"{name} {saved_by}"] = [[order[one.parameter], *one[2:]] for one in alone]
    shown = shards.record()
    return {
        "ranks": shown["ranks"],
        "models": {name: shown["models"][name] for name in found},
        "nbytes": BYTES,
        "looks": [{"colour": PALE[at], "hatch": HATCHES[at]} for at in range(MOST_RANKS)],
        "layouts": {
            f"{name} {ranks}": shards.laid_out(lay_out(shapes, ranks, ALIGN))
            for name, shapes in found.items()
            for ranks in counts
        },
        "own": own,
        "whole": whole,
    }
