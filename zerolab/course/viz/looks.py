"""One name, one colour and one hatch for each kind of memory, in every picture of the course.

The colours are Okabe and Ito's and Tol's wine, which people with any colour vision can tell apart. No picture relies
on colour alone. Colour means memory: what is computed is white, and what is neither is pale.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.colors import to_rgb

from zerolab.memory import KINDS

COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442", "#999999", "#882255")
HATCHES = ("", "//", "..", "xx", "\\\\", "oo", "++", "--", "**")
PALE = ("#99DDFF", "#EE8866", "#BBCC33", "#FFAABB", "#77AADD", "#EEDD88", "#44BB99", "#DDDDDD", "#AAAA00")
"""Tol's light scheme, made to carry black text: for things that are no kind of memory."""


class Look(NamedTuple):
    """How something is named and filled."""

    name: str
    colour: str
    hatch: str


# Parameters and the whole ones at hand are blue, gradients and their buffers orange and red.
MEMORY = {kind: Look(kind.replace("_", " "), *look) for kind, *look in zip(KINDS, COLOURS, HATCHES, strict=True)}
"""By kind of memory."""

WHITE = "#FFFFFF"
COMPUTING = {
    "forward": Look("forward", WHITE, ""),
    "backward": Look("backward", WHITE, "////"),
    "update": Look("update", WHITE, "xxxx"),
    "compute": Look("compute", WHITE, ""),
}
# What travels has the colour of what it brings or takes away.
TRAVELLING = {
    "all_gather": Look("all_gather", *MEMORY["gathered_units"][1:]),
    "reduce_scatter": Look("reduce_scatter", *MEMORY["gradient_buffers"][1:]),
    "all_reduce": Look("all_reduce", MEMORY["gradient_buffers"].colour, "oo"),
}
# States that pass through a buffer have the states' colour: paler on the way in, full on the way out.
PASSING = {
    "read": Look("read", "#B2E0D3", "//"),
    "compute": COMPUTING["compute"],
    "write": Look("write", MEMORY["optimizer_states"].colour, "\\\\"),
}


def named(kind: str) -> str:
    """A kind of memory as pictures call it; any other name as it is."""
    return MEMORY[kind].name if kind in MEMORY else kind


def pale_look(number: int, name: str = "") -> Look:
    """Of the `number`th of things that are no kind of memory."""
    return Look(name, PALE[number % len(PALE)], HATCHES[number % len(HATCHES)])


def look_of(name: str, number: int) -> Look:
    """Of a kind of memory, by the ledger's key or the picture's name; of anything else, the `number`th pale one."""
    return MEMORY.get(name.replace(" ", "_")) or pale_look(number, name)


def ink(colour: str) -> tuple[float, float, float]:
    """A darker shade, for lines that must be seen on white: a contrast of 3 to 1 or more for all colours."""
    red, green, blue = to_rgb(colour)
    return 0.64 * red, 0.64 * green, 0.64 * blue
