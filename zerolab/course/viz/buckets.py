"""What the size of buckets costs: few large messages against many small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from zerolab.collectives import Link
from zerolab.course.viz.looks import MEMORY, PALE, ink
from zerolab.course.viz.picture import BACKDROP, Picture, figures, panels, text_table
from zerolab.flat import lay_out, split_by_size

SIZES = tuple(4**power for power in range(4, 13))
"""Elements, from 256 to 16.8 million."""


def bucket_explorer(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int = 3
) -> Picture:
    """All-reducing gradients of `shapes` (fp32) in buckets of at most so many elements: time on the link by the ring's
    cost, and bytes of `in_flight` buckets that are alive at once, for each of SIZES; the chosen one is marked."""
    found = {size: costs(shapes, ranks, link, size, in_flight) for size in SIZES}
    # Two panels: on one, the place where two lines of different units cross would look like a meaning.
    figure, axes = panels(2, 3.9)
    buffers, chosen = MEMORY["gradient_buffers"].colour, SIZES.index(bucket_numel)
    late = chosen > len(SIZES) // 2
    for panel, column, colour, marker, title in (
        (axes[0], 1, PALE[4], "o", "time on the link, ms"),
        (axes[1], 2, buffers, "s", "gradient buffers alive at once, MB"),
    ):
        values = [costs_of[column] for costs_of in found.values()]
        panel.plot(SIZES, values, f"{marker}-", color=ink(colour))
        panel.axvline(bucket_numel, color="black", linewidth=1, linestyle=":", zorder=0.5)
        at = bucket_numel, values[chosen]
        panel.plot(*at, "o", color="black", markersize=8, fillstyle="none", markeredgewidth=1.5)
        panel.annotate(
            figures(at[1]), at, xytext=(-9 if late else 9, 7), textcoords="offset points",
            ha="right" if late else "left", fontsize=9, bbox=BACKDROP,
        )  # fmt: skip
        panel.set_ylim(0, 1.3 * max(values))
        panel.set_title(title, loc="left", fontsize=10)
    axes[1].set_xscale("log", base=4)
    axes[1].set_xlabel("elements of a bucket; dotted: the chosen size")
    axes[1].set_xticks(SIZES, map(short, SIZES), fontsize=8)
    axes[1].minorticks_off()
    rows = [
        [f"{size:,}{' (chosen)' * (size == bucket_numel)}", count, f"{millis:.2f}", f"{megabytes:.2f}"]
        for size, (count, millis, megabytes) in found.items()
    ]
    count, millis, megabytes = found[bucket_numel]
    verdict = f"At most {bucket_numel:,} elements a bucket: {count:,} bucket{'s' * (count > 1)}, {millis:.2f} ms "
    verdict += f"on the link, {megabytes:.2f} MB of them alive at once."
    least = min(found, key=lambda size: found[size][1])
    alt = f"{verdict} The least time, {found[least][1]:.2f} ms, is that of {least:,} elements."
    return Picture(figure, text_table(["elements", "buckets", "ms", "MB alive"], rows), alt, verdict)


def short(count: int) -> str:
    """Such as 256, 16.4k and 4.19M."""
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)


def costs(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int
) -> tuple[int, float, float]:
    """Buckets, milliseconds and megabytes alive at once."""
    runs = split_by_size(((name, prod(shape)) for name, shape in shapes.items()), bucket_numel)
    lengths = [lay_out({name: shapes[name] for name in run}, ranks).numel for run in runs]
    seconds = sum(link.ring_seconds("all_reduce", length, 4, ranks) for length in lengths)
    alive = max(sum(lengths[at : at + in_flight]) for at in range(len(lengths)))
    return len(runs), 1e3 * seconds, 4 * alive / 1e6
