"""What training keeps: for one parameter, byte by byte; of all states, which rank keeps which part, stage by stage."""

from __future__ import annotations

from itertools import product

from zerolab.course.viz.drawing import Drawing, Style, filled, words
from zerolab.course.viz.looks import MEMORY
from zerolab.course.viz.picture import Picture, check_ranks, text_table
from zerolab.memory import predict_states
from zerolab.memory.states import SHARDED_FROM
from zerolab.zero.table import STAGES

KINDS = ("parameters", "gradients", "optimizer_states")
COPY = Style("#DDDDDD", "#888888")
OTHERS = Style("white", "#999999")
TEXT, START, END = words(12), words(13, "start"), words(12, "end")
ONE = {
    "parameters": ("parameter", "the parameter itself"),
    "gradients": ("gradient", "its gradient"),
    "optimizer_states": ("optimizer states", "what the optimizer remembers"),
}
"""Names for the states of one parameter."""


def sixteen_bytes(ranks: int = 1) -> Picture:
    """A square for each byte that plain data parallelism in fp32 keeps for one parameter, a row for each rank. All
    ranks keep the same, so those after the first are grey: they hold copies.

    Raises InputError for ranks outside 1 to 8.
    """
    check_ranks(ranks)
    sizes = {kind: round(predict_states(1, 1, 0, "fp32")[kind]) for kind in KINDS}
    whole, x = sum(sizes.values()), 56 if ranks > 1 else 6
    drawing = Drawing(x + 22 * whole + 30, 24 * ranks + 44)
    for rank in range(ranks if ranks > 1 else 0):
        drawing.text(x - 6, 24 * rank + 18, f"rank {rank}", END)
    for kind, size in sizes.items():
        for rank, byte in product(range(ranks), range(size)):
            drawing.box(x + 22 * byte, 24 * rank + 4, 19, 19, COPY if rank else filled(MEMORY[kind]))
        drawing.text(x + 11 * size, 24 * ranks + 20, ONE[kind][0], TEXT)
        drawing.text(x + 11 * size, 24 * ranks + 36, f"{size} bytes", TEXT)
        x += 22 * size + 12
    rows = [[f"rank {rank}", *sizes.values(), whole, "copies" if rank else ""] for rank in range(ranks)]
    table = text_table(["bytes", *(ONE[kind][0] for kind in KINDS), "all", ""], rows)
    parts = " + ".join(f"{size} for {ONE[kind][1]}" for kind, size in sizes.items())
    alt = f"The bytes that training keeps for one parameter, a square each: {parts} = {whole} bytes"
    if ranks > 1:
        alt += f"; {ranks} ranks keep {ranks * whole}, of which {(ranks - 1) * whole}, drawn grey, are copies"
    return Picture(drawing.figure(), table, f"{alt}.")


def owners(ranks: int = 4) -> Picture:
    """A panel for each stage, in it a row for each rank and a box for each of the three states, cut into as many parts
    as there are ranks: filled are the parts that the rank keeps, white those that it does not. A panel's title sums up
    the bytes a parameter that one rank keeps in fp32.

    Raises InputError for ranks outside 2 to 8.
    """
    check_ranks(ranks, 2)
    high = 26 * ranks + 50
    drawing = Drawing(764, 2 * high)
    rows, said = [], []
    for stage in STAGES:
        left, top = 50 + 384 * (stage % 2), high * (stage // 2)
        cut = [kind for kind in KINDS if stage >= SHARDED_FROM[kind]]
        sizes = predict_states(1, 1, 0, "fp32")
        total = f"{sum(predict_states(ranks, ranks, stage, 'fp32').values()) / ranks:g}"
        parts = [f"{sizes[kind]:g}" + f"/{ranks}" * (kind in cut) for kind in KINDS]
        title = f"stage {stage}: {' + '.join(parts)} = {total} bytes a parameter"
        drawing.text(left, top + 18, title, START)
        for column, kind in enumerate(KINDS):
            x = left + 110 * column
            drawing.text(x + 52, top + high - 14, MEMORY[kind].name, TEXT)
            for rank, part in product(range(ranks), repeat=2):
                kept = kind not in cut or part == rank
                box = x + 104 * part / ranks, top + 26 + 26 * rank, 104 / ranks, 20
                drawing.box(*box, filled(MEMORY[kind]) if kept else OTHERS)
        for rank in range(ranks):
            drawing.text(left - 6, top + 41 + 26 * rank, f"rank {rank}", END)
            keeps = (f"part {rank}" if kind in cut else f"all {ranks} parts" for kind in KINDS)
            rows.append([f"stage {stage}, rank {rank}", *keeps, total])
        of = "all three" if len(cut) == len(KINDS) else " and ".join(MEMORY[kind].name for kind in cut)
        keeps_so = f"one part in {ranks} of {of}" if cut else "all of everything"
        said.append(f"at stage {stage} a rank keeps {keeps_so}, {total} bytes a parameter")
    table = text_table(["keeps", *(MEMORY[kind].name for kind in KINDS), "bytes a parameter"], rows)
    alt = f"Who keeps which part of the states on {ranks} ranks: {'; '.join(said)}."
    return Picture(drawing.figure(), table, alt)
