"""Numbers in formats: what lies beside one, its bits; and which gradients a format can hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isfinite, isinf, isnan, log2

import torch

from zerolab.course.formats import FORMATS, between, bits, find, neighbours, number
from zerolab.course.viz.drawing import Drawing, Style, words
from zerolab.course.viz.looks import MEMORY, PALE, ink
from zerolab.course.viz.picture import Picture, panels, text_table
from zerolab.errors import InputError

MOST_TICKS = 150
"""More numbers than that in one stretch are a band."""
FIELDS = {"sign, first": PALE[3], "exponent, second": PALE[0], "mantissa, last": PALE[5]}
"""The fields stand apart and in this order, so that they can be told without colour."""
ROUNDED = "#A34700"
WIDE, LEFT, RIGHT, ROW, LETTER = 720, 60, 704, 44, 7
SMALL = words(12, halo=3)
END, START = (SMALL._replace(anchor=anchor) for anchor in ("end", "start"))
AXIS, TICK, BAND = Style(line="#999999"), Style(line="black", width=1), Style("#dddddd", "#999999")
Neighbours = tuple[float, float, float]
"""The next number below a value, the one that it is rounded to, and the next above."""


def number_line(value: float, zoom: str | None = None) -> Picture:
    """`value` among the numbers of each format. The stretch shown has room for its neighbours in format `zoom`, by
    default the coarsest; formats much finer than that are a band, much coarser ones lie outside."""
    beside = {name: neighbours(value, name) for name in FORMATS}
    if not isfinite(value):
        raise InputError(f"the value is {float(value)}, which lies on no line; give a finite number")
    value = float(value)
    half = half_of(value, [neighbours(value, find(zoom).name)] if zoom else [*beside.values()])
    low = 28 + ROW * len(FORMATS)
    drawing = Drawing(WIDE, low + 46 + 22 * len(FORMATS) + 30)
    drawing.text((LEFT + RIGHT) / 2, 16, f"{value:.9g} and the numbers beside it", words(13))
    for row, name in enumerate(FORMATS):
        drawing.text(LEFT - 8, 46 + ROW * row, name, END)
        draw_row(drawing, 42 + ROW * row, name, value, half, beside[name])
        draw_bits(drawing, low + 48 + 22 * row, name, value, beside[name][1])
    drawing.line((LEFT, low, RIGHT, low), TICK)
    for share in (-1, -0.5, 0, 0.5, 1):
        x = across(share)
        drawing.line((x, low, x, low + 5), TICK)
        drawing.text(x, low + 18, f"{share * half:+.3g}" if share else "0", END if share == 1 else SMALL)
    drawing.text(across(0), low + 36, f"distance from {value:.9g}, the tall line; thick: the rounding error", SMALL)
    for at, (said, colour) in enumerate(FIELDS.items()):
        drawing.box(LEFT + 160 * at, drawing.height - 20, 20, 12, Style(colour, "black"))
        drawing.text(LEFT + 160 * at + 26, drawing.height - 9, said, START)
    rows = [[name, bits(value, name), *map(short, three), *errors(value, three[1])] for name, three in beside.items()]
    table = text_table(["format", "bits", "below", "rounded to", "above", "error", "relative"], rows)
    stretch = f"{value:.9g}; the stretch shown is {2 * half:.3g} wide"
    said = ", ".join(f"{at:.9g} in {name}" for name, (_, at, _) in beside.items())
    alt = f"{value:.9g} among the numbers beside it: {said}."
    return Picture(drawing.figure(), f"{stretch}\n{table}", alt)


def across(share: float) -> float:
    """Where something lies, -1 and 1 being the ends of the stretch."""
    return LEFT + (RIGHT - LEFT) * (1 + share) / 2


def half_of(value: float, beside: Sequence[Neighbours]) -> float:
    """Half the width of a stretch in which the widest of these neighbours have room."""
    gaps = [
        max(value - below, above - value)
        for below, _, above in beside
        if isfinite(below) and isfinite(above) and below < value < above
    ]
    return 1.25 * max(gaps) if gaps else abs(value) / 2


def draw_row(drawing: Drawing, y: float, name: str, value: float, half: float, beside: Neighbours) -> None:
    """A format's numbers in the stretch, the one that the value is rounded to, and the way there."""
    low, high = value - half, value + half
    places = between(low, high, name)
    drawing.line((LEFT, y, RIGHT, y), AXIS)
    if len(places) > MOST_TICKS:
        drawing.box(LEFT, y - 9, RIGHT - LEFT, 18, BAND)
        drawing.text(LEFT + 8, y + 4, f"{len(places):,} numbers", START)
    else:
        for place in places:
            x = across((number(place, name) - value) / half)
            drawing.line((x, y - 9, x, y + 9), TICK)
    # The value itself, row by row: a line through all of them would strike out what is written between.
    drawing.line((across(0), y - 16, across(0), y + 9), Style(line="black", width=2))
    at = beside[1]
    if not low <= at <= high:
        side = "inf: too large for it" if isinf(at) else f"{at:.9g}, {'left' if at < low else 'right'} of here"
        drawing.text(RIGHT - 4, y + 23, f"rounded to {side}", END)
        return
    x = across((at - value) / half)
    drawing.line((across(0), y, x, y), Style(line=ROUNDED, width=4))
    drawing.add("", "disc", (x, y, 4), Style(ROUNDED, "black"))
    drawing.text(x, y + 23, f"{at:.9g}", SMALL._replace(fill=ROUNDED))
    for other in (beside[0], beside[2]):
        there, text = across((other - value) / half) if isfinite(other) else 0, f"{other:.9g}"
        room = LETTER * (len(text) + len(f"{at:.9g}")) / 2 + 6
        if LEFT + 8 < there < RIGHT - 8 and abs(there - x) > room:
            drawing.text(there, y + 23, text, SMALL)


def draw_bits(drawing: Drawing, y: float, name: str, value: float, at: float) -> None:
    """A box for each bit, and what they mean together."""
    drawing.text(LEFT - 8, y + 14, name, END)
    x = float(LEFT)
    for text, colour in zip(bits(value, name).split(), FIELDS.values(), strict=True):
        for bit in text:
            drawing.box(x, y, 14, 18, Style(colour, "black"))
            drawing.text(x + 7, y + 13, bit, words(12))
            x += 14
        x += 7
    drawing.text(x + 6, y + 14, f"= {at:.9g}", START)


def short(value: float) -> str:
    return "none" if isnan(value) else f"{value:.9g}"


def errors(value: float, at: float) -> tuple[str, str]:
    """Of a value that is rounded to `at`: the difference, and its share of the value."""
    error = at - value
    return f"{error:.3g}", f"{abs(error / value):.2g}" if value else "0"


Window = tuple[str, float]
"""A format by name, and the factor that multiplies gradients before they are stored in it."""
HELD, LOST = PALE[6], ink(PALE[1])
OUTCOMES = ("lost", "coarse", "held", "too large")
"""What a format makes of a number: 0, a subnormal, a normal, nothing finite."""
ACROSS = "size of the gradient; thick: held, thin: coarse, crossed: lost (left) or too large (right)"


def gradient_windows(gradients: torch.Tensor, windows: Sequence[Window]) -> Picture:
    """A histogram of |gradient| by powers of two, and what each window holds of it: a thick bar for normal numbers, a
    thin one for subnormals, whose last bits are missing. Gradients that are 0 are left out.

    gradients   any shape and floating dtype, on the CPU
    windows     (format, scale) pairs, as in ("fp16", 2.0**16)
    """
    sizes = gradients.detach().double().abs().flatten()
    if not bool(sizes.isfinite().all()):
        raise InputError("some gradients are inf or NaN, which lie on no line; give those of a step without overflow")
    sizes, zeros = sizes[sizes > 0], int((sizes == 0).sum())
    if not len(sizes):
        raise InputError(f"all {zeros} gradients are 0, so there is nothing to draw; give others")
    count = len(windows)
    figure, (bars, lines) = panels(2, 2.6 + 0.34 * count, height_ratios=[2.0, 0.24 * count + 0.2])
    powers = sizes.log2().floor()
    first, last = int(powers.min()), int(powers.max())
    shares_of = torch.bincount((powers - first).long()).double() / len(sizes) * 100
    middles = [first + place + 0.5 for place in range(len(shares_of))]
    bars.bar(middles, shares_of.tolist(), 0.9, color=MEMORY["gradients"].colour, linewidth=0)
    bars.set_ylabel("% of gradients")
    edges = [edges_of(window) for window in windows]
    # Windows that reach much farther than the gradients, as bf16's does, do not widen the picture.
    low = min(first, max(floor(min(edge[0] for edge in edges)) + 1, first - 8)) - 2
    high = max(last, min(floor(max(edge[2] for edge in edges)), last + 24)) + 2
    rows, losses = [], []
    for row, window in enumerate(windows):
        start, middle, stop = (min(max(edge, low), high) for edge in edges[row])
        lines.barh(row, stop - middle, 0.6, left=middle, color=HELD, linewidth=0)
        lines.barh(row, middle - start, 0.22, left=start, color=ink(HELD), linewidth=0)
        # What becomes 0, and what becomes inf.
        for left, right in ((low, start), (stop, high)):
            lines.barh(row, right - left, 0.6, left=left, color=LOST, hatch="xxx", edgecolor="white", linewidth=0)
        found = ["<1 %" if 0 < share < 0.5 else f"{share:.0f} %" for share in shares(sizes, window)]
        large = f"{found[3]} too large" if found[3] != "0 %" else ""
        said = f"{found[0]} lost, {found[1]} coarse" + (large and f",\n{large}")
        lines.text(1.01, row, said, transform=lines.get_yaxis_transform(), fontsize=8, va="center")
        rows.append([named(window, "2^{:.0f}"), *found])
        losses.append(f"{rows[row][0]} loses {found[0]}" + (large and f", {large}"))
    lines.set(xlim=(low, high), ylim=(count - 0.4, -0.6), xlabel=ACROSS)
    lines.set_yticks(range(count), [named(window, "$2^{{{:.0f}}}$") for window in windows])
    lines.tick_params(axis="y", length=0)
    lines.spines["left"].set_visible(False)
    every = ceil((high - low) / 12)
    ticks = range(ceil(low / every) * every, high + 1, every)
    lines.set_xticks(ticks, [f"$2^{{{power}}}$" for power in ticks])
    table = f"{len(sizes):,} gradients that are not 0, {zeros:,} that are\n{text_table(['stored in', *OUTCOMES], rows)}"
    alt = f"How large {len(sizes):,} gradients are, by powers of two, and what each format holds of them: "
    return Picture(figure, table, f"{alt}{'; '.join(losses)}.")


def edges_of(window: Window) -> list[float]:
    """Powers of two, for gradients before they are scaled: where a format has subnormal numbers, normal ones, and the
    largest."""
    form, scale = find(window[0]), window[1]
    if not scale > 0:
        raise InputError(f"the scale of {window[0]} is {scale!r}; give a number above 0")
    return [log2(edge) - log2(scale) for edge in (form.smallest_subnormal / 2, form.smallest_normal, form.largest)]


def shares(sizes: torch.Tensor, window: Window) -> list[float]:
    """Percent of `sizes` (above 0) by outcome."""
    form, scaled = find(window[0]), sizes * window[1]
    # Half-way goes to the even one: to 0 beside the smallest, and beyond the largest to inf, if there is one.
    lost, beyond = scaled <= form.smallest_subnormal / 2, 1.5 * form.largest - number(form.last - 1, form) / 2
    large = scaled >= beyond if form.infinite else scaled > beyond
    coarse = (scaled < form.smallest_normal) & ~lost
    return [100 * float(some.double().mean()) for some in (lost, coarse, ~(lost | coarse | large), large)]


def named(window: Window, two_to: str) -> str:
    name, scale = window
    power = log2(scale)
    by = two_to.format(power) if power.is_integer() else f"{scale:g}"
    return name if scale == 1 else f"{name} x {by}"
