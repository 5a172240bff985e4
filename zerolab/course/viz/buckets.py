"""What the size of buckets costs: few large messages against many small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from zerolab.collectives import Link
from zerolab.course.viz.looks import MEMORY, PALE, ink
from zerolab.course.viz.picture import BACKDROP, Picture, blank, figures, text_table
from zerolab.flat import lay_out, split_by_size

SIZES = tuple(4**power for power in range(4, 13))
"""Elements, from 256 to 16.8 million."""


def bucket_explorer(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int = 3
) -> Picture:
    """All-reducing gradients of `shapes` (fp32) in buckets of at most so many elements: time on the link by the ring's
    cost, and bytes of `in_flight` buckets that are alive at once, for every size; the chosen one is marked."""
    sizes = sorted({*SIZES, bucket_numel})
    found = {size: costs(shapes, ranks, link, size, in_flight) for size in sizes}
    figure = blank(7.4, 3.9)
    # Two panels: on one, the place where two lines of different units cross would look like a meaning.
    times, memory = figure.subplots(2, 1, sharex=True)
    milliseconds = [1e3 * found[size][1] for size in sizes]
    megabytes = [found[size][2] / 1e6 for size in sizes]
    buffers = MEMORY["gradient_buffers"].colour
    times.plot(sizes, milliseconds, "o-", color=ink(PALE[4]))
    memory.plot(sizes, megabytes, "s-", color=ink(buffers))
    for axes, values, title in (
        (times, milliseconds, "time on the link, ms"),
        (memory, megabytes, "gradient buffers alive at once, MB"),
    ):
        axes.axvline(bucket_numel, color="black", linewidth=1, linestyle=":", zorder=0.5)
        chosen = values[sizes.index(bucket_numel)]
        axes.plot([bucket_numel], [chosen], "o", color="black", markersize=8, fillstyle="none", markeredgewidth=1.5)
        late = sizes.index(bucket_numel) > len(sizes) // 2
        axes.annotate(
            figures(chosen), (bucket_numel, chosen), xytext=(-9 if late else 9, 7), textcoords="offset points",
            ha="right" if late else "left", fontsize=9, bbox={**BACKDROP, "pad": 0.5},
        )  # fmt: skip
        axes.set_ylim(0, 1.3 * max(values))
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    memory.set_xscale("log", base=4)
    memory.set_xlabel("elements of a bucket; dotted: the chosen size")
    memory.set_xticks(sizes, [short(size) for size in sizes], fontsize=8)
    memory.minorticks_off()
    rows = [
        [f"{size:,}{' (chosen)' if size == bucket_numel else ''}", count, f"{1e3 * seconds:.2f}", f"{nbytes / 1e6:.2f}"]
        for size, (count, seconds, nbytes) in found.items()
    ]
    count, seconds, nbytes = found[bucket_numel]
    verdict = (
        f"At most {bucket_numel:,} elements a bucket: {count:,} bucket{'s' * (count > 1)}, {1e3 * seconds:.2f} ms "
        f"on the link, {nbytes / 1e6:.2f} MB of them alive at once."
    )
    least = min(found, key=lambda size: found[size][1])
    alt = f"{verdict} The least time, {1e3 * found[least][1]:.2f} ms, is that of {least:,} elements."
    return Picture(figure, text_table(["elements", "buckets", "ms", "MB alive"], rows), alt, verdict)


def short(count: int) -> str:
    """Such as 256, 16.4k and 4.19M."""
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}k" if count >= 1e3 else str(count)


def costs(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int
) -> tuple[int, float, int]:
    """Buckets, seconds and bytes alive at once."""
    runs = split_by_size(((name, prod(shape)) for name, shape in shapes.items()), bucket_numel)
    lengths = [lay_out({name: shapes[name] for name in run}, ranks).numel for run in runs]
    seconds = sum(link.ring_seconds("all_reduce", length, 4, ranks) for length in lengths)
    alive = max(sum(lengths[at : at + in_flight]) for at in range(len(lengths)))
    return len(runs), seconds, 4 * alive
