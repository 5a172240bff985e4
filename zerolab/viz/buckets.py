"""What the size of buckets costs: few large messages against many small ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from zerolab.collectives import Link
from zerolab.flat import lay_out, split_by_size
from zerolab.viz.picture import COLOURS, Picture, blank, ink, text_table

SIZES = tuple(4**power for power in range(4, 13))
"""Elements, from 256 to 16.8 million."""


def bucket_explorer(
    shapes: Mapping[str, Sequence[int]], ranks: int, link: Link, bucket_numel: int, in_flight: int = 3
) -> Picture:
    """All-reducing gradients of `shapes` (fp32) in buckets of at most so many elements: time on the link by the ring's
    cost, and bytes of `in_flight` buckets that are alive at once, for every size; the chosen one is marked."""
    sizes = sorted({*SIZES, bucket_numel})
    found = {size: costs(shapes, ranks, link, size, in_flight) for size in sizes}
    figure = blank(7.2, 3.2)
    times = figure.add_subplot()
    memory = times.twinx()
    milliseconds = [1e3 * found[size][1] for size in sizes]
    megabytes = [found[size][2] / 1e6 for size in sizes]
    times.plot(sizes, milliseconds, "o-", color=ink(COLOURS[0]), label="time on the link, ms")
    memory.plot(sizes, megabytes, "s--", color=ink(COLOURS[1]), label="buckets alive, MB")
    times.axvline(bucket_numel, color="black", linewidth=1, linestyle=":")
    times.set_xscale("log", base=4)
    times.set_xlabel("elements of a bucket")
    times.set_ylabel("ms")
    memory.set_ylabel("MB")
    times.set_ylim(0, 1.08 * max(milliseconds))
    memory.set_ylim(0, 1.08 * max(megabytes))
    times.set_xticks(sizes, [short(size) for size in sizes], fontsize=8)
    times.minorticks_off()
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    for axes in (times, memory):
        axes.spines["top"].set_visible(False)
    rows = [
        [f"{size:,}{' (chosen)' if size == bucket_numel else ''}", count, f"{1e3 * seconds:.2f}", f"{nbytes / 1e6:.2f}"]
        for size, (count, seconds, nbytes) in found.items()
    ]
    return Picture(figure, text_table(["elements", "buckets", "ms", "MB alive"], rows))


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
