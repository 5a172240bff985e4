"""How large gradients are, power by power of two, and which of them a format can hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, isfinite, log2

import torch
from matplotlib.axes import Axes

from zerolab.course.formats import Format, find
from zerolab.course.viz.looks import MEMORY, PALE, ink
from zerolab.course.viz.picture import Picture, blank, text_table
from zerolab.errors import InputError

Window = tuple[str, float]
"""A format by name, and the factor that multiplies gradients before they are stored in it."""
HELD, LOST = PALE[6], ink(PALE[1])
OUTCOMES = ("lost", "coarse", "held", "too large")
"""What a format makes of a number: 0, a subnormal, a normal, nothing finite."""


def gradient_windows(gradients: torch.Tensor, windows: Sequence[Window] = (("fp16", 1.0),)) -> Picture:
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
    if not windows:
        raise InputError("there are no windows to draw; give (format, scale) pairs")
    for name, scale in windows:
        find(name)
        if not isfinite(scale) or scale <= 0:
            raise InputError(f"the scale of {name} is {scale!r}; give a finite number above 0")
    figure = blank(7.6, 2.6 + 0.34 * len(windows))
    heights = [2.0, 0.24 * len(windows) + 0.2]
    bars, lines = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": heights})
    low, high = _histogram(bars, sizes, windows)
    for row, (name, scale) in enumerate(windows):
        _window(lines, row, find(name), log2(scale), low, high)
    _frame(lines, windows, low, high)
    found = [shares(sizes, window) for window in windows]
    for row, (lost, coarse, _, large) in enumerate(found):
        said = f"{lost:.0f} % lost, {coarse:.0f} % coarse" + (f",\n{large:.0f} % too large" if large else "")
        lines.text(1.01, row, said, transform=lines.get_yaxis_transform(), fontsize=8, va="center")
    rows = [[_named(window), *(f"{share:.0f} %" for share in of)] for window, of in zip(windows, found, strict=True)]
    head = f"{len(sizes):,} gradients that are not 0, {zeros:,} that are\n"
    losses = "; ".join(f"{_named(window)} loses {of[0]:.0f} %" for window, of in zip(windows, found, strict=True))
    alt = f"How large {len(sizes):,} gradients are, by powers of two, and what each format holds of them: {losses}."
    return Picture(figure, head + text_table(["stored in", *OUTCOMES], rows), alt)


def shares(sizes: torch.Tensor, window: Window) -> list[float]:
    """Percent of `sizes` (above 0) by outcome."""
    form, scaled = find(window[0]), sizes * window[1]
    # Half of the smallest number is rounded to the even one of two, 0.
    lost, large = scaled <= form.smallest_subnormal / 2, scaled > form.largest
    coarse = (scaled < form.smallest_normal) & ~lost
    return [100 * float(some.double().mean()) for some in (lost, coarse, ~(lost | coarse | large), large)]


def _histogram(axes: Axes, sizes: torch.Tensor, windows: Sequence[Window]) -> tuple[int, int]:
    """Bars, one for each power of two; the powers to show."""
    powers = sizes.log2().floor().long()
    first, last = int(powers.min()), int(powers.max())
    ends = [floor(log2(find(name).smallest_subnormal / scale)) for name, scale in windows]
    tops = [floor(log2(find(name).largest / scale)) for name, scale in windows]
    # Windows that reach much farther than the gradients, as bf16's does, do not widen the picture.
    low = min(first, max(min(ends), first - 8)) - 2
    high = max(last, min(max(tops), last + 24)) + 2
    counts = torch.bincount(powers - first).double() / len(sizes) * 100
    middles = [first + place + 0.5 for place in range(len(counts))]
    axes.bar(middles, counts.tolist(), 0.9, color=MEMORY["gradients"].colour, linewidth=0)
    axes.set_ylabel("% of gradients")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelbottom=False)
    return low, high


def _window(axes: Axes, row: int, form: Format, shift: float, low: float, high: float) -> None:
    """Where a format's numbers lie, seen from the gradients before they were scaled."""
    edges = [log2(edge) - shift for edge in (form.smallest_subnormal / 2, form.smallest_normal, form.largest)]
    start, middle, stop = (min(max(edge, low), high) for edge in edges)
    axes.barh(row, stop - middle, 0.6, left=middle, color=HELD, linewidth=0)
    axes.barh(row, middle - start, 0.22, left=start, color=ink(HELD), linewidth=0)
    # What becomes 0, and what becomes inf.
    for left, right in ((low, start), (stop, high)):
        axes.barh(row, right - left, 0.6, left=left, color=LOST, hatch="xxx", edgecolor="white", linewidth=0)


def _frame(axes: Axes, windows: Sequence[Window], low: int, high: int) -> None:
    axes.set_yticks(range(len(windows)), [_named(window, "$2^{{{:.0f}}}$") for window in windows])
    axes.set_ylim(len(windows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(low, high)
    every = max(1, -(-(high - low) // 12))
    ticks = range(-(-low // every) * every, high + 1, every)
    axes.set_xticks(ticks, [f"$2^{{{power}}}$" for power in ticks])
    axes.set_xlabel("size of the gradient; thick: held, thin: coarse, crossed: lost (left) or too large (right)")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _named(window: Window, two_to: str = "2^{:.0f}") -> str:
    name, scale = window
    if scale == 1:
        return name
    power = log2(scale)
    return f"{name} x {two_to.format(power)}" if power.is_integer() else f"{name} x {scale:g}"
