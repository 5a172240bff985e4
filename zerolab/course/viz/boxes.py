"""Pictures of boxes: what training keeps, the circle of a training step, and a ring collective step by step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import hypot

from matplotlib.colors import to_hex

from zerolab.course.viz.drawing import Drawing, Style, filled, words
from zerolab.course.viz.film import Hop, film
from zerolab.course.viz.looks import COMPUTING, MEMORY, PALE, ink, pale_look
from zerolab.course.viz.picture import Picture, check_ranks, text_table
from zerolab.errors import InputError
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
    """A square for each byte that plain data parallelism in fp32 keeps for one parameter, a row for each of 1 to 8
    ranks. All keep the same, so those after the first are grey: they hold copies."""
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
    """A panel for each stage, in it a row for each of 2 to 8 ranks and a box for each state, cut into as many parts:
    filled are those that the rank keeps."""
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


KEPT = {"gradients": 2, "optimizer": 12, "parameters": 2}
"""Bytes a parameter that each keeps. The optimizer's step is where its states are."""
ARROWS = [
    ("computing", "gradients", 2),
    ("gradients", "optimizer", 2),
    ("optimizer", "parameters", 2),
    ("parameters", "computing", 4),
]
"""From, to, and bytes a parameter in a step: forward and backward both read the parameters."""
CIRCLE = {
    "computing": (110, 50, COMPUTING["compute"], "forward, backward"),
    "gradients": (450, 50, MEMORY["gradients"], "gradients"),
    "optimizer": (450, 210, MEMORY["optimizer_states"], "optimizer step"),
    "parameters": (110, 210, MEMORY["parameters"], "parameters"),
}
"""The middle of a box, its look and its name."""
WIDE, HIGH = 180, 80
LETTER = 8.5


def step_circle(host: Sequence[str] = ()) -> Picture:
    """The circle of a step in mixed precision, with the states named in `host` moved there: some of "gradients",
    "optimizer" and "parameters". An arrow from here to there crosses the link, and is thick."""
    if unknown := set(host) - set(KEPT):
        raise InputError(f"{min(unknown)!r} is no state that moves; choose among {', '.join(KEPT)}")
    drawing = Drawing(560, 260)
    for name, (x, y, look, said) in CIRCLE.items():
        box = x - WIDE / 2, y - HIGH / 2, WIDE, HIGH
        there = name in host
        drawing.box(*box, filled(look)._replace(width=2.5 if there else 0.8, dash=(7, 4) if there else ()))
        keeps = [f"keeps {KEPT[name]}, {'host' if there else 'device'}"] if name in KEPT else []
        label(drawing, x, y, [said, *keeps])
    rows, crossing = [], 0
    for start, end, nbytes in ARROWS:
        (x, y, _, said), (to_x, to_y, _, to_said) = CIRCLE[start], CIRCLE[end]
        crosses = (start in host) != (end in host)
        right, down = (to_x > x) - (to_x < x), (to_y > y) - (to_y < y)
        out, down_out = right * WIDE / 2, down * HIGH / 2
        style = Style(line="black", width=4 if crosses else 1.2)
        arrow(drawing, x + out, y + down_out, to_x - out, to_y - down_out, style)
        text = f"{nbytes}, over the link" if crosses else f"{nbytes}"
        middle, beside = ((x + to_x) / 2, (y + to_y) / 2), (0, -12) if right else (12, 5)
        anchor = "middle" if right else "start"
        drawing.text(middle[0] + beside[0], middle[1] + beside[1], text, words(anchor=anchor))
        crossing += nbytes * crosses
        rows.append([f"{said} to {to_said}", nbytes, "yes" if crosses else "no"])
    kept = sum(nbytes for name, nbytes in KEPT.items() if name not in host)
    verdict = f"{crossing} bytes a parameter cross the link in a step, {kept} stay on the device"
    where = f"{' and '.join(host)} on the host" if host else "all on the device"
    alt = f"A step as a circle of computing, gradients, optimizer and parameters, with {where}: {verdict}."
    table = text_table(["bytes a parameter", "pass", "cross the link"], rows)
    return Picture(drawing.figure(), table, alt, verdict)


def ring_steps(collective: str = "reduce_scatter", ranks: int = 4) -> Picture:
    """What each rank has in hand before each step of a ring and at the end, and where it goes."""
    hops = hops_of(collective, ranks)
    heads = [f"sent in step {step}" for step in range(1, ranks)] + ["end"]
    drawing = Drawing(170 * ranks + 40, 76 * ranks + 30)
    for rank, row in enumerate(hops):
        drawing.text(6, 76 * rank + 64, f"rank {rank}", words(anchor="start"))
        for step, hop in enumerate(row):
            x, y = 70 + 170 * step, 76 * rank + 30
            if rank == 0:
                drawing.text(x + 52, 16, heads[step], words())
            whole, to = len(hop.ranks) == ranks, (rank + 1) % ranks
            look = filled(pale_look(hop.chunk), width=2.4 if whole else 0.8)
            drawing.box(x, y, 105, 58, look._replace(opacity=0.8 if whole else 0.4))
            label(drawing, x + 52, y + 29, [f"chunk {hop.chunk}", shortened(hop.sum(ranks))])
            if step < ranks - 1:
                dash = () if to else (8, 6)
                colour = to_hex(ink(PALE[hop.chunk]))
                arrow(drawing, x + 106, y + 29, x + 169, 76 * to + 59, Style(line=colour, width=2.4, dash=dash))
    rows = [
        [f"rank {rank}", *(f"chunk {hop.chunk}: {hop.sum(ranks)}" for hop in row)]
        for rank, row in enumerate(hops)
    ]  # fmt: skip
    last = ", ".join(f"{row[-1].chunk}" for row in hops)
    alt = f"A ring {collective} over {ranks} ranks: in each of {ranks - 1} steps a rank sends a chunk to its right "
    alt += f"neighbour, and at the end ranks 0 to {ranks - 1} hold chunk {last} complete."
    return Picture(drawing.figure(), text_table(["", *heads], rows), alt)


def hops_of(collective: str, ranks: int) -> list[list[Hop]]:
    """By rank, what it sends in each step and, last, what it has in hand at the end."""
    if collective not in ("reduce_scatter", "all_gather"):
        raise InputError(f"no ring of {collective!r} can be drawn; name reduce_scatter or all_gather")
    *moments, end = film(collective, ranks)
    found = [[moment.messages[rank].hop for moment in moments] for rank in range(ranks)]
    for rank, row in enumerate(found):
        came = end.held[rank][moments[-1].messages[rank - 1].hop.chunk]
        assert came is not None
        row.append(came)
    return found


def shortened(summands: str) -> str:
    """A sum such as "g1+g2" as wide as a box."""
    parts = summands.split("+")
    return summands if len(parts) < 5 else f"{parts[0]}+...+{parts[-1]}"


def label(drawing: Drawing, x: float, y: float, lines: Sequence[str]) -> None:
    """Lines of text around a middle, on white."""
    wide, high = LETTER * max(map(len, lines)) + 6, 20 * len(lines)
    drawing.box(x - wide / 2, y - high / 2, wide, high, Style("white", opacity=0.9, width=0))
    for number, line in enumerate(lines):
        drawing.text(x, y - high / 2 + 15 + 20 * number, line, words())


def arrow(drawing: Drawing, x: float, y: float, to_x: float, to_y: float, style: Style) -> None:
    far = hypot(to_x - x, to_y - y)
    right, down = (to_x - x) / far, (to_y - y) / far
    long, half = 8 + 2 * style.width, 3 + style.width
    neck_x, neck_y = to_x - long * right, to_y - long * down
    drawing.line((x, y, neck_x, neck_y), style)
    sides = neck_x - half * down, neck_y + half * right, neck_x + half * down, neck_y - half * right
    drawing.add("", "area", (to_x, to_y, *sides), Style(style.line))
