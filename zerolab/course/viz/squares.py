"""What training keeps for one parameter, byte by byte, and how often ranks that only copy each other keep it."""

from __future__ import annotations

from matplotlib.patches import Rectangle

from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError
from zerolab.memory import predict_states

MOST_RANKS = 8
GAP = 0.6
"""Between two kinds, in squares."""
COPY = "#DDDDDD"


def sixteen_bytes(ranks: int = 1, precision: str = "fp32") -> Picture:
    """A square for each byte that plain data parallelism keeps for one parameter, a row for each rank. All ranks keep
    the same, so those after the first are grey: they hold copies.

        viz.sixteen_bytes()                         # 4 + 4 + 8 bytes
        viz.sixteen_bytes(ranks=4)                  # the same four times, and three of them copies
        viz.sixteen_bytes(precision="bf16")         # 2 + 2 + 12 bytes

    Raises:
        InputError: ranks outside 1 to 8, or a precision that there is not.
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"the bytes of {ranks!r} ranks cannot be drawn; take 1 to {MOST_RANKS}")
    sizes = {kind: round(size) for kind, size in predict_states(1, 1, 0, precision).items() if size}
    lefts, end = {}, 0.0
    for kind, size in sizes.items():
        lefts[kind] = end
        end += size + GAP
    label = 0.0 if ranks == 1 else 2.6
    wide, high = end - GAP + label + 0.3, ranks * 1.25 + 1.7
    figure = blank(4.1, 4.1 * high / wide)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    for rank in range(ranks):
        if ranks > 1:
            axes.text(-0.3, 1.25 * rank + 0.5, f"rank {rank}", ha="right", va="center", fontsize=9)
        for kind, size in sizes.items():
            _, colour, hatch = MEMORY[kind]
            for byte in range(size):
                corner = lefts[kind] + byte + 0.06, 1.25 * rank
                square = Rectangle(corner, 0.88, 1, facecolor=colour, hatch=hatch, edgecolor="black", linewidth=0.7)
                if rank:
                    square.set(facecolor=COPY, hatch="", edgecolor="#888888")
                axes.add_patch(square)
    for kind, size in sizes.items():
        words = f"{_name(kind)}\n{size} bytes"
        axes.text(lefts[kind] + size / 2, 1.25 * ranks, words, ha="center", va="top", fontsize=9, linespacing=1.1)
    axes.set_xlim(-label - 0.15, end - GAP + 0.15)
    axes.set_ylim(high - 0.25, -0.25)
    axes.axis("off")
    rows = [[f"rank {rank}", *sizes.values(), sum(sizes.values()), "copies" if rank else ""] for rank in range(ranks)]
    table = text_table(["bytes", *map(_name, sizes), "all", ""], rows)
    return Picture(figure, table, _alt(sizes, ranks))


def _name(kind: str) -> str:
    """Of one parameter."""
    return {"parameters": "parameter", "gradients": "gradient"}.get(kind, MEMORY[kind].name)


def _said(kind: str) -> str:
    return {"parameters": "the parameter itself", "gradients": "its gradient"}.get(kind, "what the optimizer remembers")


def _alt(sizes: dict[str, int], ranks: int) -> str:
    parts = " + ".join(f"{size} for {_said(kind)}" for kind, size in sizes.items())
    whole = sum(sizes.values())
    said = f"The bytes that training keeps for one parameter, a square each: {parts} = {whole} bytes"
    if ranks > 1:
        said += f"; {ranks} ranks keep {ranks * whole}, of which {(ranks - 1) * whole}, drawn grey, are copies"
    return f"{said}."
