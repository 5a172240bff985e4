"""How large gradients are, power by power of two, and which of them a format can hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log2

import torch

from zerolab.course.formats import find
from zerolab.course.viz.looks import MEMORY, PALE, ink
from zerolab.course.viz.picture import Picture, panels, text_table
from zerolab.errors import InputError

Window = tuple[str, float]
"""A format by name, and the factor that multiplies gradients before they are stored in it."""
HELD, LOST = PALE[6], ink(PALE[1])
OUTCOMES = ("lost", "coarse", "held", "too large")
"""What a format makes of a number: 0, a subnormal, a normal, nothing finite."""
ACROSS = "size of the gradient; thick: held, thin: coarse, crossed: lost (left) or too large (right)"


def gradient_windows(gradients: torch.Tensor, windows: Sequence[Window]) -> Picture:
    """A histogram of |gradient| by powers of two, and beneath it what each window can hold: a thick bar for normal
    numbers, a thin one for subnormals, whose last bits are missing. What lies to the left of both becomes 0. The table
    has the share of gradients for each outcome; gradients that are 0 themselves are left out.

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
        found = [f"{share:.0f} %" for share in shares(sizes, window)]
        said = f"{found[0]} lost, {found[1]} coarse" + (f",\n{found[3]} too large" if found[3] != "0 %" else "")
        lines.text(1.01, row, said, transform=lines.get_yaxis_transform(), fontsize=8, va="center")
        rows.append([named(window, "2^{:.0f}"), *found])
        losses.append(f"{rows[row][0]} loses {found[0]}")
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
    """Powers of two between which a format's numbers lie, seen from the gradients before they were scaled: from where
    on it has subnormal ones, then normal ones, and the largest. Half of the smallest is rounded to 0."""
    form, scale = find(window[0]), window[1]
    if not scale > 0:
        raise InputError(f"the scale of {window[0]} is {scale!r}; give a number above 0")
    return [log2(edge) - log2(scale) for edge in (form.smallest_subnormal / 2, form.smallest_normal, form.largest)]


def shares(sizes: torch.Tensor, window: Window) -> list[float]:
    """Percent of `sizes` (above 0) by outcome."""
    form, scaled = find(window[0]), sizes * window[1]
    # Half of the smallest number is rounded to the even one of two, 0.
    lost, large = scaled <= form.smallest_subnormal / 2, scaled > form.largest
    coarse = (scaled < form.smallest_normal) & ~lost
    return [100 * float(some.double().mean()) for some in (lost, coarse, ~(lost | coarse | large), large)]


def named(window: Window, two_to: str) -> str:
    name, scale = window
    power = log2(scale)
    by = two_to.format(power) if power.is_integer() else f"{scale:g}"
    return name if scale == 1 else f"{name} x {by}"
